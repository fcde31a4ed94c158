"""Models held against the given one by the user's own evaluation, within a share of the budget, each once in a run.

The given model is evaluated twice, as far as that is cheap: an evaluation that changes its mind by more than what is
allowed decides nothing, and one that does so by less makes the bound narrower by as much. The journal keeps all scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from inlay.deadline import Clock, Deadline
from inlay.errors import DataError, TooShort
from inlay.measure.journal import Fact, Journal
from inlay.model.heard import doing
from inlay.quant.bound import EvaluationBound
from inlay.quant.evaluation import Allowed, Evaluation, allowed, paired
from inlay.quant.metric_limits import MetricStatement, state_metric
from inlay.run.evaluation.evaluator import ModelEvaluator
from inlay.run.evaluation.relation import Point, Relation, fitted
from inlay.run.schedule import EVALUATING, EVALUATING_AGAIN
from inlay.targets.base import Artifact
from inlay.trial import Failed, counted, noise_of, plain, shown_seconds

EVALUATED_DB = Fact("evaluated_db", float)  # the SQNR of one model that was evaluated
EVALUATION: Fact[Evaluation] = Fact("evaluation", Evaluation.from_json, Evaluation.as_json)
"""The user's evaluation of one model: by ``given`` and ``given again``, or by what names a candidate."""
STEERING_DB = Fact("steering_db", float)
"""The SQNR that the search asks for, where nothing but the user's evaluation is bounded."""
_GIVEN, _AGAIN = "given", "given again"
_LEAST_S, _TIMES = 30.0, 5.0
"""An evaluation is ended after so many seconds, and so many times what the longest one took."""
_STEP_DB, _LEAST_STEP_DB = 3.0, 0.5
"""What the next model is to have beyond one that is outside the bound: half the noise; or less, where it is known."""
_LATEST = 2  # evaluations that say what the next one takes
_WHILE_CONFIRMING = 2.0
"""Evaluations that are planned for in the confirmation: of what is to be delivered, and of what takes its place."""
_MANY = 1000.0  # evaluations that take no time worth speaking of
_FIRST = 0.5  # share of what is left of the budget after which the first one is ended


