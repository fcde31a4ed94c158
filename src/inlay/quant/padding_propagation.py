"""Which rows of the model's values are padding, so that nothing that is learned from samples counts them.

Texts of different lengths are filled up to one, and an input masks what was added (:mod:`inlay.data.padding`). Nobody
reads what a model computes there, but its numbers may be any: ranges, scales and mean errors leave them out. The axis
of positions is followed from the inputs through operators that treat each position alone; where it is not known, all
counts. And a model is asked first: where other contents of the padding change what counts of its outputs, it does not
go by the mask, and all counts as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from inlay.data import AUTO_MASK, Feed, Padding
from inlay.errors import TargetError
from inlay.model.graph import Graph, Node
from inlay.model.reference import Session
from inlay.model.store import WeightStore

_ASKED = 2  # samples whose padding is exchanged: the contents differ, the graph does not
_SAME = 1e-4  # of the largest element: float kernels round rows of one matrix alike, or nearly so

_POINTWISE = frozenset({
    "Abs", "Add", "Cast", "Ceil", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid",
    "HardSwish", "Identity", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul", "Neg", "Not", "PRelu", "Pow",
    "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Sub", "Sum",
    "Swish", "Tanh", "ThresholdedRelu", "Where",
})  # fmt: skip
_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_ALONG_THE_LAST = {"LayerNormalization": -1, "RMSNormalization": -1, "Softmax": -1, "LogSoftmax": -1}
_REDUCTIONS = frozenset({"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare"})


@dataclass(frozen=True, eq=False)
class Positions:
    """Where values hold padding."""

    mask: str = ""  # the input that tells; empty where nothing is left out
    # of values that have rows for positions, the axis along which they lie
    axes: Mapping[str, int] = field(default_factory=dict)
    # of products of two such values, the axis of the positions of the second one: in attention what nobody looks at,
    # before its mask says so
    keys: Mapping[str, int] = field(default_factory=dict)

    def kept(self, feed: Feed) -> np.ndarray | None:
        """Positions of a sample that count, shape (positions,), bool; None for all.

        Of a batch, those that count in any of its rows.
        """
        if not self.mask:
            return None
        kept = feed[self.mask].astype(bool).any(axis=0)
        return None if kept.all() or not kept.any() else kept

    def only(self, feed: Feed, value: str, array: np.ndarray) -> np.ndarray:
        """``array``, which ``value`` is in a sample, without its padding."""
        kept = self.kept(feed)
        return array if kept is None else _only(array, (self.axes.get(value), self.keys.get(value)), kept)

    def note(
        self, feed: Feed, note: Callable[[dict[str, Any], Mapping[str, np.ndarray]], None]
    ) -> Callable[[dict[str, Any], Mapping[str, np.ndarray]], None]:
        """``note``, as :meth:`PiecewiseSession.gather` takes it, of what counts in a sample."""
        kept = self.kept(feed)
        return note if kept is None else _Note(note, self, {self.mask: feed[self.mask]})


@dataclass(frozen=True, eq=False)
class _Note:
    """Can be pickled."""

    note: Callable[[dict[str, Any], Mapping[str, np.ndarray]], None]
    positions: Positions
    feed: Feed

    def __call__(self, found: dict[str, Any], values: Mapping[str, np.ndarray]) -> None:
        self.note(found, {v: self.positions.only(self.feed, v, a) for v, a in values.items()})


def _only(array: np.ndarray, axes: Sequence[int | None], kept: np.ndarray) -> np.ndarray:
    for axis in axes:
        if axis is not None and axis < array.ndim and array.shape[axis] == len(kept):
            array = array.compress(kept, axis)
    return array


def find_positions(
    proto: onnx.ModelProto,
    store: WeightStore,
    graph: Graph,
    feeds: Sequence[Feed],
    mask: str = AUTO_MASK,
    known: str = "",
) -> Positions:
    """Where the values of a model hold padding, by the mask of its samples.

    Args:
        mask: the input that tells; or by the rule, or none.
        known: the input that the model was found to go by.

    Raises:
        UsageError: there is no such input, or it is no mask.
    """
    for name, kept in Padding.masks(feeds, mask):
        given = [
            n for n in graph.inputs if n != name and all(_has_rows(f, n, k) for f, k in zip(feeds, kept, strict=True))
        ]
        padded = [feed for feed, k in zip(feeds, kept, strict=True) if not k.all()]
        axes = position_axes(graph, dict.fromkeys(given, 1))
        if given and padded and (name == known or _goes_by(proto, store, padded[:_ASKED], name, given)):
            return Positions(name, axes, _key_axes(graph, axes))
    return Positions()


def _has_rows(feed: Feed, name: str, kept: np.ndarray) -> bool:
    array = feed.get(name)
    return array is not None and array.shape[:2] == kept.shape and (array.ndim > 2 or array.dtype.kind in "iu")


def _goes_by(
    proto: onnx.ModelProto, store: WeightStore, feeds: Sequence[Feed], mask: str, given: Sequence[str]
) -> bool:
    """Whether what counts of the outputs stays when padding holds something else, as other positions do."""
    others = [_exchanged(feed, mask, given) for feed in feeds]
    if not any((other[n] != feed[n]).any() for feed, other in zip(feeds, others, strict=True) for n in given):
        return False
    try:
        session = Session(proto, store, optimize=True, briefly=True)
        want, got = ([session.run(feed) for feed in each] for each in (feeds, others))
    except TargetError:
        return False
    padding = Padding.of(feeds, want, mask)
    return all(
        _same(exact[name], array)
        for exact, changed in zip(padding.without_each(want), padding.without_each(got), strict=True)
        for name, array in changed.items()
    )


def _same(want: np.ndarray, got: np.ndarray) -> bool:
    if want.dtype.kind != "f":
        return np.array_equal(want, got)
    largest = float(np.abs(want[np.isfinite(want)]).max(initial=0.0))
    return want.shape == got.shape and np.allclose(got, want, rtol=0.0, atol=_SAME * largest, equal_nan=True)


def _exchanged(feed: Feed, mask: str, given: Sequence[str]) -> Feed:
    """The sample with contents of other positions in its padding: ids that exist, numbers of their size."""
    found = dict(feed)
    for name in given:
        array = found[name] = feed[name].copy()
        for row, kept in zip(array, feed[mask].astype(bool), strict=True):
            places = np.flatnonzero(kept)
            for number, place in enumerate(np.flatnonzero(~kept)) if len(places) else ():
                row[place] = row[places[-1 - number % len(places)]]
    return found


def position_axes(graph: Graph, inputs: Mapping[str, int]) -> dict[str, int]:
    """By value the axis of its positions, each of which depends on that position of ``inputs``, as far as is known."""
    axes = dict(inputs)
    for node in graph.nodes:
        own = [(v, axes[v]) for v in node.inputs if v in axes]
        for output in node.outputs if own else ():
            shape = graph.shape(output)
            found = None if shape is None else _axis(graph, node, own, len(shape), axes)
            if found is None and shape is not None and node.op_type in _RESHAPES:
                found = _reshaped(graph.shape(own[0][0]) or (), own[0][1], shape)
            if found is not None and shape is not None and shape[found] == (graph.shape(own[0][0]) or ())[own[0][1]]:
                axes[output] = found
    return axes


def _key_axes(graph: Graph, axes: Mapping[str, int]) -> dict[str, int]:
    """The last axes of products that are positions of the second operand, up to what is no factor: a mask is added."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        if node.op_type == "MatMul" and axes.get(node.inputs[1]) == len(graph.shape(node.inputs[1]) or ()) - 1:
            found[node.outputs[0]] = len(graph.shape(node.outputs[0]) or ()) - 1
        elif node.op_type in ("Mul", "Div") and any(graph.is_constant(v) for v in node.inputs):
            found.update((node.outputs[0], found[v]) for v in node.inputs if v in found)
    return found


