"""Operators whose tensors may have their axes in any order: a table of what changes of each with the order.

The order of a node's axes is given as ``order``: axis ``i`` of its tensors will be what axis ``order[i]`` was, or a new
one of size 1 where that is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import FUNCTIONS, add_constant, axes_of, constant_of, is_standard

Order = tuple[int, ...]  # A permutation of axes
Widened = Sequence[int | None]  # The same, with new axes of size 1 between them


@dataclass(frozen=True, eq=False)
class Reordered:
    """What changes of an operator with the order of axes."""

    attributes: Mapping[str, ir.Attr] = field(default_factory=dict)  # that replace those of the same names
    constants: Mapping[int, np.ndarray] = field(default_factory=dict)  # that replace inputs, by slot
    # the elements that are taken of inputs in place of all, in their order, by slot
    taken: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def apply(self, node: ir.Node, graph: ir.Graph) -> None:
        """Make these changes."""
        node.attributes.update(self.attributes)
        for slot, array in self.constants.items():
            node.resize_inputs(max(slot + 1, len(node.inputs)))
            node.replace_input_with(slot, add_constant(graph, f"{node.name}_axes", array))
        for slot, places in self.taken.items():
            given, numbers = node.inputs[slot], constant_of(node.inputs[slot])
            if numbers is not None:
                value = add_constant(graph, f"{node.name}_{slot}", numbers[list(places)])
            else:
                assert given is not None
                value = take(graph, node, given, places, f"{node.name}_{slot}")
            node.replace_input_with(slot, value)


def take(graph: ir.Graph, before: ir.Node, vector: ir.Value, places: Sequence[int], name: str) -> ir.Value:
    """The elements of a vector at these places."""
    indices = add_constant(graph, f"{name}_places", np.array(places, np.int64))
    value = ir.Value(name=f"{name}_taken", type=vector.type, shape=ir.Shape([len(places)]))
    graph.insert_before(before, ir.node("Gather", [vector, indices], {"axis": 0}, outputs=[value], name=f"{name}_take"))
    return value


def rank_of(value: ir.Value | None) -> int | None:
    """Its number of axes, where it is known."""
    return None if value is None or value.shape is None else len(value.shape)


def carried(node: ir.Node) -> tuple[list[int], list[ir.Value]] | None:
    """The inputs, by slot, and the outputs whose axes are in the node's order; None where the order is not free."""
    if not is_standard(node, *_ROWS) or any(rank_of(v) is None for v in node.outputs):
        return None
    slots = range(len(node.inputs)) if node.op_type in _ALL_INPUTS else range(min(1, len(node.inputs)))
    given = [i for i in slots if node.inputs[i] is not None]
    ranks = [rank_of(node.inputs[i]) for i in given]
    if None in ranks or not ranks:
        return None
    rank = max(r for r in ranks if r is not None)
    if node.op_type in _ALL_INPUTS and rank_of(node.outputs[0]) != rank:
        return None
    found = [i for i, r in zip(given, ranks, strict=True) if r == rank and constant_of(node.inputs[i]) is None]
    outputs = [v for v in node.outputs if rank_of(v) == rank and v.name]
    return (found, outputs) if found and rank > 1 else None


def reordered(node: ir.Node, order: Widened) -> Reordered | None:
    """What changes of a node of this table; None where it cannot be computed in this order."""
    if not _operands_fit(node, order):
        return None
    return _ROWS[node.op_type](node, order)


def reorder_operands(node: ir.Node, graph: ir.Graph, order: Widened) -> None:
    """Put the operands that are broadcast, and constant ones, in the order of the others."""
    kept, new = [a for a in order if a is not None], tuple(i for i, axis in enumerate(order) if axis is None)
    rank = len(kept)
    for slot, value in enumerate(node.inputs if node.op_type in _ALL_INPUTS else ()):
        own, numbers = rank_of(value), constant_of(value)
        if value is None or own is None or (numbers is not None and numbers.size == 1):
            continue
        if numbers is not None:
            moved = numbers.reshape([1] * (rank - own) + list(numbers.shape)).transpose(
                [a for a in order if a is not None]
            )
            moved = np.ascontiguousarray(np.expand_dims(moved, new))
            node.replace_input_with(slot, add_constant(graph, f"{node.name}_{slot}", moved))
        elif 0 < own < rank and (axes := _gaps(own, order)):
            given = add_constant(graph, f"{node.name}_{slot}_axes", np.array(axes, np.int64))
            sizes = list(value.shape or ())
            for axis in axes:
                sizes.insert(axis, 1)
            wide = ir.Value(name=f"{node.name}_{slot}_wide", type=value.type, shape=ir.Shape(sizes))
            made = ir.node("Unsqueeze", [value, given], outputs=[wide], name=f"{node.name}_{slot}_widen")
            graph.insert_before(node, made)
            node.replace_input_with(slot, wide)


