"""``Rules`` and ``OpRule``: what a target runs in low precision, fuses and shares, as a table."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

import numpy as np

from inlay.errors import UsageError
from inlay.model.flow import FLOW
from inlay.model.graph import Graph, Node
from inlay.space.halves import half_sites
from inlay.types import ANY_INT8, AUTO, FP32, Port, QType


class Needs(enum.Enum):
    """What an operator requires of its output in order to run in low precision."""

    QUANTIZED = "quantized"  # every consumer must read Q/DQ
    EITHER = "either"  # its kernel can also produce float
    FLOAT = "float"  # Q/DQ on its output is pure cost


Condition = Callable[[Graph, Node], str | None]
"""Returns the reason why this very node cannot run in low precision, or None when it can."""


@dataclass(frozen=True, kw_only=True)
class ResultRange:
    """What a kernel asks of the range of its result."""

    # it takes no other zero point than the least integer of the type, so its output shares no range that reaches below
    # zero
    begins_at_zero: bool = False
    # what the range reaches up to at least, because the kernel is wrong in narrower ones
    reach: Callable[[Graph, Node], float] | None = None


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """What a kernel with a state between steps asks of the scales of its weights and data."""

    # input slots of more weights, which are constants, and have the scales of the first
    further_weights: tuple[int, ...] = ()
    # which operators share their qparams: those of which it says the same have data of one range, and weights of one
    # set of scales. None where each has its own.
    family: Callable[[Graph, Node], Hashable] | None = None
    # which channels of its weights have one scale: as many numbers as there are channels, equal ones for those that do.
    # None where each has its own.
    scale_groups: Callable[[Graph, Node], np.ndarray] | None = None
    # the largest magnitude of what it keeps between steps in the scale of its first activation, whose range therefore
    # reaches as far to both sides; 0 where it keeps nothing
    state: float = 0.0

    @property
    def joins_weights(self) -> bool:
        """Whether scales of a weight depend on other weights, or on other channels of it."""
        return bool(self.further_weights or self.family or self.scale_groups)


_ANY_RANGE, _NO_STATE = ResultRange(), Recurrence()


@dataclass(frozen=True)
class OpRule:
    """How one operator type runs in low precision: one row of a target's table."""

    op_type: str  # operator of the default ONNX domain
    _: KW_ONLY
    activations: tuple[int, ...] | None = (0,)  # input slots that carry activations; None means all slots
    # input slot of the weight, or None. A weight that is not constant counts as an activation.
    weight: int | None = None
    bias: int | None = None  # input slot of the bias, or None
    output: Needs = Needs.QUANTIZED  # what it requires of its output
    # it only moves elements (Reshape, MaxPool, …): its inputs and outputs must share one set of qparams
    moves_data: bool = False
    # the target moves a DQ from its input to its output, and a Q from its output to its input: it runs in low precision
    # as soon as its producer or all of its consumers do
    propagates_qdq: bool = False
    # its time in low precision after a float unit over that after an integer unit, roughly (its fast integer kernel
    # needs a layout that only integer units produce); a prior until profiles correct it
    slowdown_after_float: float = 1.0
    result: ResultRange = _ANY_RANGE  # what its kernel asks of the range of its output
    recurrence: Recurrence = _NO_STATE  # what its kernel asks of scales, where it keeps a state between steps
    conditions: tuple[Condition, ...] = ()  # further checks of the very node, each naming its reason
    source: str = ""  # where the rule is known from

    @property
    def weights(self) -> tuple[int, ...]:
        """Input slots of all its weights."""
        return () if self.weight is None else (self.weight, *self.recurrence.further_weights)


WEIGHT_ONLY = "weight-only"
"""Name of the form in which weights have 8 bits, one scale for each channel, and activations stay float."""


def weight_only(qtype: QType) -> str:
    """Name of the form in which weights have this type, and activations stay float."""
    return WEIGHT_ONLY if qtype is QType.INT8 else f"{WEIGHT_ONLY} {qtype.value}"


@dataclass(frozen=True)
class FormRow:
    """One operator type of a :class:`Form`."""

    op_type: str  # operator of the default ONNX domain
    weights: tuple[int, ...] = (1,)  # input slots of weights; all must be constants
    activations: tuple[int, ...] = (0,)  # input slots that are quantized in the form's activation type
    conditions: tuple[Condition, ...] = ()  # further checks of the very node, each naming its reason
    source: str = ""  # where the row is known from


