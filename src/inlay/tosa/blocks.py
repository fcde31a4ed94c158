"""Convolutions that compute blocks of pixels, with a ``DepthToSpace`` behind, as the convolutions of pixels they are.

Runtimes whose kernels want many output channels get a convolution with few of them as one of stride ``s``, its weight
shifted to each pixel of a block of ``s`` by ``s``, and a ``DepthToSpace`` that spreads the blocks out. An NPU computes
the zeros between, and moves every pixel once more: a Conv of 8 to 3 channels 3x3 over 20x20, between two others, takes
37,279 cycles in place of 5,410 on Ethos-U85-256 (*run*). Where the integers of a weight are such copies of one weight,
the sums are the same without them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import add_constant, constant_of, ints, is_standard, sole_use
from inlay.tosa.ir import Array

_OF_EACH_ELEMENT = frozenset(
    {
        "Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Selu", "Softplus",
        "QuantizeLinear", "DequantizeLinear",
    }
)  # fmt: skip
"""What may stand between the convolution and ``DepthToSpace``: functions of each element alone."""

_SMALLEST_DIFFERENCE = 1 / 8
"""Of a step of the result: biases of a block that are nearer are one bias, which was corrected pixel by pixel. With
weights of 7 bits, 0.10 was seen (*run*)."""

_Parameter = tuple[ir.Node, int, Array]
"""A constant of the convolution: the node that reads it (a DequantizeLinear or the convolution), where, and what."""


def undo_blocks(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each such convolution of ``model``, whose shapes are known; nodes and values keep their names."""
    return model, sum(_undo(n) for n in list(model.graph) if is_standard(n, "DepthToSpace"))


