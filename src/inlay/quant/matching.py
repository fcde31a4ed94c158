"""Which nodes of two graphs of one network stand for each other, by structure and constants, whatever their names.

Exporters, optimizers and quantizers rename nodes and values, or drop the names. What they keep is how operators are
connected, and what their constants hold up to rounding. So the graphs are walked from their common inputs, and back
from their outputs: a node matches one of the same operator that reads the matching values, and among several the one
whose constants are nearest. Biases only rank candidates: quantizers correct them by the mean error of their layer,
which may be many times the bias. Where the walks end, because one graph has operators that the other lacks, they begin
anew behind the gap: at weights that are alike as no others are, then at values of one name.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from inlay.model.graph import Graph, Node
from inlay.types import GRAPH_OUTPUT

CLAMPS = frozenset({"Relu", "Clip"})
"""Operators that one of the graphs may have alone: quantizers drop them, and a saturation may bring one back."""

_PRODUCTS = frozenset({"MatMul", "Gemm"})
_BIASED = frozenset({"Conv", "ConvTranspose", "Gemm"})
_BIAS = 2  # the slot of their bias
_RESHAPE = "Reshape"

FARTHEST = 0.5
"""Relative L2 distance above which constants cannot be two forms of one: rounding to 4 bits makes about 0.1; two layers
that have nothing in common differ by about 1.4."""

SURELY_ONE = 0.1  # relative L2 distance below which weights are two forms of one, where no other weight is as near
WEIGHT_ELEMENTS = 64  # elements from which on a constant tells nodes apart: smaller ones are often equal by chance
COMPARED_ELEMENTS = 1 << 16  # elements of a constant that are compared at most: evenly spread ones of a larger one


def match_nodes(source: Graph, target: Graph) -> dict[str, str]:
    """Nodes of ``target`` by the nodes of ``source`` that they stand for; what has no counterpart is not listed."""
    if source is target:
        return {n.name: n.name for n in source.nodes}
    return _Matching(source, target).nodes


class _Matching:
    def __init__(self, source: Graph, target: Graph) -> None:
        self._source, self._target = source, target
        self.nodes: dict[str, str] = {}
        self._taken: set[str] = set()
        by_name = all(name in target.inputs for name in source.inputs)
        self._values = dict(zip(source.inputs, source.inputs if by_name else target.inputs, strict=False))
        self._values.update(zip(source.outputs, target.outputs, strict=False))
        for anew in (self._by_connection, self._by_weight, self._by_name):
            found = -1
            while found < len(self.nodes):
                found = len(self.nodes)
                anew()
                self._by_connection()

    def _by_connection(self) -> None:
        for node in self._source.nodes:
            self._match(node, self._readers(node))
        for node in reversed(self._source.nodes):
            self._match(node, self._writers(node))

    def _by_weight(self) -> None:
        """Match nodes of which each has the nearest large constant to the other's, and no other is close."""
        alike: dict[tuple[str, tuple[int, ...]], list[Node]] = {}
        for node in self._target.nodes:
            if node.name not in self._taken:
                for key in _weights(self._target, node):
                    alike.setdefault(key, []).append(node)
        for node in self._source.nodes:
            if node.name not in self.nodes:
                near = [
                    c
                    for key in _weights(self._source, node)
                    for c in alike.get(key, [])
                    if _alike(node, c) and self._distance(node, c) <= SURELY_ONE
                ]
                if len(near) == 1 and near[0].name not in self._taken:
                    self._match(node, iter(near))

    def _by_name(self) -> None:
        named = {(n.op_type, n.outputs[0]): n for n in self._target.nodes if n.outputs and n.name not in self._taken}
        for node in self._source.nodes:
            there = named.get((node.op_type, node.outputs[0])) if node.outputs else None
            if there is not None and there.name not in self._taken and _alike(node, there):
                self._match(node, iter([there]))

    def _match(self, node: Node, candidates: Iterator[Node]) -> None:
        """Match ``node`` with the best of ``candidates``, and the values around both."""
        if node.name in self.nodes:
            return
        if _clamped_again(self._source, node):  # it may be the saturation of a pair before the model's own clamp
            candidates = (c for c in candidates if _clamped_again(self._target, c))
        ranked = [
            (d, self._unlikeness(node, c), c.index, c) for c in candidates if (d := self._distance(node, c)) <= FARTHEST
        ]
        if not ranked:
            if node.op_type in CLAMPS and node.inputs[0] in self._values:
                self._values.setdefault(node.outputs[0], self._values[node.inputs[0]])  # the target lacks it
            return
        best = min(ranked)[-1]
        self.nodes[node.name] = best.name
        self._taken.add(best.name)
        mine, its = node.outputs, best.outputs
        if node.op_type == _RESHAPE and not self._reshapes_alike(node, best):
            mine = ()
        elif (
            len(node.inputs) != len(best.inputs) and node.op_type in _PRODUCTS
        ):  # one adds its bias in an operator of its own
            mine, its = _sums(self._source, node), _sums(self._target, best)
        for value, there in (*zip(node.inputs, best.inputs, strict=False), *zip(mine, its, strict=False)):
            if value and there and not self._source.is_constant(value):
                self._values.setdefault(value, there)

    def _readers(self, node: Node) -> Iterator[Node]:
        """Free nodes of the target that read what matches the first matched input of ``node``, at the same slot."""
        for slot, value in enumerate(node.inputs):
            if value in self._values:
                there = self._values[value]
                yield from self._reading(there, slot, node)
                for port in self._target.consumers(there):  # behind an operator that the source lacks
                    if port.node != GRAPH_OUTPUT and (between := self._target.node(port.node)).op_type in CLAMPS:
                        yield from self._reading(between.outputs[0], slot, node)
                return

    def _reading(self, value: str, slot: int, node: Node) -> Iterator[Node]:
        for port in self._target.consumers(value):
            if port.node != GRAPH_OUTPUT and port.slot == slot and port.node not in self._taken:
                candidate = self._target.node(port.node)
                if _alike(node, candidate):
                    yield candidate

    def _writers(self, node: Node) -> Iterator[Node]:
        """The free node of the target that computes what matches an output of ``node``."""
        for value in node.outputs:
            writer = self._target.producer(self._values.get(value, ""))
            if writer is not None and writer.name not in self._taken and _alike(node, writer):
                yield writer
                return

    def _distance(self, node: Node, candidate: Node) -> float:
        """Largest distance of the constants that both read; infinite where an input contradicts what was matched."""
        worst = 0.0
        if node.op_type in CLAMPS:
            return worst
        extra = self._target, candidate.inputs[len(node.inputs) :]
        if len(node.inputs) > len(candidate.inputs):
            extra = self._source, node.inputs[len(candidate.inputs) :]
        if any(v and not extra[0].is_constant(v) for v in extra[1]):
            return np.inf  # a bias may be an operator of its own in the other graph
        for slot, (value, there) in enumerate(zip(node.inputs, candidate.inputs, strict=False)):
            if self._says_size(node, slot, candidate):
                continue
            if self._source.is_constant(value) != self._target.is_constant(there):
                return np.inf
            if self._source.is_constant(value) and _is_bias(node, slot):
                continue
            if self._source.is_constant(value):
                given = self._source.constant(value)
                if given is not None and turned(node, candidate, slot):
                    given = given.T
                worst = max(worst, distance(given, self._target.constant(there)))
            elif value in self._values and there and not self._same(self._values[value], there):
                return np.inf
        return worst

    def _reshapes_alike(self, node: Node, candidate: Node) -> bool:
        """Whether two Reshapes give one shape, as far as that is known."""
        given, wanted = self._source.shape(node.outputs[0]), self._target.shape(candidate.outputs[0])
        if given is None or wanted is None:
            return True
        pairs = zip(given, wanted, strict=False)
        return len(given) == len(wanted) and all(a == b or None in (a, b) for a, b in pairs)

    def _says_size(self, node: Node, slot: int, candidate: Node) -> bool:
        """Whether an input is the shape of a Reshape, or integers that only one of the graphs fixes, as with its batch.

        Optimizers merge what only moves elements, so that the same value may be given another shape.
        """
        if node.op_type == _RESHAPE:
            return slot == 1
        pair = self._source.constant(node.inputs[slot]), self._target.constant(candidate.inputs[slot])
        known = [array for array in pair if array is not None]
        return len(known) == 1 and known[0].dtype.kind == "i"

    def _unlikeness(self, node: Node, candidate: Node) -> float:
        """How much two nodes differ in what may differ between two forms of one: attributes, biases, target shapes."""
        shared = node.attributes.keys() & candidate.attributes.keys()
        other = float(sum(node.attributes[name] != candidate.attributes[name] for name in shared))
        slot = 1 if node.op_type == _RESHAPE else _BIAS
        if (slot == _BIAS and not _is_bias(node, slot)) or min(len(node.inputs), len(candidate.inputs)) <= slot:
            return other
        return other + distance(self._source.constant(node.inputs[slot]), self._target.constant(candidate.inputs[slot]))

    def _same(self, value: str, other: str) -> bool:
        """Whether two values of the target are equal but for a clamp between them."""
        return value == other or _unclamped(self._target, value) == _unclamped(self._target, other)