@dataclass(frozen=True)
class Form:
    """Another precision than float and static: operators read and write float, which does not concern neighbors."""

    name: str  # of the precision, in recipes and results: `dynamic`, `weight-only`
    ops: Mapping[str, FormRow]  # what has this form, by operator type
    weight: QType = QType.INT8  # type of its weights
    activation: QType | None = None  # type of its activations, or None where they stay float
    searched: bool = True  # a search tries it; others are for who asks for them in a recipe
    # as an anchor it is measured last, and only where there is time to spare: it gains little but where products have
    # few rows, and else memory
    spare: bool = False
    # elements of a row of its data that its kernel rounds to 8 bits with one scale, although they are floats in the
    # model; 0 where it does not
    rounds_data: int = 0

    def sites(self, graph: Graph, nodes: Sequence[Node]) -> tuple[tuple[Port, QType], ...]:
        """The ports that the form quantizes at a unit of ``nodes``, with their types; empty where it is none of its.

        In half precision a unit computes as a whole; every other form is one of its first node alone.
        """
        if self.weight.half:
            return half_sites(graph, nodes, self.weight)
        node = nodes[0]
        row = self.ops.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if row is None or any(condition(graph, node) for condition in row.conditions):
            return ()
        slots = [*row.activations, *row.weights] if self.activation else [*row.weights]
        if any(s >= len(node.inputs) or not graph.is_float(node.inputs[s]) for s in slots):
            return ()
        if any(graph.is_constant(node.inputs[s]) is not (s in row.weights) for s in slots):
            return ()
        types = {s: self.weight if s in row.weights else self.activation for s in slots}
        return tuple((Port(node.name, s), qtype) for s, qtype in types.items() if qtype is not None)


_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
_OWN = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})


def no_form_of(op_type: str) -> str:
    """The reason for people why an operator without a row stays in float."""
    if op_type in _CONTROL_FLOW:
        return f"the operators inside {op_type} stay as they are: it carries something else than tensors"
    if op_type in _OWN:
        return f"{op_type} of the given model, which stays as it is"
    return f"{op_type} has no low-precision form on this target"


