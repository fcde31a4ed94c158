"""Unit graphs for tests of the search: chains, and hypothesis strategies for any."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from inlay.search.edges import Edge
from inlay.search.unit_graph import UnitGraph
from inlay.space.units import Unit
from inlay.targets.onnxruntime.rules import OPS
from inlay.types import Port


def chain(n: int) -> UnitGraph:
    """``n`` convolutions in a row; the last one's output is a graph output."""
    units = tuple(Unit(f"u{i}", (f"u{i}",), "Conv", OPS["Conv"], "", outputs=(f"v{i}",)) for i in range(n))
    edges = [Edge(value="x", producer=-1, consumers=(0,), float_reader=False, kind="in", signature="in", size=100)]
    edges += [
        Edge(
            value=f"v{i}",
            producer=i,
            consumers=(i + 1,) if i + 1 < n else (),
            float_reader=i + 1 == n,
            kind=f"k{i}",
            signature=f"s{i}",
            size=100 * (i + 1),
        )
        for i in range(n)
    ]
    sources = np.arange(-1, n - 1)
    read = tuple(len(u.activations) for u in units)
    return UnitGraph(
        units=units,
        selectable=np.ones(n, bool),
        edges=tuple(edges),
        activations=read,
        signatures=tuple(f"sig{i}" for i in range(n)),
        layout_source=sources,
    )


@st.composite
def unit_graphs(draw: st.DrawFn) -> UnitGraph:
    """Units of operators that compute, join and only move data; any of them may not be selectable, but not all."""
    n = draw(st.integers(1, 9))
    selectable = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    selectable[draw(st.integers(0, n - 1))] = True
    edges = []
    for producer in range(-1, n):
        later = st.sets(st.integers(producer + 1, n - 1), max_size=3) if producer + 1 < n else st.just(set[int]())
        consumers = tuple(sorted(c for c in draw(later) if selectable[c]))
        edges.append(
            Edge(
                value=f"v{producer}",
                producer=producer,
                consumers=consumers,
                float_reader=draw(st.booleans()),
                kind="k",
                signature=f"s{producer}",
                size=100,
            )
        )
    units = []
    for i in range(n):
        op_type = draw(st.sampled_from(["Conv", "Add", "MaxPool", "Concat"]))
        reads = tuple(Port(f"u{i}", slot) for slot in range(sum(i in e.consumers for e in edges)))
        weights = (Port(f"u{i}", len(reads)),) if op_type == "Conv" else ()
        rejection = "" if selectable[i] else "not selected"
        units.append(Unit(f"u{i}", (f"u{i}",), op_type, OPS[op_type], rejection, reads, weights, (), (f"v{i}",)))
    sources = [max((e.producer for e in edges if i in e.consumers), default=-1) for i in range(n)]
    read = tuple(len(u.activations) for u in units)
    return UnitGraph(
        units=tuple(units),
        selectable=selectable,
        edges=tuple(edges),
        activations=read,
        signatures=tuple(f"sig{i}" for i in range(n)),
        layout_source=np.array(sources),
    )


@st.composite
def labelings(draw: st.DrawFn, graph: UnitGraph) -> np.ndarray:
    """Any labeling of ``graph``."""
    n = len(graph.units)
    labels: np.ndarray = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n))) & graph.selectable
    return labels
