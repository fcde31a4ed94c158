"""One model on several targets: whether files run there, how accurate they are, and how fast, in shared blocks."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np

from inlay.data import Samples, save_feeds
from inlay.deadline import NEVER, Deadline
from inlay.errors import CompileFailed, InlayError, Late, TargetError
from inlay.files import as_file_name
from inlay.measure.client import Worker
from inlay.measure.journal import Fact, made
from inlay.measure.own_precision import is_faster
from inlay.measure.paired import joined
from inlay.measure.panel import Readings, time_in_turn
from inlay.model.guard import limited
from inlay.model.store import model_bytes
from inlay.portfolio import policy
from inlay.portfolio.forms import quick_forms
from inlay.portfolio.outlook import Look, Reach
from inlay.portfolio.result import GIVEN, Cell, Table
from inlay.portfolio.runs import Portfolio, open_portfolio
from inlay.quant.accuracy import UNCHECKED, Bound, Judge, Outputs
from inlay.quant.tasks.task import Task
from inlay.run.given import bound_in_task
from inlay.run.inputs import RunInputs, TuneRequest
from inlay.run.reference import RunFiles, in_reference
from inlay.run.session import call_limit_s
from inlay.targets.base import Artifact, Fingerprint, OwnPrecision, TargetSpec
from inlay.targets.registry import create, in_float32
from inlay.trial import Accuracy, shown_sqnr

SCREENED: Fact[dict[str, float | str]] = Fact("screened", dict)
"""Nanoseconds of the given model on each target in the first readings, or why that is not tuned for."""
LOOKED: Fact[Look] = Fact("looked", partial(made, Look), asdict)  # what the look at the forms of the model showed
Part = Literal["few", "selection", "verification"]
"""Samples that files are judged by: few of those that the searches look at, these, or those that nothing has seen."""
_FLOAT32 = ""  # in place of a target's label: the numeric reference
Files = Mapping[str, Mapping[str, Artifact]]  # files by target and row; the first of each target is the given model
_Workers = Mapping[str, Worker]  # the process of each target, by label
_Judged = Mapping[tuple[str, str], Accuracy | str]
"""Accuracy of each file on each target by row and label, or why it does not run there."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison:
    """A command for one model and several targets, on which it judges and times files; see :func:`open_comparison`."""

    held: Portfolio  # what it holds open
    asked: TuneRequest  # for all targets
    inputs: RunInputs  # what the runs work with
    specs: Mapping[str, TargetSpec]  # the targets by label
    # installed targets that cannot be used, with the reason: one of `specs` is to be chosen, so that the given model
    # may be outside the bound on another one. None where one file is wanted for all of `specs`: the given model is what
    # a user has there, whatever their own precision loses.
    others: Mapping[str, str] | None
    fingerprints: Mapping[str, Fingerprint]  # of the targets
    rng: np.random.Generator  # draws orders of measurements
    _references: dict[tuple[str, str], Sequence[Outputs]] = field(default_factory=dict)

    @property
    def given(self) -> Artifact:
        """The model as it was given."""
        return Artifact(self.inputs.file.content.resolve(), self.inputs.file.sha256)

    @property
    def end(self) -> Deadline:
        """When the result must be written."""
        return self.held.deadline.earlier(policy.WRITING_S)

    @property
    def left_s(self) -> float:
        """Seconds that are left until then."""
        return self.end.left

    def share(self, share: float) -> Deadline:
        """The end of work that may take such a share of what is left."""
        return self.held.deadline if math.isinf(self.left_s) else self.held.deadline.within(share * self.left_s)

    def limit_s(self) -> float:
        """Seconds that the next call of a runtime may take."""
        return call_limit_s(self.inputs.config, self.held.deadline.left)

    def folder(self, label: str) -> Path:
        """Of the run of one target."""
        return self.held.out / as_file_name(label)

    # --- files on targets

    def screen(self) -> Mapping[str, float | str]:
        """Nanoseconds of the given model on each target, in few blocks, or why it is not tuned for; decided once.

        Where a runtime computes float32 operators in fewer bits, it is there twice, and one of the two is tuned for.
        Fewer bits are what users get, and usually faster. Where the given model does not keep the bound so, or samples
        do not show it for new ones, hardly anything will, and what is in 8 bits beside float32 may be faster still.
        """
        return self.held.journal.once(SCREENED, self._screened)

    def _screened(self) -> dict[str, float | str]:
        self.held.stage(f"time the given model on {', '.join(self.specs)}")
        end = self.share(policy.SCREEN_SHARE)
        unusable: dict[str, str] = {}
        with self._workers(self.specs, unusable) as workers:
            files = {label: {GIVEN: self.given} for label in workers}
            readings = self._time(workers, files, policy.SCREEN_BLOCKS, end)
            found: dict[str, float | str] = {**unusable}
            found.update((label, why) for (_, label), why in readings.failed.items())
            found.update((label, readings.latency_ms((row, label)) * 1e6) for row, label in readings.cells)
            for label, spec in self.specs.items():
                exact = in_float32(spec)
                twin = next((other for other, theirs in self.specs.items() if theirs == exact), None)
                if twin is None or isinstance(found[label], str) or isinstance(found[twin], str):
                    continue
                judged = self._judged(workers, {label: files[label]}, "verification")[GIVEN, label]
                if isinstance(judged, str):
                    found[label] = judged
                elif not judged.feasible or judged.short_db:
                    why = f"in the target's own precision, the given model has {shown_sqnr(judged.sqnr_db)} there"
                    if judged.feasible:
                        why += f", {judged.short_db:.1f} dB too few to show the bound for new samples"
                    found[label] = why
                elif is_faster(readings.ratio((GIVEN, label), (GIVEN, twin))):
                    found[label] = f"the given model is faster on {twin}"
                else:
                    found[twin] = f"the given model keeps the bound in the precision of {label}"
        return {label: found[label] for label in self.specs}

    def looked(self, labels: Sequence[str]) -> Look:
        """The forms of the model on those of ``labels`` for which there was time; decided once."""
        return self.held.journal.once(LOOKED, lambda: self._looked(labels))

    def _looked(self, labels: Sequence[str]) -> Look:
        if model_bytes(self.inputs.file.content) > policy.FORMS_BYTES:
            return Look()
        self.held.stage("look how fast the model can become on each")
        begun, end = self.end.clock(), self.share(policy.FORMS_SHARE)
        files: dict[str, dict[str, Artifact]] = {}
        for label in labels:
            work = self.held.work / f"forms-{as_file_name(label)}"
            work.mkdir()
            with contextlib.suppress(InlayError):
                made = quick_forms(self.inputs, self.specs[label], self.fingerprints[label], work)
                files[label] = {GIVEN: self.given, **made}
            if not end.left:
                return Look()
        try:
            with self._workers(files, {}) as workers:
                there = {label: files[label] for label in workers}
                readings = self._time(workers, there, policy.FORMS_BLOCKS, end)
                judged = self._judged(workers, _only(there, {*readings.cells}), "few", end)
        except InlayError:  # there was no time for a block, or a worker is gone
            return Look()
        found, ns = dict[str, Reach](), {cell: readings.latency_ms(cell) * 1e6 for cell in readings.cells}
        for label in {label for _, label in ns}:
            cells = [cell for cell in ns if cell[1] == label]
            kept = [c for c in cells if isinstance(each := judged[c], Accuracy) and each.feasible]
            found[label] = Reach(min(ns[c] for c in cells), min(ns[c] for c in kept or [(GIVEN, label)]))
        return Look((end.clock() - begun) / max(1, len(ns)), found)

    def measure(self, files: Files) -> tuple[Table, Readings]:
        """The cells of all files that run, timed in fresh processes, and judged by samples that nothing has seen."""
        judged: _Judged = {}

        def measured() -> Readings:
            nonlocal judged
            with self._workers(files) as workers:
                judged = judged or self._judged(workers, files, "verification")
                running = _only(files, {cell for cell, found in judged.items() if isinstance(found, Accuracy)})
                return self._time(workers, running, policy.BLOCKS, self.end)

        readings = in_fresh_processes(measured, self.end)
        return _cells(readings, judged), readings

    def look(self, files: Files) -> Table:
        """The cells of all files that run everywhere, judged by the selection samples, in few blocks."""
        end = self.share(policy.LOOK_SHARE)
        with self._workers(files) as workers:
            judged = self._judged(workers, files, "selection", self.share(policy.JUDGING_SHARE))
            unfit = {row for (row, _), found in judged.items() if isinstance(found, str) or not found.feasible}
            running = _only(files, {(row, label) for row, label in judged if row == GIVEN or row not in unfit})
            return _cells(self._time(workers, running, policy.LOOK_BLOCKS, end), judged)

    @contextlib.contextmanager
    def _workers(self, labels: Iterable[str], unusable: dict[str, str] | None = None) -> Iterator[_Workers]:
        """A fresh process for each of these targets; why one cannot be had goes into ``unusable``.

        Raises:
            CompileFailed: one cannot be had, and each must be.
        """
        with contextlib.ExitStack() as held:
            workers: dict[str, Worker] = {}
            for label in labels:
                try:
                    worker = self.asked.lab.start(self.specs[label], self.held.work, self.limit_s)
                    workers[label] = held.enter_context(worker)
                except TargetError as error:
                    if unusable is None:
                        raise CompileFailed(f"{label}: {error}") from error
                    unusable[label] = str(error)
            yield workers

    def _time(self, workers: _Workers, files: Files, blocks: int, end: Deadline) -> Readings:
        slot_ns, clock = self.inputs.config.protocol.slot_ns, self.asked.lab.clock
        return time_in_turn(workers, files, self._latency_feed, blocks, slot_ns, self.rng, lambda: end.left, clock)

    def _judged(self, workers: _Workers, files: Files, by: Part, end: Deadline = NEVER) -> _Judged:
        """Accuracy of each file on each target, or why it does not run there.

        Args:
            by: the samples; where too few were kept back, those that the searches look at take their place.
            end: after which nothing but the given model is judged.
        """
        found: dict[tuple[str, str], Accuracy | str] = {}
        bounds: dict[str, tuple[Bound, Task | None]] = {}
        config, verify = self.inputs.config, by == "verification"
        part = "selection" if verify and self.inputs.verification is None else by
        for row in dict.fromkeys(row for rows in files.values() for row in rows):
            for label in (label for label, rows in files.items() if row in rows):
                if row != GIVEN and not end.left:
                    found[row, label] = "there was no time to judge it"
                    continue
                reference, confidence = self._reference(workers[label], label, part), None if verify else UNCHECKED
                if label not in bounds:
                    run = self._float_on(workers[label], label)
                    bounds[label] = bound_in_task(self._parts[part], reference, config, run, self.held.work)
                bound, task = bounds[label]
                judge = Judge(reference, self._parts[part], bound, self.inputs.metric, confidence, task=task)
                judge = judge.stating(self.inputs.stated)
                try:
                    judged = judge.judge(workers[label].run(files[label][row], self._feeds[part]), in_task=verify)
                except TargetError as error:
                    found[row, label] = str(error)
                    continue
                stays = row == GIVEN and self.others is None
                found[row, label] = replace(judged, feasible=True, reason="") if stays else judged
        return found

    def _reference(self, worker: Worker, label: str, part: str) -> Sequence[Outputs]:
        """The given model's outputs that others are compared with: in float32, as far as the model runs so."""
        on = _FLOAT32 if self._is_exact(label) else label
        if (on, part) not in self._references:
            self._references[on, part] = self._float_on(worker, label)(self._feeds[part])
        return self._references[on, part]

    def _is_exact(self, label: str) -> bool:
        """Whether files are compared with what the given model is in float32, whatever the target makes of it."""
        return self.others is not None or OwnPrecision.of(create(self.specs[label])) is not None

    def _float_on(self, worker: Worker, label: str) -> RunFiles:
        def run(feeds: Sequence[Path]) -> Sequence[Outputs]:
            if self._is_exact(label):
                with contextlib.suppress(TargetError):  # of operators that only a target knows
                    return self._in_float32(feeds)
            return worker.run(self.given, feeds)

        return run

    @cached_property
    def _in_float32(self) -> RunFiles:
        return in_reference(self.inputs.file)

    @cached_property
    def _latency_feed(self) -> Path:
        return self.inputs.workload.save(self.held.work / "latency")

    @cached_property
    def _parts(self) -> Mapping[str, Samples]:
        parts = {"selection": self.inputs.parts.selection, "verification": self.inputs.parts.verification}
        found = {name: s if s.labels is not None else s.evenly(policy.SAMPLES) for name, s in parts.items()}
        return {**found, "few": found["selection"].evenly(policy.FEW_SAMPLES)}

    @cached_property
    def _feeds(self) -> Mapping[str, list[Path]]:
        return {name: save_feeds(self.held.work / name, samples.feeds) for name, samples in self._parts.items()}


