"""Which elements of an output come from which input of a Concat: a detector's boxes and scores, for instance.

Behind a Concat follow operators that compute every element by itself or only move elements. Numbers that stand for the
Concat's inputs go through them in place of what a model computes, and arrive where the elements do. A Concat may join
what another has joined, in whole or split up again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from inlay.data import Joins, Samples
from inlay.errors import TargetError
from inlay.model.onnx_library import inferred_shapes

_MOST_GROUPS = 32  # along an axis; more are no parts that people would name
_MOST_ELEMENTS = 1 << 26
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})

_SAME = frozenset(
    {"Abs", "Cast", "Ceil", "Celu", "Clip", "DequantizeLinear", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu"}
    | {"HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "LogSoftmax", "Mish", "Neg", "PRelu"}
    | {"QuantizeLinear", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Softmax", "Softplus", "Softsign", "Sqrt"}
    | {"Tanh", "ThresholdedRelu"}
)
"""They keep every element in its place; what their further inputs hold does not matter."""
_ELEMENTWISE = frozenset({"Add", "Div", "Max", "Mean", "Min", "Mod", "Mul", "Pow", "Sub", "Sum", "Where"})
_RESHAPING = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
_MOVING = _RESHAPING | {"Concat", "Gather", "Slice", "Split", "Transpose"}

Labels = np.ndarray
"""For each element of a value the number of the joined value that it comes from."""
Tails = Mapping[str, Sequence[ir.Node]]
"""By output, the operators between Concats and it, in topological order."""


def joins_of(model: ir.Model, feed: Mapping[str, np.ndarray]) -> Joins:
    """For each float output that a Concat joins, and each of its axes, numbers that say what belongs together.

    Args:
        model: any model; it is not changed.
        feed: one sample, for sizes.

    Returns:
        By output: for each axis one number for each index, equal where the same values were joined there. None for an
        axis that nothing was joined along. Outputs are left out where nothing was, or where it cannot be followed.
    """
    tails = joining_tails(model)
    if not tails:
        return {}
    try:
        shapes = inferred_shapes(model, {name: array.shape for name, array in feed.items()})
    except TargetError:
        return {}
    found = joins_within(tails, shapes)
    return {name: found[name] for name in tails if name in found}


def joining_tails(model: ir.Model) -> Tails:
    """The operators between Concats and each float output of ``model`` that has one behind it. Linear time each."""
    return {str(v.name): nodes for v in model.graph.outputs if v.dtype in _FLOATS and (nodes := _tail(v))}


def joins_within(tails: Tails, shapes: Mapping[str, Sequence[int | None]]) -> Joins:
    """What :func:`joins_of` says of outputs, of every value of ``tails``.

    Args:
        tails: as :func:`joining_tails` has them.
        shapes: by value name; of values that it lacks, or of which a size is not known, nothing is said.
    """
    sizes = {name: known for name, shape in shapes.items() if len(known := _known(shape)) == len(shape)}
    labels = {name: each for nodes in tails.values() for name, each in _labels(nodes, sizes).items()}
    found = {name: _along_axes(each) for name, each in labels.items()}
    return {name: axes for name, axes in found.items() if any(a is not None for a in axes)}


def _known(shape: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(size for size in shape if size is not None)


def joined(samples: Samples, model: ir.Model) -> Samples:
    """``samples`` of ``model``, with what it joins into its outputs."""
    return replace(samples, joins=joins_of(model, samples.feeds[0]))


def _tail(output: ir.Value) -> list[ir.Node]:
    """The operators between Concats and an output, in topological order; none where no Concat is there."""
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
    return order if any(n.op_type == "Concat" for n in order) else []


def _producers(values: Sequence[ir.Value]) -> Iterator[ir.Node]:
    for value in values:
        node = value.producer()
        if node is not None and node.domain in ("", "ai.onnx") and node.op_type in _SAME | _ELEMENTWISE | _MOVING:
            yield node


def _data(node: ir.Node) -> list[ir.Value]:
    """The inputs of which an operator's output holds elements."""
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
        if node.op_type == "Concat":
            sizes = [shapes.get(str(v.name)) for v in _data(node)]
            for i, (labels, size) in enumerate(zip(given, sizes, strict=True)):
                if labels is None and size is not None and int(np.prod(size)) <= _MOST_ELEMENTS:
                    given[i] = np.full(size, fresh, np.int32)
                fresh += labels is None
        wanted = [shapes.get("" if v.name is None else v.name) for v in node.outputs]
        try:
            made = _moved(node, given, wanted)
        except (ValueError, IndexError, TypeError):  # sizes that do not fit: nothing is known behind it
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
    if node.op_type in _SAME:
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
    if node.op_type == "Gather":
        return [] if constants[0] is None else [np.take(first, constants[0], node.attributes.get_int("axis", 0))]
    return [_sliced(first, node, constants)]


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
    return None if value.const_value is None else np.asarray(value.const_value.numpy())


def _along_axes(labels: Labels | None) -> tuple[tuple[int, ...] | None, ...]:
    return () if labels is None else tuple(_along(labels, axis) for axis in range(labels.ndim))


def _along(labels: Labels, axis: int) -> tuple[int, ...] | None:
    """For each index of an axis a number, equal where the labels there are."""
    rows = np.moveaxis(labels, axis, 0).reshape(labels.shape[axis], -1)
    begins = np.flatnonzero(np.r_[True, (rows[1:] != rows[:-1]).any(axis=1)]) if len(rows) else np.zeros(0, int)
    numbers: dict[bytes, int] = {}
    runs = [numbers.setdefault(rows[i].tobytes(), len(numbers)) for i in begins]
    if not 2 <= len(numbers) <= _MOST_GROUPS:
        return None
    return tuple(np.repeat(runs, np.diff([*begins, len(rows)])).tolist())