def works_along_other_than_last(node: ir.Node, order: Order) -> bool:
    """Whether a node computes along one axis that is not the last: kernels turn it, or jump from number to number."""
    axes: Sequence[int] = ()
    if node.op_type in _ALONG_ATTRIBUTE:
        axes = [node.attributes.get_int("axis", -1 if "Soft" in node.op_type else 0)]
    elif node.op_type in _REDUCTIONS:
        axes = axes_of(node)
    return len(axes) == 1 and _at(order, axes[0]) != len(order) - 1


# --- rows -----------------------------------------------------------------------------------------------------------


def _rank(order: Widened) -> int:
    """Of the tensors as they are."""
    return sum(axis is not None for axis in order)


def _at(order: Widened, axis: int) -> int:
    """Where an axis will be."""
    return order.index(axis % _rank(order))


def _operands_fit(node: ir.Node, order: Widened) -> bool:
    """Whether the operands of lower rank can be broadcast in this order with no more than axes of size 1."""
    if node.op_type not in _ALL_INPUTS:
        return True
    computed = [v for v in node.inputs if v is not None and constant_of(v) is None]
    return all(_gaps(len(v.shape or ()), order) is not None for v in computed if len(v.shape or ()) < _rank(order))


def _gaps(own: int, order: Widened) -> list[int] | None:
    """Where a tensor of ``own`` axes, the last ones, gets axes of size 1; None where its axes would change places."""
    places = [order.index(axis) for axis in range(_rank(order) - own, _rank(order))]
    if places != sorted(places):
        return None
    first = places[0] if places else 0
    return [i - first for i in range(first, len(order)) if places and i not in places]


def _unchanged(_: ir.Node, __: Widened) -> Reordered:
    return Reordered()


def _axis(default: int | None) -> Callable[[ir.Node, Widened], Reordered | None]:
    """An attribute says along which axis; where that goes, the others must not change places."""

    def row(node: ir.Node, order: Widened) -> Reordered | None:
        axis = node.attributes.get_int("axis", default)
        if axis is None or (rank_of(node.outputs[0]) != _rank(order) and not _rest_stays(order, [axis])):
            return None
        return Reordered({"axis": ir.AttrInt64("axis", _at(order, axis))})

    return row


def _gather(node: ir.Node, order: Widened) -> Reordered | None:
    return _axis(0)(node, order) if (rank_of(node.inputs[1]) or 0) <= 1 else None


def _rest_stays(order: Widened, axes: Sequence[int]) -> bool:
    """Whether a tensor without ``axes`` is the same in this order."""
    gone = {a % _rank(order) for a in axes}
    rest = [a for a in order if a is not None and a not in gone]
    return None not in order and rest == sorted(rest)


def _axes(node: ir.Node, order: Widened) -> Reordered | None:
    """Axes by attribute or by a constant, that are kept with size 1 or go."""
    axes = axes_of(node)
    if not axes or (rank_of(node.outputs[0]) != _rank(order) and not _rest_stays(order, axes)):
        return None
    moved = sorted(_at(order, a) for a in axes)
    if "axes" in node.attributes:
        return Reordered({"axes": ir.AttrInt64s("axes", moved)})
    return Reordered(constants={1: np.array(moved, np.int64)})


def _along_input(node: ir.Node, order: Widened) -> Reordered | None:
    axis = constant_of(node.inputs[1])
    return None if axis is None else Reordered(constants={1: np.array(_at(order, int(axis.ravel()[0])), axis.dtype)})