@contextlib.contextmanager
def open_comparison(
    asked: TuneRequest, specs: Mapping[str, TargetSpec], others: Mapping[str, str] | None
) -> Iterator[Comparison]:
    """Check the inputs, lock the folder and open the journal; within it guarded calls end with the budget.

    Raises:
        JournalError: the folder is in use, belongs to another command, or cannot be written.
        InlayError: the inputs or a target cannot be used.
    """
    begun, rng = asked.lab.clock() - asked.before_s, np.random.default_rng(asked.config.seed)
    inputs = RunInputs.of(asked, rng)
    fingerprints = {label: create(spec).fingerprint() for label, spec in specs.items()}
    named = {label: [dict(specs[label].options), each.target, each.digest] for label, each in fingerprints.items()}
    with open_portfolio(
        asked.out / "run.sqlite",
        inputs.identity(json.dumps(named, sort_keys=True)),
        asked.progress,
        restart=asked.restart,
        budget_s=asked.config.budget_s,
        begun=begun,
        clock=asked.lab.clock,
    ) as held:
        comparison = Comparison(
            held=held,
            asked=asked,
            inputs=inputs.held_in(held.work),
            specs=specs,
            others=others,
            fingerprints=fingerprints,
            rng=rng,
        )
        with limited(comparison.limit_s):
            yield comparison


def _only(files: Files, cells: set[tuple[str, str]]) -> Files:
    return {label: {row: f for row, f in rows.items() if (row, label) in cells} for label, rows in files.items()}


def _cells(readings: Readings, judged: _Judged) -> Table:
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


def in_fresh_processes(measured: Callable[[], Readings], end: Deadline) -> Readings:
    """The blocks of as many rounds as there is time for, of the cells that all of them have; exact ones need but one.

    Raises:
        Late: there was no time for a single round.
    """
    rounds, took_s = list[Readings](), 0.0
    while len(rounds) < policy.PROCESSES and not (rounds and end.left < took_s):
        begun = end.clock()
        try:
            rounds.append(measured())
        except Late:
            if not rounds:
                raise
            break  # what was read before stands
        took_s = end.clock() - begun
        if rounds[-1].timing.is_exact:
            break
    shared = [c for c in rounds[0].cells if all(c in r.cells for r in rounds)]
    parts = [each.timing.only([each.cells.index(c) for c in shared]) for each in rounds]
    failed = {cell: why for each in rounds for cell, why in each.failed.items()}
    return Readings(tuple(shared), joined(parts, apart=True), failed)
