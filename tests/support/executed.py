"""Placements in which each unit once runs in float between units in low precision, and what the runtime makes of them.

    python -m tests.support.executed MODEL.onnx ...

prints for each model how many units ran in another precision than stated, in sessions with default options.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

from inlay.search.surrogate import disagreements
from inlay.search.unit_graph import UnitGraph, build_unit_graph
from inlay.targets.base import Artifact
from inlay.targets.onnxruntime.target import OrtCpuTarget
from tests.support.onnx_queries import producers
from tests.support.runtime import optimized
from tests.support.workspace import Workspace

_INTEGER = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)


def labelings(graph: UnitGraph) -> Iterator[np.ndarray]:
    """Everything in low precision; then all but a set of units of which no two are neighbors, each unit in one set."""
    yield graph.selectable.copy()
    around: list[set[int]] = [set() for _ in graph.units]
    for edge in graph.edges:
        touched = [i for i in (edge.producer, *edge.consumers) if i >= 0]
        for i in touched:
            around[i].update(j for j in touched if j != i)
    color = np.full(len(graph.units), -1)
    for i in np.flatnonzero(graph.selectable):
        taken = {int(color[j]) for j in around[i]}
        color[i] = next(c for c in range(len(taken) + 1) if c not in taken)
    for c in range(int(color.max(initial=-1)) + 1):
        yield graph.selectable & (color != c)


def wrong(space: Workspace, folder: Path) -> tuple[int, list[str]]:
    """How many placements were tried, and where the runtime computes something else than they state."""
    graph = build_unit_graph(space.graph, space.prepared.units)
    found, tried = list[str](), 0
    for labels in labelings(graph):
        tried += 1
        written = space.emit(space.prepared.label(graph.precisions(labels)))
        path = folder / "written.onnx"
        onnx.save(written, path)
        executable = OrtCpuTarget(1).compile(Artifact(path, "written"))
        kernels = executable.profile(space.feeds[0], 1)
        for d in disagreements(graph, graph.propagate(labels), kernels):
            found.append(f"{d.unit} ({d.op_type}) {'not ' if d.wanted_low else ''}in low precision: {d.kernels}")
        weights, stated = quantized_weights(optimized(written, folder)), quantized_weights(written)
        if weights > stated:
            found.append(f"{weights} quantized weights instead of {stated}")
    return tried, found


def quantized_weights(graph: onnx.ModelProto) -> int:
    """Matrices and filters of integers, and those that are yet to be quantized, whichever operator reads them."""
    constants = {t.name: t for t in graph.graph.initializer}
    late = {n.input[0] for n in producers(graph).values() if n.op_type == "QuantizeLinear" and n.input[0] in constants}
    return sum(t.data_type in _INTEGER and len(t.dims) > 1 for t in constants.values()) + len(late)


def main(paths: list[str]) -> None:
    for path in paths:
        with tempfile.TemporaryDirectory() as name:
            try:
                space = Workspace(onnx.load(path), Path(name))
                tried, found = wrong(space, Path(name))
            except Exception as error:  # a table over many models says which one failed
                print(f"{Path(path).name}: {type(error).__name__}: {error}"[:200], flush=True)
                continue
            print(f"{Path(path).name}: {len(space.prepared.selectable)} units, {tried} placements, {len(found)} wrong")
            for line in found[:20]:
                print(f"    {line}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