def _weights(graph: Graph, node: Node) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Kind of ``node`` and shape of its first large constant, whichever way round a matrix is."""
    for value in node.inputs:
        array = graph.constant(value)
        if array is not None and array.size >= WEIGHT_ELEMENTS and array.dtype.kind == "f":
            turned_too = node.op_type in _PRODUCTS
            yield ("MatMul", tuple(sorted(array.shape))) if turned_too else (node.op_type, array.shape)
            return


def _sums(graph: Graph, node: Node) -> tuple[str, ...]:
    """The outputs of a product with its bias, which another operator may add."""
    if len(node.inputs) > _BIAS:
        return node.outputs
    ports = graph.consumers(node.outputs[0])
    add = graph.node(ports[0].node) if len(ports) == 1 and ports[0].node != GRAPH_OUTPUT else None
    with_bias = add is not None and add.op_type == "Add" and any(map(graph.is_constant, add.inputs))
    return add.outputs if add is not None and with_bias else ()


def _is_bias(node: Node, slot: int) -> bool:
    return slot == _BIAS and node.op_type in _BIASED


def _clamped_again(graph: Graph, node: Node) -> bool:
    """Whether a clamp's result is read by another one."""
    if node.op_type not in CLAMPS:
        return False
    readers = (p.node for p in graph.consumers(node.outputs[0]) if p.node != GRAPH_OUTPUT)
    return any(graph.node(reader).op_type in CLAMPS for reader in readers)


