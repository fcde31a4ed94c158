"""What a table does not know of a model's shapes, from profiles here, where the file is for another processor.

A cost table is linear in the workload, and off by a third for single kernels: a depthwise convolution of few channels
took a fifth of what the table said. How far it is off is a matter of shapes and surroundings more than of the
processor. So the models that are built are profiled here, where they run anyway, and what this processor's own table
says too much or too little, the other one's is taken to say as well. Only for processors of one architecture: kernels
of another one have other shapes. The times themselves are this processor's, and count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from inlay.errors import TargetError
from inlay.measure.client import Worker, usual_limit
from inlay.run.instant.proposal import Instant
from inlay.run.machine_costs import read_costs
from inlay.search.cost_table import CostTable
from inlay.targets.base import Artifact, TargetSpec
from inlay.targets.registry import create

_BLOCKS, _SLOT_NS, _INFERENCES = 3, 2_000_000, 5
"""Of a timing and a profile, which tell ratios of kernels, not who is faster."""


class Here:
    """This machine: its worker, which ``worker`` is, and its table."""

    def __init__(self, worker: Worker, table: CostTable) -> None:
        self._worker, self._table = worker, table

    def teach(self, instant: Instant, labels: np.ndarray, artifact: Artifact, feed: Path) -> None:
        """Profile a model, and let ``instant`` know by how much the table here is off. What fails is left out."""
        with suppress(TargetError):
            ns = self._worker.time([artifact], feed, _BLOCKS, _SLOT_NS, 0).models[0].median_ns
            kernels = self._worker.profile(artifact, feed, _INFERENCES)
            instant.learn_elsewhere(self._table, labels, kernels, ns)


@contextmanager
def profiled_here(spec: TargetSpec, machine: str | None, folder: Path) -> Iterator[Here | None]:
    """This machine, where it has a table and the architecture ``machine``, for a target that names a processor.

    None for all others. ``folder`` is where files go.
    """
    there = ("processor", "version")
    plain = TargetSpec(spec.name, {name: value for name, value in spec.options.items() if name not in there})
    if plain == spec:
        yield None
        return
    target = create(plain)
    found = target.fingerprint()
    known = read_costs(target, found)
    if known.table is None or found.facts.get("machine") != machine:
        yield None
        return
    with Worker(plain, folder, usual_limit) as worker:
        yield Here(worker, known.table)
