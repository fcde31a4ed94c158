"""Quantize in seconds: the processor's cost table proposes, three models are built, and the fastest is delivered.

The table is off by a third for single kernels, so its word alone would at times make a model slower. What is built for
its accuracy is therefore timed too, for a moment, beside the float model and the given one; their profiles correct the
table, and if another placement is expected to be faster then, that one is built and timed as well. Where nothing is
faster than the given model, that is delivered as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from threading import Thread

import numpy as np

from inlay.calibrate.choose import choose_calibration
from inlay.calibrate.observe import halves, observe
from inlay.calibrate.policy import METHODS_IN_TIME
from inlay.calibrate.scorer import in_process, score_by
from inlay.calibrate.table_search import CalibrationTask
from inlay.calibrate.tables import CalibrationChoice, sharing_of
from inlay.deadline import Deadline
from inlay.errors import ModelError, TargetError
from inlay.measure.paired import speedup
from inlay.model.heard import doing
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.quant.accuracy import UNCHECKED, Bound, Judge
from inlay.quant.observers import Method
from inlay.run.instant.one_shot import Chosen, OneShot
from inlay.run.instant.proposal import Choice, Instant
from inlay.run.instant.shapes import Here
from inlay.run.machine_costs import MachineCosts
from inlay.search import policy
from inlay.targets.base import Artifact, KernelTime, is_estimate
from inlay.trial import Accuracy, Interval, shown_ratio
from inlay.types import Placement

INSTANT_S, ELSEWHERE_S = 8.8, 20.0
"""Seconds that an answer is planned to take, with the start of the program; the last steps may take one more. The
second where it is for another processor: no timing corrects the choice, so more of them are profiled and judged."""
_MODELS = 2  # in low precision that are built: with the float one three
_UNTIMED_MODELS = 4  # the same where nothing is timed: they are built and judged for the bound alone
_METHODS: tuple[Method, ...] = ("minmax", "percentile", "mse")
"""Of calibration: one that clips nothing, one that clips little, and the one that is chosen most often."""
_JUDGED = 4  # samples on which ranges are judged
_SELECTION_S = 1.0  # for choosing ranges of single values, on a clock that does not depend on the machine
_LEAST_CALIBRATING_S = 0.8
"""Seconds below which the first of the methods is taken: judging one takes as long where that is all that is left."""
_JUDGING = 0.6
"""The least that judging a method took, of the time that observing as many samples did: 0.6 to 1.4 on 11 models."""
_LOADED_MEANWHILE = "scipy.cluster.hierarchy", "scipy.optimize"
"""Modules of which all that follows needs some: to load them takes 0.4 s, in which this process waits for another."""
_OBSERVING, _CALIBRATING, _CHOOSING = 0.2, 0.3, 0.5
"""Shares of what is left of the time when each begins; on most models they take less."""
_MARGIN_DB = 2.5
"""By how much less a probe is believed than the target showed of the first try: samples differ more with some."""
_GLANCES, _BLOCKS, _SLOT_NS = 3, 8, 2_000_000
"""Blocks of a model alone, interleaved blocks of a comparison, and nanoseconds of one reading."""
_GLANCE_S = 1.0  # seconds in which a model alone is timed: a long inference once
_RACE_S = 0.7, 3.0
"""Seconds that the comparison has at least, whatever the time; up to the second where it takes them for an interval."""
_HELD_UP = 1.6  # times those seconds that it may take, where other work holds it up: with fewer blocks it tells nothing
_MORE_BLOCKS = 40  # blocks of a second comparison where the first cannot tell, and time is left
_INTERVAL_BLOCKS = 6
"""The fewest with an interval. From two or three readings on a busy machine, equal models have differed by 1.6x."""
_PROFILED, _PROFILE_NS = (1, 10), 120_000_000
"""Inferences of a profile, at least and at most, and nanoseconds that they should take together."""
_AMPLE_S = 0.4 * INSTANT_S
"""Seconds left where low precision is tried whatever the table says, and another anchor where the first gained none."""
_LATE_GAIN = 1.2
"""Over float, of a try that missed the bound, from which on a second one is worth more time than was planned."""
_DRAWN, _CLEAR = 1.01, 1.1
"""Faster by less than the first is not faster. A gain up to the second must be shown by its interval: it costs
accuracy, and with less a few blocks on a shared machine delivered what was slower than float."""


@dataclass(frozen=True)
class ByCosts:
    """How a placement was chosen without a search."""

    source: str  # of the cost table, for people; or why there is none
    speedup: float | None = None  # expected, over the model without Q/DQ nodes; None where the usual recipe was taken
    # of the model without Q/DQ nodes, rewritten for the target, over the given model, as timed for a moment; None where
    # nothing was timed
    in_float: Interval | None = None
    # the same of the placement that is delivered; None where it has nothing in low precision
    timed: Interval | None = None
    rejected: Interval | None = None  # the same of the fastest in low precision, where nothing in it is delivered
    unchanged: bool = False  # nothing was faster than the given model, which is delivered as it is
    bound_db: float | None = None  # least SQNR that was asked for; None where no samples could tell
    tries: int = 0  # placements in low precision that were built; 0 where the usual recipe was taken
    models: int = 0  # that the target built altogether; that some were built again for their profiles is not counted
    priced: bool = True  # there was a table; else profiles of what was built alone chose
    kept: bool = True  # the bound holds on the scoring samples; else the file is the float model, as no try kept it
    margin_db: float = 0.0  # that the last try had to keep beyond the bound, by how much the samples differ
    failed: str = ""  # why the tries do not run, where none of them does
    why_float: str = ""  # why that was not taken, for people; empty where there was none
    estimated: bool = False  # the target computes its figures, and measures none
    elsewhere: str = ""  # the processor that it is for, where that is not the one here, so that nothing was timed
    # where the file is for several, what is expected on each: how many times as fast as float, and how much slower than
    # what is best for it alone
    several: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Built:
    """A model that was built."""

    choice: Choice  # its placement, and what was expected of it
    artifact: Artifact  # its file
    accuracy: Accuracy | None  # on the scoring samples; None without samples
    kept: bool  # whether it keeps the bound, and a margin for what differs between samples
    failed: str = ""  # why it does not run


def choose_by_costs(
    one_shot: OneShot, known: MachineCosts, every: Placement, deadline: Deadline, here: Here | None = None
) -> tuple[Chosen, ByCosts]:
    """The fastest placement that keeps the bound on the target, among those that there is time to build.

    Args:
        known: the processor's table; where there is none, only profiles of what is built tell.
        every: all that may be quantized, for which ranges are chosen.
        here: this machine, where the target is for another processor.

    Raises:
        InlayError: the model cannot be calibrated.
    """
    prepared, samples = one_shot.prepared, one_shot.asked.samples
    bound_db = one_shot.bound.min_sqnr_db if one_shot.asked.real else None
    begun = deadline.clock()
    Thread(target=lambda: [*map(import_module, _LOADED_MEANWHILE)], daemon=True).start()
    observed = observe(prepared, samples, deadline=deadline.within(_OBSERVING * deadline.left))
    sample_s = (deadline.clock() - begun) / observed.samples
    numbers = halves(len(samples))[0][: min(_JUDGED, len(one_shot.reference))]
    few = Judge(one_shot.reference[: len(numbers)], samples.part(numbers), Bound(), confidence=None)
    calibrating_s = _CALIBRATING * deadline.left
    calibration = CalibrationChoice(_METHODS[0])
    first_s = _JUDGING * sample_s * len(numbers)
    if calibrating_s > max(_LEAST_CALIBRATING_S, METHODS_IN_TIME * first_s):
        task = CalibrationTask(
            prepared=prepared,
            observed=observed,
            placement=every,
            feeds=samples.feeds if one_shot.asked.real else (),
            score=score_by(few, in_process(prepared, [samples.feeds[i] for i in numbers])),
            methods=_METHODS,
        )
        until = deadline.within(calibrating_s)
        calibration = choose_calibration(task, _SELECTION_S, deadline=until, inference_s=sample_s)
    table, digest = calibration.table(prepared, observed), calibration.digest(observed)
    writer = CandidateWriter(prepared, table, digest, one_shot.worker.fingerprint.digest)
    until = deadline.within(_CHOOSING * deadline.left)
    parts = one_shot.judge.parts
    instant = Instant(prepared, known, table, every, samples, bound_db, deadline=until, parts=parts)
    race = _Race(one_shot, writer, instant, bound_db, deadline)
    race.here = here
    winner, how = race.run()
    varies = winner.choice.low and winner.accuracy is not None and one_shot.test.feeds
    chosen = Chosen(
        placement=winner.choice.placement,
        calibration=calibration,
        writer=writer,
        shared={d.node: d.reason for d in sharing_of(prepared, observed, calibration.method)},
        accuracy=winner.accuracy,
        varied=one_shot.worker.run(winner.artifact, one_shot.test.feeds) if varies else None,
    )
    return chosen, replace(how, source=known.source, priced=known.table is not None)


def _gains(ratio: Interval) -> bool:
    """Whether a speed-up over float is worth what it costs in accuracy."""
    return ratio.value > _DRAWN and (ratio.value > _CLEAR or ratio.low > 1.0)


def _why_not(ratio: Interval, which: str) -> str:
    """Why a speed-up over ``which`` is not worth what low precision costs, for people."""
    if not ratio.is_told:
        return f"there were too few readings to say whether low precision is faster than {which}"
    found = f"low precision is {shown_ratio(ratio)} over {which} in the same blocks"
    return found if ratio.value <= _DRAWN else f"{found}, and a gain below {_CLEAR:g}x must be shown by its interval"


class _Race:
    """Builds what is proposed, judges it, and times it beside the given model."""

    def __init__(
        self, one_shot: OneShot, writer: CandidateWriter, instant: Instant, bound_db: float | None, deadline: Deadline
    ) -> None:
        self._one_shot, self._asked, self._writer, self._instant = one_shot, one_shot.asked, writer, instant
        self._bound_db, self._deadline = bound_db, deadline
        self.here: Here | None = None  # profiles in place of a target that cannot
        self._worker = one_shot.worker
        self._timing = "latency" not in self._worker.lacks
        self._glances: dict[str, float] = {}
        bound, task = (Bound(), None) if bound_db is None else (one_shot.bound, one_shot.task)
        confidence = None if bound_db is None else UNCHECKED
        self._judge = Judge(one_shot.reference, one_shot.scored, bound, confidence=confidence, task=task)

    def run(self) -> tuple[_Built, ByCosts]:
        """The fastest model that keeps the bound, and how it was found."""
        doing("build and time the float model")
        in_float = self._build(self._instant.in_float())
        self._learn(in_float)
        low, resort = list[_Built](), None
        while (choice := resort or self._proposal(low)) is not None:
            what = "build and time" if self._timing else "build and judge"
            doing(f"{what} placement {len(low) + 1} of {max(self._most, len(low) + 1)} at most")
            low.append(self._build(choice))
            resort = self._last_resort(low)
            again = len(low) < self._most + (resort is not None) and self._may_try_again(in_float, low[-1])
            # what is told of another processor is better for it, too
            if (again and resort is None) or self.here is not None:
                self._learn(low[-1])
            if not again:
                break
        kept = [b for b in low if b.kept]
        winner, how = self._fastest(in_float, kept)
        if not winner.choice.low:
            winner, how = self._in_float(winner, how)
        expected = [self._instant.expected(b.choice.labels) for b in (in_float, winner)]
        how = replace(how, speedup=expected[0] / expected[1], tries=len(low), models=1 + len(low))
        failed = low[0].failed if low and all(b.failed for b in low) else ""
        margins_db = [b.accuracy.margin_db for b in low if b.accuracy is not None]
        last_db = margins_db[-1] if margins_db else 0.0
        several = self._instant.several(winner.choice.labels)
        how = replace(how, several=several, elsewhere=self._worker.fingerprint.facts.get("processor", ""))
        return winner, replace(how, kept=bool(kept) or not low, margin_db=last_db, failed=failed)

    @property
    def _most(self) -> int:
        """Placements that are built besides the last resort."""
        return _MODELS if self._timing else _UNTIMED_MODELS

    def _last_resort(self, low: Sequence[_Built]) -> Choice | None:
        """What loses the least, where nothing keeps the bound and there is no time to probe what may."""
        if any(b.kept for b in low) or (len(low) < self._most and self._deadline.left):
            return None
        return self._unless_known(self._instant.at_run_time(), low)

    def _proposal(self, low: Sequence[_Built]) -> Choice | None:
        """What is worth a build besides what was built in low precision; None for nothing."""
        choice, ample = self._instant.choose(), self._deadline.left > _AMPLE_S
        kept = [self._instant.expected(b.choice.labels) for b in low if b.kept]
        if not choice.low and self._timing and (ample or not low):
            choice = self._instant.challenge(anyway=ample)
        elif kept and policy.QUICK_GAIN * choice.ns > min(kept):
            choice = self._instant.runner_up(min(kept)) if self._timing else self._instant.in_float()
        return self._unless_known(choice, low)

    @staticmethod
    def _unless_known(choice: Choice, low: Sequence[_Built]) -> Choice | None:
        known = any(b.choice.placement == choice.placement for b in low)
        return choice if choice.low and not known else None

    def _may_try_again(self, in_float: _Built, low: _Built) -> bool:
        """Whether there is time for another try; where this one misses the bound and gains much over float, more."""
        if low.kept:
            return self._deadline.fits(self._race_s(in_float, 2 + _MODELS))
        if self._deadline.left > 0.0:
            return True
        times = [self._glance(b.artifact) for b in (in_float, low)]
        return not low.failed and times[0] > _LATE_GAIN * times[1]

    def _build(self, choice: Choice) -> _Built:
        """Build a model and judge it.

        The float model is judged only where it is delivered: it takes as long as another, and differs by rounding.
        """
        artifact, accuracy = self._writer.write(choice.placement), None
        try:
            if choice.low:
                accuracy = self._accuracy(artifact)
        except TargetError as error:
            return _Built(choice, artifact, None, False, str(error) or type(error).__name__)
        return _Built(choice, artifact, accuracy, accuracy is None or accuracy.feasible)

    def _accuracy(self, artifact: Artifact) -> Accuracy | None:
        """On the scoring samples; None without samples. Raises TargetError where the model does not run."""
        outputs = self._worker.run(artifact, self._one_shot.feeds)
        return self._judge.judge(outputs, in_task=True) if self._asked.real else None

    def _in_float(self, built: _Built, how: ByCosts) -> tuple[_Built, ByCosts]:
        """The float model with its accuracy, or the given one where that is no slower, or alone runs.

        Raises:
            ModelError: neither runs.
        """
        artifact = self._asked.given if how.unchanged else built.artifact
        try:
            accuracy = self._accuracy(artifact)
        except TargetError as error:
            if how.unchanged or self._asked.changes_it:
                raise ModelError(f"the model does not run on {self._worker.fingerprint.target}: {error}") from error
            return self._in_float(built, replace(how, unchanged=True))
        return replace(built, artifact=artifact, accuracy=accuracy), how

    def _learn(self, built: _Built) -> None:
        """Let the next choice know what a model takes, and how it missed the bound. What fails is left out."""
        if self.here is not None:
            self.here.teach(self._instant, built.choice.labels, built.artifact, self._one_shot.timed)
        ns, kernels = self._glance(built.artifact), list[KernelTime]()
        if not built.failed and np.isfinite(ns):
            inferences = int(np.clip(_PROFILE_NS / ns, *_PROFILED))
            if "profile" not in self._worker.lacks:
                with suppress(TargetError):
                    kernels = self._worker.profile(built.artifact, self._one_shot.timed, inferences)
            self._instant.learn(built.choice.labels, kernels, ns)
        if built.accuracy is not None and not built.kept:
            missed_db = built.accuracy.sqnr_db - built.accuracy.margin_db - _MARGIN_DB
            self._instant.missed(built.choice.labels, missed_db)

    def _glance(self, artifact: Artifact) -> float:
        """Nanoseconds of an inference, from a few; not a number where they cannot be timed."""
        if artifact.digest not in self._glances:
            self._glances[artifact.digest] = np.nan
            with suppress(TargetError):
                if self._timing:
                    feed, seed = self._one_shot.timed, self._asked.seed
                    self._worker.load(artifact)  # outside of the time for readings
                    until = replace(self._deadline, at=self._deadline.clock() + _GLANCE_S)
                    timing = self._worker.time([artifact], feed, _GLANCES, _SLOT_NS, seed, lambda: until.left)
                    self._glances[artifact.digest] = timing.models[0].median_ns
        return self._glances[artifact.digest]

    def _fastest(self, in_float: _Built, kept: Sequence[_Built]) -> tuple[_Built, ByCosts]:
        """The fastest of what was built, and what it gains; the float model too where the given one is no slower."""
        how = ByCosts("", bound_db=self._bound_db, estimated=is_estimate(self._worker.fingerprint.facts))
        built = [in_float, *kept]
        over_given, over_float = self._ratios(built)
        unclear = any(ratio.low <= 1.0 <= ratio.high for ratio in over_float[1:])
        if unclear and self._deadline.fits(self._race_s(in_float, 1 + len(built))):
            again = self._ratios(built, _MORE_BLOCKS)
            over_given, over_float = again if again[1] else (over_given, over_float)
        if not over_float:
            return min(kept, key=lambda b: b.choice.ns, default=in_float), how
        how = replace(how, in_float=over_given[0])
        if kept:
            best = max(range(1, 1 + len(kept)), key=lambda i: over_float[i].value)
            if _gains(over_float[best]) and (self._asked.changes_it or _gains(over_given[best])):
                return kept[best - 1], replace(how, timed=over_given[best])
            which, ratio = "float", over_float[best]
            if _gains(ratio):
                which, ratio = "the given model", over_given[best]
            how = replace(how, rejected=over_given[best], why_float=_why_not(ratio, which))
        return in_float, replace(how, unchanged=over_given[0].value <= _DRAWN and not self._asked.changes_it)

    def _ratios(self, built: Sequence[_Built], blocks: int = _BLOCKS) -> tuple[list[Interval], list[Interval]]:
        """Speed-up of each over the given model and over the first, from interleaved blocks; empty where untimed."""
        if not self._timing:
            return [], []
        artifacts, feed = [self._asked.given, *(b.artifact for b in built)], self._one_shot.timed
        try:
            self._worker.load(self._asked.given)  # outside of the time for readings
            held_up_s = _HELD_UP * self._race_s(built[0], len(artifacts))
            until = max(self._deadline.at, self._deadline.clock() + held_up_s)
            timing = self._worker.time(
                artifacts, feed, blocks, _SLOT_NS, self._asked.seed, lambda: replace(self._deadline, at=until).left
            )
        except TargetError:
            return [], []
        given, *others = timing.models
        return [speedup(given, model) for model in others], [speedup(others[0], model) for model in others]

    def _race_s(self, slowest: _Built, models: int) -> float:
        """Seconds that a comparison of so many models has at least."""
        each_ns = 2 * max(_SLOT_NS, self._glance(slowest.artifact))  # a reading and what warms it up
        return float(np.clip(1e-9 * _INTERVAL_BLOCKS * models * each_ns, *_RACE_S))
