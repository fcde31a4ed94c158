"""Units and the values between them: the graph that the search labels.

A labeling gives each unit a label: float, low precision, or one of its forms (:class:`inlay.space.rules.Form`), which
read and write float. What happens to a value (Q, DQ, reorders, transposes), and so what it costs, depends on which of
its producer and its consumers are in low precision: its :class:`State`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from inlay.model.graph import Graph
from inlay.search.edges import FIRST_FORM, FLOAT, LOW, Edge, EdgeArrays
from inlay.search.propagation import Propagation
from inlay.space.rules import Needs
from inlay.space.units import STATIC, Unit
from inlay.types import Port

_ELEMENTWISE = frozenset(
    {"Abs", "Add", "Clip", "Div", "Elu", "Erf", "Exp", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log"}
    | {"Max", "Min", "Mul", "Neg", "PRelu", "Pow", "Relu", "Selu", "Sigmoid", "Softplus", "Sqrt", "Sub", "Tanh"}
)  # they compute in whatever layout their input has


@dataclass(frozen=True, eq=False, kw_only=True)
class UnitGraph:
    """Units and the values between them."""

    units: tuple[Unit, ...]  # every unit, in topological order
    selectable: np.ndarray  # whether each unit can run in low precision. Shape (units,).
    edges: tuple[Edge, ...]  # every value that some selectable unit computes or reads as an activation
    activations: tuple[int, ...]  # number of different values that each unit reads as activations, constants among them
    # operator, attributes and shapes of each unit; units with equal signatures have equal costs
    signatures: tuple[str, ...]
    # index of the unit whose output layout each unit gets, or -1: the one that computes its first activation, looking
    # through elementwise operators. An integer kernel may emit NHWC, a float one a blocked layout or NCHW, and the time
    # of what follows depends on it. Shape (units,).
    layout_source: np.ndarray
    # names of the forms to search that some unit has; the `k`-th has the label `FIRST_FORM + k`
    forms: tuple[str, ...] = ()
    # share of the model's constants that each unit takes its data from and has a form to store in fewer bits; empty
    # where no unit does. Shape (units,).
    tables: tuple[float, ...] = ()

    @cached_property
    def has_form(self) -> np.ndarray:
        """Whether each unit has each form, shape (units, forms)."""
        return np.array([[f in u.forms for f in self.forms] for u in self.units], bool).reshape(
            len(self.units), len(self.forms)
        )

    @property
    def changeable(self) -> np.ndarray:
        """Whether each unit can be anything but float, shape (units,)."""
        return np.asarray(self.selectable | self.has_form.any(axis=1))

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

    def labels(self, precisions: Mapping[str, str] | Collection[str]) -> np.ndarray:
        """The labeling in which the named units have these precisions, static by default; int8, shape (units,)."""
        given = precisions if isinstance(precisions, Mapping) else dict.fromkeys(precisions, STATIC)
        labels = np.zeros(len(self.units), np.int8)
        for i, unit in enumerate(self.units):
            precision = given.get(unit.name, "")
            if precision in unit.searched:
                labels[i] = FIRST_FORM + self.forms.index(precision)
            elif precision == STATIC and self.selectable[i]:
                labels[i] = LOW
        return labels

    def precisions(self, labels: np.ndarray) -> dict[str, str]:
        """Precisions of the units that are not float, by name."""
        words = ("", STATIC, *self.forms)
        return {self.units[i].name: words[int(labels[i])] for i in np.flatnonzero(labels).tolist()}

    def layout_contexts(self, labels: np.ndarray) -> np.ndarray:
        """Whether the layout source of each unit is in low precision, shape (units,)."""
        return np.asarray((self.layout_source >= 0) & (labels[self.layout_source] == LOW))

    def states(self, labels: np.ndarray) -> np.ndarray:
        """:class:`~inlay.search.edges.State` of each edge, shape (edges,)."""
        return self._arrays.states(labels)

    @cached_property
    def propagation(self) -> Propagation:
        """Which labels follow from others."""
        return Propagation(self.units, self.selectable, self.activations, self.edges, self._arrays)

    def propagate(self, labels: np.ndarray) -> np.ndarray:
        """What runs in low precision under ``labels``: see :meth:`Propagation.propagate`."""
        return self._settled(labels, self.propagation.propagate)

    def fixed_point(self, labels: np.ndarray) -> np.ndarray:
        """``labels`` with all that follows from them stated: see :meth:`Propagation.fixed_point`."""
        return self._settled(labels, self.propagation.fixed_point)

    def _settled(self, labels: np.ndarray, follow: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """``labels`` with what follows from them, where no unit is to round by itself what it gets as integers.

        A low-precision unit whose output must be integers hands them to all readers: one that finds ranges in each
        inference then has nothing to find, and runs in low precision if it can.
        """
        while True:
            low = follow(labels == LOW)
            given = [
                i for i, label, edge in self._own_ranges if labels[i] == label and self._gets_integers(i, edge, low)
            ]
            if not given:
                return np.where(low, LOW, np.where(labels == LOW, FLOAT, labels)).astype(np.int8)
            labels = labels.copy()
            labels[given] = LOW

    def _gets_integers(self, reader: int, edge: Edge, low: np.ndarray) -> bool:
        """Whether ``reader`` has to take the integers of a value because of its producer's label."""
        if edge.producer < 0 or not low[edge.producer]:
            return False
        rule = self.units[edge.producer].rule
        must = rule is not None and rule.output is Needs.QUANTIZED
        return must or any(low[c] for c in edge.consumers if c != reader)

    @cached_property
    def _own_ranges(self) -> Sequence[tuple[int, int, Edge]]:
        """Selectable units with a form that finds ranges in each inference, its label, and what they read."""
        own = {
            i: [FIRST_FORM + k for k, f in enumerate(self.forms) if any(t.dynamic for _, t in u.forms.get(f, ()))]
            for i, u in enumerate(self.units)
            if self.selectable[i] and u.forms
        }
        return [(i, label, edge) for edge in self.edges for i in edge.consumers for label in own.get(i, ())]

    @cached_property
    def _arrays(self) -> EdgeArrays:
        return EdgeArrays.of([(e.producer, e.consumers, e.float_reader) for e in self.edges])


