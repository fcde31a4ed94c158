"""Small models that hold this runtime's kernels in their usual surroundings, for calibrating a machine.

Convolutional blocks at several resolutions and widths (windows, 1x1, depthwise, strided, transposed, residual sums,
gates, pooling, Concat, Resize), images with few channels, transformer blocks, single rows, and recurrent layers. The
shapes are those of common networks for small devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_OPSET = 17  # LayerNormalization
_BLOCKS = (  # channels, rows: wide and narrow in turn, so that a calibration that is cut short has seen both
    (8, 80), (512, 7), (16, 12), (32, 56), (128, 28), (16, 112), (32, 8), (256, 14), (64, 28), (96, 14),
)  # fmt: skip
_IMAGES = ((3, 224, 16), (1, 96, 24), (3, 320, 32))  # channels, rows, filters
_CLASSES = 4  # of a detector: rows of a Softmax
_SEQUENCES = (
    (16, 128, 2),
    (64, 64, 4),
    (64, 256, 4),
    (128, 128, 2),
    (128, 384, 6),
    (256, 512, 8),
)  # rows, width, heads
_RECURRENT = ((32, 64), (48, 256), (24, 128))  # steps, width
_ROWS = ((256, 64), (1280, 1000), (1024, 256))  # depth, columns


class _Net:
    """A chain of operators with random weights; ``last`` is the value that the next one reads."""

    def __init__(self, name: str, shape: Sequence[int]) -> None:
        self._name, self._shape = name, shape
        self._rng = np.random.default_rng(0)  # weights do not change what a kernel takes
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self.last = "input"

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """An operator on ``inputs``, by default on the last value; its first output is the last one then."""
        name = f"{op}_{len(self._nodes)}"
        extra = [f"{name}_{i}" for i in range(1, 3)] if op == "LSTM" else []
        outputs = [f"{name}_out", *extra]
        self._nodes.append(helper.make_node(op, [*inputs] or [self.last], outputs, name, **attributes))
        self.last = outputs[0]
        return self.last

    def weight(self, *shape: int) -> str:
        """A constant of normal numbers, small enough for deep chains."""
        name = f"weight_{len(self._weights)}"
        fan = max(1, int(np.prod(shape[1:])))
        array = self._rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(fan))
        self._weights.append(numpy_helper.from_array(array, name))
        return name

    def integers(self, *numbers: int) -> str:
        """A constant of integers."""
        name = f"integers_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        return name

    def conv(self, read: int, write: int, window: int = 1, stride: int = 1, group: int = 1, act: str = "Relu") -> str:
        """A convolution with a bias, and an activation behind it."""
        pad = window // 2
        weight = self.weight(write, read // group, window, window)
        self.add(
            "Conv",
            self.last,
            weight,
            self.weight(write),
            kernel_shape=[window] * 2,
            strides=[stride] * 2,
            pads=[pad] * 4,
            group=group,
        )
        return self.add(act) if act else self.last

    def model(self) -> onnx.ModelProto:
        """The model; its output is the last value."""
        graph = helper.make_graph(
            self._nodes,
            self._name,
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, list(self._shape))],
            [helper.make_tensor_value_info(self.last, TensorProto.FLOAT, None)],
            self._weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)


def micro_models() -> list[onnx.ModelProto]:
    """All of them; kinds alternate, so that a calibration that is cut short has seen most of them."""
    kinds = [
        [_block(*row) for row in _BLOCKS],
        [_image(*row) for row in _IMAGES],
        [_sequence(*row) for row in _SEQUENCES],
        [_recurrent(*row) for row in _RECURRENT],
        [_rows(*row) for row in _ROWS],
    ]
    return [kind[i] for i in range(max(map(len, kinds))) for kind in kinds if i < len(kind)]


def _block(channels: int, rows: int) -> onnx.ModelProto:
    net = _Net(f"block of {channels} channels, {rows} rows", (1, channels, rows, rows))
    first = net.conv(channels, channels, 3)
    net.conv(channels, 2 * channels)
    net.conv(2 * channels, 2 * channels, 3, group=2 * channels)
    inner = net.conv(2 * channels, channels, act="")
    net.add("Add", first, inner)
    short = net.conv(channels, channels, 3, act="Relu")
    gate = net.add("Sigmoid", net.conv(channels, channels, act=""))
    net.add("Mul", short, gate)
    gated = net.conv(channels, channels, 5, group=channels)
    net.add("GlobalAveragePool", gated)
    net.add("HardSigmoid", net.conv(channels, channels, act=""))
    net.add("Mul", gated, net.last)
    plain = net.conv(channels, channels, act="")
    net.add("Mul", plain, net.add("HardSigmoid", plain))
    wide = net.conv(channels, 2 * channels, 3)
    net.add("Concat", wide, gated, axis=1)
    net.conv(3 * channels, channels, act="LeakyRelu")
    if rows % 4 == 0:
        before = net.last
        pooled = net.add("MaxPool", before, kernel_shape=[2, 2], strides=[2, 2])
        net.conv(channels, channels, 3)
        up = net.add(
            "ConvTranspose", net.last, net.weight(channels, channels, 2, 2), kernel_shape=[2, 2], strides=[2, 2]
        )
        net.last = pooled
        sizes = net.integers(1, channels, rows, rows)
        near = net.add(
            "Resize", pooled, "", "", sizes, mode="nearest", nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        )  # fmt: skip
        net.add("Concat", up, near, axis=1)
        net.conv(2 * channels, channels, 3, stride=2)
    net.add("AveragePool", kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    net.conv(channels, channels, 3, group=channels, act="")
    net.add("HardSwish")
    net.conv(channels, channels, act="")
    return net.model()


def _image(channels: int, rows: int, filters: int) -> onnx.ModelProto:
    net = _Net(f"image of {channels} channels, {rows} rows", (1, channels, rows, rows))
    net.conv(channels, filters, 3, stride=2)
    net.add("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    net.conv(filters, filters, 3, group=filters)
    before = net.conv(filters, filters)
    net.add("MaxPool", kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    net.add("Concat", before, net.last, axis=1)
    net.conv(2 * filters, filters, 3)
    net.add("Transpose", perm=[0, 2, 3, 1])
    net.add("Reshape", net.last, net.integers(1, -1, _CLASSES))
    net.add("Softmax", axis=-1)
    return net.model()


def _sequence(rows: int, width: int, heads: int) -> onnx.ModelProto:
    net = _Net(f"sequence of {rows} rows, width {width}", (1, rows, width))
    head = width // heads

    def product(value: str, depth: int, columns: int) -> str:
        return net.add("Add", net.add("MatMul", value, net.weight(depth, columns)), net.weight(columns))

    def split(value: str, perm: Sequence[int]) -> str:
        net.add("Reshape", value, net.integers(1, rows, heads, head))
        return net.add("Transpose", perm=list(perm))

    def normalized(value: str) -> str:
        return net.add("LayerNormalization", value, net.weight(width), net.weight(width), axis=-1)

    start = normalized("input")
    query, keys = split(product(start, width, width), (0, 2, 1, 3)), split(product(start, width, width), (0, 2, 3, 1))
    values = split(product(start, width, width), (0, 2, 1, 3))
    scores = net.add("Mul", net.add("MatMul", query, keys), net.weight(1))
    mixed = net.add("Transpose", net.add("MatMul", net.add("Softmax", scores, axis=-1), values), perm=[0, 2, 1, 3])
    joined = net.add("Reshape", mixed, net.integers(1, rows, width))
    residual = net.add("Add", start, product(joined, width, width))
    inner = product(normalized(residual), width, 4 * width)
    error = net.add("Erf", net.add("Mul", inner, net.weight(1)))
    net.add("Mul", inner, net.add("Add", error, net.weight(1)))
    net.add("Add", residual, product(net.last, 4 * width, width))
    normalized(net.last)
    return net.model()


def _recurrent(steps: int, width: int) -> onnx.ModelProto:
    net = _Net(f"recurrence of {steps} steps, width {width}", (steps, 1, width))
    for _ in range(2):
        net.add(
            "LSTM", net.last, net.weight(1, 4 * width, width), net.weight(1, 4 * width, width),
            net.weight(1, 8 * width), hidden_size=width,
        )  # fmt: skip
        net.add("Squeeze", net.last, net.integers(1))
    net.add("MatMul", net.last, net.weight(width, width))
    net.add("Tanh")
    return net.model()


def _rows(depth: int, columns: int) -> onnx.ModelProto:
    net = _Net(f"one row, {depth} to {columns}", (1, depth))
    net.add("Gemm", net.last, net.weight(depth, columns), net.weight(columns))
    net.add("Relu")
    net.add("Gemm", net.last, net.weight(columns, depth), net.weight(depth))
    net.add("Relu")
    net.add("Gemm", net.last, net.weight(depth, columns), net.weight(columns))
    net.add("Softmax", axis=-1)
    return net.model()
