"""Contenders judged on samples that neither calibration nor search has seen, and what those lack that fail there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from inlay.calibrate.policy import STRESS_ALLOWANCE_DB
from inlay.data import Samples
from inlay.deadline import Deadline
from inlay.errors import TargetError
from inlay.measure.client import Worker
from inlay.model.heard import doing
from inlay.quant.accuracy import EXACT_DB, Bound, Metric, Outputs
from inlay.quant.tolerance import FEW
from inlay.run.confirm.contenders import Entry
from inlay.run.confirm.evidence import Evidence
from inlay.run.evaluate import Candidate
from inlay.run.given import Given
from inlay.run.robustness import StressTest
from inlay.trial import Accuracy, Failed, Measured
from inlay.types import Placement

_METRIC_STEP_DB = 3.0  # half the noise: the next attempt after a rejection by metric or task, which has no dB
_LEAST_STEP_DB = 0.1  # the next attempt must differ, however narrowly the last one failed


Weigh = Callable[[Entry, Sequence[float], Deadline], Evidence | None]
"""What samples say of a contender on new ones, from its SQNR on each unseen one, by a deadline; None for nothing."""


@dataclass(frozen=True, eq=False)
class Rejected:
    """A contender that was rejected on unseen samples: as it was searched, and its accuracy or failure there.

    ``evaluated_db`` is the SQNR that others need where the user's own evaluation rejected it, None where it did not.
    """

    candidate: Candidate
    unseen: Accuracy | Failed
    evaluated_db: float | None = None

    @property
    def is_float(self) -> bool:
        """Whether it is the normalized float model."""
        return self.candidate.placement == Placement()

    @property
    def by_evaluation(self) -> bool:
        """Whether the user's own evaluation rejected it."""
        failed = isinstance(self.unseen, Failed) and self.unseen.stage == "evaluate"
        return failed or self.evaluated_db is not None

    @property
    def reason(self) -> str:
        """Why it was rejected."""
        if isinstance(self.unseen, Failed) and self.unseen.stage == "evaluate":
            return self.unseen.message
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
        if self.evaluated_db is not None:
            return self.evaluated_db
        if bound_db is None:
            return searched.sqnr_db + _METRIC_STEP_DB
        if isinstance(self.unseen, Failed):
            return None
        if any(figure.broken for figure in self.unseen.figures) and self.unseen.sqnr_db >= bound_db:
            return searched.sqnr_db + _METRIC_STEP_DB
        return searched.sqnr_db + max(_LEAST_STEP_DB, bound_db - self.unseen.sqnr_db)


def least_db(rejected: Sequence[Rejected], bound_db: float | None) -> float | None:
    """SQNR on the selection samples that other models need; None where nothing was rejected, or none would help.

    Args:
        bound_db: as for :meth:`Rejected.least_db`.
    """
    wanted = [r.least_db(bound_db) for r in rejected]
    known = [db for db in wanted if db is not None]
    return max(known) if known and len(known) == len(wanted) else None


@dataclass(frozen=True, eq=False)
class Unseen:
    """Samples that neither calibration nor search has seen."""

    samples: Samples  # themselves,
    feeds: Sequence[Path]  # and as files
    metric: Metric | None  # of the bound
    given: Given  # the given model


@dataclass(frozen=True, eq=False, kw_only=True)
class OnOthers:
    """What a model does on other samples than those of the search."""

    each_db: tuple[
        float, ...
    ] = ()  # SQNR of the worst output on each unseen one; empty where it was not judged on them
    lacks_db: float = 0.0  # what it lacks on variations of samples
    evidence: Evidence | None = None  # what all samples say of new ones; None where there is nothing to show


