"""The whole way from a Q/DQ model to flatbuffers: prepare, integer graph, partitions, TOSA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx

from inlay.errors import UsageError
from inlay.tosa import partition
from inlay.tosa.host import host_model
from inlay.tosa.integer import PROFILES, Legal, NotLowered, anything, build
from inlay.tosa.ir import IntegerGraph, Place
from inlay.tosa.partition import Piece
from inlay.tosa.prepare import Source, prepare
from inlay.tosa.serialize import TosaBinary, serialize


@dataclass(frozen=True, eq=False)
class Partition:
    """One step of the lowered model.

    Attributes:
        piece: its operators, inputs and outputs in the integer graph.
        tosa: its flatbuffer, for a TOSA partition.
        host: its ONNX model, for a host partition.
    """

    piece: Piece
    tosa: TosaBinary | None = None
    host: onnx.ModelProto | None = None

    @property
    def kind(self) -> str:
        """``tosa`` or ``host``."""
        return self.piece.place.value

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the ONNX nodes in it."""
        return self.piece.nodes


@dataclass(frozen=True, eq=False)
class Lowered:
    """A lowered model.

    Attributes:
        profile: ``INT`` or ``INT+FP``.
        graph: the whole integer graph.
        partitions: in an order in which they can run.
        not_lowered: ONNX nodes that are not integer TOSA, each with its reason.
    """

    profile: str
    graph: IntegerGraph
    partitions: tuple[Partition, ...]
    not_lowered: tuple[NotLowered, ...]

    @property
    def tosa(self) -> tuple[TosaBinary, ...]:
        """The flatbuffers, in order."""
        return tuple(p.tosa for p in self.partitions if p.tosa is not None)


def lower(
    model: onnx.ModelProto,
    profile: str = "INT",
    bind: Mapping[str, int] | None = None,
    legal: Legal = anything,
    forced: Mapping[str, str] | None = None,
) -> Lowered:
    """Lower a Q/DQ model to TOSA 1.0.

    Args:
        model: an ONNX model with QuantizeLinear/DequantizeLinear nodes, weights loaded.
        profile: ``INT``: everything in TOSA is integer, the rest stays on the host as ONNX; ``INT+FP``: what is not
            quantized becomes float TOSA where TOSA has it.
        bind: sizes of named dynamic dimensions (others become 1).
        legal: limits of the compiler that will take the flatbuffers; without it, all of TOSA.
        forced: names of nodes that stay on the host, with the reason to report.

    Returns:
        The integer graph, its partitions with their flatbuffers and host models, and what was not lowered and why.

    Raises:
        ModelError: the model is not valid.
        UsageError: an unknown profile, or the extra ``arm`` is not installed.
    """
    if profile not in PROFILES:
        raise UsageError(f"unknown profile {profile!r}: choose one of {', '.join(PROFILES)}")
    source = prepare(model, bind)
    graph, not_lowered = integer_graph(source, profile, legal, forced or {})
    pieces = partition.split(graph)
    return Lowered(profile, graph, tuple(_finish(graph, p, source) for p in pieces), not_lowered)


def integer_graph(
    source: Source, profile: str, legal: Legal, forced: Mapping[str, str]
) -> tuple[IntegerGraph, tuple[NotLowered, ...]]:
    """The integer graph without TOSA partitions that would compute nothing: those nodes stay with their neighbours."""
    held = dict(forced)
    while True:
        graph, not_lowered = build(source, profile, held, legal)
        idle = partition.without_compute(partition.split(graph))
        nodes = {n for piece in idle for n in piece.nodes} - set(held)
        if not nodes:
            return _bridges_to_host(graph, idle), not_lowered
        held.update(dict.fromkeys(sorted(nodes), "it would be in a partition without any computation"))


def _bridges_to_host(graph: IntegerGraph, idle: tuple[Piece, ...]) -> IntegerGraph:
    """The rest of an idle partition: uint8 bridges of model inputs, which belong to no node; the host can do them."""
    moved = {op.out for piece in idle for op in piece.ops}
    if not moved:
        return graph
    ops = tuple(replace(op, place=Place.HOST) if op.outputs[0] in moved else op for op in graph.ops)
    return replace(graph, ops=ops)


def _finish(graph: IntegerGraph, piece: Piece, source: Source) -> Partition:
    if piece.place is Place.HOST:
        return Partition(piece, host=host_model(graph, piece, source))
    return Partition(piece, tosa=serialize(piece.ops, graph.tensors, graph.constants, piece.inputs, piece.outputs))
