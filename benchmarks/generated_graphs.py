"""Graphs without a model behind them: a small builder, and generators of any size for tests and benchmarks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from inlay.model.graph import Graph, Node, Shape

_FLOAT = ir.DataType.FLOAT


class GraphBuilder:
    """Builds a :class:`~inlay.model.graph.Graph` node by node, in topological order.

    The caller gives the shapes (by default an output has the shape of the first input); nothing is inferred or checked.

    Example::

        b = GraphBuilder()
        x = b.input((1, 8, 16, 16))
        graph = b.graph([b.relu(b.conv(x, 16))])
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[str] = []
        self.initializers: dict[str, ir.TensorProtocol] = {}
        self.dtypes: dict[str, ir.DataType] = {}
        self.shapes: dict[str, Shape] = {}
        self._zeros: dict[tuple[tuple[int, ...], ir.DataType], ir.TensorProtocol] = {}

    def input(self, shape: Shape, name: str | None = None, dtype: ir.DataType = _FLOAT) -> str:
        """Add a graph input and return its name."""
        name = name or f"in{len(self.inputs)}"
        self.inputs.append(name)
        self.dtypes[name], self.shapes[name] = dtype, shape
        return name

    def const(self, shape: tuple[int, ...], dtype: ir.DataType = _FLOAT, name: str | None = None) -> str:
        """Add a constant of zeros and return its name; constants of one shape and type share their memory."""
        name = name or f"c{len(self.initializers)}"
        key = (shape, dtype)
        if key not in self._zeros:
            self._zeros[key] = ir.tensor(np.zeros(shape, dtype.numpy()))
        self.initializers[name] = self._zeros[key]
        self.dtypes[name], self.shapes[name] = dtype, shape
        return name

    def node(
        self,
        op_type: str,
        inputs: Sequence[str],
        shape: Shape | None = None,
        *,
        outputs: int = 1,
        name: str | None = None,
        dtype: ir.DataType = _FLOAT,
        **attributes: Any,
    ) -> str:
        """Add a node and return its first output; the ``i``-th further output is called ``<node name>:<i>``."""
        name = name or f"n{len(self.nodes)}"
        names = tuple(f"{name}:{i}" for i in range(outputs))
        for value in names:
            self.dtypes[value] = dtype
            self.shapes[value] = self.shapes[inputs[0]] if shape is None else shape
        plain = MappingProxyType(dict(attributes))
        self.nodes.append(Node(name, op_type, "", tuple(inputs), names, plain, index=len(self.nodes)))
        return names[0]

    def conv(self, value: str, channels: int, kernel: int = 1, weight: str | None = None, bias: bool = True) -> str:
        """Add a Conv that keeps height and width, and return its output."""
        batch, depth, *rest = self.shapes[value] or ()
        assert depth is not None
        inputs = [value, weight or self.const((channels, depth, kernel, kernel))]
        if bias:
            inputs.append(self.const((channels,)))
        pads = (kernel // 2,) * 4
        return self.node("Conv", inputs, (batch, channels, *rest), kernel_shape=(kernel, kernel), pads=pads)

    def relu(self, value: str) -> str:
        """Add a Relu and return its output."""
        return self.node("Relu", [value])

    def graph(self, outputs: Iterable[str] | None = None) -> Graph:
        """The graph; by default its outputs are all values that nothing reads."""
        if outputs is None:
            read = {v for n in self.nodes for v in n.inputs}
            outputs = [v for n in self.nodes for v in n.outputs if v and v not in read]
        frozen = MappingProxyType
        return Graph(
            nodes=tuple(self.nodes),
            inputs=tuple(self.inputs),
            outputs=tuple(outputs),
            initializers=frozen(dict(self.initializers)),
            dtypes=frozen(dict(self.dtypes)),
            shapes=frozen(dict(self.shapes)),
            opset=17,
        )


def chain(count: int) -> Graph:
    """A chain of Conv→Relu: ``count`` nodes."""
    b = GraphBuilder()
    value = b.input((1, 8, 16, 16))
    while len(b.nodes) < count:
        value = b.relu(b.conv(value, 8))
    return b.graph()


def residual(count: int) -> Graph:
    """Bottleneck blocks (1×1, 3×3, 1×1, Add, Relu) with a wider stage every sixteen blocks: about ``count`` nodes."""
    b = GraphBuilder()
    value = b.relu(b.conv(b.input((1, 8, 16, 16)), 16))
    blocks = 0
    while len(b.nodes) < count:
        wide = 16 if blocks // 16 % 2 == 0 else 32
        skip = value if b.shapes[value][1] == wide else b.conv(value, wide)
        value = b.conv(b.relu(b.conv(b.relu(b.conv(value, 8)), 8, 3)), wide)
        value = b.relu(b.node("Add", [value, skip]))
        blocks += 1
    return b.graph()


def inception(count: int) -> Graph:
    """Modules of four branches that meet in a Concat: about ``count`` nodes."""
    b = GraphBuilder()
    value = b.relu(b.conv(b.input((1, 8, 16, 16)), 32))
    while len(b.nodes) < count:
        one = b.relu(b.conv(value, 8))
        three = b.relu(b.conv(b.relu(b.conv(value, 4)), 8, 3))
        five = b.relu(b.conv(b.relu(b.conv(value, 4)), 8, 5))
        pooled = b.node("MaxPool", [value], kernel_shape=(3, 3), pads=(1, 1, 1, 1))
        pool = b.relu(b.conv(pooled, 8))
        value = b.node("Concat", [one, three, five, pool], (1, 32, 16, 16), axis=1)
    return b.graph()


def split_concat(count: int) -> Graph:
    """ShuffleNet-like blocks (Split, Convs on one half, Concat, channel shuffle): about ``count`` nodes."""
    b = GraphBuilder()
    value = b.input((1, 16, 16, 16))
    sizes, five, four = (b.const((n,), ir.DataType.INT64) for n in (2, 5, 4))
    while len(b.nodes) < count:
        first = b.node("Split", [value, sizes], (1, 8, 16, 16), outputs=2, axis=1)
        second = first.removesuffix(":0") + ":1"
        second = b.relu(b.conv(b.relu(b.conv(second, 8)), 8, 3))
        value = b.node("Concat", [first, second], (1, 16, 16, 16), axis=1)
        value = b.node("Reshape", [value, five], (1, 2, 8, 16, 16))
        value = b.node("Transpose", [value], (1, 8, 2, 16, 16), perm=(0, 2, 1, 3, 4))
        value = b.node("Reshape", [value, four], (1, 16, 16, 16))
    return b.graph()


def transformer(count: int) -> Graph:
    """Encoder layers with masked attention and a feed-forward part: about ``count`` nodes."""
    b = GraphBuilder()
    rows, wide, heads = 16, 32, 4
    flat: Shape = (1, rows, wide)
    value, mask = b.input(flat), b.input((1, 1, rows, rows))
    four, three = b.const((4,), ir.DataType.INT64), b.const((3,), ir.DataType.INT64)

    def linear(x: str, inner: int, outer: int) -> str:
        y = b.node("MatMul", [x, b.const((inner, outer))], (1, rows, outer))
        return b.node("Add", [y, b.const((outer,))])

    def norm(x: str) -> str:
        return b.node("LayerNormalization", [x, b.const((wide,)), b.const((wide,))], axis=-1)

    def split(x: str, *perm: int) -> str:
        parted = b.node("Reshape", [linear(x, wide, wide), four], (1, rows, heads, wide // heads))
        sizes = (1, rows, heads, wide // heads)
        return b.node("Transpose", [parted], tuple(sizes[p] for p in perm), perm=perm)

    while len(b.nodes) < count:
        q, k, v = split(value, 0, 2, 1, 3), split(value, 0, 2, 3, 1), split(value, 0, 2, 1, 3)
        score = b.node("Mul", [b.node("MatMul", [q, k], (1, heads, rows, rows)), b.const(())])
        weight = b.node("Softmax", [b.node("Add", [score, mask])], axis=-1)
        mixed = b.node("MatMul", [weight, v], (1, heads, rows, wide // heads))
        mixed = b.node("Transpose", [mixed], (1, rows, heads, wide // heads), perm=(0, 2, 1, 3))
        mixed = linear(b.node("Reshape", [mixed, three], flat), wide, wide)
        value = norm(b.node("Add", [value, mixed]))
        hidden = linear(value, wide, 2 * wide)
        hidden = b.node("Mul", [hidden, b.node("Sigmoid", [hidden])])
        value = norm(b.node("Add", [value, linear(hidden, 2 * wide, wide)]))
    return b.graph()


def model_of(graph: Graph, seed: int = 0) -> onnx.ModelProto:
    """A model that runs: ``graph`` with small random weights, and the sizes that its Reshapes and Splits need."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for name, tensor in graph.initializers.items():
        shape = tuple(tensor.shape.numpy())
        if tensor.dtype is _FLOAT:  # contracting, so that values stay finite over any number of layers
            arrays[name] = (rng.normal(0.05, 0.1, shape) / max(1, math.prod(shape[1:]))).astype(np.float32)
    for node in graph.nodes:
        if node.op_type in ("Reshape", "Split"):
            shapes = [graph.shapes[v] or () for v in node.outputs]
            sizes = shapes[0] if node.op_type == "Reshape" else [s[node.attributes["axis"]] for s in shapes]
            arrays[node.inputs[1]] = np.array(sizes, np.int64)
    nodes = [
        onnx.helper.make_node(n.op_type, n.inputs, n.outputs, n.name, domain=n.domain, **n.attributes)
        for n in graph.nodes
    ]
    inputs, outputs = (
        [onnx.helper.make_tensor_value_info(v, int(graph.dtypes[v]), graph.shapes[v]) for v in values]
        for values in (graph.inputs, graph.outputs)
    )
    constants = [onnx.numpy_helper.from_array(a, name) for name, a in arrays.items()]
    made = onnx.helper.make_graph(nodes, "generated", inputs, outputs, constants)
    return onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", graph.opset)], ir_version=8)


FAMILIES: dict[str, Callable[[int], Graph]] = {
    "chain": chain,
    "residual": residual,
    "inception": inception,
    "split-concat": split_concat,
    "transformer": transformer,
}
"""Generators by name; each takes the number of nodes wanted."""

__all__ = ["FAMILIES", "GraphBuilder", "chain", "inception", "model_of", "residual", "split_concat", "transformer"]
