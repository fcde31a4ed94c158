"""Reasons are proven: an operator is mended alone, the model built, and its profile says whether it runs on integers.

Where several things are wrong with an operator, all are mended, and then all but one: what is not needed is no reason.
Experiments whose operators do not touch each other share a model, so that a few builds prove the reasons of hundreds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from inlay.errors import InlayError, TargetError
from inlay.explanation import policy
from inlay.explanation.executed import Executed, profiled, written
from inlay.explanation.explanation import Proof
from inlay.explanation.faults import Fault, Suspect
from inlay.measure.client import Worker
from inlay.model.store import WeightStore
from inlay.quant.site import Site
from inlay.space.rules import Rules
from inlay.targets.preconditions import Precondition

Mends = Mapping[str, Sequence[Fault]]  # what to mend, by operator


class Laboratory:
    """Builds mended forms of one model, and says what ran.

    Args:
        model: in its Q/DQ form; is not changed.
        found: what may be wrong with the model, by operator.
    """

    def __init__(
        self,
        worker: Worker,
        model: ir.Model,
        target: tuple[Rules, Sequence[Precondition]],
        found: Mapping[str, Suspect],
        folder: Path,
        feed: Path,
    ) -> None:
        self._worker, self._model, self._folder, self._feed = worker, model, folder, feed
        self._rules, self._rows = target
        self._own = {name: {f.row.name for f in suspect.faults} for name, suspect in found.items()}
        folder.mkdir(exist_ok=True)
        self._store = WeightStore(folder)
        self.builds = 0

    def mended(self, mends: Mends) -> ir.Model:
        """A copy of the model with ``mends``."""
        copy = self._model.clone()
        nodes = {str(n.name): n for n in copy.graph}
        for name, faults in mends.items():
            for fault in faults:
                self._mend(nodes[name], fault.row)
            for row in self._rows:  # made-up scales may not meet what real ones would
                if row.name not in self._own[name]:
                    self._mend(nodes[name], row)
        RemoveUnusedNodesPass()(copy)
        return copy

    def _mend(self, node: ir.Node, row: Precondition) -> None:
        site = Site(node, self._rules)
        if row.mend is not None and row.fault_at(site) is not None:  # a neighbor's mend may have met it
            row.mend(site)

    def profile(self, mends: Mends, repeats: int) -> tuple[Executed, ir.Model]:
        """What runs with ``mends``, and the model that ran. Raises TargetError."""
        self.builds += 1
        copy = self.mended(mends)
        artifact = written(copy, self._store, self._folder, f"{self.builds}")
        try:
            return profiled(self._worker, artifact, self._feed, repeats, copy.graph, self._rules), copy
        finally:
            artifact.path.unlink(missing_ok=True)

    def low_in(self, mends: Mends) -> Executed | None:
        """What runs with ``mends``; None where that does not build or run."""
        try:
            return self.profile(mends, policy.CHECK_REPEATS)[0]
        except TargetError:
            return None


@dataclass(frozen=True, eq=False)
class Proven:
    """What experiments showed of one operator: the faults that count, and how that is known."""

    faults: tuple[Fault, ...]
    proof: Proof


@dataclass(frozen=True, eq=False)
class _Trial:
    """One operator with some of its faults mended, and which one is left, if any."""

    suspect: Suspect
    faults: tuple[Fault, ...]
    left: Fault | None


def prove(
    laboratory: Laboratory, found: Sequence[Suspect], together: Executed | None, more: Callable[[], bool]
) -> dict[str, Proven]:
    """Try each suspect alone, in the order given, for as long as there may be ``more`` experiments.

    Args:
        together: what ran once all of them were mended.
        more: whether a further model may be built.
    """
    works: dict[str, bool] = {}
    needless: dict[str, set[str]] = {}
    for group in _independent(list(_trials(found))):
        if not more():
            break
        ran = laboratory.low_in({t.suspect.name: t.faults for t in group})
        if ran is None:  # one of them stops the model: each of the others is still worth its own
            continue
        for trial in group:
            name = trial.suspect.name
            works[name] = works.get(name, False) or ran.is_low(name)  # a mend too many may be what stops it
            if trial.left is not None and ran.is_low(name):
                needless.setdefault(name, set()).add(trial.left.row.name)
    proven = {}
    for suspect in found:
        needed = tuple(f for f in suspect.faults if f.row.name not in needless.get(suspect.name, ()))
        needed = needed or suspect.faults[:1]
        alone = works.get(suspect.name)
        if alone:
            proven[suspect.name] = Proven(needed, "alone")
        elif together is not None and together.is_low(suspect.name):
            proven[suspect.name] = Proven(suspect.faults, "together")
        else:
            proven[suspect.name] = Proven(suspect.faults, "predicted" if alone is None else "refuted")
    return proven


def _trials(found: Sequence[Suspect]) -> Iterator[_Trial]:
    for suspect in found:
        yield _Trial(suspect, suspect.faults, None)
    for suspect in found:
        if len(suspect.faults) > 1:
            for left in suspect.faults:
                yield _Trial(suspect, tuple(f for f in suspect.faults if f is not left), left)


def _independent(trials: Sequence[_Trial]) -> list[list[_Trial]]:
    """Groups whose operators, with their neighbors, do not meet; each trial in the first group that it fits."""
    groups: list[tuple[list[_Trial], set[str]]] = []
    for trial in trials:
        zone = trial.suspect.zone
        for members, taken in groups[: policy.MOST_EXPERIMENTS]:
            if not taken & zone:
                members.append(trial)
                taken |= zone
                break
        else:
            groups.append(([trial], set(zone)))
    return [members for members, _ in groups]


def does_run(laboratory: Laboratory, found: Sequence[Suspect], why: InlayError) -> tuple[str, Mends]:
    """Which fault keeps a model from being built or run: the first row that, mended everywhere, lets it.

    Returns:
        Name of the row, and the operators that have the fault.

    Raises:
        InlayError: ``why``, where no row does.
    """
    for name in dict.fromkeys(f.row.name for s in found for f in s.faults if f.row.mend is not None):
        mends = {s.name: tuple(f for f in s.faults if f.row.name == name) for s in found}
        mends = {operator: faults for operator, faults in mends.items() if faults}
        if laboratory.low_in(mends) is not None:
            return name, mends
    raise why
