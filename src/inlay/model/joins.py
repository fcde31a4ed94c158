"""Which elements of an output come from which input of a Concat: a detector's boxes and scores, for instance.

Behind a Concat follow operators that compute every element by itself or only move elements. Numbers that stand for the
Concat's inputs go through them in place of what a model computes, and arrive where the elements do. A Concat may join
what another has joined, in whole or split up again.

Constants tell elements apart as well: a vector that multiplies or is added, the rows of a weight and its bias, where
some of their numbers are ``APART`` times as large as the others. Sizes of what is computed tell nothing by themselves:
features may be dead, images dark.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from inlay.data import Joins, Samples
from inlay.errors import TargetError
from inlay.model.ends import ends_of
from inlay.model.onnx_library import inferred_shapes

APART = 30.0  # 30 dB: what is that much smaller than the rest has no accuracy left in one scale of 8 bits
_LEAST_SHARE = 1 / 8  # of all, that the small ones are: fewer are dead or happen to be small
_ROUNDING = 1e-5  # of the largest: smaller ones are rounding, as far as anybody can tell
_MOST_GROUPS = 4096  # along an axis
_MOST_ELEMENTS = 1 << 26
_MOST_CONSTANTS = 1 << 22  # elements of a weight whose rows are compared; larger ones are tables and vocabularies
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})

_SAME = frozenset(
    {"Abs", "Cast", "Ceil", "Celu", "Clip", "DequantizeLinear", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu"}
    | {"HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "LogSoftmax", "Mish", "Neg", "PRelu"}
    | {"QuantizeLinear", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Softmax", "Softplus", "Softsign", "Sqrt"}
    | {"Tanh", "ThresholdedRelu"}
)
"""They keep every element in its place; what their further inputs hold does not matter."""
_ELEMENTWISE = frozenset({"Add", "Div", "Max", "Mean", "Min", "Mod", "Mul", "Pow", "Sub", "Sum", "Where"})
_ADDING = frozenset({"Add", "Sub"})
_SCALING = frozenset({"Div", "Mul"})
_RESHAPING = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
_CHOOSING = frozenset({"Gather", "GatherElements", "TopK"})
_MOVING = _RESHAPING | _CHOOSING | {"Concat", "Slice", "Split", "Transpose"}
_WEIGHTED = frozenset({"Conv", "Gemm", "MatMul"})
_HIDDEN = frozenset(
    {"ConcatFromSequence", "If", "Loop", "Scan", "Scatter", "ScatterElements", "ScatterND", "SequenceAt"}
    | {"SequenceMap", "TensorScatter"}
)
"""They may put together what is of several kinds, and do not say so by how they are written."""

Labels = np.ndarray  # for each element of a value the number of the joined value that it comes from
Tails = Mapping[str, Sequence[ir.Node]]  # by output, the operators between what joins and it, in topological order


def joins_of(model: ir.Model, feed: Mapping[str, np.ndarray]) -> Joins:
    """For each float output that a Concat joins, and each of its axes, numbers that say what belongs together.

    Args:
        feed: one sample, for sizes.

    Returns:
        By output: for each axis one number for each index, equal where the same values were joined there. None for an
        axis that nothing was joined along. Nothing for any axis where the output may hold values of several kinds, and
        cannot be followed. Outputs are left out where nothing was joined.
    """
    behind = _behind_outputs(model)
    tails, labels = _tails(behind), dict[str, Labels]()
    if tails:
        with contextlib.suppress(TargetError):
            labels = _all_labels(tails, inferred_shapes(model, {name: a.shape for name, a in feed.items()}))
    found = _known_joins(labels)
    lost = tails.keys() - labels.keys()
    unknown = {name for name, nodes in behind.items() if name in lost or any(map(_hides, nodes))}
    return {name: found.get(name, ()) for name in behind if name in found or name in unknown}


def joining_tails(model: ir.Model) -> Tails:
    """The operators between what joins and each float output of ``model`` that has such behind it. Linear time each."""
    return _tails(_behind_outputs(model))


def _behind_outputs(model: ir.Model) -> dict[str, list[ir.Node]]:
    return {str(v.name): _behind(v) for v in model.graph.outputs if v.dtype in _FLOATS}


def _tails(behind: Mapping[str, Sequence[ir.Node]]) -> dict[str, list[ir.Node]]:
    return {name: [n for n in order if not _hides(n)] for name, order in behind.items() if any(map(_joins, order))}


def groups_apart(sizes: np.ndarray, zero: bool = False) -> list[np.ndarray]:
    """Indices in groups of which one is far larger than the other in every row; one group where there is no gap.

    Args:
        sizes: not negative, shape (rows, indices).
        zero: whether sizes of zero, or nearly, make a group.
    """
    n = sizes.shape[1]
    order = np.argsort(sizes.max(axis=0), kind="stable")
    most = np.maximum.accumulate(sizes[:, order].max(axis=0))  # of the small ones, in any row
    least = np.minimum.accumulate(sizes[:, order].min(axis=0)[::-1])[::-1]  # of the large ones
    begins = [
        k
        for k in range(max(1, math.ceil(_LEAST_SHARE * n)), n)
        if least[k] >= APART * most[k - 1] and least[k] > 0.0 and (zero or most[k - 1] > _ROUNDING * most[-1])
    ]
    return np.split(order, begins)


def joins_within(tails: Tails, shapes: Mapping[str, Sequence[int | None]]) -> Joins:
    """What :func:`joins_of` says of outputs, of every value of ``tails``.

    Args:
        shapes: by value name; of values that it lacks, or of which a size is not known, nothing is said.
    """
    return _known_joins(_all_labels(tails, shapes))


def _all_labels(tails: Tails, shapes: Mapping[str, Sequence[int | None]]) -> dict[str, Labels]:
    sizes = {name: tuple(d for d in shape if d is not None) for name, shape in shapes.items() if None not in shape}
    return {name: each for nodes in tails.values() for name, each in _labels(nodes, sizes).items()}


def _known_joins(labels: Mapping[str, Labels]) -> Joins:
    found = {name: tuple(_along(each, axis) for axis in range(each.ndim)) for name, each in labels.items()}
    return {name: axes for name, axes in found.items() if any(a is not None for a in axes)}


def joined(samples: Samples, model: ir.Model) -> Samples:
    """``samples`` of ``model``, with what it joins into its outputs and computes them with."""
    return replace(samples, joins=joins_of(model, samples.feeds[0]), ends=ends_of(model))


def _joins(node: ir.Node) -> bool:
    return node.op_type == "Concat" or _written_apart(node) is not None


def _hides(node: ir.Node) -> bool:
    return node.domain not in ("", "ai.onnx") or node.op_type in _HIDDEN


def _behind(output: ir.Value) -> list[ir.Node]:
    """The operators that an output's elements come through, in topological order, up to those that mix elements."""
    seen, order = set[ir.Node](), list[ir.Node]()
    waiting: list[tuple[ir.Node, bool]] = [(n, False) for n in _producers([output])]
    while waiting:
        node, done = waiting.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            waiting.append((node, True))
            waiting += [(n, False) for n in _producers(_data(node)) if n not in seen]
    return order