def _unclamped(graph: Graph, value: str) -> str:
    producer = graph.producer(value)
    return producer.inputs[0] if producer is not None and producer.op_type in CLAMPS else value


def _alike(node: Node, other: Node) -> bool:
    """Whether the operators are of one kind."""
    if node.domain != other.domain:
        return False
    kinds = {node.op_type, other.op_type}
    return len(kinds) == 1 or kinds <= CLAMPS or kinds <= _PRODUCTS


def turned(node: Node, other: Node, slot: int) -> bool:
    """Whether input ``slot`` of two products of one kind is a weight that only one of them has transposed."""
    if slot != 1 or not {node.op_type, other.op_type} <= _PRODUCTS:
        return False
    return bool(node.attributes.get("transB", 0)) != bool(other.attributes.get("transB", 0))


def distance(first: np.ndarray | None, second: np.ndarray | None) -> float:
    """Relative L2 distance of two constants; infinite for other shapes, and for integers that are not equal."""
    if first is None or second is None or first.shape != second.shape:
        return np.inf
    step = max(1, first.size // COMPARED_ELEMENTS)
    a, b = first.reshape(-1)[::step], second.reshape(-1)[::step]
    if a.dtype.kind != "f" or b.dtype.kind != "f":
        return 0.0 if np.array_equal(a, b) else np.inf
    size = float(np.linalg.norm(b.astype(np.float64)))
    return float(np.linalg.norm(a.astype(np.float64) - b)) / size if size else float(np.any(a))
