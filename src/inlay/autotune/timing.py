"""A ready ``measure`` for the loop and the workflow: any target, in a process of its own."""

from __future__ import annotations

import shutil
from itertools import count
from typing import Any

import numpy as np

from inlay.autotune.subject import SampleSource
from inlay.data import input_specs, random_samples, read_samples, save_feed
from inlay.files import scratch_folder
from inlay.measure.client import Worker
from inlay.model.held import held
from inlay.model.load import ModelSource, load
from inlay.targets.base import Artifact, TargetSpec
from inlay.targets.registry import DEFAULT_TARGET, target_of

_BLOCKS, _SLOT_NS = 15, 4_000_000  # readings of a model, and nanoseconds that each takes at least


def measurer(
    target: str | TargetSpec = DEFAULT_TARGET,
    samples: SampleSource | None = None,
    *,
    blocks: int = _BLOCKS,
    **options: Any,
) -> Measurer:
    """What times models on a target: milliseconds of an inference, the median of ``blocks`` readings.

    Args:
        target: its name, or a target with options.
        samples: inputs as ``--data`` takes them, of which the first is run; without any, random ones.
        blocks: readings of each model; one where the target's times are estimates.
        options: of the target (``threads=2``, ``capability="8.9"``).

    Raises:
        UsageError: there is no such target or option.
        TargetError: the target does not start.
    """
    return Measurer(target_of(target, options), samples, blocks)


class Measurer:
    """Times models one after another in one worker process, until it is closed; it is a context manager."""

    def __init__(self, spec: TargetSpec, samples: SampleSource | None, blocks: int) -> None:
        self._samples, self._blocks, self._numbers = samples, blocks, count()
        self._folder = scratch_folder()
        self._worker = Worker(spec, self._folder)

    @property
    def facts(self) -> dict[str, str]:
        """What the figures depend on: versions, device, options."""
        return dict(self._worker.fingerprint.facts)

    def __call__(self, model: ModelSource | bytes) -> float:
        """Milliseconds of an inference of a model: a path, a model in memory, or its bytes.

        Raises:
            TargetError: it cannot be built or run.
            DataError: the samples do not fit it.
        """
        place = self._folder / str(next(self._numbers))
        place.mkdir()
        if isinstance(model, bytes):
            (place / "given.onnx").write_bytes(model)
            model = place / "given.onnx"
        file = held(load(model), place / "held")
        specs = input_specs(file.model)
        found = (
            random_samples(specs, np.random.default_rng(0), 1)
            if self._samples is None
            else read_samples(self._samples, specs)
        )
        save_feed(place / "feed.npz", found.feeds[0])
        artifact = Artifact(file.content.resolve(), f"{place.name}-{file.sha256}")
        try:
            timing = self._worker.time([artifact], place / "feed.npz", self._blocks, _SLOT_NS, 0)
        finally:
            self._worker.drop(artifact)
        return float(timing.models[0].median_ns) / 1e6

    def close(self) -> None:
        """End the process."""
        self._worker.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
