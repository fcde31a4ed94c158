"""Operators spelled as others for which ONNX Runtime has faster kernels, or 8-bit ones; the results are the same.

Figures are of ONNX Runtime 1.31 on x86-64 with AVX512-VNNI, one thread.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from inlay.model.passes.affine import batchnorm_numbers
from inlay.model.passes.steps import (
    Steps,
    add_constant,
    axes_of,
    constant_of,
    ints,
    is_over_last_axis,
    is_standard,
    replace_each,
    sole_use,
    squared_by,
)

MOST_CHANNELS = 512
"""Of an LRN: beyond, the products of the band's zeros would cost as much as the kernel that they replace."""
MOST_WINDOW = 16  # elements of an AveragePool's window; beyond, the products cost as much as they save


# --- LRN ------------------------------------------------------------------------------------------------------------


def spell_out_lrn(model: ir.Model) -> tuple[ir.Model, int]:
    """Spell each float32 ``LRN`` out over a known number of channels, at most :data:`MOST_CHANNELS`.

    ``y = x / (bias + alpha / size * S) ^ beta``, where ``S`` sums the squares of ``size`` neighbouring channels. The
    window is a 1x1 convolution with a band of ``alpha / size`` as its weight; a power of a quarter, a half or three
    quarters is made of square roots. That takes a tenth of the time, and ends an island between convolutions.
    """
    return replace_each(model, "LRN", _lrn)


