"""What is known of why a model runs as it does, as values and as JSON with stable keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from inlay.run.ceiling.bound import Ceiling
from inlay.trial import Interval

Precision = Literal["int8", "float", "other", "folded"]
"""What an operator ran in: ``other`` are indices and shapes, ``folded`` has no kernel of its own."""

Proof = Literal["alone", "together", "table", "predicted", "refuted"]
"""How a reason is known: the operator alone was mended, and then ran on integers; it did once others were mended as
well; the target's table says so, which tests prove; it was not tried; it was tried, and the operator stayed float."""


@dataclass(frozen=True)
class Reason:
    """Why an operator did not run on integers."""

    code: str  # name of the precondition that is not met, or `unsupported`, or `unknown`
    text: str  # what is wrong, with names
    advice: str = ""  # what to do
    proof: Proof = "predicted"  # how it is known

    @property
    def certain(self) -> bool:
        """Whether the runtime itself, or a test of it, has shown it."""
        return self.proof in ("alone", "together", "table")


@dataclass(frozen=True)
class Operator:
    """One operator of the model."""

    name: str  # of the node
    op_type: str  # of the node
    precision: Precision  # that it ran in
    kernel: str  # the runtime's operator that ran; empty where it is not known
    # of that kernel, in each inference, with the casts, scalings and biases that make floats of its sums
    cost_ms: float
    heavy: bool  # a product, or what takes a good part of the time
    reasons: tuple[Reason, ...] = ()  # why it does not run on integers
    gain_ms: float | None = None  # what it takes less once it does; None where that was not tried
    # what it takes in the float model inside a quantized one, if it runs on integers; else None
    float_ms: float | None = None

    @property
    def lost_ms(self) -> float:
        """What it takes more on integers than in float; 0 where it takes less, or that is not known."""
        return 0.0 if self.float_ms is None else max(0.0, self.cost_ms - self.float_ms)

    def as_json(self) -> dict[str, Any]:
        """With the reasons also as one text."""
        return {
            **asdict(self),
            "reason": "; ".join(r.text for r in self.reasons),
            "reasons": [asdict(r) for r in self.reasons],
        }


WasteKind = Literal["idle-pair", "enters-int8", "leaves-int8", "requantized", "layout", "constant", "input", "output"]
"""Why a Q, DQ, reorder or transpose is executed as a kernel of its own."""


@dataclass(frozen=True)
class Waste:
    """Kernels that convert one value, or rearrange it."""

    kind: WasteKind  # why they are there; those of `input` and `output` are the price of integers at all
    value: str  # the value of the model; the operator, where it is its constant
    nodes: tuple[str, ...]  # the operators that write and read it
    cost_ms: float  # in each inference
    share: float  # of the time of all kernels
    advice: str = ""  # what to do; empty where there is nothing
    # the price is what the model saves without the pair, measured; else it is the time of its kernels
    timed: bool = False


@dataclass(frozen=True)
class Loss:
    """What one source of rounding costs."""

    source: str  # the value, or the operator that reads the weights
    kind: str  # `activation` or `weights`
    # SQNR of the worst output without it, less that with it; None where there was no time for that
    loss_db: float | None
    alone_db: float  # SQNR where nothing else is rounded


@dataclass(frozen=True)
class Together:
    """SQNR of the worst output without the ``sources`` that are the loudest alone."""

    sources: int
    sqnr_db: float


@dataclass(frozen=True)
class Bound:
    """What INT8 could bring to a float model at most."""

    float_ms: float  # kernels of the normalized float model
    int8_ms: float  # kernels of the target's usual full recipe
    best_ms: float  # each operator in its faster precision, with conversions between them for nothing
    barriers: tuple[str, ...] = ()  # what stands in the way, as sentences

    @property
    def at_most(self) -> float:
        """The speed-up that no placement exceeds, by these profiles."""
        return self.float_ms / max(self.best_ms, 1e-9)


ChangeKind = Literal["to-int8", "to-float", "conversion-removed", "conversion-added", "kernel"]
"""What a repair did: to an operator's precision, or to a conversion; ``kernel`` is another kernel, or layout, for the
same."""


