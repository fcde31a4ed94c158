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
    """Why an operator did not run on integers.

    Attributes:
        code: name of the precondition that is not met, or ``unsupported``, or ``unknown``.
        text: what is wrong, with names.
        advice: what to do.
        proof: how it is known.
    """

    code: str
    text: str
    advice: str = ""
    proof: Proof = "predicted"

    @property
    def certain(self) -> bool:
        """Whether the runtime itself, or a test of it, has shown it."""
        return self.proof in ("alone", "together", "table")


@dataclass(frozen=True)
class Operator:
    """One operator of the model.

    Attributes:
        name, op_type: of the node.
        precision: that it ran in.
        kernel: the runtime's operator that ran; empty where it is not known.
        cost_ms: of that kernel, in each inference, with the casts, scalings and biases that make floats of its sums.
        heavy: a product, or what takes a good part of the time.
        reasons: why it does not run on integers.
        gain_ms: what it takes less once it does; None where that was not tried.
        float_ms: what it takes in the float model inside a quantized one, if it runs on integers; else None.
    """

    name: str
    op_type: str
    precision: Precision
    kernel: str
    cost_ms: float
    heavy: bool
    reasons: tuple[Reason, ...] = ()
    gain_ms: float | None = None
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
    """Kernels that convert one value, or rearrange it.

    Attributes:
        kind: why they are there; those of ``input`` and ``output`` are the price of integers at all.
        value: the value of the model; the operator, where it is its constant.
        nodes: the operators that write and read it.
        cost_ms: in each inference.
        share: of the time of all kernels.
        advice: what to do; empty where there is nothing.
        timed: the price is what the model saves without the pair, measured; else it is the time of its kernels.
    """

    kind: WasteKind
    value: str
    nodes: tuple[str, ...]
    cost_ms: float
    share: float
    advice: str = ""
    timed: bool = False


@dataclass(frozen=True)
class Loss:
    """What one source of rounding costs.

    Attributes:
        source: the value, or the operator that reads the weights.
        kind: ``activation`` or ``weights``.
        loss_db: SQNR of the worst output without it, less that with it; None where there was no time for that.
        alone_db: SQNR where nothing else is rounded.
    """

    source: str
    kind: str
    loss_db: float | None
    alone_db: float


@dataclass(frozen=True)
class Together:
    """SQNR of the worst output without the ``sources`` that are the loudest alone."""

    sources: int
    sqnr_db: float


@dataclass(frozen=True)
class Bound:
    """What INT8 could bring to a float model at most.

    Attributes:
        float_ms: kernels of the normalized float model.
        int8_ms: kernels of the target's usual full recipe.
        best_ms: each operator in its faster precision, with conversions between them for nothing.
        barriers: what stands in the way, as sentences.
    """

    float_ms: float
    int8_ms: float
    best_ms: float
    barriers: tuple[str, ...] = ()

    @property
    def at_most(self) -> float:
        """The speed-up that no placement exceeds, by these profiles."""
        return self.float_ms / max(self.best_ms, 1e-9)


ChangeKind = Literal["to-int8", "to-float", "conversion-removed", "conversion-added", "kernel"]
"""What a repair did: to an operator's precision, or to a conversion; ``kernel`` is another kernel, or layout, for the
same."""


@dataclass(frozen=True)
class Change:
    """One change of a repair.

    Attributes:
        kind: what it is.
        name: the operator, or the value.
        op_type: of the operator; empty of a conversion.
        gain_ms: time of its kernels before, less that after.
    """

    kind: ChangeKind
    name: str
    op_type: str
    gain_ms: float


@dataclass(frozen=True, kw_only=True)
class Repair:
    """What came of a repair.

    Attributes:
        path: the file that was asked for.
        written: whether there is a better model, and it was written there.
        speedup: over the given model, paired in fresh processes; None where that does not run, or nothing was found.
        given_db: SQNR of the given model's worst output, against the model without its Q/DQ nodes.
        repaired_db: of the repaired one, on the same samples.
        judged: how many these are.
        sha256: of the written file.
        problem: why nothing was written.
        changes: what is different, what brought most first.
    """

    path: str
    written: bool
    speedup: Interval | None
    given_db: float
    repaired_db: float | None
    judged: int
    sha256: str = ""
    problem: str = ""
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a model runs as it does on a target.

    Attributes:
        model: its path.
        target: name of the target.
        quantized: whether it holds Q/DQ nodes, or other operators on integers.
        latency_ms: median of one inference.
        kernels_ms: the sum over its kernels, as profiled: what shares are of.
        operators: every operator, in topological order.
        waste: conversions and rearrangements, the most expensive first.
        failed: why the model does not run as it is; the figures are then those of a model without that fault.
        mended_ms: kernels once every reason that can be mended is, with made-up scales; None where that was not tried.
        sqnr_db: of the worst output against the float model in it, on the samples; None without samples.
        judged: the number of samples that this and what follows are of.
        losses: sources of rounding, the worst first.
        together: without several of them at once.
        bound: of a float model.
        repair: what came of a repair, where one was asked for.
        notes: what else people should know.
        facts: of the target's fingerprint.
        over_float: speed-up over the float model inside a quantized one; None where that was not timed.
        chosen: by the file's metadata, Inlay placed its Q/DQ nodes: what is in float was left there by a choice.
        ceiling: how far the model is from what its processor can do; None where that is not known.
    """

    model: str
    target: str
    quantized: bool
    latency_ms: float
    kernels_ms: float
    operators: tuple[Operator, ...]
    waste: tuple[Waste, ...]
    failed: str = ""
    mended_ms: float | None = None
    sqnr_db: float | None = None
    judged: int = 0
    losses: tuple[Loss, ...] = ()
    together: tuple[Together, ...] = ()
    bound: Bound | None = None
    repair: Repair | None = None
    notes: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    over_float: Interval | None = None
    chosen: bool = False
    ceiling: Ceiling | None = None

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