def _axis(graph: Graph, node: Node, own: Sequence[tuple[str, int]], rank: int, axes: Mapping[str, int]) -> int | None:
    """The axis in an output of ``rank``; ``own`` are the inputs that have one."""
    value, axis = own[0]
    before = len(graph.shape(value) or ())
    kind = node.op_type
    if kind in _POINTWISE or kind == "Concat":
        aligned = {rank - len(graph.shape(v) or ()) + a for v, a in own}
        here = aligned.pop() if len(aligned) == 1 else None
        return None if kind == "Concat" and here == node.attributes.get("axis", 0) % rank else here
    if kind == "Gather":
        along = node.attributes.get("axis", 0) % len(graph.shape(node.inputs[0]) or (0,))
        if value == node.inputs[1]:
            return along + axis if len(own) == 1 else None
        shift = len(graph.shape(node.inputs[1]) or ()) - 1
        return None if axis == along else axis + (shift if axis > along else 0)
    if node.inputs[0] not in axes:
        return None
    if kind == "MatMul":
        return rank - before + axis if axis < before - 1 else None
    if kind == "Gemm":
        return 0 if axis == 0 and not node.attributes.get("transA", 0) else None
    if kind == "Attention":
        return axis if before == rank and axis == rank - 2 else None
    if kind == "Transpose":
        return tuple(node.attributes.get("perm", range(before)[::-1])).index(axis)
    if kind in _ALONG_THE_LAST:
        return axis if axis < node.attributes.get("axis", _ALONG_THE_LAST[kind]) % before else None
    if kind == "Split":
        return None if axis == node.attributes.get("axis", 0) % before else axis
    if kind in _REDUCTIONS or kind == "Slice":
        along = axes_along(graph, node, before)
        if along is None or axis in along:
            return None
        return axis if kind == "Slice" or node.attributes.get("keepdims", 1) else axis - sum(a < axis for a in along)
    return None


def axes_along(graph: Graph, node: Node, rank: int) -> set[int] | None:
    """Axes that a reduction or a Slice works along; None where they are not known."""
    slot = 3 if node.op_type == "Slice" else 1
    given = graph.constant(node.inputs[slot]) if len(node.inputs) > slot and node.inputs[slot] else None
    axes = node.attributes.get("axes") if given is None else given.ravel().tolist()
    return None if axes is None else {int(a) % rank for a in axes}


def _reshaped(before: Sequence[int | None], axis: int, after: Sequence[int | None]) -> int | None:
    """Where an axis is after a Reshape: with as many elements before it, and of its size."""
    if None in before[: axis + 1]:
        return None
    outer = math.prod(n for n in before[:axis] if n is not None)
    for found, size in enumerate(after):
        if None in after[:found]:
            return None
        if size == before[axis] and math.prod(n for n in after[:found] if n is not None) == outer:
            return found
    return None
