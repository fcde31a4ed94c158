"""The search problem behind units and values: who hands what to whom, and what a labelling makes of each value.

Labels are a boolean for each unit: low precision or float. A value is in one of four states, by the label of its
producer and those of its consumers; each state has its own cost (Q, DQ, reorders, transposes).
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from inlay.model.graph import Graph
from inlay.space.rules import Needs
from inlay.space.units import Unit

_KEEPS_LAYOUT = frozenset(
    {"Abs", "Add", "Clip", "Div", "Elu", "Erf", "Exp", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log"}
    | {"Max", "Min", "Mul", "Neg", "PRelu", "Pow", "Relu", "Selu", "Sigmoid", "Softplus", "Sqrt", "Sub", "Tanh"}
)  # number by number: they take numbers in the order in which they come


class State(enum.IntEnum):
    """What happens at a value."""

    FLOAT = 0  # float producer, float consumers
    UP = 1  # float producer, some consumer in low precision: it is quantized
    DOWN = 2  # low-precision producer, some consumer in float: it is dequantized
    LOW = 3  # low precision throughout


@dataclass(frozen=True)
class Edge:
    """One value between units.

    Attributes:
        value: its name.
        producer: index of the unit that computes it, or -1 for an input of the graph.
        consumers: indices of the units that read it as an activation.
        float_reader: something reads it that is always float (a graph output, a subgraph, an unquantizable slot).
        kind: operators of producer and consumers.
        signature: equal for values that cost alike: kind and shape.
        size: number of elements.
    """

    value: str
    producer: int
    consumers: tuple[int, ...]
    float_reader: bool
    kind: str
    signature: str
    size: int


@dataclass(frozen=True, eq=False)
class UnitGraph:
    """Units and the values between them.

    Attributes:
        units: every unit, in topological order.
        free: whether each unit can be labelled; the others are always float. Shape (units,).
        edges: every value that some selectable unit computes or reads as an activation.
        signatures: of the units: equal for units that cost alike (operator, attributes, shapes).
        before: unit that computes the first activation of each, or -1; what works number by number is looked through.
            What runs before a unit decides about its layout (NHWC behind an integer convolution, blocked or NCHW
            behind a float one), and so about its time. Shape (units,).
    """

    units: tuple[Unit, ...]
    free: np.ndarray
    edges: tuple[Edge, ...]
    signatures: tuple[str, ...]
    before: np.ndarray

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Index of the unit that each node belongs to."""
        return {node: i for i, unit in enumerate(self.units) for node in unit.nodes}

    def owner(self, nodes: Sequence[str]) -> int | None:
        """Index of the unit that the first known one of ``nodes`` belongs to."""
        return next((self.index[n] for n in nodes if n in self.index), None)

    @cached_property
    def edge_of(self) -> Mapping[str, int]:
        """Index of the edge of each value."""
        return {edge.value: k for k, edge in enumerate(self.edges)}

    @cached_property
    def _flat(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Producer of each edge; edge and consumer of each reading; whether each edge has a float reader."""
        producer = np.array([e.producer for e in self.edges], np.int64)
        owner = np.array([k for k, e in enumerate(self.edges) for _ in e.consumers], np.int64)
        consumer = np.array([c for e in self.edges for c in e.consumers], np.int64)
        return producer, owner, consumer, np.array([e.float_reader for e in self.edges], bool)

    def labels(self, names: Collection[str]) -> np.ndarray:
        """Labels under which the named units run in low precision."""
        wanted = set(names)
        return np.array([u.name in wanted and bool(f) for u, f in zip(self.units, self.free, strict=True)], bool)

    def names(self, labels: np.ndarray) -> frozenset[str]:
        """Names of the units in low precision."""
        return frozenset(self.units[i].name for i in np.flatnonzero(labels & self.free))

    @cached_property
    def _followers(self) -> _Followers:
        reads: dict[int, list[int]] = {}
        hands: dict[int, list[int]] = {}
        for k, edge in enumerate(self.edges):
            hands.setdefault(edge.producer, []).append(k)
            for c in edge.consumers:
                reads.setdefault(c, []).append(k)
        found = []
        for i in np.flatnonzero(self.free).tolist():
            unit = self.units[i]
            weighted = bool(unit.weights or unit.biases)
            whole = len(reads.get(i, ())) == len(unit.activations) > 0  # a constant among them needs a Q of its own
            if whole and i in hands and (not weighted or (unit.rule is not None and unit.rule.quantizes_float_weight)):
                found.append(i)
        rules = [self.units[i].rule for i in found]
        strict = [e.producer >= 0 and _output(self.units[e.producer]) is Needs.QUANTIZED for e in self.edges]
        either = [_output(self.units[i]) is Needs.EITHER and not self.units[i].weights for i in found]
        return _Followers(
            np.array(found, np.int64),
            np.array([r is not None and r.propagates_qdq for r in rules], bool),
            np.array(either, bool),
            np.array([(f, k) for f, i in enumerate(found) for k in reads[i]], np.int64).reshape(-1, 2),
            np.array([(f, k) for f, i in enumerate(found) for k in hands[i]], np.int64).reshape(-1, 2),
            np.array(strict, bool),
            np.array([len(e.consumers) + e.float_reader == 1 for e in self.edges], bool),
        )

    @cached_property
    def forced(self) -> Sequence[tuple[int, int, int]]:
        """Pairs of neighbours that settle together: ``(producer, consumer, which)``.

        The unit ``which`` (one of the two) runs in low precision whenever the other one does.
        """
        followers = self._followers
        passing = set(followers.units[followers.passes].tolist())
        found = []
        for k, edge in enumerate(self.edges):
            if edge.producer >= 0 and self.free[edge.producer]:
                if followers.strict[k]:
                    found += [(edge.producer, c, c) for c in edge.consumers if c in passing]
                if edge.producer in passing and len(edge.consumers) == 1 and not edge.float_reader:
                    found.append((edge.producer, edge.consumers[0], edge.producer))
        return found

    @cached_property
    def fused(self) -> Sequence[tuple[int, tuple[int, ...]]]:
        """Units that run in low precision whenever all units around them do: each with those units."""
        f = self._followers
        reads: dict[int, list[int]] = {i: [] for i in range(f.units.size)}
        hands: dict[int, list[int]] = {i: [] for i in range(f.units.size)}
        for pairs, of in ((f.reads, reads), (f.hands, hands)):
            for i, k in pairs.tolist():
                of[i].append(k)
        found = []
        for i, (unit, either) in enumerate(zip(f.units.tolist(), f.either.tolist(), strict=True)):
            behind = [] if either else [self.edges[k] for k in hands[i]]
            around = [self.edges[k].producer for k in reads[i]] + [c for edge in behind for c in edge.consumers]
            sure = all(f.strict[k] for k in reads[i]) and not any(e.float_reader or not e.consumers for e in behind)
            if sure and all(m >= 0 and self.free[m] for m in around):
                found.append((unit, tuple(dict.fromkeys(around))))
        return found

    def settled(self, labels: np.ndarray) -> np.ndarray:
        """What really runs in low precision under ``labels``: the units chosen, and those that their neighbours imply.

        An operator whose inputs come as DQ and whose output goes to Q is fused like one that was chosen, where it has
        no weight or the target quantizes weights by itself. And where the target moves Q and DQ through an operator,
        one side is enough, unless other readers of the value on the other side disagree; what was moved no longer is
        one Q with those of other readers, so nothing follows from it for a value with several readers. Different labels
        with one result run as one model; this gives the largest.
        """
        f = self._followers
        if not f.units.size:
            return labels
        producer, owner, consumer, floats = self._flat
        labels, moved = labels.copy(), np.zeros(len(labels), bool)
        while True:
            some_low, some_float, some_moved = np.zeros(len(self.edges), bool), floats.copy(), floats & False
            np.logical_or.at(some_low, owner, labels[consumer])
            np.logical_or.at(some_float, owner, ~labels[consumer])
            np.logical_or.at(some_moved, owner, moved[consumer])
            low_producer = (producer >= 0) & labels[producer]
            given = low_producer & (f.strict | some_low) & (~moved[producer] | f.single)
            wanted = some_low & ~some_float & (~some_moved | f.single)
            before, behind, alone, agreed = (np.ones(f.units.size, bool) for _ in range(4))
            np.logical_and.at(before, f.reads[:, 0], given[f.reads[:, 1]])
            np.logical_and.at(behind, f.hands[:, 0], wanted[f.hands[:, 1]])
            np.logical_and.at(alone, f.reads[:, 0], ~some_low[f.reads[:, 1]])
            np.logical_and.at(agreed, f.hands[:, 0], ~(some_low & some_float)[f.hands[:, 1]])
            fused = before & (behind | f.either)
            through = f.passes & ((before & agreed) | (behind & alone))
            fresh = (fused | through) & ~labels[f.units]
            if not fresh.any():
                return labels
            if (fused & ~labels[f.units]).any():  # first what the placement itself says
                fresh &= fused
            labels[f.units[fresh]] = True
            moved[f.units[fresh & ~fused]] = True

    def closed(self, labels: np.ndarray) -> np.ndarray:
        """``labels`` with all that they imply chosen by name, and what that implies in turn: it settles to itself.

        A Q that the target moved implies less than one that the placement states, so settling may go on once it is
        stated. What is proposed is closed, so that a proposal is what its labels say.
        """
        while True:
            settled = self.settled(labels)
            if (settled == labels).all():
                return labels
            labels = settled

    def contexts(self, labels: np.ndarray) -> np.ndarray:
        """Whether the unit before each is in low precision, shape (units,)."""
        return np.asarray((self.before >= 0) & labels[self.before])

    def states(self, labels: np.ndarray) -> np.ndarray:
        """State of each edge, shape (edges,)."""
        producer, owner, consumer, floats = self._flat
        low_producer = (producer >= 0) & labels[producer] if len(self.edges) else np.zeros(0, bool)
        some_low, some_float = np.zeros(len(self.edges), bool), floats.copy()
        np.logical_or.at(some_low, owner, labels[consumer])
        np.logical_or.at(some_float, owner, ~labels[consumer])
        states = np.where(some_low, int(State.UP), int(State.FLOAT))
        return np.where(low_producer, np.where(some_float, int(State.DOWN), int(State.LOW)), states)


@dataclass(frozen=True, eq=False)
class _Followers:
    """Units whose precision can follow from their neighbours'.

    Attributes:
        units: their indices, shape (followers,).
        passes: the target moves Q and DQ through, shape (followers,).
        either: they can hand out float, shape (followers,).
        reads: follower and edge of each value read, shape (n, 2).
        hands: follower and edge of each value handed out, shape (n, 2).
        strict: of every edge: its producer in low precision hands out low precision, whoever reads it; shape (edges,).
        single: of every edge: it has one reader; shape (edges,).
    """

    units: np.ndarray
    passes: np.ndarray
    either: np.ndarray
    reads: np.ndarray
    hands: np.ndarray
    strict: np.ndarray
    single: np.ndarray


def _output(unit: Unit) -> Needs | None:
    return None if unit.rule is None else unit.rule.output


def build_unit_graph(graph: Graph, units: Sequence[Unit]) -> UnitGraph:
    """Index ``units`` of ``graph``. Linear time."""
    index = {node: i for i, unit in enumerate(units) for node in unit.nodes}
    activations = {port for u in units if u.selectable for port in u.activations}
    free = np.array([u.selectable for u in units], bool)
    values = dict.fromkeys(v for u in units if u.selectable for v in u.outputs)
    values.update(dict.fromkeys(graph.value_of(p) for u in units if u.selectable for p in u.activations))
    signatures = tuple(_unit_signature(graph, u) for u in units)
    edges = []
    for value in values:
        if graph.is_constant(value):
            continue
        node = graph.producer(value)
        readers = graph.consumers(value)
        consumers = dict.fromkeys(index[p.node] for p in readers if p in activations)
        others = value in graph.captured or any(p not in activations for p in readers)
        producer = -1 if node is None else index[node.name]
        kinds = sorted(units[c].op_type for c in consumers)
        first = "input" if producer < 0 else units[producer].op_type
        kind = f"{first}>{','.join(kinds)}{'+float' if others else ''}"
        signature = f"{kind} {graph.shape(value)}"
        edges.append(Edge(value, producer, tuple(consumers), others, kind, signature, graph.size(value) or 0))
    decides = _before(graph, index)
    before = np.array([decides[u.name] for u in units], np.int64)
    return UnitGraph(tuple(units), free, tuple(edges), signatures, before)


def _before(graph: Graph, index: Mapping[str, int]) -> dict[str, int]:
    """By node: the unit that decides about the layout of its first activation, or -1. Linear time.

    Of inputs of what works number by number, the first of the result's shape counts: a gate is spread over the data.
    """
    found: dict[str, int] = {}
    for node in graph.nodes:
        values = [v for v in node.inputs if v and graph.is_float(v) and graph.producer(v) is not None]
        if node.op_type in _KEEPS_LAYOUT:
            values.sort(key=lambda v: graph.shape(v) != graph.shape(node.outputs[0]))
        first = graph.producer(values[0]) if values else None
        if first is None:
            found[node.name] = -1
        else:
            found[node.name] = found[first.name] if first.op_type in _KEEPS_LAYOUT else index[first.name]
    return found


def _unit_signature(graph: Graph, unit: Unit) -> str:
    """Operators, attributes and shapes of a unit: what its kernels' time depends on."""
    parts = []
    for name in unit.nodes:
        node = graph.node(name)
        attributes = sorted((k, v) for k, v in node.attributes.items() if isinstance(v, (int, float, str, tuple)))
        shapes = [graph.shape(v) for v in node.inputs if v]
        constant = [graph.is_constant(v) for v in node.inputs if v]
        parts.append(f"{node.domain}:{node.op_type} {attributes} {shapes} {constant}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]