def _producers(values: Sequence[ir.Value]) -> Iterator[ir.Node]:
    for value in values:
        node = value.producer()
        if node is not None and (_hides(node) or node.op_type in _SAME | _ELEMENTWISE | _MOVING | _WEIGHTED):
            yield node


def _data(node: ir.Node) -> list[ir.Value]:
    """The inputs of which an operator's output holds elements."""
    if _hides(node) or node.op_type in _WEIGHTED:
        return []
    if node.op_type in _ELEMENTWISE or node.op_type == "Concat":
        given = node.inputs[1:] if node.op_type == "Where" else node.inputs
    else:
        given = node.inputs[:1]
    return [v for v in given if v is not None]


def _labels(nodes: Sequence[ir.Node], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Labels]:
    found: dict[str, Labels] = {}
    fresh = 0
    for node in nodes:
        given = [found.get(str(v.name)) for v in _data(node)]
        apart = _written_apart(node)
        if apart is not None and (size := shapes.get(str(node.outputs[0].name))) is not None:
            given.append(np.broadcast_to(apart + fresh, np.broadcast_shapes(size, apart.shape)))
            fresh += int(apart.max()) + 1
        if node.op_type == "Concat":
            sizes = [shapes.get(str(v.name)) for v in _data(node)]
            for i, (labels, size) in enumerate(zip(given, sizes, strict=True)):
                if labels is None and size is not None and int(np.prod(size)) <= _MOST_ELEMENTS:
                    given[i] = np.full(size, fresh, np.int32)
                fresh += labels is None
        wanted = [shapes.get("" if v.name is None else v.name) for v in node.outputs]
        try:
            made = _moved(node, given, wanted)
        except (ValueError, IndexError):  # sizes that do not fit: nothing is known behind it
            continue
        for value, labels in zip(node.outputs, made, strict=False):
            if labels is not None and value.name:
                found[value.name] = labels
    return found