def _undo(spread: ir.Node) -> bool:
    size, whole, blocks = spread.attributes.get_int("blocksize", 0), spread.outputs[0], spread.inputs[0]
    between = _between(spread)
    if not between or spread.attributes.get_string("mode", "DCR") != "DCR" or blocks is None or whole.shape is None:
        return False
    conv = between[0]
    weight, bias = _parameters(conv, 1), _parameters(conv, 2)
    if weight is None or bias is None or not _is_blocked(conv, size, weight[0][2], whole):
        return False
    plain, few = _unshifted(weight, size), _few_biases(bias, size, _step(between))
    others = [p for p in (*weight[1:], *bias[1:]) if p[2].size > 1]
    if plain is None or few is None or not all(_repeats(array, size**2) for _, _, array in others):
        return False
    changed = [(weight[0], plain), *((p, p[2][: p[2].size // size**2]) for p in others)]
    for parameter, array in [*changed, *zip(bias[:1], [few], strict=False)]:
        _set(conv, parameter, array)
    conv.attributes.update(
        {n: ir.AttrInt64s(n, v) for n, v in (("strides", [1, 1]), ("kernel_shape", plain.shape[2:]))}
    )
    for node in between:
        node.outputs[0].shape = whole.shape
    name, graph = whole.name, spread.graph
    assert isinstance(graph, ir.Graph)
    whole.replace_all_uses_with(blocks, replace_graph_outputs=True)
    graph.remove(spread, safe=True)
    blocks.name = name
    return True


def _between(spread: ir.Node) -> list[ir.Node]:
    """The Conv that computes what is spread, and the functions of each element behind it, in order; else nothing."""
    found, value = list[ir.Node](), spread.inputs[0]
    while value is not None and (node := value.producer()) is not None and sole_use(value) is not None:
        found.append(node)
        if is_standard(node, "Conv"):
            return found[::-1]
        constants = [constant_of(v) for v in node.inputs[1:] if v is not None]
        if not is_standard(node, *_OF_EACH_ELEMENT) or any(c is None or c.size != 1 for c in constants):
            return []
        value = node.inputs[0]
    return []


def _parameters(conv: ir.Node, slot: int) -> list[_Parameter] | None:
    """The constants that an input of ``conv`` is made of, integers first; None where others read it, or it varies."""
    value = conv.inputs[slot] if slot < len(conv.inputs) else None
    if value is None:
        return []
    if (own := constant_of(value)) is not None:
        return [(conv, slot, own)]
    dq = value.producer()
    if dq is None or not is_standard(dq, "DequantizeLinear") or sole_use(value) is None:
        return None
    arrays = [(dq, i, constant_of(v)) for i, v in enumerate(dq.inputs) if v is not None]
    found = [(node, i, array) for node, i, array in arrays if array is not None]
    return found if len(found) == len(arrays) and not dq.attributes.get_int("block_size", 0) else None


def _is_blocked(conv: ir.Node, size: int, weight: Array, whole: ir.Value) -> bool:
    """Whether ``conv`` has the stride of a block, and results enough for every pixel of ``whole``."""
    x = conv.inputs[0]
    if size < 2 or weight.ndim != 4 or weight.shape[0] % size**2 or min(weight.shape[2:]) < size:
        return False
    if x is None or x.shape is None or whole.shape is None or "auto_pad" in conv.attributes:
        return False
    if ints(conv, "strides", [1, 1]) != [size, size] or {*ints(conv, "dilations", [1])} != {1}:
        return False
    if conv.attributes.get_int("group", 1) != 1:
        return False
    sizes, pads = x.shape[2:], ints(conv, "pads", [0, 0, 0, 0])
    results = [
        n + pads[i] + pads[i + 2] - (weight.shape[2 + i] - size) for i, n in enumerate(sizes) if isinstance(n, int)
    ]  # of the window without the shifts
    return results == [whole.shape[2], whole.shape[3]]


def _unshifted(parameters: list[_Parameter], size: int) -> Array | None:
    """The weight whose copies, shifted to each pixel of a block, ``parameters`` hold; None where they are no copies."""
    shifted = parameters[0][2]
    zero = parameters[2][2] if len(parameters) > 2 else np.zeros(1, shifted.dtype)
    outputs, (channels, height, width) = shifted.shape[0] // size**2, shifted.shape[1:]
    height, width = height - size + 1, width - size + 1
    blocks = shifted.reshape(size, size, outputs, channels, *shifted.shape[2:])
    plain = blocks[0, 0, :, :, :height, :width]
    expected = np.empty_like(blocks)
    expected[...] = zero.astype(shifted.dtype).reshape(-1)[: max(zero.size // size**2, 1)].reshape(-1, 1, 1, 1)
    for i in range(size):
        for j in range(size):
            expected[i, j, :, :, i : i + height, j : j + width] = plain
    return np.ascontiguousarray(plain) if np.array_equal(blocks, expected) else None


def _repeats(array: Array, times: int) -> bool:
    """Whether a value for each output is the same for each pixel of a block."""
    return (
        array.ndim == 1 and not array.size % times and (array.reshape(times, -1) == array[: array.size // times]).all()
    )


def _step(between: list[ir.Node]) -> float:
    """What one integer of the result stands for; 0 where it stays float."""
    scales = [constant_of(n.inputs[1]) for n in between if n.op_type == "QuantizeLinear"]
    return float(scales[0].item()) if scales and scales[0] is not None else 0.0


def _few_biases(bias: list[_Parameter], size: int, step: float) -> Array | None:
    """The mean bias of each output over the pixels of a block (empty without one); None where they differ.

    Quantizers that correct biases by the mean error of each output find one a little different for each pixel.
    """
    if not bias:
        return np.zeros(0)
    given = bias[0][2]
    if given.ndim != 1 or given.size % size**2:
        return None
    each = given.reshape(size**2, -1)
    mean = each.mean(axis=0)
    unit = bias[1][2].max() if len(bias) > 1 else 1.0
    if float(np.abs(each - mean).max(initial=0.0)) * unit > _SMALLEST_DIFFERENCE * step:
        return None
    few: Array = mean if given.dtype.kind == "f" else np.rint(mean)
    return few.astype(given.dtype)


def _set(conv: ir.Node, parameter: _Parameter, array: Array) -> None:
    reader, slot, _ = parameter
    given, graph = reader.inputs[slot], conv.graph
    assert given is not None
    assert isinstance(graph, ir.Graph)
    reader.replace_input_with(slot, add_constant(graph, str(given.name), np.ascontiguousarray(array)))
    if reader is not conv and not slot:
        reader.outputs[0].shape = ir.Shape(array.shape)
