"""What was found out about a placement: ``Trial``, ``Measured``, ``Infeasible``, ``Failed``.

Results live here, never inside a placement.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any, Literal

from inlay.types import Placement

Stage = Literal["emit", "accuracy", "compile", "run", "measure", "timeout", "worker", "evaluate"]


LEVEL = 0.95
"""Confidence level of intervals by default, and of what is reported."""

WIDE = 1.5
"""Upper bound of a ratio over its lower one beyond which only the lower one is told."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence bounds; ``low <= value <= high``."""

    value: float
    low: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> Interval:
        """Of a value without noise."""
        return cls(value, value, value)

    @property
    def is_told(self) -> bool:
        """Whether there were readings enough for bounds: fewer leave everything open, from 0 to infinity."""
        return self.low > 0.0 and self.high < math.inf

    @property
    def is_wide(self) -> bool:
        """Whether its bounds are so far apart that the estimate between them says little."""
        return self.is_told and self.high > WIDE * self.low

    def excludes_gain(self, least: float = 1.0) -> bool:
        """Whether even the upper bound stays below ``least`` (as a ratio: no faster than)."""
        return self.high < least

    def shows_gain(self, least: float = 1.0) -> bool:
        """Whether even the lower bound exceeds ``least``."""
        return self.low > least


@dataclass(frozen=True)
class Latency:
    """Paired latency of one model against the baseline of the same run.

    Attributes:
        ns: median nanoseconds per inference.
        speedup: baseline over candidate, paired by block, with its 95 % confidence interval.
        blocks: how many interleaved blocks the estimate rests on.
    """

    ns: float
    speedup: Interval
    blocks: int


UNTOLD = "too few readings"
"""What is shown in place of a ratio whose interval leaves everything open."""


LITTLE = "readings too few for more"
"""Why only the lower bound of a ratio is shown."""


def shown_use(name: str, streams: int) -> str:
    """A use other than the one that a model was tuned for, as in ``result.json``, for people."""
    known = {"latency": "one at a time", "cpu-time": "in processor time", "cold": "behind other work"}
    return known.get(name, f"with {streams} at once")


def shown_ratio(found: Interval, digits: int = 2) -> str:
    """A ratio for people, with its interval: its lower bound where that is wide, no number where there is none."""
    if not found.is_told:
        return UNTOLD
    if found.is_wide:
        return f"at least {found.low:.{digits}f}x ({LITTLE})"
    if found.low == found.high:
        return f"{found.value:.{digits}f}x"
    return f"{found.value:.{digits}f}x [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def counted(count: int, one: str, many: str = "") -> str:
    """``count`` with its noun: "1 sample", "2 samples".

    Args:
        count: how many.
        one: the noun for one.
        many: for any other count; by default ``one`` with an s.
    """
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def together(samples: int, kind: str = "") -> str:
    """That a figure is one of all samples together, not of single ones: "over 4 unseen samples together".

    Args:
        samples: how many; of one there is nothing to tell apart.
        kind: what stands before the noun, such as "unseen"; may be empty.
    """
    said = counted(samples, f"{kind} sample".strip())
    return f"on {said}" if samples == 1 else f"over {said} together"


def plain(value: float | None, digits: int = 3) -> str:
    """A number for people, with so many digits that count, and without an exponent unless it is far from 1."""
    if value is None:
        return "an unknown amount"
    text = f"{value:.{digits}g}"
    return f"{Decimal(text):f}" if "e" in text and 1e-6 <= abs(value) < 1e9 else text


