"""What a target is: a runtime that compiles, runs and times models, and the rules of what it runs in low precision."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from inlay.model.graph import Graph, Node
from inlay.types import QType

Feed = Mapping[str, np.ndarray]
"""Input arrays by input name, for one inference."""


class Needs(enum.Enum):
    """What an operator asks of its output in order to run in low precision."""

    QUANTIZED = "quantized"  # every consumer must read Q/DQ
    EITHER = "either"  # it can also hand out float
    FLOAT = "float"  # Q/DQ on its output only costs


Condition = Callable[[Graph, Node], str | None]
"""Returns the reason why this very node cannot run in low precision, or None when it can."""


@dataclass(frozen=True)
class OpRule:
    """How one operator type runs in low precision: one row of a target's table.

    Attributes:
        op_type: operator of the default ONNX domain.
        activations: input slots that carry activations; None means all slots.
        weight: input slot of the weight, or None. A weight that is not constant counts as an activation.
        bias: input slot of the bias, or None.
        output: what it needs of its output.
        moves: it only moves elements (Reshape, MaxPool, …): its inputs and outputs must share one set of qparams.
        passes: the target moves a DQ from before it to behind it, and a Q from behind it to before it: it runs in low
            precision as soon as what it reads was handed out in low precision, or all its readers want it so.
        takes_weight: between DQ and Q the target quantizes a float weight by itself (and less well).
        behind_float: how many times as long it takes in low precision behind a float unit as behind an integer one,
            roughly (its fast integer kernel wants a layout that only integer units hand out): believed until the
            target was seen doing it.
        conditions: further checks of the very node, each naming its reason.
        source: where the rule is known from.
    """

    op_type: str
    activations: tuple[int, ...] | None = (0,)
    weight: int | None = None
    bias: int | None = None
    output: Needs = Needs.QUANTIZED
    moves: bool = False
    passes: bool = False
    takes_weight: bool = False
    behind_float: float = 1.0
    conditions: tuple[Condition, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Rules:
    """What a target can run in low precision, and in which types.

    Attributes:
        activation: type of quantized activations.
        weight: type of quantized weights; always symmetric.
        weight_limit: largest magnitude of a quantized weight (127, or 63 where wider products would saturate).
        per_channel: weights may have one scale for each output channel.
        ops: the table, by operator type. What is not in it runs in float.
        absorbed: activations that the target folds into the operator before them (Relu, Clip), given that the
            quantized type's limits do the clamping.
        share: operator types whose inputs and outputs must share qparams although they compute (Concat on some
            targets).
        symmetric_activations: zero points of activations must be 0.
        fuses_residual_add: it folds Conv→Add→Relu into one kernel, so that the Conv's path into the Add stays bare.
        other_activations: further types in which it runs activations.
        rewrites: optional passes that make models faster on it (``inlay.model.normalize.REWRITES``).
        block_channels: most channels of the data of a strided Conv that reads it in blocks of pixels, in low precision
            (``inlay.quant.blocks``).
        spreads_transposed: it has no ConvTranspose in low precision, and runs one as Conv and DepthToSpace
            (``inlay.quant.spread``).
        kernels_off_zero: operators that it runs in another kernel where a zero point of their weight is not 0.
        large_sums: bytes of a Conv's int32 sums from which it runs faster in bands of rows where its weight is off zero
            (``inlay.quant.bands``); 0 where it never does.
        band_sums: bytes of the sums of one band.
        requantize_cost: price of a requantized input of an operator in ``share``, per element. The unit is the
            target's own (passes over an element, or estimated cycles); only ratios of the three prices count.
        unfold_cost: price, per element, of an activation (Relu, Clip) whose bounds the quantized type's limits do not
            imply; 0 where the clamping is free.
        product_cost: price of one multiply-accumulate in low precision.
    """

    activation: QType
    ops: Mapping[str, OpRule]
    weight: QType = QType.INT8
    weight_limit: int = 127
    per_channel: bool = True
    absorbed: frozenset[str] = frozenset({"Relu", "Clip"})
    share: frozenset[str] = frozenset()
    symmetric_activations: bool = False
    fuses_residual_add: bool = False
    other_activations: frozenset[QType] = frozenset()
    rewrites: frozenset[str] = frozenset()
    block_channels: int = 0
    spreads_transposed: bool = False
    kernels_off_zero: frozenset[str] = frozenset()
    large_sums: int = 0
    band_sums: int = 0
    requantize_cost: float = 1.0
    unfold_cost: float = 4.0
    product_cost: float = 1 / 64

    def rule(self, node: Node) -> OpRule | None:
        """The row for ``node``, or None when its operator has none."""
        return self.ops.get(node.op_type) if node.domain in ("", "ai.onnx") else None

    def refusal(self, graph: Graph, node: Node) -> str | None:
        """Why ``node`` cannot run in low precision here, or None when it can."""
        rule = self.rule(node)
        if rule is None:
            return f"{node.op_type} has no low-precision form on this target"
        for condition in rule.conditions:
            reason = condition(graph, node)
            if reason:
                return reason
        return None


@dataclass(frozen=True)
class Fingerprint:
    """What a measurement depends on besides the model: two runs with the same digest may be compared."""

    target: str
    facts: Mapping[str, str]

    @property
    def digest(self) -> str:
        """16 hexadecimal digits over all facts."""
        text = "\n".join([self.target, *(f"{k}={v}" for k, v in sorted(self.facts.items()))])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Artifact:
    """A model file that can be handed to a target: its path and the digest of its content."""

    path: Path
    digest: str


KernelKind = Literal["compute", "quantize", "dequantize", "layout"]
"""What a kernel is there for; ``layout`` is an inserted reorder or transpose."""


@dataclass(frozen=True)
class KernelTime:
    """Time that one kernel takes in one inference.

    Attributes:
        name: the runtime's name for the kernel's node.
        op_type: the runtime's operator.
        ns: typical nanoseconds per inference.
        precision: element type it computes in (``float32``, ``uint8``, …), or ``""`` where unknown.
        nodes: names of the model's nodes that it stands for, as far as known.
        values: of a kernel that is not ``compute``: the model's value whose boundary it serves, as far as known.
        kind: what it is there for.
    """

    name: str
    op_type: str
    ns: float
    precision: str = ""
    nodes: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    kind: KernelKind = "compute"

    @property
    def attributed(self) -> bool:
        """Whether its cause is known."""
        return bool(self.nodes or self.values)


class Executable(Protocol):
    """A model that a target has built."""

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name. Raises RunFailed."""
        ...

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """Nanoseconds of each of ``repeats`` inferences, shape (repeats,), int64. Raises RunFailed."""
        ...

    def profile(self, feed: Feed, repeats: int) -> list[KernelTime]:
        """Every kernel with its typical time over ``repeats`` inferences. Raises RunFailed."""
        ...

    def close(self) -> None:
        """Free what the executable holds; calling it twice is fine."""
        ...


@runtime_checkable
class Simulated(Protocol):
    """An executable whose noise is drawn from a seed: without a new one, every process would show the same noise."""

    def reseed(self, seed: int) -> None:
        """Draw the noise of the readings to come from ``seed``."""
        ...


class Target(Protocol):
    """A runtime on a device, with its options.

    A target may have a method ``compile_identified(model) -> (executable, digest)`` besides: :meth:`compile` together
    with a digest of what the runtime made of the model. Models with the same digest are then measured once.

    Attributes:
        name: as it stands in the entry point.
        deterministic: its times are estimates without noise, so one reading is enough.
    """

    name: str
    deterministic: bool

    def fingerprint(self) -> Fingerprint:
        """What measurements on this target depend on."""
        ...

    def rules(self) -> Rules:
        """What it runs in low precision."""
        ...

    def compile(self, model: Artifact) -> Executable:
        """Build the model. Raises CompileFailed."""
        ...


@dataclass(frozen=True)
class TargetSpec:
    """A target by name and options: plain data that a worker process can be sent.

    Attributes:
        name: entry point in the group ``inlay.targets``.
        options: keyword arguments of the target's constructor.
    """

    name: str
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)
