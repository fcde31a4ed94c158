"""Many values of a large graph, computed piece by piece: a session takes time by its nodes times its outputs.

A graph is cut along the order of its nodes. Each piece is a session of its own, whose inputs are what it reads of the
pieces before it. A graph of up to ``PIECE_NODES`` nodes is one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx

from inlay.model.reference import Session, with_outputs
from inlay.model.store import WeightStore

PIECE_NODES = 2048
"""Nodes of a piece: with all of their values as outputs a session of so many takes 1.1 times as long as with one."""


class PiecewiseSession:
    """``values`` of a graph, whichever of its pieces computes them.

    Args:
        proto: the model, its nodes in topological order; its weights may be in ``store``.
        store: where external weights are read from.
        values: computed by nodes of the main graph.
        nodes: most nodes of a piece.

    Attributes:
        whole: the one session, where the graph is one piece.
        types: type of each value computed so far, in the runtime's notation.

    Raises:
        CompileFailed: the runtime rejects the model; with several pieces :meth:`run` raises it.
    """

    def __init__(
        self, proto: onnx.ModelProto, store: WeightStore, values: Sequence[str], nodes: int = PIECE_NODES
    ) -> None:
        self._proto, self._store, self._values = proto, store, list(values)
        self.whole: Session | None = None
        self._pieces: list[_Piece] = []
        self._sessions: dict[int, Session] = {}
        self.types: dict[str, str] = {}
        if len(proto.graph.node) <= nodes:
            self._run_whole()
        else:
            self._pieces = _cut(proto.graph, set(values), nodes)

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The values by name. Raises CompileFailed or RunFailed."""
        if self.whole is None:
            found = self._run_pieces(feed)
            if found is not None:
                return found
            self._run_whole()
        assert self.whole is not None
        return self.whole.run(feed)

    def _run_whole(self) -> None:
        self.whole = Session(with_outputs(self._proto, self._values), self._store)
        self.types = self.whole.types

    def _run_pieces(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        """The values; None where pieces would have to hand on something else than arrays."""
        wanted, found, held = set(self._values), dict[str, np.ndarray](), dict(feed)
        for number, piece in enumerate(self._pieces):
            given = {v: held[v] for v in piece.reads}
            if number not in self._sessions:
                self._sessions[number] = Session(self._model(piece, given), self._store)
                self.types.update(self._sessions[number].types)
            made = self._sessions[number].run(given)
            found.update((v, made[v]) for v in piece.outputs if v in wanted)
            held = {v: a for v, a in (*held.items(), *made.items()) if v in piece.still_read}
            if not all(isinstance(a, np.ndarray) for a in held.values()):
                return None
        return {v: found[v] for v in self._values}

    def _model(self, piece: _Piece, given: Mapping[str, np.ndarray]) -> onnx.ModelProto:
        whole = self._proto
        model = onnx.ModelProto(ir_version=whole.ir_version, opset_import=whole.opset_import, functions=whole.functions)
        model.graph.name = whole.graph.name
        model.graph.node.extend(piece.nodes)
        model.graph.initializer.extend(piece.constants)
        inputs = {i.name: i for i in whole.graph.input}
        for name, array in given.items():
            if name in inputs:
                model.graph.input.append(inputs[name])
            else:  # its sizes may differ from sample to sample
                dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
                model.graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, None))
        model.graph.output.extend(onnx.ValueInfoProto(name=v) for v in piece.outputs)
        return model


class _Piece:
    """Consecutive nodes.

    Attributes:
        nodes: of the graph.
        names: all that they and their bodies read.
        reads: what they read of the graph's inputs and of the pieces before.
        outputs: what they compute of what is wanted or read later.
        constants: initializers that they read.
        still_read: what is read by later pieces.
    """

    def __init__(self, nodes: Sequence[onnx.NodeProto]) -> None:
        self.nodes = nodes
        self.names = set(_names(nodes))
        self.reads: list[str] = []
        self.outputs: list[str] = []
        self.constants: list[onnx.TensorProto] = []
        self.still_read: set[str] = set()


def _cut(graph: onnx.GraphProto, wanted: set[str], size: int) -> list[_Piece]:
    nodes = list(graph.node)
    pieces = [_Piece(nodes[i : i + size]) for i in range(0, len(nodes), size)]
    constants = {t.name: t for t in graph.initializer}
    available = {i.name for i in graph.input} - constants.keys()
    for piece in pieces:
        piece.reads = sorted(piece.names & available)
        piece.constants = [constants[v] for v in sorted(piece.names & constants.keys())]
        available.update(v for n in piece.nodes for v in n.output if v)
    later: set[str] = set()
    for piece in reversed(pieces):
        piece.still_read = set(later)
        piece.outputs = [v for n in piece.nodes for v in n.output if v in later or v in wanted]
        later.difference_update(v for n in piece.nodes for v in n.output)
        later.update(piece.reads)
    return pieces


def _names(nodes: Sequence[onnx.NodeProto]) -> Iterator[str]:
    """Every name that ``nodes`` read, in their bodies too."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from _names(body.node)
                yield from (o.name for o in body.output)