def shown_seconds(seconds: float, digits: int = 3) -> str:
    """A duration for people, in the unit that fits: "1.33 s", "80 ms", "12 us", "70 ns"."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if float(f"{seconds * factor:.{digits}g}") >= 1.0 or not seconds:
            return f"{plain(seconds * factor, digits)} {unit}"
    return f"{plain(seconds * 1e9, digits)} ns"


def shown_size(size: float) -> str:
    """Bytes for people, in 10^6 of them."""
    return f"{plain(size / 1e6)} MB"


def shown_latency(ms: float, speedup: Interval, unit: str = "ms") -> str:
    """A latency for people, as far as the ``speedup`` that it follows from tells it."""
    return f"at most {ms * speedup.value / speedup.low:.3f} {unit}" if speedup.is_wide else f"{ms:.3f} {unit}"


SHOWN_AS_EXACT_DB = 120.0
"""About the rounding of float32 sums: from here on "exact" says more than a number."""


def shown_sqnr(sqnr_db: float) -> str:
    """An SQNR for people: in dB, or "exact"."""
    return "exact" if sqnr_db >= SHOWN_AS_EXACT_DB else f"{sqnr_db:.1f} dB"


def floored(share: float) -> str:
    """In percent with one decimal, rounded down: what is at least so much must not be told as more."""
    return f"{math.floor(1e3 * share + 1e-9) / 10.0:.1f}"


def noise_of(sqnr_db: float) -> float:
    """Noise power over signal power of an SQNR in dB."""
    return float(10.0 ** (-sqnr_db / 10.0))


def decibels(noise: float) -> float:
    """SQNR in dB of noise power over signal power; 300 where there is none."""
    return -10.0 * math.log10(max(float(noise), 1e-30))


@dataclass(frozen=True)
class OutputError:
    """How far one output, or a part of one, is from the float model's.

    Attributes:
        name: of the output; of a part as ``output0[:, 4:84]``.
        sqnr_db: SQNR over all samples.
        cosine: similarity over all samples.
        lost: what stands in place of it, where it is lost; see :mod:`inlay.quant.parts`.
    """

    name: str
    sqnr_db: float
    cosine: float
    lost: str = ""


@dataclass(frozen=True)
class TaskFigure:
    """How far a model does what the float model does, in the terms of its task; see :mod:`inlay.quant.tasks`.

    Attributes:
        name: of the figure.
        value: larger is better.
        lost: what it lacks of the float model's own, in the same units.
        most: so much may be lost; None where it is only told.
        right: how many are right where it is a share of what is counted.
        of: of how many; 0 where nothing is counted.
        said: for people.
    """

    name: str
    value: float
    lost: float
    most: float | None
    right: int
    of: int
    said: str

    @property
    def broken(self) -> bool:
        """Whether too much is lost: where something is counted, by one more than that, since one may be a near miss."""
        if self.most is None:
            return False
        return self.of - self.right - 1 > self.most * self.of if self.of else self.lost > self.most


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of one model on one part of the samples.

    Attributes:
        feasible: whether it keeps the bound.
        sqnr_db: signal-to-quantization-noise ratio of the worst output, in dB; ``inf`` when nothing changed.
        outputs: every output's own error.
        metric: value of the user's metric, or None without one.
        drop: float model's metric minus this one's, or None.
        samples: how many samples were used.
        reason: why it is not feasible; empty when it is.
        margin_db: required above the bound, derived from how much samples differ.
        silent: outputs that are one and the same number on all samples, and were left out.
        task: what the model looks like, for people; empty where that is not sure, or was not looked at.
        figures: how far it does the same, in the terms of that task.
        reshaped: which outputs have another shape than float's; empty where none has.
        short_db: dB that the model needs beyond its own, for all samples to state the bound on the SQNR for new ones if
            they are like these; 0 where there is nothing to state, None where that cannot be said.
    """

    feasible: bool
    sqnr_db: float
    outputs: tuple[OutputError, ...] = ()
    metric: float | None = None
    drop: float | None = None
    samples: int = 0
    reason: str = ""
    margin_db: float = 0.0
    silent: tuple[str, ...] = ()
    task: str = ""
    figures: tuple[TaskFigure, ...] = ()
    reshaped: str = ""
    short_db: float | None = 0.0

    @property
    def in_task(self) -> str:
        """The figures of the task in words; empty where there are none."""
        if not self.figures:
            return ""
        return f"this looks like {self.task}: {', '.join(figure.said for figure in self.figures)}"

    @property
    def task_json(self) -> dict[str, Any]:
        """Its figures in that task, and outputs of other shapes, as in ``result.json``: only where there are any."""
        found: dict[str, Any] = {"reshaped": self.reshaped} if self.reshaped else {}
        if self.figures:
            found["task"] = {"looks_like": self.task, "figures": [asdict(figure) for figure in self.figures]}
        return found

    @property
    def lost(self) -> tuple[OutputError, ...]:
        """Outputs, and parts of them, that are lost."""
        return tuple(o for o in self.outputs if o.lost)

    @property
    def worst(self) -> str:
        """Which of several outputs and parts has ``sqnr_db``; empty where there is one."""
        named = [o for o in self.outputs if o.sqnr_db <= self.sqnr_db]
        return named[0].name if named and len(self.outputs) > 1 and self.sqnr_db < SHOWN_AS_EXACT_DB else ""


@dataclass(frozen=True)
class Measured:
    """A model that was built, ran, and was timed. ``accuracy.feasible`` says whether it may be delivered.

    Attributes:
        latency: its time.
        accuracy: its error.
        equal_to: key of the model that was measured in its place: the runtime makes the same graph of both.
    """

    latency: Latency
    accuracy: Accuracy
    equal_to: str = ""


@dataclass(frozen=True)
class Infeasible:
    """A model outside the accuracy bound; it was not timed. ``equal_to`` as in :class:`Measured`."""

    accuracy: Accuracy
    equal_to: str = ""


@dataclass(frozen=True)
class Failed:
    """A model that could not be judged: where it failed, and the message."""

    stage: Stage
    message: str


Outcome = Measured | Infeasible | Failed


@dataclass(frozen=True)
class Proposal:
    """A placement that a strategy proposes.

    Attributes:
        placement: what is to be judged.
        origin: where it comes from, for people.
        anchor: it is timed even where it is outside the accuracy bound, since the result is compared with it.
        timed: so is this one, as a point of the front of speed and accuracy; but only while the budget lasts.
    """

    placement: Placement
    origin: str
    anchor: bool = False
    timed: bool = False


@dataclass(frozen=True)
class Trial:
    """A proposal with its outcome.

    Attributes:
        accepted: whether it replaced the incumbent.
        versus_incumbent: incumbent's latency over this one's, paired, at the time of the race; None when it was
            not timed. Greater than 1 means faster than the incumbent.
    """

    proposal: Proposal
    outcome: Outcome
    accepted: bool = False
    versus_incumbent: Interval | None = field(default=None)

    @property
    def feasible(self) -> bool:
        """Whether it was timed and keeps the accuracy bound."""
        return isinstance(self.outcome, Measured) and self.outcome.accuracy.feasible

    @property
    def accuracy(self) -> Accuracy | None:
        """Its accuracy, unless it failed before that was known."""
        return None if isinstance(self.outcome, Failed) else self.outcome.accuracy

    @property
    def speedup(self) -> float | None:
        """Baseline over this one's latency, unless it was not timed."""
        return self.outcome.latency.speedup.value if isinstance(self.outcome, Measured) else None