class Verifier:
    """Judges contenders on the unseen samples, each at most once; without such samples all are kept.

    One is judged in any case, and others while there is time: one that hangs or ends its process takes seconds.

    Args:
        given: the given model, which nothing is lost by staying with.
        deadline: when no further contender is judged.
    """

    def __init__(
        self,
        worker: Worker,
        given: Candidate,
        unseen: Unseen | None,
        bound: Bound,
        deadline: Deadline,
        varied: StressTest | None = None,
        weigh: Weigh = lambda entry, unseen_db, until: None,
    ) -> None:
        self._weigh, self._evidence = weigh, dict[str, Evidence | None]()
        self._worker, self._given, self._unseen = worker, given.key, unseen
        self._bound, self._deadline, self._varied = bound, deadline, varied
        self._known: dict[str, Accuracy | Failed] = {}
        self._rejected: list[Rejected] = []
        self._each_db: dict[str, tuple[float, ...]] = {}
        self._longest_s = 0.0
        self.troubles: list[str] = []  # what failed, for people
        self.lacking: dict[str, float] = {}  # what models lacked on variations, in dB, by key
        exact = given.trial.outcome
        if unseen is not None and isinstance(exact, Measured) and exact.accuracy.sqnr_db >= EXACT_DB:
            self._known[given.key] = exact.accuracy

    @property
    def rejected(self) -> tuple[Rejected, ...]:
        """What was rejected, in the order in which it was judged."""
        return tuple(self._rejected)

    def keeps(self, entry: Entry) -> bool:
        """Whether a contender keeps the bound on the unseen samples, as far as there are some."""
        reference = self._reference
        if entry.key not in self._known:
            if reference is None or self._unseen is None:
                return True
            if self._longest_s and not self._deadline.fits(self._longest_s):
                return False
            begun = self._deadline.clock()
            found = self._judge(entry, reference, self._unseen)
            if entry.key == self._given and isinstance(found, Accuracy):
                found = replace(found, feasible=True, reason="")
            self._longest_s = max(self._longest_s, self._deadline.clock() - begun)
            self._known[entry.key] = found
            if isinstance(found, Failed) or not found.feasible:
                self._rejected.append(Rejected(entry.candidate, found))
        known = self._known[entry.key]
        return isinstance(known, Accuracy) and known.feasible

    def may_judge(self, until: Deadline) -> bool:
        """Whether there is time to judge one more before ``until``."""
        return until.left > 0.0 and until.fits(self._longest_s)

    def accuracy(self, entry: Entry) -> Accuracy | None:
        """Accuracy of a finalist on the unseen samples; None without such samples."""
        known = self._known.get(entry.key)
        return known if isinstance(known, Accuracy) else None

    def each_db(self, entry: Entry) -> tuple[float, ...]:
        """SQNR of a finalist's worst output on each unseen sample; empty where it was not judged on them."""
        return self._each_db.get(entry.key, ())

    def on_others(self, entry: Entry, until: Deadline) -> OnOthers:
        """All that is known of a finalist, and :meth:`evidence`."""
        each_db, lacks_db = self.each_db(entry), self.lacks_db(entry, until)
        return OnOthers(each_db=each_db, lacks_db=lacks_db, evidence=self.evidence(entry, until))

    def evidence(self, entry: Entry, until: Deadline) -> Evidence | None:
        """What the samples say of a contender on new ones; None where there is nothing to show, as in float.

        Each is judged once, and none where that would take until after ``until``.
        """
        if not entry.candidate.placement and entry.candidate.source is None:
            return None
        if entry.key not in self._evidence:
            doing(f"weigh what the samples say of {entry.candidate.origin}")
            found = self._weigh(entry, self.each_db(entry), until)
            if found is not None:
                searched = entry.candidate.trial.accuracy
                searched_db = 0.0 if searched is None else searched.sqnr_db
                unseen = self.accuracy(entry)
                unseen_db = None if unseen is None else unseen.sqnr_db
                found = replace(found, searched_db=searched_db, unseen_db=unseen_db)
                if found.breaks:
                    self._reject(entry, found)
            self._evidence[entry.key] = found
        found = self._evidence[entry.key]
        if found is None or found.statement.samples >= FEW:
            return found
        return replace(found, varied_lacks_db=self.lacks_db(entry, until))  # there may be time for it only later

    def _reject(self, entry: Entry, found: Evidence) -> None:
        """Keep a contender no longer: samples that had no part in its ranges break its bound."""
        db = 0.0 if found.statement.mean_db is None else found.statement.mean_db
        if found.lost_unseen_db and found.unseen_db is not None:
            db = found.unseen_db
        known: Accuracy | Failed = Accuracy(False, db, samples=found.statement.samples, reason=found.broken)
        evaluated, wanted_db = found.evaluated, None
        if evaluated is not None and evaluated.breaks:
            lacking = evaluated.lacks_db(found.searched_db)
            if lacking:
                wanted_db = found.searched_db + lacking
            else:
                known = Failed("evaluate", evaluated.why)
        self._known[entry.key] = known
        self._rejected.append(Rejected(entry.candidate, known, wanted_db))

    def weighed(self, entry: Entry) -> Evidence | None:
        """What is known of a contender already."""
        found = self._evidence.get(entry.key)
        if found is None or found.statement.samples >= FEW:
            return found
        return replace(found, varied_lacks_db=self.lacking.get(entry.key, 0.0))

    def lacks_db(self, entry: Entry, until: Deadline) -> float:
        """How many dB the worst variation of the samples lacks, beyond what variations may lose.

        Returns:
            0 where none lacks any, where a metric decides, or where it cannot be told before ``until``.
        """
        varied, least = self._varied, self._bound.min_sqnr_db
        if varied is None or not varied.names or least is None or not entry.candidate.placement:
            return 0.0
        if entry.key not in self.lacking:
            if not self.may_judge(until):
                return 0.0
            try:
                found = varied.robustness(self._worker.run(entry.file, varied.feeds), 0.0)
                worst_db = np.inf if found is None else min(found.varied_db.values())
            except TargetError:
                worst_db = np.inf  # what fails on the samples themselves is noticed elsewhere
            finally:
                self._worker.drop(entry.file)
            self.lacking[entry.key] = max(0.0, least - STRESS_ALLOWANCE_DB - worst_db)
        return self.lacking[entry.key]

    def _judge(self, entry: Entry, reference: Sequence[Outputs], unseen: Unseen) -> Accuracy | Failed:
        doing(f"judge {entry.candidate.origin} on unseen samples")
        judge = unseen.given.compare(unseen.samples, reference, self._bound, unseen.metric)
        try:
            outputs = self._worker.run(entry.file, unseen.feeds)
            self._each_db[entry.key] = judge.each_db(outputs)
            return judge.judge(outputs, in_task=True)
        except TargetError as error:
            return Failed("accuracy", str(error))
        finally:
            self._worker.drop(entry.file)

    @cached_property
    def _reference(self) -> Sequence[Outputs] | None:
        """What the given model makes of the unseen samples; None where there are none, or it fails."""
        if self._unseen is None:
            return None
        try:
            return self._unseen.given.reference(self._unseen.feeds)
        except TargetError as error:
            self.troubles.append(f"no model was verified on unseen samples, as the given model fails there: {error}")
            return None