def _lrn(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    assert x.shape is not None
    channels = x.shape[1] if len(x.shape) >= 3 else None
    if not isinstance(channels, int) or not 1 <= channels <= MOST_CHANNELS:
        return False
    squares = steps.add("Mul", [x, x], "squares")
    size = node.attributes.get_int("size", 0)
    band = window(channels, size).reshape(channels, channels, *[1] * (len(x.shape) - 2))
    share = node.attributes.get_float("alpha", 1e-4) / size
    bias = np.full(channels, node.attributes.get_float("bias", 1.0))
    total = steps.add("Conv", [squares, steps.constant("band", band * share), steps.constant("bias", bias)], "total")
    power = _power(steps, total, node.attributes.get_float("beta", 0.75))
    steps.replace(steps.add("Div", [x, power]))
    return True


def _power(steps: Steps, total: ir.Value, beta: float) -> ir.Value:
    """``total ^ beta``."""
    match beta:
        case 1.0:
            return total
        case 0.25 | 0.5 | 0.75:
            half = steps.add("Sqrt", [total], "half")
            if beta == 0.5:
                return half
            quarter = steps.add("Sqrt", [half], "quarter")
            return quarter if beta == 0.25 else steps.add("Mul", [half, quarter], "power")
        case _:
            return steps.add("Pow", [total, steps.constant("beta", np.array(beta))], "power")


def window(channels: int, size: int) -> np.ndarray:
    """Ones where channel ``j`` is in the window of channel ``i``, shape (channels, channels).

    The operator has it at ``i - floor((size - 1) / 2) .. i + ceil((size - 1) / 2)``, cut at the ends.
    """
    offset = np.arange(channels)[None, :] - np.arange(channels)[:, None]
    return ((offset >= -((size - 1) // 2)) & (offset <= size // 2)).astype(np.float64)


# --- activations ----------------------------------------------------------------------------------------------------


def spell_out_prelu(model: ir.Model) -> tuple[ir.Model, int]:
    """Spell each float32 ``PRelu`` out whose slopes are constant.

    With one slope for all channels it is a ``LeakyRelu``, which the runtime folds into the convolution before it, and
    runs in 8 bits. With slopes of at most 1, whatever their sign, it is ``Max(x, slope * x)``; for finite numbers bit
    for bit, both. With any others it is ``x + (slope - 1) * Min(x, 0)``. The share of the time that two convolutions
    of 64 channels 56x56 with a PRelu between them take that way: 0.76, 0.81 and 0.79 in float, 0.49, 0.62 and 0.9
    between 8-bit convolutions.
    """
    return replace_each(model, "PRelu", _prelu)


def _prelu(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    slope = constant_of(node.inputs[1])
    if slope is None or not slope.size or not np.isfinite(slope).all() or not _keeps_shape(x, slope):
        return False
    if (slope == slope.flat[0]).all():
        steps.replace(steps.add("LeakyRelu", [x], "", {"alpha": float(slope.flat[0])}))
        return True
    if slope.max() <= 1.0:
        sloped = steps.add("Mul", [x, steps.constant("slope", slope)], "sloped")
        steps.replace(steps.add("Max", [x, sloped]))
    else:
        below = steps.add("Min", [x, steps.constant("zero", np.zeros(()))], "below")
        more = steps.add("Mul", [below, steps.constant("more", slope - 1.0)], "more")
        steps.replace(steps.add("Add", [x, more]))
    return True


def _keeps_shape(x: ir.Value, slope: np.ndarray) -> bool:
    """Whether the slopes widen nothing: the operator lets them be broadcast to ``x`` only."""
    assert x.shape is not None
    behind = x.shape[len(x.shape) - slope.ndim :] if slope.ndim <= len(x.shape) else ()
    return slope.ndim <= len(x.shape) and all(s in (1, d) for s, d in zip(slope.shape, behind, strict=True))


def spell_out_hardswish(model: ir.Model) -> tuple[ir.Model, int]:
    """Write each float32 ``HardSwish`` as ``x * HardSigmoid(x)``: so ONNX defines it, and so the runtime runs it.

    Spelled out, both parts have an integer kernel (``rewrites/saturating_hard_sigmoid.py``).
    """
    return replace_each(model, "HardSwish", _hardswish)


def _hardswish(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    gate = steps.add("HardSigmoid", [x], "gate", {"alpha": 1 / 6, "beta": 0.5})
    steps.replace(steps.add("Mul", [x, gate]))
    return True


# --- depthwise convolutions -----------------------------------------------------------------------------------------


def batchnorm_to_conv(model: ir.Model) -> tuple[ir.Model, int]:
    """Write each ``BatchNormalization`` that stands alone as a depthwise 1x1 ``Conv``.

    That is: of float32, with constant numbers and at least one axis behind the channels. ``y = k x + d`` for each
    channel is a convolution with one weight a channel. Behind a convolution it is folded (see
    :mod:`~inlay.model.passes.affine`); behind a Concat, as in DenseNet, or an Add, as in pre-activation residual nets,
    it is not, and few runtimes have it in 8 bits: each becomes an island of float between convolutions. As a Conv it
    takes in what scales and shifts its channels next, fuses with its activation, and runs in 8 bits like any other.
    """
    return replace_each(model, "BatchNormalization", _batchnorm)


def _batchnorm(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    assert x.shape is not None
    spatial, numbers = len(x.shape) - 2, batchnorm_numbers(node)
    if spatial < 1 or numbers is None:
        return False
    factor, shift = numbers
    weight = steps.constant("factor", factor.reshape(-1, 1, *[1] * spatial))
    attributes = {"group": factor.size, "kernel_shape": [1] * spatial}
    steps.replace(steps.add("Conv", [x, weight, steps.constant("shift", shift)], "", attributes))
    return True


def averagepool_to_conv(model: ir.Model) -> tuple[ir.Model, int]:
    """Write each ``AveragePool`` over small whole windows as a depthwise ``Conv`` with equal weights.

    That is: of float32, over a known number of channels. The mean of a window is a convolution whose weights are one
    over its size, as long as every window is whole: at a border that is not counted the divisor is another one. In
    float both take the same time; in 8 bits the convolution is more than ten times as fast (26 against 411 us for 2x2
    over 1x128x56x56), and the weight is exact.
    """
    return replace_each(model, "AveragePool", _averagepool)


def _averagepool(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    assert x.shape is not None
    channels, window = x.shape[1], ints(node, "kernel_shape", ())
    if not isinstance(channels, int) or not 1 < math.prod(window) <= MOST_WINDOW or not _whole(node):
        return False
    weight = steps.constant("mean", np.full((channels, 1, *window), 1.0 / math.prod(window)))
    kept = {name: node.attributes[name] for name in ("kernel_shape", "strides", "pads") if name in node.attributes}
    steps.replace(steps.add("Conv", [x, weight], "", {"group": channels, **kept}))
    return True


def _whole(node: ir.Node) -> bool:
    """Whether no window is cut off: nothing is padded, or what is padded counts."""
    padded = any(ints(node, "pads", ())) or "auto_pad" in node.attributes
    dilated = any(d != 1 for d in ints(node, "dilations", ()))
    ceil, counted = (node.attributes.get_int(name, 0) for name in ("ceil_mode", "count_include_pad"))
    return not ceil and not dilated and (not padded or bool(counted))


# --- means and sums -------------------------------------------------------------------------------------------------


def mean_to_pool(model: ir.Model) -> tuple[ir.Model, int]:
    """Write each float32 ``ReduceMean`` over all pixels of each channel as the ``GlobalAveragePool`` that it is.

    Exporters write the mean of a gate's input (squeeze and excitation) or before a classifier so. In float both take
    the same time. The runtime has an integer GlobalAveragePool and no integer ReduceMean: four blocks with gates, 96
    channels of 28x28 and all in 8 bits, take 0.72 of the time.

    The means of a normalization that an exporter wrote out stay: of three-dimensional values, as transformers have
    them, they look the same, and the runtime makes one kernel of the whole chain only as it was written.
    """
    return replace_each(model, "ReduceMean", _mean, lambda node: bool(axes_of(node)))


def _mean(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    assert x.shape is not None
    rank, kept = len(x.shape), bool(node.attributes.get_int("keepdims", 1))
    if {a % rank for a in axes_of(node)} != set(range(2, rank)) or _normalizes(node, x):
        return False
    pooled = steps.add("GlobalAveragePool", [x], "" if kept else "pool")
    pooled.shape = ir.Shape([*list(x.shape)[:2], *[1] * (rank - 2)])
    if not kept:
        shape = ir.Shape(list(x.shape)[:2])
        pooled = steps.add("Flatten", [pooled], "", {"axis": 1})
        pooled.shape = shape
    steps.replace(pooled)
    return True


def _normalizes(node: ir.Node, x: ir.Value) -> bool:
    """Whether it is the mean that is taken off ``x``, or one of squares."""
    before = x.producer()
    if before is not None and squared_by(before) is not None:
        return True
    return any(is_standard(use.node, "Sub") and use.node.inputs[0] is x for use in node.outputs[0].uses())


def keep_additions_apart(model: ir.Model) -> tuple[ir.Model, int]:
    """Make a ``Sum`` of each residual ``Add`` that only a normalization of rows of the last axis reads.

    ONNX Runtime fuses ``Add`` and the normalization behind it to ``SkipLayerNormalization``, whose kernel works element
    by element, while the kernels of the two it replaces are vectorized: over 1x128x384 it takes 368 us, where
    LayerNormalization takes 66 and the addition 33. A ``Sum`` of two values is the same addition bit for bit, and is
    not fused. Normalizations that exporters write in pieces count too: the runtime puts the pieces together before it
    fuses.
    """
    done = 0
    for node in model.graph:
        if is_standard(node, "Add") and not any(map(_is_row, node.inputs)) and _is_normalized(node.outputs[0]):
            node.op_type = "Sum"
            done += 1
    return model, done


def _is_row(value: ir.Value | None) -> bool:
    """Whether ``value`` is a bias, which belongs to the product before it."""
    array = constant_of(value)
    return array is not None and array.size == (array.shape or (1,))[-1]


def _is_normalized(value: ir.Value) -> bool:
    """Whether LayerNormalization alone reads ``value``, or the average and the difference that it begins with do."""
    readers = [] if value.is_graph_output() else [use.node for use in value.uses()]
    if len(readers) == 1:
        return is_standard(readers[0], "LayerNormalization")
    mean = next((n for n in readers if is_standard(n, "ReduceMean")), None)
    if mean is None or not is_over_last_axis(mean):
        return False
    return all(n is mean or (is_standard(n, "Sub") and n.inputs[1] is mean.outputs[0]) for n in readers)


def gather_gemm(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each such pair over float32 data, where nothing else reads the product.

    Data of more than two dimensions may have one of them unknown, besides the last.
    """
    return replace_each(model, "MatMul", _replace)


def _replace(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    given, use = node.inputs[1], sole_use(node.outputs[0])
    weight = None if given is None else given.const_value
    if given is None or weight is None or len(weight.shape) != 2 or x.shape is None or len(x.shape) < 2:
        return False
    if use is None or not is_standard(use[0], "Add"):
        return False
    add, slot = use
    bias = constant_of(add.inputs[1 - slot])
    depth, columns = weight.shape.numpy()  # its numbers are not read: there may be many
    if bias is None or bias.dtype != weight.dtype.numpy() or bias.shape != (*[1] * (bias.ndim - 1), columns):
        return False
    leading = [d if isinstance(d, int) else -1 for d in x.shape[:-1]]
    if bias.ndim > len(x.shape) or (len(leading) > 1 and leading.count(-1) > 1):
        return False
    offset = steps.constant("bias", bias.reshape(-1))
    if len(leading) == 1:
        steps.replace(steps.add("Gemm", [x, given, offset]), add)
        return True
    rows = None if -1 in leading else math.prod(leading)
    matrix = steps.add("Reshape", [x, _sizes(node, "matrix", [-1, depth])], "matrix")
    matrix.shape = ir.Shape([rows, depth])
    product = steps.add("Gemm", [matrix, given, offset], "product")
    product.shape = ir.Shape([rows, columns])
    steps.replace(steps.add("Reshape", [product, _sizes(node, "shape", [*leading, columns])]), add)
    return True


def _sizes(node: ir.Node, what: str, sizes: list[int]) -> ir.Value:
    assert isinstance(node.graph, ir.Graph)
    return add_constant(node.graph, f"{node.name}_{what}_sizes", np.array(sizes, np.int64))
