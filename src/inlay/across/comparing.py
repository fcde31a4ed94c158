"""Files on targets: whether they run there, how accurate they are, and how fast, in blocks that all targets share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from inlay.across import policy
from inlay.across.result import GIVEN, Cell
from inlay.across.session import AcrossSession
from inlay.data import Samples, evenly_spaced
from inlay.deadline import NEVER, Deadline
from inlay.errors import CompileFailed, Late, TargetError
from inlay.measure.journal import Fact
from inlay.measure.paired import joined
from inlay.measure.panel import Panel, Readings
from inlay.quant.accuracy import UNCHECKED, Judge, Outputs
from inlay.run.reference import in_reference
from inlay.targets.base import Artifact, OwnPrecision
from inlay.targets.registry import create
from inlay.trial import Accuracy

FLOAT32 = ""
"""In place of a target's label: the numeric reference."""

Files = Mapping[str, Mapping[str, Artifact]]
"""Files by target and row; the first of each target is the given model."""


class Comparison:
    """Judges and times files on several targets.

    Args:
        session: of the command.
        choosing: one of the targets is chosen, so that the given model may be outside the bound on another one. Where
            a file is to run on all of them, it is what a user has there, whatever their own precision loses.
    """

    def __init__(self, session: AcrossSession, choosing: bool) -> None:
        self.session = session
        self._choosing = choosing
        self._in_float32 = in_reference(session.inputs.file)
        self._references: dict[tuple[str, str], Sequence[Outputs]] = {}

    def screen(self, fact: Fact[dict[str, float | str]]) -> dict[str, float | str]:
        """Nanoseconds of the given model on each target, in few blocks, or why there are none; decided once."""
        known = self.session.journal.fact(fact)
        if known is not None:
            return known
        session = self.session
        session.stage(f"time the given model on {', '.join(session.specs)}")
        labels, end = list(session.specs), session.share(policy.SCREEN_SHARE)
        with session.panel(labels) as panel:
            files = {label: {GIVEN: session.given} for label in panel.workers}
            readings = self._time(panel, files, policy.SCREEN_BLOCKS, lambda: end.left)
        found: dict[str, float | str] = {label: str(why) for label, why in panel.unusable.items()}
        found.update((label, why) for (_, label), why in readings.failed.items())
        found.update((label, readings.latency_ms((row, label)) * 1e6) for row, label in readings.cells)
        return session.journal.record_fact(fact, {label: found[label] for label in labels})

    def accuracies(
        self, panel: Panel, files: Files, verify: bool, end: Deadline = NEVER
    ) -> dict[tuple[str, str], Accuracy | str]:
        """Accuracy of each file on each target by row and label, or why it does not run there.

        Args:
            panel: where they run.
            files: by target and row.
            verify: by samples that nothing has seen, where there are enough of them; otherwise by those that the
                searches looked at, with a margin for others.
            end: no row but the given model is judged after it.
        """
        found: dict[tuple[str, str], Accuracy | str] = {}
        part = "verification" if verify and self.session.inputs.verification is not None else "selection"
        config, metric = self.session.inputs.config, self.session.inputs.metric
        for row in dict.fromkeys(row for rows in files.values() for row in rows):
            for label in (label for label, rows in files.items() if row in rows):
                if row != GIVEN and not end.left:
                    found[row, label] = "there was no time to judge it"
                    continue
                confidence = None if verify else UNCHECKED
                reference = self._reference(panel, label, part)
                judge = Judge(reference, self._parts[part], config.bound, metric, confidence)
                try:
                    judged = judge.judge(panel.workers[label].run(files[label][row], self._feeds[part]))
                except TargetError as error:
                    found[row, label] = str(error)
                    continue
                stays = row == GIVEN and not self._choosing
                found[row, label] = replace(judged, feasible=True, reason="") if stays else judged
        return found

    def measure(self, files: Files, verify: bool) -> tuple[dict[tuple[str, str], Cell], Readings]:
        """The cells of all files that run, judged and timed in fresh processes."""
        session = self.session
        judged: dict[tuple[str, str], Accuracy | str] = {}
        rounds: list[Readings] = []
        took_s = 0.0
        while len(rounds) < policy.PROCESSES and not (rounds and session.left_s < took_s):
            begun = session.asked.lab.clock()
            with session.panel(list(files)) as panel:
                _all_usable(panel)
                if not judged:
                    judged = self.accuracies(panel, files, verify)
                running = {
                    label: {row: f for row, f in rows.items() if not isinstance(judged[row, label], str)}
                    for label, rows in files.items()
                }
                rounds.append(self._time(panel, running, policy.BLOCKS, lambda: session.left_s))
            took_s = session.asked.lab.clock() - begun
            if rounds[-1].timing.is_exact:
                break
        readings = _together(rounds)
        return cells(readings, judged), readings

    def look(self, files: Files) -> dict[tuple[str, str], Cell]:
        """The cells of all files that run everywhere, judged by the selection samples, in few blocks."""
        session, end = self.session, self.session.share(policy.LOOK_SHARE)
        with session.panel(list(files)) as panel:
            _all_usable(panel)
            judged = self.accuracies(panel, files, verify=False, end=session.share(policy.JUDGING_SHARE))
            fit = {
                row
                for row in next(iter(files.values()))
                if all(isinstance(a := judged[row, label], Accuracy) and a.feasible for label in files)
            }
            running = {
                label: {row: file for row, file in rows.items() if row in fit or row == next(iter(rows))}
                for label, rows in files.items()
            }
            return cells(self._time(panel, running, policy.LOOK_BLOCKS, lambda: end.left), judged)

    def _time(self, panel: Panel, files: Files, blocks: int, left_s: Callable[[], float]) -> Readings:
        session = self.session
        slot_ns = session.inputs.config.protocol.slot_ns
        return panel.time(files, self._latency_feed, blocks, slot_ns, session.rng, left_s)

    def _reference(self, panel: Panel, label: str, part: str) -> Sequence[Outputs]:
        """The given model's outputs that others are compared with: in float32, as far as the model runs so."""
        on = FLOAT32 if self._choosing or OwnPrecision.of(create(self.session.specs[label])) else label
        if (on, part) not in self._references:
            self._references[on, part] = self._outputs(panel, on, label, part)
        return self._references[on, part]

    def _outputs(self, panel: Panel, on: str, label: str, part: str) -> Sequence[Outputs]:
        if on == FLOAT32:
            with contextlib.suppress(TargetError):  # of operators that only a target knows
                return self._in_float32(self._feeds[part])
        return panel.workers[label].run(self.session.given, self._feeds[part])

    @cached_property
    def _latency_feed(self) -> Path:
        return self.session.inputs.workload.save(self.session.work / "latency")

    @cached_property
    def _parts(self) -> dict[str, Samples]:
        parts = self.session.inputs.parts
        return {
            name: samples if samples.labels is not None else _some(samples)
            for name, samples in (("selection", parts.selection), ("verification", parts.verification))
        }

    @cached_property
    def _feeds(self) -> dict[str, list[Path]]:
        return {name: self.session.save_feeds(name, samples) for name, samples in self._parts.items()}