def _moved(
    node: ir.Node, given: Sequence[Labels | None], wanted: Sequence[tuple[int, ...] | None]
) -> Sequence[Labels | None]:
    """Labels of an operator's outputs."""
    known = [labels for labels in given if labels is not None]
    if not known or (node.op_type == "Concat" and len(known) < len(given)):
        return []
    first, shape = known[0], wanted[0]
    if node.op_type in _SAME | _WEIGHTED:
        return [first]
    if node.op_type in _ELEMENTWISE:
        if shape is None:
            shape = np.broadcast_shapes(*(k.shape for k in known))
        labels = np.broadcast_to(first, shape)
        for other in known[1:]:
            pairs = labels.astype(np.int64) * (1 + int(other.max(initial=0))) + other
            labels = np.unique(pairs, return_inverse=True)[1].reshape(shape).astype(np.int32)
        return [labels]
    if node.op_type in _RESHAPING:
        return [None if shape is None else first.reshape(shape)]
    if node.op_type == "Transpose":
        return [first.transpose(node.attributes.get_ints("perm", [*range(first.ndim)][::-1]))]
    if node.op_type == "Concat":
        return [np.concatenate(known, axis=node.attributes.get_int("axis", 0))]
    if node.op_type == "Split":
        axis = node.attributes.get_int("axis", 0)
        sizes = [s[axis] for s in wanted if s is not None]
        return np.split(first, np.cumsum(sizes)[:-1], axis) if len(sizes) == len(wanted) else []
    constants = [None if v is None else _constant(v) for v in node.inputs[1:]]
    if node.op_type == "Gather" and constants[0] is not None:
        return [np.take(first, constants[0], node.attributes.get_int("axis", 0))]
    if node.op_type in _CHOOSING:
        return [_any_of(first, node.attributes.get_int("axis", -1 if node.op_type == "TopK" else 0), shape)]
    return [_sliced(first, node, constants)]


def _any_of(labels: Labels, axis: int, shape: tuple[int, ...] | None) -> Labels | None:
    """What is there whichever indices of ``axis`` are taken; None where that depends on them."""
    one = labels.take([0], axis)
    if shape is None or not (labels == one).all():
        return None
    axis %= labels.ndim
    indices = shape[axis : axis + 1 + len(shape) - labels.ndim]  # of a Gather's, as many axes as they have
    return np.broadcast_to(one.take(np.zeros(indices, int), axis), shape)


def _written_apart(node: ir.Node) -> Labels | None:
    """Numbers that say which elements of an operator's output its constants make far larger than others.

    Of a shape that the output's broadcasts with; None where the constants are all of about one size.
    """
    if node.op_type in _WEIGHTED:
        return _rows_apart(node)
    if node.op_type not in _SCALING | _ADDING:
        return None
    for value in node.inputs:
        constant = _real(value)
        if constant is None or not 1 < max(constant.shape, default=1) == constant.size:
            continue
        groups = groups_apart(np.abs(constant.reshape(1, -1)), zero=node.op_type in _ADDING)
        if len(groups) > 1:
            return _numbers(groups).reshape(constant.shape)
    return None


