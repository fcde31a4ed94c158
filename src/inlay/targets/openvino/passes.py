"""Float rewrites for OpenVINO's CPU kernels: what is slow there, or wrong, written otherwise; same sums.

:mod:`.float_rewrites` lists them in order, with reasons; normalization runs them behind its numeric gate.
"""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import Steps, add_constant, axes_of, constant_of, ints, replace_each
from inlay.targets.openvino.wrong_kernels import is_from_zero

_AXES_ARE_INPUTS = 13  # the opset since which Squeeze and Unsqueeze read their axes, and Softmax is over one axis alone


# --- short Softmax ----------------------------------------------------------------------------------------------------

MOST_ELEMENTS = 8
LEAST_ROWS = 256
"""One thread, AVX512: 4420 rows of 2 take 81 us instead of 579, 2000 of 4 143 instead of 300, 2000 of 8 208 instead of
312; 1000 of 21 would take 237 instead of 187."""


def spread_short_softmax(model: ir.Model) -> tuple[ir.Model, int]:
    """Write each float32 ``Softmax`` over a short last axis of many rows, of known sizes, in a form over columns.

    The kernel takes the rows one by one, each with a call of its own: scores of two classes in 4420 boxes took a tenth
    of a detector's time. Over two elements it is the Sigmoid of their difference; over a few more it is computed over
    columns.
    """
    if model.graph.opset_imports.get("", 1) < _AXES_ARE_INPUTS:
        return model, 0
    return replace_each(model, "Softmax", _spread)


