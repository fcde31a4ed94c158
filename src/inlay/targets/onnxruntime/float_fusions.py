"""Chains of operators that ONNX Runtime makes one float kernel of, and that Q/DQ inside would take apart.

A GELU that exporters write out is five passes over its values; the runtime's kernel is one. Over 1x128x1536 that is 300
against 540 us (ONNX Runtime 1.31, one thread of an x86-64 processor with AVX-512), more than 8-bit kernels of the
``Mul`` and ``Add`` among them gain. A search that learns costs node by node from the fused kernel would take the others
for free and find out only by building. The chains end in a product with the value that they began with:

- GELU: ``x (1 + erf(x / sqrt 2)) / 2``, and with ``tanh(sqrt(2 / pi) (x + 0.044715 x^3))`` its approximation;
- normalization: ``x / sqrt(mean(x^2) + e) w``, and with the mean subtracted from ``x`` and a bias added behind it.

The same products in another order stay apart there, and here. ``tests/targets/onnxruntime/test_float_fusions.py`` reads
each back from the graph that the runtime makes of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from inlay.model.graph import Graph, Node

_BEFORE = frozenset({"Add", "Mul", "Div", "Pow", "ReduceMean"})
_CORES = {"Erf": "GELU", "Tanh": "GELU", "Sqrt": "normalization"}
_HALF = 0.5
_AHEAD, _BEHIND = 4, 6
"""Operators from any in a chain to its core, at most: behind it to the last product, and before it from ``x``."""


def in_float_fusion(graph: Graph, node: Node) -> str | None:
    """No chain that runs as one float kernel holds the operator."""
    for core in _cores_near(graph, node):
        if node.name in _chain(graph, core):
            return f"it belongs to a {_CORES[core.op_type]}, which runs as one float kernel"  # one reason, however many
    return None


def _cores_near(graph: Graph, node: Node) -> Iterator[Node]:
    """Operators that a chain with ``node`` may be about; half of ``x`` is beside them, and is read behind."""
    behind = [n for n in graph.successors(node) if n.op_type == "Mul"]
    for begin, step, far in (([node, *behind], graph.predecessors, _AHEAD), ([node], graph.successors, _BEHIND)):
        front, seen = begin, {n.name for n in begin}
        for _ in range(far):
            near = {n.name: n for each in front if each in begin or _is_within(each) for n in step(each)}
            front = [n for name, n in near.items() if name not in seen]
            seen.update(near)
            yield from (n for n in front if n.op_type in _CORES)


def _is_within(node: Node) -> bool:
    return node.op_type in _BEFORE or node.op_type in _CORES or node.op_type == "Reciprocal"


def _chain(graph: Graph, core: Node) -> frozenset[str]:
    """Names of the operators that the runtime makes one of around ``core``; none where it does not."""
    tail = _normalized(graph, core) if core.op_type == "Sqrt" else _gated(graph, core)
    if tail is None:
        return frozenset()
    value, behind = tail
    before = _between(graph, value, core)
    return frozenset() if before is None else frozenset({core.name, *before, *behind})


def _gated(graph: Graph, core: Node) -> tuple[str, set[str]] | None:
    """What ``core`` plus one is multiplied with besides one half, and the operators that do it."""
    before = graph.producer(core.inputs[0])
    if core.op_type == "Erf" and (before is None or before.op_type != "Div"):
        return None
    add = _only_reader(graph, core, "Add")
    first = None if add is None or _scalar(graph, add) != 1.0 else _only_reader(graph, add, "Mul")
    if add is None or first is None:
        return None
    other = _other(first, add.outputs[0])
    halved = graph.producer(other)
    if halved is not None and halved.op_type == "Mul" and _scalar(graph, halved) == _HALF:  # (0.5 x) (1 + .)
        data = _data(graph, halved)
        return None if data is None or len(graph.consumers(other)) > 1 else (data, {add.name, first.name, halved.name})
    last = _only_reader(graph, first, "Mul") if core.op_type == "Erf" else None  # 0.5 (x (1 + .))
    return None if last is None or _scalar(graph, last) != _HALF else (other, {add.name, first.name, last.name})


def _normalized(graph: Graph, core: Node) -> tuple[str, set[str]] | None:
    """What is divided by the root, and the operators that divide it and multiply it by a weight."""
    first, inverse = _only_reader(graph, core, "Div"), _only_reader(graph, core, "Reciprocal")
    behind: set[str] = set()
    root = core.outputs[0]
    if first is not None and graph.is_constant(first.inputs[0]):
        first, inverse = None, first
    if inverse is not None:
        behind.add(inverse.name)
        root, first = inverse.outputs[0], _only_reader(graph, inverse, "Mul")
    weighted = None if first is None else _only_reader(graph, first, "Mul")
    if first is None or weighted is None or _data(graph, weighted) is None:
        return None
    value = _other(first, root)
    centered, moved = graph.producer(value), _only_reader(graph, weighted, "Add")
    if centered is not None and centered.op_type == "Sub" and moved is not None and _data(graph, moved) is not None:
        behind.add(moved.name)
    return value, {*behind, first.name, weighted.name}


def _between(graph: Graph, value: str, core: Node) -> set[str] | None:
    """Names of the operators from ``value`` to ``core``; None where others, or other values, take part."""
    found: set[str] = set()
    open_values = [core.inputs[0]]
    while open_values:
        read = open_values.pop()
        if read == value or graph.is_constant(read):
            continue
        node = graph.producer(read)
        if node is None or node.op_type not in _BEFORE or len(found) > _BEHIND:
            return None
        found.add(node.name)
        open_values += [v for v in node.inputs if v]
    inner = found | {core.name}
    values = (v for name in found for v in graph.node(name).outputs)
    return found if all(port.node in inner for v in values for port in graph.consumers(v)) else None


def _only_reader(graph: Graph, node: Node, op_type: str) -> Node | None:
    """The only operator that reads what ``node`` computes, if it is an ``op_type``."""
    ports = graph.consumers(node.outputs[0])
    reader = graph.node(ports[0].node) if len(ports) == 1 and graph.has_node(ports[0].node) else None
    return reader if reader is not None and reader.op_type == op_type else None


def _data(graph: Graph, node: Node) -> str | None:
    """The one operand of a binary operator that is not a constant."""
    found = [v for v in node.inputs if not graph.is_constant(v)]
    return found[0] if len(found) == 1 else None


def _scalar(graph: Graph, node: Node) -> float | None:
    """The one operand of a binary operator that is a constant, if that is a single number."""
    arrays = [graph.constant(v) for v in node.inputs if graph.is_constant(v)]
    return (
        float(arrays[0].reshape(-1)[0]) if len(arrays) == 1 and arrays[0] is not None and arrays[0].size == 1 else None
    )


def _other(node: Node, value: str) -> str:
    """The operand of a binary operator besides ``value``."""
    return next((v for v in node.inputs if v != value), value)
