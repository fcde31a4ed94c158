"""``Conv`` with few outputs, as one that computes blocks of 2x2 pixels at once, and ``DepthToSpace`` behind it.

Kernels work on many output channels at a time: with 3 of them most of the work is for nothing, and every pixel gathers
a window of its own. With the weight shifted to each pixel of a block there are four times as many outputs, for a
quarter of the windows, each one row and column larger. The results are the same sums.

The share of the time that this takes (float, 8 bits; one thread of an x86-64 processor with AVX512-VNNI, ONNX Runtime
1.31): 8 to 8 channels 3x39 0.65 and 0.25; 32 to 3 channels 9x9 0.38 and 0.31; 64 to 4 channels 3x3 0.68 and 0.65. With
16 outputs, or with 3 inputs, it does not pay.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import FUNCTIONS, Steps, constant_of, ints, is_standard, replace_each, sole_use

MOST_OUTPUTS = 8  # the most of the figures above that pay: vectors of 16 floats are half empty then
LEAST_KERNEL = 3  # rows and columns: smaller windows were not measured, and share less
LEAST_PRODUCTS = 64  # of a result: at 27 (3 inputs, 3x3) moving pixels costs what products save, at 576 it does not
LEAST_PIXELS = 256  # of the image that it makes
_SIZE = 2


def block_few_outputs(model: ir.Model) -> tuple[ir.Model, int]:
    """Rewrite each float32 ``Conv`` of one group and stride 1 with few outputs, over images of known, even size."""
    return replace_each(model, "Conv", _replace, _has_few)


def _has_few(node: ir.Node) -> bool:
    """Whether a ``Conv`` has few outputs and a large window; its image is not looked at."""
    weight = node.inputs[1].shape if len(node.inputs) > 1 and node.inputs[1] is not None else None
    if weight is None or len(weight) != 4 or not weight.is_static():
        return False
    outputs, channels, *kernel = weight.numpy()
    return outputs <= MOST_OUTPUTS and min(kernel) >= LEAST_KERNEL and channels * math.prod(kernel) >= LEAST_PRODUCTS


def _replace(node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    given = node.inputs[2] if len(node.inputs) > 2 else None
    weight, bias = constant_of(node.inputs[1]), constant_of(given)
    pads, size = _pads(node), _size(x)
    if weight is None or (given is not None and bias is None) or pads is None or size is None:
        return False
    assert x.shape is not None
    outputs, _, *kernel = weight.shape
    results = [size[i] + pads[i] + pads[i + 2] - kernel[i] + 1 for i in (0, 1)]
    if results[0] * results[1] < LEAST_PIXELS or any(r % _SIZE for r in results):
        return False
    shifted = _shifted(weight, _SIZE)
    inputs = [x, steps.constant("shifted", shifted)]
    if bias is not None:
        inputs.append(steps.constant("biases", np.tile(bias, _SIZE * _SIZE)))
    window = {"kernel_shape": shifted.shape[2:], "strides": (_SIZE, _SIZE), "pads": pads}
    blocks = steps.add("Conv", inputs, "", window)
    blocks.shape = ir.Shape([x.shape[0], _SIZE * _SIZE * outputs, *(r // _SIZE for r in results)])
    _spread(node, blocks)
    return True


def _spread(conv: ir.Node, blocks: ir.Value) -> None:
    """Let ``blocks`` take the place of what ``conv`` computes, spread out behind the functions that follow alone."""
    graph, result, last = conv.graph, conv.outputs[0], conv
    assert isinstance(graph, ir.Graph)
    shape, chain = result.shape, list[ir.Value]()
    while (follower := _follower(result)) is not None:
        last, result = follower, follower.outputs[0]
        chain.append(result)
    whole = ir.Value(name=result.name, type=result.type, shape=shape)
    result.replace_all_uses_with(whole, replace_graph_outputs=True)
    result.name = f"{result.name}_blocks"
    if last is conv:
        result = blocks
    else:
        conv.outputs[0].replace_all_uses_with(blocks)
    for value in chain:
        value.shape = blocks.shape
    spread = ir.node("DepthToSpace", [result], {"blocksize": _SIZE}, outputs=[whole], name=f"{conv.name}_spread")
    graph.insert_after(last, spread)
    graph.remove(conv, safe=True)


def _follower(value: ir.Value) -> ir.Node | None:
    """The function of one value that alone reads ``value``, where that is no output of the graph."""
    use = sole_use(value)
    if use is None or use[1] or not is_standard(use[0], *FUNCTIONS):
        return None
    return use[0] if all(v is None or v.const_value is not None for v in use[0].inputs[1:]) else None


def _pads(node: ir.Node) -> tuple[int, int, int, int] | None:
    """Zeros before and behind rows and columns; None where the convolution is not of one group and stride 1."""
    if node.attributes.get_int("group", 1) != 1 or {*ints(node, "strides", [1]), *ints(node, "dilations", [1])} != {1}:
        return None
    pads = ints(node, "pads", [0, 0, 0, 0])
    return None if "auto_pad" in node.attributes or min(pads) < 0 else (pads[0], pads[1], pads[2], pads[3])


def _size(x: ir.Value) -> tuple[int, int] | None:
    if x.shape is None or len(x.shape) != 4:
        return None
    height, width = x.shape[2], x.shape[3]
    return (height, width) if isinstance(height, int) and isinstance(width, int) and min(height, width) > 0 else None


def _shifted(weight: np.ndarray, size: int) -> np.ndarray:
    """The weight of the convolution of stride ``size`` that computes blocks of what ``weight`` computes at stride 1.

    Shape ``(size * size * outputs, channels, height + size - 1, width + size - 1)``, of one ``(outputs, channels,
    height, width)``: the weight shifted to each pixel of a block.
    """
    outputs, channels, height, width = weight.shape
    shifted = np.zeros((size, size, outputs, channels, height + size - 1, width + size - 1), weight.dtype)
    for i in range(size):
        for j in range(size):
            shifted[i, j, :, :, i : i + height, j : j + width] = weight
    return shifted.reshape(-1, *shifted.shape[3:])