def _spread(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    assert x.shape is not None
    sizes = [d for d in x.shape if isinstance(d, int)]
    rank, graph = len(x.shape), node.graph
    axis = node.attributes.get_int("axis", -1)
    if len(sizes) < rank or rank < 2 or axis not in (-1, rank - 1) or not isinstance(graph, ir.Graph):
        return False
    if not 2 <= sizes[-1] <= MOST_ELEMENTS or math.prod(sizes[:-1]) < LEAST_ROWS:
        return False
    if sizes[-1] == 2:
        order = add_constant(graph, f"{node.name}_order", np.array([1, 0], np.int64))
        other = steps.add("Gather", [x, order], "other", {"axis": rank - 1})
        steps.replace(steps.add("Sigmoid", [steps.add("Sub", [x, other], "difference")]))
        return True
    if sizes[-2] < LEAST_ROWS:
        return False
    turn = {"perm": [*range(rank - 2), rank - 1, rank - 2]}
    columns = steps.add("Transpose", [x], "columns", turn)
    shares = steps.add("Softmax", [columns], "", {"axis": rank - 2})
    columns.shape = shares.shape = ir.Shape([*sizes[:-2], sizes[-1], sizes[-2]])
    steps.replace(steps.add("Transpose", [shares], "rows", turn))
    return True


# --- stacked values ---------------------------------------------------------------------------------------------------

LEAST_STACKED = 1024
"""Of each value, as far as its sizes are known. One thread, AVX512: eight of 172x309 take 4.6 ms instead of 10.4, and
2.3 instead of 7.7 with a Transpose behind them; two of 172x36 take 0.11 ms instead of 0.20."""


def join_stacked(model: ir.Model) -> tuple[ir.Model, int]:
    """Join float32 values with one element along the last axis along the second one, and turn what that gives.

    The kernel copies element by element where it joins along the innermost axis. Joined along the second axis, whole
    images are copied, and one Transpose puts the elements side by side; the runtime drops that one where another turns
    them back.
    """
    if model.graph.opset_imports.get("", 1) < _AXES_ARE_INPUTS:
        return model, 0
    return replace_each(model, "Concat", _join)


def _join(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    assert x.shape is not None
    rank, graph = len(x.shape), node.graph
    values = [v for v in node.inputs if v is not None and v.dtype is ir.DataType.FLOAT and v.shape is not None]
    if rank < 3 or node.attributes.get_int("axis", 0) not in (-1, rank - 1) or not isinstance(graph, ir.Graph):
        return False
    if len(values) < max(2, len(node.inputs)) or any(v.shape is None or v.shape[-1] != 1 for v in values):
        return False
    sizes = [d for d in x.shape if isinstance(d, int)]
    if len(sizes) == rank and math.prod(sizes) < LEAST_STACKED:
        return False
    last = add_constant(graph, f"{node.name}_last", np.array([rank - 1], np.int64))
    second = add_constant(graph, f"{node.name}_second", np.array([1], np.int64))
    images = []
    for i, value in enumerate(values):
        flat = steps.add("Squeeze", [value, last], f"flat_{i}")
        images.append(steps.add("Unsqueeze", [flat, second], f"image_{i}"))
        flat.shape = images[-1].shape = None
    joined = steps.add("Concat", images, "", {"axis": 1})
    joined.shape = None
    steps.replace(steps.add("Transpose", [joined], "beside", {"perm": [0, *range(2, rank), 1]}))
    return True


# --- padding that counts ----------------------------------------------------------------------------------------------

_FEW_MOVES = frozenset({"MaxPool", "Transpose", "Reshape", "Slice", "Split", "Resize", "DepthToSpace"})


def leave_padding_out(model: ir.Model) -> tuple[ir.Model, int]:
    """Write each ``AveragePool`` that counts padding of data below zero as one that does not, times a share.

    That is: of float32 and known sizes. The share is that of each window that lies inside the image. OpenVINO 2026.4.1
    takes padding for the least integer where the data come in 8 bits, whatever their zero point is: not only between
    Q/DQ nodes, but behind operators that a dequantization is moved through, and where a Pad stands before the pool.
    Data behind a Relu or the like have no zero point, and their pools stay as they are.
    """
    return replace_each(model, "AveragePool", _share, _counts)


def _counts(node: ir.Node) -> bool:
    get = node.attributes.get_int
    plain = not get("ceil_mode", 0) and all(d == 1 for d in ints(node, "dilations", []))
    padded = bool(get("count_include_pad", 0)) and any(ints(node, "pads", []))
    return plain and padded and "auto_pad" not in node.attributes and not _reads_from_zero(node)


def _reads_from_zero(node: ir.Node) -> bool:
    def maker(value: ir.Value | None) -> ir.Node | None:
        return None if value is None else value.producer()

    return is_from_zero(node.inputs[0], maker, constant_of, _FEW_MOVES)


def _share(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    assert x.shape is not None
    window, spatial = ints(node, "kernel_shape", []), [*x.shape][2:]
    pads, strides = ints(node, "pads", []), ints(node, "strides", [1] * len(window))
    shares = []
    for axis, size in enumerate(spatial):
        if not isinstance(size, int):
            return False
        before, after = pads[axis], pads[axis + len(window)]
        starts = np.arange(0, size + before + after - window[axis] + 1, strides[axis]) - before
        inside = np.minimum(starts + window[axis], size) - np.maximum(starts, 0)
        if inside.size == 0 or inside.min() < 1:  # nothing but padding
            return False
        shares.append(inside / window[axis])
    whole = reduce(np.multiply.outer, shares)
    kept = {"kernel_shape": window, "pads": pads, "strides": strides}
    means = steps.add("AveragePool", [x], "inside", kept)
    means.shape = ir.Shape([*list(x.shape)[:2], *whole.shape])
    steps.replace(steps.add("Mul", [means, steps.constant("shares", whole[None, None])]))
    return True


# --- dropped axes -----------------------------------------------------------------------------------------------------

_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")


def drop_axes_behind(model: ir.Model) -> tuple[ir.Model, int]:
    """Let reductions of given axes, and a Gather of one element by a constant, keep the axis, and drop it by a Squeeze.

    OpenVINO 2026.4.1 moves the scales of a product's channels behind what reads its result, with as many axes as the
    product has, also where the reader has dropped one. The scales are then those of other channels, or the result has
    an axis too many: the first row, gathered behind a product in 8 bits, had the shape (1, 2, 5) in place of (2, 5);
    the mean of all rows, quantized again, 5 to 17 dB. With a Squeeze they are right.
    """
    if model.graph.opset_imports.get("", 1) < _AXES_ARE_INPUTS:
        return model, 0
    return replace_each(model, (*_REDUCTIONS, "Gather"), _squeeze_behind, _drops)


def _drops(node: ir.Node) -> bool:
    if node.op_type in _REDUCTIONS:
        return not node.attributes.get_int("keepdims", 1) and bool(axes_of(node))
    index = constant_of(node.inputs[1])
    return index is not None and index.ndim == 0 and constant_of(node.inputs[0]) is None


def _squeeze_behind(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    assert x.shape is not None
    assert node.graph is not None
    if node.op_type == "Gather":
        axes = [node.attributes.get_int("axis", 0) % len(x.shape)]
        index = constant_of(node.inputs[1])
        assert index is not None
        listed = add_constant(node.graph, f"{node.name}_listed", index.reshape(1))
        kept = steps.add("Gather", [x, listed], "kept", {"axis": axes[0]})
    else:
        axes = sorted(axis % len(x.shape) for axis in axes_of(node))
        if len(axes) == len(x.shape):  # one number, whatever the channels are
            return False
        attributes = {**{a.name: a for a in node.attributes.values()}, "keepdims": 1}
        kept = steps.add(node.op_type, [v for v in node.inputs if v is not None], "kept", attributes)
    kept.shape = ir.Shape([1 if i in axes else d for i, d in enumerate(x.shape)])
    result = steps.add("Squeeze", [kept, add_constant(node.graph, f"{node.name}_dropped", np.array(axes, np.int64))])
    steps.replace(result)
    result.shape = ir.Shape([d for i, d in enumerate(x.shape) if i not in axes])
    return True


# --- rows of tiles ----------------------------------------------------------------------------------------------------

_ROW_BYTES = 64
_ELEMENT_BYTES = (2, 1)  # bfloat16 and 8 bits: which of them a convolution is computed in is not known yet
_GROUP_BYTES = 4  # the kernel takes channels by as many as have four bytes; with others it multiplies them another way


def leave_a_rest(model: ir.Model) -> tuple[ir.Model, int]:
    """Widen the weight of each float32 ``Conv`` whose windows fill the rows of AMX tiles exactly by a column of zeros.

    OpenVINO 2026.4.1 gets such a convolution wrong, in bfloat16 and in 8 bits, as it was given as well: where there are
    few channels, those of a window's row are multiplied as one row, and where these are several tile rows without a
    rest, the results have nothing to do with the right ones (8 channels, 3x8: -1 dB). One column more leaves a rest.
    The sums are the same.
    """
    return replace_each(model, "Conv", _widen, _fills_rows)


def fills_rows(channels: int, columns: int) -> bool:
    """Whether a convolution without dilation of its columns comes out wrong.

    Found by trying 1 to 39 channels of a group with 1 to 64 columns in bfloat16, and 11 of these widths in 8 bits.
    Rows, outputs and groups make no difference; with some strides it comes out right, and is widened all the same.
    ``channels`` are those of one group, ``columns`` those of the window.
    """
    rows = [(_ROW_BYTES // size, _GROUP_BYTES // size) for size in _ELEMENT_BYTES]
    return any(
        channels % group == 0 and 2 * channels < row and channels * columns > row and channels * columns % row == 0
        for row, group in rows
    )


def _fills_rows(node: ir.Node) -> bool:
    weight = node.inputs[1].shape if len(node.inputs) > 1 and node.inputs[1] is not None else None
    if weight is None or len(weight) < 3 or not weight.is_static() or "auto_pad" in node.attributes:
        return False
    _, channels, *window = weight.numpy()
    return ints(node, "dilations", [1])[-1] == 1 and fills_rows(channels, window[-1])


def _widen(node: ir.Node, _: ir.Value, steps: Steps) -> bool:
    weight = constant_of(node.inputs[1])
    if weight is None:
        return False
    wider = np.pad(weight, [(0, 0)] * (weight.ndim - 1) + [(0, 1)])
    spatial = weight.ndim - 2
    pads = ints(node, "pads", [0] * (2 * spatial))
    node.replace_input_with(1, steps.constant("wider", wider))
    node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", list(wider.shape[2:]))
    node.attributes["pads"] = ir.AttrInt64s("pads", [*pads[:-1], pads[-1] + 1])
    return True
