"""Measure the contenders again, in fresh processes and in the form in which they would be delivered, and decide.

Two rounds. The first chooses the fastest of the contenders (the incumbent, the fastest feasible candidates, the most
accurate of those about as fast, the best anchors) among those that keep the bound on the verification samples, by its
own blocks and those of the search. Of equally fast ones it takes the most accurate. The second measures that one anew,
beside the given model, float and the best anchor. Only its blocks decide and are reported, so that no figure profits
from having been chosen for being good. An open case is measured on, and looked at once more. The chosen model is
delivered where it beats both the given model and float with an error of at most
:data:`~inlay.run.contenders.FALSE_ACCEPT`, and the best anchor is not clearly faster.

A contender that fails in fresh processes is given up, and the next one takes its place. Where not even the given model
runs there, nothing can be confirmed: the readings of the search are the evidence, and the result says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from inlay.data import Samples, Workload
from inlay.errors import TargetError
from inlay.measure.client import Limit, Worker
from inlay.measure.lab import EqualDevices, StartWorker, no_others
from inlay.measure.policy import REPORTED_LEVEL
from inlay.measure.stats import LEVEL
from inlay.model.load import file_sha256
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.config import TuneConfig
from inlay.quant.accuracy import Judge, Metric, Outputs
from inlay.run.contenders import (
    QUICK_CONTENDERS,
    TIE,
    Entry,
    champion_of,
    contenders_of,
    gain,
    is_hopeless,
    most_promising,
    open_cases,
    promise,
)
from inlay.run.delivered import best_of, by_shape, ratio_of
from inlay.run.evaluate import Candidate
from inlay.run.fresh_readings import FreshReadings
from inlay.run.outputs import install
from inlay.run.plan import Costs, Effort, Plan
from inlay.run.result import Best
from inlay.targets.base import Artifact
from inlay.trial import Accuracy, Failed, Interval, Measured
from inlay.types import Placement

_METRIC_STEP_DB = 3.0  # half the noise: the next attempt after a rejection by a metric, whose distance has no dB
_LEAST_STEP_DB = 0.1  # the next attempt must differ, however narrowly the last one failed


@dataclass(frozen=True, eq=False)
class Rejected:
    """A contender that was rejected on unseen samples: as it was searched, and its accuracy or failure there."""

    candidate: Candidate
    unseen: Accuracy | Failed

    @property
    def origin(self) -> str:
        """Which anchor or strategy proposed it."""
        return self.candidate.trial.proposal.origin

    @property
    def is_float(self) -> bool:
        """Whether it is the normalized float model."""
        return self.candidate.placement == Placement()

    @property
    def reason(self) -> str:
        """Why it was rejected."""
        if isinstance(self.unseen, Failed):
            return f"it failed on unseen samples: {self.unseen.message}"
        return self.unseen.reason

    def least_db(self, bound_db: float | None) -> float | None:
        """SQNR on the selection samples below which other models would be rejected, too, by what this one lacked.

        Args:
            bound_db: bound on the SQNR; None where a metric decides, whose distance from its bound has no dB.

        Returns:
            dB; None where it failed to run, which more accuracy would not mend.
        """
        searched = self.candidate.trial.accuracy
        assert searched is not None, "only what was judged is a contender"
        if bound_db is None:
            return searched.sqnr_db + _METRIC_STEP_DB
        if isinstance(self.unseen, Failed):
            return None
        return searched.sqnr_db + max(_LEAST_STEP_DB, bound_db - self.unseen.sqnr_db)


@dataclass(frozen=True, eq=False)
class Confirmed:
    """The decision.

    Attributes:
        best: what is delivered.
        baseline_ms: median of the given model in the same blocks.
        file: the delivered model, still in the scratch folder (or the given file).
        placement: what it quantizes; None for a given file with Q/DQ of its own.
        rejected: contenders that were faster but are outside the bound on unseen samples.
        effort: how thoroughly contenders were measured.
        troubles: what failed on the way, for people.
        each_db: SQNR of the worst output on each unseen sample; empty where it was not judged on them.
        key: of the delivered model.
        finalists: what was measured last, by key, in its final form.
    """

    best: Best
    baseline_ms: float
    file: Path
    placement: Placement | None
    rejected: tuple[Rejected, ...]
    effort: Effort
    troubles: tuple[str, ...] = ()
    each_db: tuple[float, ...] = ()
    key: str = ""
    finalists: Mapping[str, Artifact] = field(default_factory=dict)

    def least_db(self, bound_db: float | None) -> float | None:
        """SQNR on the selection samples that another search must ask for; None where none would help.

        Args:
            bound_db: as for :meth:`Rejected.least_db`.
        """
        wanted = [r.least_db(bound_db) for r in self.rejected]
        known = [db for db in wanted if db is not None]
        return max(known) if known and len(known) == len(wanted) else None

    def install(self, path: Path) -> None:
        """Copy the measured bytes to ``path`` atomically, external data beside it."""
        install(self.file, path)


@dataclass(frozen=True, eq=False)
class Unseen:
    """Samples that neither calibration nor search has seen, the same as files, and the metric of the bound."""

    samples: Samples
    feeds: Sequence[Path]
    metric: Metric | None


@dataclass(frozen=True, eq=False)
class Confirmation:
    """What the candidates of one search are confirmed with.

    Attributes:
        judged: every candidate, the given model first; grows while the search goes on.
        candidates: writes them in their final form.
        baseline: the given model.
        worker: computes outputs.
        start: starts the fresh processes that measure.
        equal: holds further devices that measure as this one does.
        limit: seconds that one call of the runtime may take.
        feed: file of the inputs that latency is measured on.
        workload: what is in there.
        unseen: the verification samples; None where there are too few.
        config: settings.
        folder: for scratch files.
        rng: seeds the order of models within blocks.
        plan: how much time there is.
        costs: what steps take, by what is known at the time.
    """

    judged: Sequence[Candidate]
    candidates: CandidateWriter
    baseline: Artifact
    worker: Worker
    start: StartWorker
    equal: EqualDevices
    limit: Limit
    feed: Path
    workload: Workload
    unseen: Unseen | None
    config: TuneConfig
    folder: Path
    rng: np.random.Generator
    plan: Plan
    costs: Callable[[], Costs]

    def decide(self, incumbent: Candidate, least_db: float | None = None) -> Confirmed:
        """Measure and decide what to deliver.

        Args:
            incumbent: the best of the search.
            least_db: SQNR on the selection samples below which quantized models are left out, as an earlier look at
                the verification samples showed that these fail there; None for no limit.
        """
        verifier = _Verifier(self)
        most = contenders_of(self.judged, incumbent, least_db, QUICK_CONTENDERS)
        effort = self.plan.confirmation(self.costs(), self.config, len(most))
        equal = no_others if self.worker.deterministic else self.equal  # there, one reading is enough
        timed = (self.limit, self.feed, self.config, self.folder, self.rng, self.plan.deadline, equal)
        fresh = FreshReadings(self.start, *timed)
        chosen = contenders_of(self.judged, incumbent, least_db, effort.contenders)
        contenders = [Entry(c, self._final(c), np.empty(0)) for c in chosen]
        try:
            base, others, reported = self._two_rounds(contenders, fresh, verifier, effort)
        except TargetError as error:
            left = [e for e in contenders if e.key not in fresh.given_up]
            return self._unconfirmed(left, verifier, effort, error)
        champion = champion_of(base, others, self.worker.deterministic)
        reference = next((e for e in others if e.is_float), base)
        best = best_of(
            champion,
            self._gain(base, champion, reported),
            self._gain(reference, champion, reported),
            verifier.accuracy(champion),
            by_shape(base, champion, self.workload),
        )
        origins = {e.key: e.candidate.trial.proposal.origin for e in contenders}
        troubles = [f"{origins[key]} was given up: {why}" for key, why in fresh.given_up.items()]
        troubles += [f"equal devices disagree about {origins[key]}: {how}" for key, how in fresh.disagreed.items()]
        if fresh.is_busy:
            troubles.append(
                "the machine was busy: other processes took a part of many readings; what they took for certain is "
                "taken off, and the intervals hold what they may have taken, but not what they did to caches and clock "
                "rates: measure again on a quiet machine"
            )
        confirmed = self._confirmed(best, base, champion, verifier, effort, troubles)
        return replace(confirmed, finalists={e.key: e.file for e in (champion, base, *others)})

    def _confirmed(
        self, best: Best, base: Entry, champion: Entry, verifier: _Verifier, effort: Effort, troubles: Sequence[str]
    ) -> Confirmed:
        placement = Placement() if best.is_float else champion.candidate.placement
        baseline_ms = float(np.median(base.own_ns)) / 1e6
        found = (*troubles, *verifier.troubles)
        each_db = verifier.each_db(champion)
        rejected, file = verifier.rejected, champion.file.path
        return Confirmed(best, baseline_ms, file, placement, rejected, effort, found, each_db, champion.key)

    def _unconfirmed(
        self, contenders: Sequence[Entry], verifier: _Verifier, effort: Effort, error: TargetError
    ) -> Confirmed:
        """The decision by the readings of the search, as the given model did not run in fresh processes."""
        searched = {e.key: e.candidate.trial.outcome for e in (self._given, *contenders)}
        latency = {key: found.latency for key, found in searched.items() if isinstance(found, Measured)}
        proven = [e for e in contenders if e.key in latency and latency[e.key].speedup.shows_gain()]
        ranked = sorted(proven, key=lambda e: -latency[e.key].speedup.low)
        champion = next((e for e in ranked if verifier.keeps(e)), self._given)
        base, champion = (e.with_readings(np.array([latency[e.key].ns])) for e in (self._given, champion))
        gained = latency[champion.key].speedup
        over_float = next((ratio_of(gained, latency[e.key].speedup) for e in contenders if e.is_float), gained)
        best = replace(best_of(champion, gained, over_float, verifier.accuracy(champion)), confirmed=False)
        trouble = f"NOT CONFIRMED: {error}; the figures are those of the search"
        return self._confirmed(best, base, champion, verifier, effort, [trouble])

    @property
    def _given(self) -> Entry:
        return Entry(self.judged[0], self.baseline, np.empty(0))

    def _two_rounds(
        self, contenders: Sequence[Entry], fresh: FreshReadings, verifier: _Verifier, effort: Effort
    ) -> tuple[Entry, list[Entry], float]:
        """The given model and the finalists with the readings that decide, and the level of intervals to report.

        Raises:
            TargetError: the given model does not run in fresh processes.
        """
        base, *entries = fresh.of([self._given, *contenders], effort.first, effort.blocks)
        while True:
            finalists = self._finalists(base, [e for e in entries if e.key not in fresh.given_up], verifier)
            found, level = self._second_round([base, *finalists], fresh, effort)
            if len(found) == 1 + len(finalists):
                return found[0], found[1:], level

    def _finalists(self, base: Entry, entries: Sequence[Entry], verifier: _Verifier) -> list[Entry]:
        """Float, the most promising contender that keeps the bound, and the best anchor."""
        deterministic = self.worker.deterministic
        promises = {e.key: promise(base, e, deterministic) for e in entries}
        quantized = most_promising([e for e in entries if not e.is_float], promises, 0.0 if deterministic else TIE)
        floats = [e for e in entries if e.is_float and verifier.keeps(e)]
        chosen = next((e for e in quantized if not is_hopeless(base, e, deterministic) and verifier.keeps(e)), None)
        anchor = next((e for e in quantized if e.is_anchor and e is not chosen), None)
        if anchor is not None and (chosen is None or not verifier.keeps(anchor)):
            anchor = None
        return [*floats, *(e for e in (chosen, anchor) if e is not None)]

    def _second_round(
        self, finalists: Sequence[Entry], fresh: FreshReadings, effort: Effort
    ) -> tuple[list[Entry], float]:
        """The finalists that did not fail, with new readings only, and the level of the intervals to report."""
        found = fresh.of(finalists, effort.second, effort.blocks)
        if self.worker.deterministic or not open_cases(found[0].own_ns, [e.own_ns for e in found[1:]]):
            return found, LEVEL
        later = self.plan.later_look(self.costs(), len(found), effort)
        if not later:
            return found, LEVEL
        again = fresh.of(found, later, effort.blocks)
        first = {e.key: e for e in found}
        found = [e.behind(first[e.key]) for e in again]
        return found, REPORTED_LEVEL  # the readings decided to go on, as in a race

    def _gain(self, base: Entry, other: Entry, level: float = LEVEL) -> Interval:
        return gain(base, other, self.worker.deterministic, level)

    def _final(self, candidate: Candidate) -> Artifact:
        if candidate.source is not None or candidate.placement is None:
            assert candidate.source is not None
            return Artifact(candidate.source, file_sha256(candidate.source))
        own = self.folder / f"final-{candidate.key}"
        own.mkdir(exist_ok=True)
        return self.candidates.deliver(candidate.placement, own / "model.onnx")


class _Verifier:
    """Judges contenders on the unseen samples, each at most once; without such samples all are kept.

    One is judged in any case, and others while there is time: one that hangs or ends its process takes seconds.
    """

    def __init__(self, context: Confirmation) -> None:
        self._context = context
        self._known: dict[str, Accuracy | Failed | None] = {}
        self._rejected: list[Rejected] = []
        self._each_db: dict[str, tuple[float, ...]] = {}
        self._longest_s = 0.0
        self.troubles: list[str] = []
        given = context.judged[0]
        exact = given.trial.outcome  # it is its own reference
        if context.unseen is not None and isinstance(exact, Measured):
            self._known[given.key] = exact.accuracy

    @property
    def rejected(self) -> tuple[Rejected, ...]:
        """What was rejected, in the order in which it was judged."""
        return tuple(self._rejected)

    def keeps(self, entry: Entry) -> bool:
        """Whether a contender keeps the bound on the unseen samples, as far as there are some."""
        reference = self._reference
        if reference is None or self._context.unseen is None:
            return True
        deadline = self._context.plan.deadline
        if entry.key not in self._known:
            if self._longest_s and not deadline.fits(self._longest_s):
                return False
            begun = deadline.clock()
            found = self._judge(entry, reference, self._context.unseen)
            self._longest_s = max(self._longest_s, deadline.clock() - begun)
            self._known[entry.key] = found
            if isinstance(found, Failed) or not found.feasible:
                self._rejected.append(Rejected(entry.candidate, found))
        known = self._known[entry.key]
        return isinstance(known, Accuracy) and known.feasible

    def accuracy(self, entry: Entry) -> Accuracy | None:
        """Accuracy of a finalist on the unseen samples; None without such samples."""
        known = self._known.get(entry.key)
        return known if isinstance(known, Accuracy) else None

    def each_db(self, entry: Entry) -> tuple[float, ...]:
        """SQNR of a finalist's worst output on each unseen sample; empty where it was not judged on them."""
        return self._each_db.get(entry.key, ())

    def _judge(self, entry: Entry, reference: Sequence[Outputs], unseen: Unseen) -> Accuracy | Failed:
        worker, bound = self._context.worker, self._context.config.bound
        judge = Judge(reference, unseen.samples, bound, unseen.metric, margin=False)
        try:
            outputs = worker.run(entry.file, unseen.feeds)
            self._each_db[entry.key] = judge.each_db(outputs)
            return judge.judge(outputs)
        except TargetError as error:
            return Failed("accuracy", str(error))
        finally:
            worker.drop(entry.file)

    @cached_property
    def _reference(self) -> Sequence[Outputs] | None:
        """What the given model makes of the unseen samples; None where there are none, or it fails."""
        if self._context.unseen is None:
            return None
        try:
            return self._context.worker.run(self._context.baseline, self._context.unseen.feeds)
        except TargetError as error:
            self.troubles.append(f"no model was verified on unseen samples, as the given model fails there: {error}")
            return None