def build_unit_graph(graph: Graph, units: Sequence[Unit]) -> UnitGraph:
    """The unit graph of ``units``, which partition the nodes of ``graph``. Linear time."""
    index = {node: i for i, unit in enumerate(units) for node in unit.nodes}
    activations = {port for u in units if u.selectable for port in u.activations}
    values = dict.fromkeys(v for u in units if u.selectable for v in u.outputs)
    values.update(dict.fromkeys(graph.value_of(p) for u in units if u.selectable for p in u.activations))
    edges = []
    for value in values:
        if graph.is_constant(value):
            continue
        node = graph.producer(value)
        readers = graph.consumers(value)
        consumers = dict.fromkeys(index[p.node] for p in readers if p in activations)
        float_reader = value in graph.captured or any(p not in activations for p in readers)
        producer = -1 if node is None else index[node.name]
        source = "input" if producer < 0 else units[producer].op_type
        kind = f"{source}>{','.join(sorted(units[c].op_type for c in consumers))}{'+float' if float_reader else ''}"
        signature = f"{kind} {graph.shape(value)}"
        edges.append(
            Edge(
                value=value,
                producer=producer,
                consumers=tuple(consumers),
                float_reader=float_reader,
                kind=kind,
                signature=signature,
                size=(graph.size(value) or 0) * graph.turns.get(value, 1),
            )
        )
    sources = _layout_sources(graph, index)
    return UnitGraph(
        units=tuple(units),
        selectable=np.array([u.selectable for u in units], bool),
        edges=tuple(edges),
        activations=tuple(len({graph.value_of(p) for p in u.activations}) for u in units),
        signatures=tuple(_unit_signature(graph, u) for u in units),
        layout_source=np.array([sources[u.name] for u in units], np.int64),
        forms=tuple(dict.fromkeys(form for u in units for form in u.searched)),
        tables=_tables(graph, units),
    )


def _tables(graph: Graph, units: Sequence[Unit]) -> tuple[float, ...]:
    """As :attr:`UnitGraph.tables`."""
    sizes = [(graph.size(graph.value_of(Port(u.name, 0))) or 0) if u.table else 0 for u in units]
    total = sum(graph.size(value) or 0 for value in graph.initializers)
    return tuple(n / total for n in sizes) if any(sizes) else ()


def _layout_sources(graph: Graph, index: Mapping[str, int]) -> dict[str, int]:
    """By node: the unit that decides the layout of its first activation, or -1. Linear time.

    Among the inputs of an elementwise operator, the first with the shape of the result counts: a gate is broadcast over
    the data, and the data's layout prevails.
    """
    found: dict[str, int] = {}
    for node in graph.nodes:
        values = [v for v in node.inputs if v and graph.is_float(v) and graph.producer(v) is not None]
        if node.op_type in _ELEMENTWISE:
            values.sort(key=lambda v: graph.shape(v) != graph.shape(node.outputs[0]))
        first = graph.producer(values[0]) if values else None
        if first is None:
            found[node.name] = -1
        else:
            found[node.name] = found[first.name] if first.op_type in _ELEMENTWISE else index[first.name]
    return found


def _unit_signature(graph: Graph, unit: Unit) -> str:
    """Digest of a unit's operators, attributes and shapes: what the time of its kernel depends on."""
    parts = []
    for name in unit.nodes:
        node = graph.node(name)
        attributes = sorted((k, v) for k, v in node.attributes.items() if isinstance(v, (int, float, str, tuple)))
        shapes = [graph.shape(v) for v in node.inputs if v]
        constant = [graph.is_constant(v) for v in node.inputs if v]
        parts.append(f"{node.domain}:{node.op_type} {attributes} {shapes} {constant}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]
