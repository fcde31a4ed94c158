"""Small models whose times as a whole tell what this runtime's kernels cost: it gives no profiles.

Each is a chain of one operator: of one, where what happens at the ends of integers counts most, and of several, where
the operator does. Some convolutions read more than they write, and others less: so what goes into integers can be told
from what comes out. The shapes are those of common networks for small devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_OPSET = 17
_LENGTHS = (1, 6)
POOL: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1] * 4}  # attributes of a window that keeps the shape
Step = tuple[str, Sequence[str], dict[str, Any]]
"""An operator, what it reads behind its input (an empty name is the input again), and its attributes."""


class Chain:
    """A model of one operator, several times.

    Args:
        step: makes one operator: given the chain, to which it adds constants.
        written: shape of its output, where that is another.
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        length: int,
        step: Callable[[Chain], Step],
        written: Sequence[int] | None = None,
    ) -> None:
        self._rng = np.random.default_rng(0)  # weights do not change what a kernel takes
        self._constants: list[onnx.TensorProto] = []
        last, nodes = "input", list[onnx.NodeProto]()
        for number in range(length):
            kind, others, attributes = step(self)
            inputs = [last, *(each or last for each in others)]
            last = f"value_{number}"
            nodes.append(helper.make_node(kind, inputs, [last], f"node_{number}", **attributes))
        shapes = (("input", shape), (last, written or shape))
        ends = [helper.make_tensor_value_info(value, TensorProto.FLOAT, size) for value, size in shapes]
        graph = helper.make_graph(nodes, name, ends[:1], ends[1:], self._constants)
        self.model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9)

    def weight(self, *shape: int) -> str:
        """A constant of normal numbers that keeps sizes what they are."""
        fan = max(1, int(np.prod(shape[1:])))
        array = self._rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(fan))
        self._constants.append(numpy_helper.from_array(array, f"constant_{len(self._constants)}"))
        return self._constants[-1].name


def conv(channels: int, rows: int, window: int, length: int, group: int = 1) -> onnx.ModelProto:
    """Convolutions that keep the shape."""

    def step(chain: Chain) -> Step:
        weight = chain.weight(channels, channels // group, window, window)
        return "Conv", [weight, chain.weight(channels)], {"pads": [window // 2] * 4, "group": group}

    kind = "depthwise" if group == channels else "Conv"
    name = f"{kind} {window}x{window}, {channels} channels, {rows}x{rows}"
    return Chain(name, (1, channels, rows, rows), length, step).model


def mixing(read: int, write: int, rows: int) -> onnx.ModelProto:
    """One 1x1 convolution between different numbers of channels."""
    name = f"Conv 1x1, {read} to {write} channels, {rows}x{rows}"
    shapes = [(1, channels, rows, rows) for channels in (read, write)]
    return Chain(name, shapes[0], 1, lambda c: ("Conv", [c.weight(write, read, 1, 1)], {}), shapes[1]).model


def product(rows: int, width: int, length: int) -> onnx.ModelProto:
    """Matrix products with a constant."""
    name = f"MatMul, {rows} row{'s' * (rows > 1)} of {width}"
    return Chain(name, (rows, width), length, lambda chain: ("MatMul", [chain.weight(width, width)], {})).model


def plain(
    kind: str, channels: int, rows: int, length: int, others: Sequence[str] = (), **attributes: Any
) -> onnx.ModelProto:
    """An operator without weights."""
    name = f"{kind}, {channels} channels, {rows}x{rows}"
    return Chain(name, (1, channels, rows, rows), length, lambda chain: (kind, others, attributes)).model


def micro_models() -> list[onnx.ModelProto]:
    """All of them: those that share an operator differ in size, so that what a call takes can be told from the rest."""
    found: list[onnx.ModelProto] = []
    for few, many, rows in ((8, 48, 56), (16, 96, 56), (32, 192, 28), (64, 384, 14)):
        found += [mixing(few, many, rows), mixing(many, few, rows)]
    for length in _LENGTHS:
        found += [conv(c, r, 3, length) for c, r in ((16, 56), (32, 28), (64, 28), (128, 14))]
        found += [conv(c, r, 1, length) for c, r in ((16, 112), (32, 56), (96, 28), (256, 14), (512, 7))]
        found += [conv(c, r, 3, length, c) for c, r in ((16, 112), (64, 56), (192, 28), (384, 14))]
        found += [conv(c, r, 5, length, c) for c, r in ((96, 28), (240, 14))]
        found += [product(rows, width, length) for rows, width in ((1, 256), (1, 1024), (32, 256), (128, 384))]
        for c, r in ((16, 56), (64, 56), (24, 28), (256, 14)):
            found += [plain(kind, c, r, length, [""]) for kind in ("Add", "Mul")]
            found += [plain(kind, c, r, length) for kind in ("Sigmoid", "LeakyRelu", "Relu")]
            found += [plain(kind, c, r, length, **POOL) for kind in ("MaxPool", "AveragePool")]
    return found