@dataclass(frozen=True, kw_only=True)
class ScoreFound:
    """One score of one model."""

    # name, value: of it
    name: str
    value: float
    of_float: float  # the given model's
    fall: float  # how much worse than that it is
    allowed: float | None  # most that it may be worse; None where it is told only
    statement: MetricStatement | None  # what its samples say of new ones; None where only values were told

    @property
    def broken(self) -> bool:
        """Whether it is worse than allowed on the evaluation's own data."""
        return self.allowed is not None and self.fall > self.allowed + 1e-12

    @property
    def shown(self) -> bool:
        """Whether nothing speaks against it: on the evaluation's data, and for new ones where samples say so."""
        return not self.broken and (self.statement is None or self.statement.keeps_bound is not False)

    def as_json(self) -> dict[str, Any]:
        """As in ``result.json``."""
        said = None if self.statement is None else self.statement.as_json()
        return {**{k: v for k, v in asdict(self).items() if k != "statement"}, "shown": self.shown, "statement": said}

    def __str__(self) -> str:
        return f"{self.name} {plain(self.value, 6)} (float {plain(self.of_float, 6)})"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the user's evaluation says of one model."""

    evaluator: str  # its name
    scores: tuple[ScoreFound, ...] = ()  # those with a direction; none where it failed, or was not asked
    failure: str = ""  # why there are none; empty where there are
    asked: bool = True  # it was; otherwise there was no time
    # SQNR that the allowed falls ask for, by all models that were evaluated; None where that is not known
    needs_db: float | None = None

    @property
    def breaks(self) -> bool:
        """Whether the model is outside the bound, or cannot be evaluated."""
        return (self.asked and bool(self.failure)) or any(s.broken for s in self.scores)

    @property
    def shows(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.failure and all(s.shown for s in self.scores)

    def lacks_db(self, sqnr_db: float) -> float:
        """SQNR that a model needs beyond the ``sqnr_db`` of this one, in dB: 0 where more would not mend it."""
        if self.failure or self.shows:
            return 0.0
        return _STEP_DB if self.needs_db is None else max(_LEAST_STEP_DB, self.needs_db - sqnr_db)

    def expected_fall(self, sqnr_db: float, more_db: float = 0.0) -> float:
        """The largest fall, as a share of what is allowed; infinite where nothing is known.

        By noise for a model of ``sqnr_db`` that it was not asked about, and where new samples need ``more_db`` dB.
        """
        if not self.asked and self.needs_db is not None:
            return noise_of(sqnr_db - self.needs_db)
        if more_db:
            return noise_of(-more_db)
        if self.failure:
            return math.inf
        return max([s.fall / max(s.allowed, 1e-12) for s in self.scores if s.allowed is not None], default=0.0)

    @property
    def why(self) -> str:
        """What is broken or not shown; empty where the bound is shown."""
        if self.failure:
            return self.failure
        parts = [
            f"{s.name} gets worse by {plain(s.fall)}, from {plain(s.of_float, 6)} to {plain(s.value, 6)}, more than "
            f"the {plain(s.allowed)} allowed (--evaluate {self.evaluator})"
            for s in self.scores
            if s.broken
        ]
        return "; ".join(parts or [str(s.statement) for s in self.scores if not s.shown])

    def __str__(self) -> str:
        return ", ".join(map(str, self.scores)) or self.failure

    def as_json(self) -> dict[str, Any]:
        """As in ``result.json``."""
        scores = [s.as_json() for s in self.scores]
        said = {"failure": self.failure or None, "shown": self.shows, "sentence": str(self)}
        return {"evaluator": self.evaluator, "scores": scores, **said}


@dataclass(frozen=True, eq=False, kw_only=True)
class EvaluationJudge:
    """Holds models against the given one by the user's evaluation."""

    evaluator: ModelEvaluator  # whom it asks
    bound: EvaluationBound  # what must be kept
    given: Path  # the given model
    place: Path  # folder for copies
    journal: Journal  # keeps what was found
    budget_s: float  # seconds of the whole command; infinite without a limit
    clock: Clock  # of the run
    seed: int  # of the draws of intervals
    # models that were evaluated, by the names of score and model
    points: dict[tuple[str, str], Point] = field(default_factory=dict)
    # SQNR in dB of models for which it shows the bound
    shown_db: list[float] = field(default_factory=list)
    # seconds that evaluations of models besides the given one took in this session
    asked: list[float] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # on models that were evaluated before the search

    def begin(self, end: Deadline) -> None:
        """Evaluate the given model, before all work: without its scores there is nothing to hold others against.

        Raises:
            DataError: the evaluation fails.
            UsageError: its scores cannot be bounded as asked for, or the budget is too short for it.
        """
        if self.journal.fact(EVALUATION.of(_GIVEN)) is None:
            first = self._of_given(end)
            if 2.0 * first.seconds > end.left:
                needed = 10 * int(4.0 * first.seconds / 10.0 + 1.0)
                raise TooShort(
                    f"--evaluate {self.evaluator.name} takes {shown_seconds(first.seconds)}, which leaves no time to "
                    f"judge what is found: give a --budget of at least {needed}s",
                    needed,
                )
            again = self._of_given(end) if first.seconds <= EVALUATING_AGAIN * self.budget_s else None
            each = allowed(self.bound, first, _spread(first, again))
            self.journal.record_fact(EVALUATION.of(_GIVEN), _directed(first, each))
            if again is not None:
                self.journal.record_fact(EVALUATION.of(_AGAIN), again)
        _ = self.allowed  # which refuses what it can before the work

    @cached_property
    def of_given(self) -> Evaluation:
        """The given model's scores."""
        found = self.journal.fact(EVALUATION.of(_GIVEN))
        assert found is not None, "the run began with it"
        return found

    @cached_property
    def spread(self) -> Mapping[str, float]:
        """How far each score of the given model differed between two evaluations; empty where there was one."""
        return _spread(self.of_given, self.journal.fact(EVALUATION.of(_AGAIN)))

    @cached_property
    def allowed(self) -> tuple[Allowed, ...]:
        """What each score may be. Raises UsageError."""
        return allowed(self.bound, self.of_given, self.spread)

    @property
    def seconds(self) -> float:
        """What one evaluation takes, by the latest: the first one of all may also prepare what later ones find."""
        again = self.journal.fact(EVALUATION.of(_AGAIN))
        return max(self.asked[-_LATEST:] or [(again or self.of_given).seconds])

    @property
    def _left_s(self) -> float:
        return EVALUATING * self.budget_s - sum(self.asked)

    @property
    def planned_s(self) -> float:
        """Seconds that are to be kept for evaluations while contenders are confirmed: at least one."""
        return max(self.seconds, min(_WHILE_CONFIRMING * self.seconds, self._left_s))

    def affords(self, end: Deadline) -> int:
        """How many more may be evaluated until ``end``, before any is confirmed: the share lasts for one there."""
        left_s = min(self._left_s - self.seconds, end.left)
        return 0 if left_s < self.seconds else int(min(left_s / max(self.seconds, 1e-9), _MANY))

    def known(self, name: str) -> bool | None:
        """Whether a model kept the bound when it was evaluated; None where it was not. Nothing is evaluated."""
        found = self.journal.fact(EVALUATION.of(name))
        return None if found is None else not any(self._score(each, found).broken for each in self.allowed)

    def verdict(self, model: Artifact, name: str, sqnr_db: float, until: Deadline) -> Verdict:
        """What the evaluation says of a model.

        Args:
            name: identifies it in the journal.
            sqnr_db: its SQNR, for the relation of both.
            until: when it must be known: it is not asked where that leaves no time.
        """
        who, known = self.evaluator.name, self.journal.fact(EVALUATION.of(name))
        if known is None:
            if not until.fits(self.seconds) or (self.asked and self.seconds > self._left_s):
                late = f"there was no time left for --evaluate {who}: give a larger --budget"
                return Verdict(evaluator=who, failure=late, asked=False, needs_db=self.needs_db())
            limit_s = min(until.left, max(_LEAST_S, _TIMES * self.seconds))
            found = self.evaluator.run(model.path, limit_s, self.place)
            self.asked.append(found.seconds if isinstance(found, Evaluation) else self.seconds)
            missing = [] if isinstance(found, Failed) else [a.name for a in self.allowed if a.name not in found.scores]
            if missing:
                found = Failed("evaluate", f"--evaluate {who} no longer returns {', '.join(missing)}")
            if isinstance(found, Failed):
                return Verdict(evaluator=who, failure=found.message)
            self.journal.record_fact(EVALUATED_DB.of(name), sqnr_db)
            known = self.journal.record_fact(EVALUATION.of(name), _directed(found, self.allowed))
        return self._of(known, name, sqnr_db)

    def recall(self, name: str) -> Verdict | None:
        """Count a model in that an earlier session evaluated, if it did."""
        known, sqnr_db = self.journal.fact(EVALUATION.of(name)), self.journal.fact(EVALUATED_DB.of(name))
        return None if known is None or sqnr_db is None else self._of(known, name, sqnr_db)

    def _of(self, known: Evaluation, name: str, sqnr_db: float) -> Verdict:
        scores = tuple(self._score(each, known) for each in self.allowed)
        for score in scores:
            error = 0.0 if score.statement is None else _error(score.name, self.of_given, known)
            self.points[score.name, name] = Point(sqnr_db, score.fall, error)
        found = Verdict(evaluator=self.evaluator.name, scores=scores, needs_db=self.needs_db())
        if found.shows:
            self.shown_db.append(sqnr_db)
        return found

    @property
    def own(self) -> Verdict:
        """What it says of the given model."""
        given = self.of_given
        return Verdict(evaluator=self.evaluator.name, scores=tuple(self._score(a, given) for a in self.allowed))

    def relations(self) -> list[tuple[Relation, float | None]]:
        """How each score falls with noise, and what is allowed, as far as models were evaluated."""
        found = []
        for each in self.allowed:
            relation = fitted(each.name, [p for (score, _), p in self.points.items() if score == each.name])
            if relation is not None:
                found.append((relation, each.drop))
        return found

    def needs_db(self, share: float = 1.0) -> float | None:
        """SQNR that a share of the allowed falls asks for; None where no model says so."""
        asked = [r.least_db(share * drop) for r, drop in self.relations() if drop is not None]
        return max([db for db in asked if np.isfinite(db)], default=None)

    def notes(self) -> list[str]:
        """What people should know of the evaluation besides its verdicts."""
        found = []
        for name, spread in self.spread.items():
            if spread > 0.0:
                found.append(
                    f"--evaluate {self.evaluator.name} changes its mind: {name} of one and the same model differed by "
                    f"{plain(spread)}, by which its bound was made narrower"
                )
        if not self.spread:
            seconds = shown_seconds(self.of_given.seconds)
            found.append(f"--evaluate takes {seconds}: whether it gives one model the same scores twice was not tried")
        untold = [name for name in self.of_given.scores if name not in {a.name for a in self.allowed}]
        if untold:
            found.append(f"not bounded, as it is not said whether larger is better: {', '.join(untold)}")
        found += [*self.remarks, *(relation.told(drop) for relation, drop in self.relations())]
        if self.of_given.remark:
            found.append(f"--evaluate {self.of_given.remark}; nothing is lost")
        if self.asked:
            found.append(f"--evaluate was asked for {counted(len(self.asked), 'model')} besides the given one")
        return found

    def _of_given(self, end: Deadline) -> Evaluation:
        doing("evaluate the given model")
        found = self.evaluator.run(self.given, _FIRST * end.left, self.place)
        if isinstance(found, Failed):
            raise DataError(f"the given model cannot be evaluated: {found.message}")
        return found

    def _score(self, each: Allowed, found: Evaluation) -> ScoreFound:
        score = found.scores[each.name]
        pairs, rng = paired(each, self.of_given.scores[each.name], score), np.random.default_rng(self.seed)
        return ScoreFound(
            name=each.name,
            value=score.value,
            of_float=each.value,
            fall=each.loss(score.value),
            allowed=each.drop,
            statement=None if pairs is None else state_metric(pairs, each.drop, rng, self.clock),
        )


def _spread(first: Evaluation, again: Evaluation | None) -> dict[str, float]:
    if again is None:
        return {}
    missing = next((name for name in first.scores if name not in again.scores), None)
    if missing is not None:
        raise DataError(f"the evaluation returned {missing} of the given model at first, and then no longer")
    return {name: abs(score.value - again.scores[name].value) for name, score in first.scores.items()}


def _directed(found: Evaluation, directions: Sequence[Allowed]) -> Evaluation:
    """The same with what is known of each score: whoever reads the journal has no options to know it by."""
    known = {each.name: each.higher_is_better for each in directions}
    scores = {name: replace(score, higher_is_better=known.get(name)) for name, score in found.scores.items()}
    return replace(found, scores=scores)


def evaluated_fall(journal: Journal, name: str) -> float | None:
    """How much worse than float's the worst score of a model was found to be; None where it was not evaluated.

    Args:
        name: digest of the model's placement.
    """
    given, found = journal.fact(EVALUATION.of(_GIVEN)), journal.fact(EVALUATION.of(name))
    if given is None or found is None:
        return None
    falls = [
        (score.value - found.scores[key].value) * (1.0 if score.higher_is_better else -1.0)
        for key, score in given.scores.items()
        if score.higher_is_better is not None and key in found.scores
    ]
    return max(falls, default=None)


def _error(name: str, ours: Evaluation, theirs: Evaluation) -> float:
    """Standard error of the mean difference between two models over the same samples."""
    one, other = ours.scores[name].each, theirs.scores[name].each
    assert one is not None
    assert other is not None
    return float(np.std(one - other, ddof=min(1, one.size - 1)) / np.sqrt(one.size))