def _rows_apart(node: ir.Node) -> Labels | None:
    """The same of an output's channels, by the rows of a weight and by its bias."""
    weight, bias = (None if len(node.inputs) <= i else node.inputs[i] for i in (1, 2))
    rows = _real(weight)
    if rows is None or rows.ndim < 2 or rows.size == 0 or (node.op_type == "MatMul" and rows.ndim != 2):
        return None
    if node.op_type == "MatMul" or (node.op_type == "Gemm" and not node.attributes.get_int("transB", 0)):
        rows = rows.T
    sizes = np.sqrt(np.square(rows.reshape(len(rows), -1)).sum(axis=1))
    added = _real(bias)
    if added is not None and added.size in (1, len(rows)):
        sizes = sizes + np.abs(added.ravel())
    groups = groups_apart(sizes[None])
    if len(groups) < 2:
        return None
    return _numbers(groups).reshape(-1, *[1] * (rows.ndim - 2 if node.op_type == "Conv" else 0))


def _numbers(groups: Sequence[np.ndarray]) -> Labels:
    numbers = np.zeros(sum(map(len, groups)), np.int32)
    for k, group in enumerate(groups):
        numbers[group] = k
    return numbers


def _sliced(labels: Labels, node: ir.Node, constants: Sequence[np.ndarray | None]) -> Labels | None:
    if not constants:  # up to opset 9
        get: Callable[[str], Sequence[int]] = lambda name: node.attributes.get_ints(name, [])  # noqa: E731
        starts, ends, axes, steps = get("starts"), get("ends"), get("axes"), []
    else:
        if any(c is None for c, v in zip(constants, node.inputs[1:], strict=True) if v is not None):
            return None
        starts, ends, axes, steps = ([] if c is None else c.ravel().tolist() for c in (*constants, None, None)[:4])
    index = [slice(None)] * labels.ndim
    for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis, step = (axes[k] if axes else k), (steps[k] if steps else 1)
        size = labels.shape[axis]
        low = min(max(start + size if start < 0 else start, 0), size if step > 0 else size - 1)
        stop = min(max(end + size if end < 0 else end, -1 if step < 0 else 0), size)
        index[axis] = slice(low, None if stop < 0 else stop, step)
    return labels[tuple(index)]


def _constant(value: ir.Value) -> np.ndarray | None:
    node = value.producer()
    if node is not None and node.op_type == "Constant":
        tensor = node.attributes.get_tensor("value") if "value" in node.attributes else None
        return None if tensor is None else np.asarray(tensor.numpy())
    if node is not None and node.op_type == "DequantizeLinear":
        return _dequantized(node)
    known = value.const_value
    return None if known is None or known.size > _MOST_CONSTANTS else np.asarray(known.numpy())


def _real(value: ir.Value | None) -> np.ndarray | None:
    """A constant of real numbers, in float64."""
    constant = None if value is None else _constant(value)
    return None if constant is None or constant.dtype.kind in "bcOSU" else constant.astype(np.float64)


def _dequantized(node: ir.Node) -> np.ndarray | None:
    """What constants amount to; None where they do not fit, which is for others to say."""
    quantized, scale, *zero = (None if v is None else _constant(v) for v in node.inputs)
    if quantized is None or scale is None or quantized.dtype.kind not in "iu":
        return None
    shift = np.zeros(1) if not zero or zero[0] is None else zero[0]
    along, axis = [1] * quantized.ndim, node.attributes.get_int("axis", 1)
    if scale.size > 1:
        if not -quantized.ndim <= axis < quantized.ndim or quantized.shape[axis] != scale.size:
            return None
        along[axis] = scale.size
    if shift.size not in (1, scale.size):
        return None
    shift = shift.astype(np.float64).reshape(along if shift.size > 1 else [1] * quantized.ndim)
    return np.asarray((quantized - shift) * scale.reshape(along))


def _along(labels: Labels, axis: int) -> tuple[int, ...] | None:
    """For each index of an axis a number, equal where the labels there are."""
    rows = np.moveaxis(labels, axis, 0).reshape(labels.shape[axis], -1)
    begins = np.flatnonzero(np.r_[True, (rows[1:] != rows[:-1]).any(axis=1)]) if len(rows) else np.zeros(0, int)
    numbers: dict[bytes, int] = {}
    runs = [numbers.setdefault(rows[i].tobytes(), len(numbers)) for i in begins]
    if not 2 <= len(numbers) <= _MOST_GROUPS:
        return None
    return tuple(np.repeat(runs, np.diff([*begins, len(rows)])).tolist())