@dataclass(frozen=True)
class Change:
    """One change of a repair."""

    kind: ChangeKind  # what it is
    name: str  # the operator, or the value
    op_type: str  # of the operator; empty of a conversion
    gain_ms: float  # time of its kernels before, less that after


@dataclass(frozen=True, kw_only=True)
class Repair:
    """What came of a repair."""

    path: str  # the file that was asked for
    written: bool  # whether there is a better model, and it was written there
    # over the given model, paired in fresh processes; None where that does not run, or nothing was found
    speedup: Interval | None
    given_db: float  # SQNR of the given model's worst output, against the model without its Q/DQ nodes
    repaired_db: float | None  # of the repaired one, on the same samples
    judged: int  # how many these are
    sha256: str = ""  # of the written file
    problem: str = ""  # why nothing was written
    changes: tuple[Change, ...] = ()  # what is different, what brought most first


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a model runs as it does on a target."""

    model: str  # its path
    target: str  # name of the target
    quantized: bool  # whether it holds Q/DQ nodes, or other operators on integers
    latency_ms: float  # median of one inference
    kernels_ms: float  # the sum over its kernels, as profiled: what shares are of
    operators: tuple[Operator, ...]  # every operator, in topological order
    waste: tuple[Waste, ...]  # conversions and rearrangements, the most expensive first
    failed: str = ""  # why the model does not run as it is; the figures are then those of a model without that fault
    # kernels once every reason that can be mended is, with made-up scales; None where that was not tried
    mended_ms: float | None = None
    # of the worst output against the float model in it, on the samples; None without samples
    sqnr_db: float | None = None
    judged: int = 0  # the number of samples that this and what follows are of
    losses: tuple[Loss, ...] = ()  # sources of rounding, the worst first
    together: tuple[Together, ...] = ()  # without several of them at once
    bound: Bound | None = None  # of a float model
    repair: Repair | None = None  # what came of a repair, where one was asked for
    notes: tuple[str, ...] = ()  # what else people should know
    facts: Mapping[str, str] = field(default_factory=dict)  # of the target's fingerprint
    # speed-up over the float model inside a quantized one; None where that was not timed
    over_float: Interval | None = None
    # by the file's metadata, Inlay placed its Q/DQ nodes: what is in float was left there by a choice
    chosen: bool = False
    ceiling: Ceiling | None = None  # how far the model is from what its processor can do; None where that is not known

    @property
    def lost_ms(self) -> float:
        """Time lost to placement: conversions within the model, what mended operators save, what others save in float.

        0 of a float model, whose ``bound`` says what INT8 could bring.
        """
        if not self.quantized:
            return 0.0
        inner = sum(w.cost_ms for w in self.waste if w.kind not in ("input", "output"))
        return inner + sum(max(o.gain_ms or 0.0, 0.0) + o.lost_ms for o in self.operators)

    def as_json(self) -> Mapping[str, Any]:
        """Stable keys."""
        return {
            "model": self.model,
            "target": self.target,
            "facts": dict(self.facts),
            "quantized": self.quantized,
            "placed_by_inlay": self.chosen,
            "failed": self.failed,
            "latency_ms": self.latency_ms,
            "kernels_ms": self.kernels_ms,
            "lost_ms": self.lost_ms,
            "mended_ms": self.mended_ms,
            "over_float": None if self.over_float is None else asdict(self.over_float),
            "operators": [o.as_json() for o in self.operators],
            "waste": [asdict(w) for w in self.waste],
            "accuracy": {
                "sqnr_db": self.sqnr_db,
                "samples": self.judged,
                "losses": [asdict(loss) for loss in self.losses],
                "together": [asdict(found) for found in self.together],
            },
            "bound": None if self.bound is None else {**asdict(self.bound), "at_most": self.bound.at_most},
            "ceiling": None if self.ceiling is None else self.ceiling.as_json(),
            "repair": None if self.repair is None else asdict(self.repair),
            "notes": list(self.notes),
        }
