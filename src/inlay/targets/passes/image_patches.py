"""The patches of an image, sliced and concatenated before a ``Conv`` (a "focus" layer), as one strided ``Conv``.

``Concat(x[:, :, a::k, b::k] for a, b)`` puts each block of ``k x k`` numbers into the channels. A convolution that
reads them is a convolution of ``x`` with a kernel and strides ``k`` times as large: the weight of patch ``(a, b)`` at
``(i, j)`` is that of the pixel ``(k i + a, k j + b)``. The products are the same ones; the slices and the Concat, which
move the whole image twice, are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.steps import Steps, constant_of, ints, is_standard, sole_use

Patch = tuple[ir.Value, Mapping[int, tuple[int, int]]]  # the image, and start and step along each axis that is sliced


def fold_focus(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each Conv that is the only reader of all patches of an image of known size."""
    found = [n for n in model.graph if is_standard(n, "Conv") and _patches(n)]
    if found:
        infer_shapes(model)
    return model, sum(_fold(node) for node in found)


def _fold(conv: ir.Node) -> bool:
    patches, graph, numbers = _patches(conv), conv.graph, constant_of(conv.inputs[1])
    if not patches or not isinstance(graph, ir.Graph) or numbers is None:
        return False
    image, slices = patches[0][0], [s for _, s in patches]
    k = round(len(slices) ** 0.5)
    order = [tuple(s.get(axis, (0, 1)) for axis in (2, 3)) for s in slices]
    wanted = {((a, k), (b, k)) for a in range(k) for b in range(k)}
    if k < 2 or len(order) != k * k or set(order) != wanted or any(set(s) != {2, 3} for s in slices):
        return False
    if image.shape is None or len(image.shape) != 4 or any(not isinstance(d, int) or d % k for d in image.shape[2:]):
        return False
    if numbers.ndim != 4 or numbers.shape[1] % (k * k) or numbers.dtype != np.float32 or not _plain(conv):
        return False
    whole = _over_image(numbers, [(a, b) for (a, _), (b, _) in order], k)
    steps = Steps(conv, graph, image)
    attributes = {
        "kernel_shape": whole.shape[2:],
        "strides": [k * s for s in ints(conv, "strides", [1, 1])],
        "pads": [k * p for p in ints(conv, "pads", [0, 0, 0, 0])],
    }
    biases = [v for v in conv.inputs[2:3] if v is not None]
    steps.replace(steps.add("Conv", [image, steps.constant("whole", whole), *biases], "", attributes))
    return True


def _patches(conv: ir.Node) -> list[Patch]:
    """What the Concat before ``conv`` joins along the channels, where nothing else reads it and all is one image's."""
    value = conv.inputs[0]
    concat = None if value is None else value.producer()
    if concat is None or not is_standard(concat, "Concat") or sole_use(value) is None:
        return []
    if concat.attributes.get_int("axis") not in (1, -3):
        return []
    found = [None if v is None else _sliced(v) for v in concat.inputs]
    patches = [p for p in found if p is not None]
    return patches if len(patches) == len(found) and len({id(image) for image, _ in patches}) == 1 else []


def _sliced(value: ir.Value) -> Patch | None:
    """The image that a chain of Slices takes every k-th row and column of, to the end; None where it is none."""
    along: dict[int, tuple[int, int]] = {}
    node = value.producer()
    while node is not None and is_standard(node, "Slice") and len(node.inputs) == 5:
        starts, ends, axes, steps = (_numbers(v) for v in node.inputs[1:5])
        if starts is None or ends is None or axes is None or steps is None:
            return None
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            if start == 0 and step == 1 and end >= np.iinfo(np.int32).max:
                continue
            if axis in along or axis not in (2, 3) or step < 2 or not 0 <= start < step:
                return None
            if end < np.iinfo(np.int32).max:
                return None
            along[axis] = (start, step)
        if node.inputs[0] is None:
            return None
        value = node.inputs[0]
        node = value.producer()
    return (value, along) if along else None


def _plain(conv: ir.Node) -> bool:
    group = conv.attributes.get_int("group", 1)
    return "auto_pad" not in conv.attributes and group == 1 and all(d == 1 for d in ints(conv, "dilations", [1, 1]))


def _numbers(value: ir.Value | None) -> list[int] | None:
    array = constant_of(value)
    return None if array is None else [int(i) for i in array.ravel()]


def _over_image(weight: np.ndarray, starts: Sequence[tuple[int, int]], size: int) -> np.ndarray:
    """The weight over an image, ``size`` times as high and wide, of one over its patches joined along the channels.

    Args:
        weight: shape ``(outputs, len(starts) * channels, height, width)``.
        starts: first row and column of each patch, which takes every ``size``-th of both.
    """
    outputs, joined, height, width = weight.shape
    channels = joined // len(starts)
    whole = np.zeros((outputs, channels, size * height, size * width), weight.dtype)
    for slot, (a, b) in enumerate(starts):
        whole[:, :, a::size, b::size] = weight[:, slot * channels : (slot + 1) * channels]
    return whole
