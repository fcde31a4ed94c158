"""What accuracy is against: the outputs of the given model in float32.

Most runtimes compute it so, and are asked themselves. One that computes float32 operators in fewer bits would hide what
that loses: a model within the bound of such outputs may be far outside it for whoever trained the given one. There the
numeric reference computes what others are compared with, and the given model is judged like them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from inlay.data import Samples, load_feed
from inlay.errors import TargetError
from inlay.measure.journal import Journal
from inlay.model.load import ModelFile
from inlay.model.reference import Session
from inlay.quant.accuracy import Bound, Judge, Outputs
from inlay.run.facts import ROUNDS_FLOATS

_SAME_DB = 60.0
"""SQNR from which on a target's own outputs are as good as float32: what they lack takes 0.004 dB off 30 dB."""

RunFiles = Callable[[Sequence[Path]], Sequence[Outputs]]
"""Outputs of a model for the samples in files. Raises TargetError."""


def exact_outputs(
    in_float32: RunFiles, own: Sequence[Outputs], samples: Samples, feeds: Sequence[Path], journal: Journal
) -> Sequence[Outputs] | None:
    """The given model's outputs in float32 where those of its target differ: whether they do is decided once in a run.

    Returns:
        None where the target's own outputs serve, or where the reference cannot run the model.
    """
    known = journal.fact(ROUNDS_FLOATS)
    if journal.judged and not known:
        return None
    try:
        exact = in_float32(feeds)
    except TargetError:
        return None
    if not known:
        if Judge(exact, samples, Bound(), confidence=None).judge(own).sqnr_db >= _SAME_DB:
            return None
        journal.record_fact(ROUNDS_FLOATS, True)
    return exact


def in_reference(file: ModelFile) -> RunFiles:
    """Runs the given model in the numeric reference, so that no target has to build it."""
    built = list[Session]()

    def run(paths: Sequence[Path]) -> Sequence[Outputs]:
        if not built:
            built.append(Session.of_file(file.content, file.size, sum(1 for _ in file.model.graph.all_nodes())))
        return [built[0].run(load_feed(path)) for path in paths]

    return run