@dataclass(frozen=True)
class Rules:
    """What a target can run in low precision, and in which types."""

    activation: QType  # type of quantized activations
    ops: Mapping[str, OpRule]  # the table, by operator type. What is not in it runs in float.
    weight: QType = QType.INT8  # type of quantized weights; always symmetric
    exact_limit: int = ANY_INT8  # largest magnitude of any weights in int8 whose sums of products are exact
    per_channel: bool = True  # weights may have one scale for each output channel
    # activations that the target folds into the operator before them (Relu, Clip), given that the quantized type's
    # limits do the clamping
    absorbed: frozenset[str] = frozenset({"Relu", "Clip"})
    # operator types whose inputs and outputs must share qparams although they compute (Concat on some targets)
    share: frozenset[str] = frozenset()
    symmetric_activations: bool = False  # zero points of activations must be 0
    # types of activations whose zero points are 0 besides: kernels of this target are faster so
    symmetric: frozenset[QType] = frozenset()
    # it folds Conv→Add→Relu into one kernel, so that the Conv's path into the Add stays bare
    fuses_residual_add: bool = False
    # further types of activations that a recipe may ask for: the target runs them, perhaps slowly
    other_activations: frozenset[QType] = frozenset()
    # by further type, the operators that have fast kernels for it: one more label of a search for each
    fast: Mapping[QType, frozenset[str]] = field(default_factory=dict)
    forms: tuple[Form, ...] = ()  # further precisions of single operators
    halves: frozenset[QType] = frozenset()  # half precisions that it has kernels for, of any operator
    rewrites: frozenset[str] = frozenset()  # names of the target's selectable rewrites (`rewrite`)
    # price of a requantized input of an operator in `share`, per element. The unit is the target's own (passes over an
    # element, or estimated cycles); only ratios of the three prices count.
    requantize_cost: float = 1.0
    # price, per element, of an activation (Relu, Clip) whose bounds the quantized type's limits do not imply; 0 where
    # the clamping is free
    unfold_cost: float = 4.0
    product_cost: float = 1 / 64  # price of one multiply-accumulate in low precision
    barred: str = ""  # why nothing of a model can run in low precision, where the table does not apply to it
    # precisions that were left out since models with them would be too new, each with what would help
    too_new: Mapping[str, str] = field(default_factory=dict)

    @property
    def weight_limit(self) -> int:
        """Largest magnitude of a weight that is quantized to int8: 127, or less where sums of products need it."""
        return min(self.exact_limit, 127)

    @property
    def types(self) -> tuple[QType, ...]:
        """Every type of activations, the usual one first."""
        return tuple(
            dict.fromkeys((self.activation, *(t for t in QType if t in {*self.other_activations, *self.fast})))
        )

    @property
    def base(self) -> QType | None:
        """The half precision that what is not quantized computes in where it can; None for float32."""
        return next((form.weight for form in self.forms if form.weight.half), None)

    def on_base(self, name: str) -> Rules:
        """The same on a base precision by its name; :data:`AUTO` is float16 where the target has kernels for it.

        Raises:
            UsageError: the target has no such kernels.
        """
        known = {t.value: t for t in (QType.FP16, QType.BF16) if t in self.halves}
        if name in (AUTO, FP32):
            base = next(iter(known.values()), None) if name == AUTO else None
        elif name not in known:
            offered = ", ".join([FP32, *known])
            raise UsageError(f"--base {name}: this target has no kernels in it; give {AUTO} or {offered}")
        else:
            base = known[name]
        rest = tuple(form for form in self.forms if not form.weight.half)
        return replace(self, forms=rest if base is None else (Form(base.value, {}, base, base), *rest))

    def is_symmetric(self, activation: QType) -> bool:
        """Whether zero points of activations of this type are 0."""
        return self.symmetric_activations or activation in self.symmetric

    def weight_beside(self, activation: QType) -> QType:
        """Type of the weights of products with such activations: floats of 8 bits are multiplied by such floats."""
        return activation if activation.floating else self.weight

    def with_usual(self, usual: QType) -> Rules:
        """The same with another usual type of activations, one of :attr:`types`."""
        return replace(self, activation=usual, other_activations=frozenset(self.types) - {usual})

    def up_to(self, opset: int | None) -> Rules:
        """The same without what needs Q/DQ nodes of a newer opset.

        Raises:
            UsageError: the usual type of activations does.
        """
        if opset is None:
            return self
        needed = {t.value: t.opset for t in self.types} | {f.name: f.weight.opset for f in self.forms}
        late = {name: n for name, n in needed.items() if n > opset}
        too_new = {name: f"{name} needs opset {n}, and --max-opset is {opset}" for name, n in late.items()}
        if self.activation.value in late:
            raise UsageError(f"the target's activations: {too_new[self.activation.value]}")
        return replace(
            self,
            other_activations=frozenset(t for t in self.other_activations if t.value not in late),
            fast={t: ops for t, ops in self.fast.items() if t.value not in late},
            forms=tuple(f for f in self.forms if f.name not in late),
            too_new=too_new,
        )

    def in_type(self, name: str, option: str = "--quant-type") -> Rules:
        """The same with the activations of a search in one type alone, by its name; :data:`AUTO` leaves it the choice.

        Raises:
            UsageError: the target has no such type; ``option`` asked for it.
        """
        if name == AUTO:
            return self
        usual = next((t for t in self.types if t.value == name), None)
        if name in self.too_new:
            raise UsageError(f"{option} {name}: {self.too_new[name]}")
        if usual is None:
            known = ", ".join(sorted(t.value for t in self.types))
            raise UsageError(f"{option} {name}: activations of this target are {known}")
        return replace(self.with_usual(usual), fast={})

    def rule(self, node: Node) -> OpRule | None:
        """The row for ``node``, or None when its operator has none."""
        return self.ops.get(node.op_type) if node.domain in ("", "ai.onnx") else None

    def reaches(self, graph: Graph) -> dict[str, tuple[float, float]]:
        """By value, the least and the largest number that its range has in it at least.

        What holds for a result holds behind activations that the target absorbs, too.
        """
        found: dict[str, tuple[float, float]] = {}

        def widen(value: str, low: float, high: float) -> None:
            before = found.get(value, (0.0, 0.0))
            found[value] = min(before[0], low), max(before[1], high)

        for node in graph.nodes:
            rule = self.rule(node)
            if rule is not None and rule.result.reach is not None:
                widen(node.outputs[0], 0.0, rule.result.reach(graph, node))
            elif node.op_type in self.absorbed and node.inputs[0] in found:
                widen(node.outputs[0], *found[node.inputs[0]])
            state = 0.0 if rule is None else rule.recurrence.state
            if state and self.rejection(graph, node) is None:
                widen(node.inputs[0], -state, state)
        return found

    def families(self, graph: Graph) -> tuple[tuple[Node, ...], ...]:
        """The operators of each family that can run in low precision."""
        found: dict[Hashable, list[Node]] = {}
        for node in graph.nodes:
            rule = self.rule(node)
            family = None if rule is None else rule.recurrence.family
            if family is not None and self.rejection(graph, node) is None:
                found.setdefault((node.op_type, family(graph, node)), []).append(node)
        return tuple(map(tuple, found.values()))

    def weight_slots(self, node: Node) -> tuple[int, ...]:
        """Input slots of ``node`` that some row calls a weight."""
        rule, known = self.rule(node), node.domain in ("", "ai.onnx")
        slots = () if rule is None else rule.weights
        rows = [form.ops[node.op_type] for form in self.forms if known and node.op_type in form.ops]
        return tuple(dict.fromkeys((*slots, *(slot for row in rows for slot in row.weights))))

    def rejection(self, graph: Graph, node: Node) -> str | None:
        """Why ``node`` cannot run in low precision here, or None when it can."""
        rule = self.rule(node)
        if node.domain == FLOW:
            if node.op_type == "If":
                return "it only chooses between branches; the operators in them are decided one by one"
            return "it only repeats its body; the operators in that are decided one by one"
        if rule is None:
            return self.barred or no_form_of(node.op_type)
        for condition in rule.conditions:
            reason = condition(graph, node)
            if reason:
                return reason
        return None