def cells(readings: Readings, judged: Mapping[tuple[str, str], Accuracy | str]) -> dict[tuple[str, str], Cell]:
    """The cells of a table from readings and accuracies; speed-ups are over the given model on the same target."""
    found: dict[tuple[str, str], Cell] = {}
    for cell, accuracy in judged.items():
        if isinstance(accuracy, str) or cell in readings.failed:
            found[cell] = Cell(why=accuracy if isinstance(accuracy, str) else readings.failed[cell])
        elif cell not in readings.cells:
            found[cell] = Cell(accuracy=accuracy, why=accuracy.reason or "it does not serve every target")
        else:
            given = (GIVEN, cell[1])
            gained = readings.ratio(given, cell)
            # by its ratio: a median of its own would contradict the speed-up beside it
            found[cell] = Cell(readings.latency_ms(given) / gained.value, gained, accuracy)
    return found


def _some(samples: Samples) -> Samples:
    return samples.part(evenly_spaced([*range(len(samples))], policy.SAMPLES))


def _all_usable(panel: Panel) -> None:
    for label, why in panel.unusable.items():
        raise CompileFailed(f"{label}: {why}")


def _together(rounds: Sequence[Readings]) -> Readings:
    """The blocks of several processes, of the cells that all of them have."""
    if not rounds:
        raise Late("the budget was spent before the files of all targets could be measured in fresh processes")
    shared = [c for c in rounds[0].cells if all(c in r.cells for r in rounds)]
    parts = [each.timing.only([each.cells.index(c) for c in shared]) for each in rounds]
    failed = {cell: why for each in rounds for cell, why in each.failed.items()}
    return Readings(tuple(shared), joined(parts, apart=True), failed)
