"""The accuracy constraint: what a delivered model must keep, by its outputs, a metric, or the user's own evaluation."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_DROP = 0.01
"""Most that a metric may fall where nothing else is asked for; of values beyond 1, as a share of float's."""


@dataclass(frozen=True)
class EvaluationBound:
    """What must be kept of the scores that the user's own evaluation gives a whole model."""

    evaluator: str  # its name, for people
    max_drop: float | None = None  # most that each score may get worse, in its own units; None for `DEFAULT_DROP`
    least: tuple[tuple[str, float], ...] = ()  # the least that scores may be, by name: of these, larger is better
    most: tuple[tuple[str, float], ...] = ()  # the most that scores may be, by name: of these, smaller is better
    higher_is_better: bool | None = None  # of scores with unknown names; None where that was not said
    is_free: bool = False  # nothing is bounded: scores are told only

    def __str__(self) -> str:
        if self.is_free:
            return ""
        fall = "worse than float by 0.01 at most (of values beyond 1, by 1 %)"
        drop = fall if self.max_drop is None else f"worse than float by {self.max_drop:g} at most"
        limits = [f"{name} at least {value:g}" for name, value in self.least]
        limits += [f"{name} at most {value:g}" for name, value in self.most]
        parts = [f"scores {drop}"] if self.max_drop is not None or not limits else []
        side = (
            "" if self.higher_is_better is None else f" ({'larger' if self.higher_is_better else 'smaller'} is better)"
        )
        return f"{', '.join([*parts, *limits])}, by {self.evaluator}{side}"


@dataclass(frozen=True)
class Bound:
    """The accuracy constraint: what a delivered model must keep."""

    min_sqnr_db: float | None = None  # least SQNR of the worst output
    metric: str | None = None  # its name
    max_drop: float | None = None  # most that the metric may fall below the float model's, in the metric's own units
    evaluation: EvaluationBound | None = None  # of the user's own evaluation of whole models
    # nobody asked for any: where the model is seen to be for a task that has a better measure, that takes the place of
    # `min_sqnr_db` (:meth:`inlay.quant.tasks.task.Task.usual`)
    is_usual: bool = False
    in_task: str = ""  # what of that must be kept, for people; the task's figures say whether it is

    @property
    def is_none(self) -> bool:
        """Whether nothing is bounded."""
        return str(self) == "none"

    def __str__(self) -> str:
        parts = []
        if self.min_sqnr_db is not None:
            parts.append(f"SQNR at least {self.min_sqnr_db:g} dB")
        if self.in_task:
            parts.append(self.in_task)
        if self.metric is not None and self.max_drop is not None:
            parts.append(f"{self.metric} at most {self.max_drop:g} below float")
        if self.evaluation is not None and str(self.evaluation):
            parts.append(str(self.evaluation))
        return " and ".join(parts) or "none"