def _slice(node: ir.Node, order: Widened) -> Reordered | None:
    if len(node.inputs) < 3:
        return None
    axes = _axes_given(node, 3)
    if axes is None:
        starts = node.inputs[1]
        count = None if starts is None or starts.shape is None or not len(starts.shape) else starts.shape[0]
        if (len(node.inputs) > 3 and node.inputs[3] is not None) or not isinstance(count, int):
            return None
        axes = list(range(count))
    return Reordered(constants={3: np.array([_at(order, a) for a in axes], np.int64)})


def _pad(node: ir.Node, order: Widened) -> Reordered | None:
    if len(node.inputs) < 2:
        return None
    axes = _axes_given(node, 3)
    if axes is not None:
        return Reordered(constants={3: np.array([_at(order, a) for a in axes], np.int64)})
    places = [a for a in order if a is not None]
    if (len(node.inputs) > 3 and node.inputs[3] is not None) or len(places) < len(order):
        return None
    return Reordered(taken={1: [*places, *(a + len(places) for a in places)]})


def _axes_given(node: ir.Node, slot: int) -> list[int] | None:
    numbers = constant_of(node.inputs[slot]) if len(node.inputs) > slot else None
    return None if numbers is None else [int(a) for a in numbers.ravel()]


def _per_axis(node: ir.Node, order: Widened) -> Reordered | None:
    """The second input has a number for each axis."""
    shape = None if len(node.inputs) < 2 or node.inputs[1] is None else node.inputs[1].shape
    places = [a for a in order if a is not None]
    return Reordered(taken={1: places}) if shape is not None and list(shape) == [len(order)] else None


def _resize(node: ir.Node, order: Widened) -> Reordered | None:
    """Kernels know images of channels first and last only; first is what all of them know."""
    places = [a for a in order if a is not None]
    if [*order] != [0, len(order) - 1, *range(1, len(order) - 1)]:
        return None
    if "axes" in node.attributes:
        moved = [_at(order, a) for a in node.attributes.get_ints("axes", ())]
        return Reordered({"axes": ir.AttrInt64s("axes", moved)})
    taken: dict[int, Sequence[int]] = {}
    for slot in range(1, len(node.inputs)):
        value = node.inputs[slot]
        count = None if value is None or value.shape is None else value.shape[0]
        if value is not None and count != 0:
            taken[slot] = places if slot > 1 else [*places, *(a + len(places) for a in places)]
    return Reordered(taken=taken)


def _normalization(node: ir.Node, order: Widened) -> Reordered | None:
    first = node.attributes.get_int("axis", -1) % _rank(order)
    return Reordered() if list(order[first:]) == list(range(first, len(order))) else None


_BROADCAST = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Mean", "Sum", "PRelu", "Where", "Equal"}
    | {"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor"}
)
_UNARY = frozenset(
    {"Abs", "Neg", "Exp", "Log", "Sqrt", "Reciprocal", "Floor", "Ceil", "Round", "Sign", "Erf", "Sin"}
    | {"Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Not", "IsNaN", "IsInf"}
    | {"Cast", "Celu", "Mish", "Gelu", "Softsign", "ThresholdedRelu", "Shrink", "Identity", "Swish"}
)
_REDUCTIONS = frozenset(
    {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum"}
    | {"ReduceLogSumExp", "ReduceSumSquare"}
)
_ALL_INPUTS = _BROADCAST | {"Concat"}
"""Operators of whose inputs each is broadcast, or joined; others compute on the first, and the rest says how."""
_ALONG_ATTRIBUTE = frozenset({"Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin"})

_ROWS: Mapping[str, Callable[[ir.Node, Widened], Reordered | None]] = {
    **dict.fromkeys(_BROADCAST | _UNARY | FUNCTIONS, _unchanged),
    **dict.fromkeys(_REDUCTIONS | {"Squeeze"}, _axes),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _axis(-1)),
    **dict.fromkeys(("ArgMax", "ArgMin", "Split"), _axis(0)),
    **dict.fromkeys(("Tile", "Expand"), _per_axis),
    "Concat": _axis(None),
    "CumSum": _along_input,
    "Gather": _gather,
    "LayerNormalization": _normalization,
    "Pad": _pad,
    "Resize": _resize,
    "Slice": _slice,
}
