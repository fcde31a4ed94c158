"""The whole way from a Q/DQ model to flatbuffers: static model, integer graph, partitions, TOSA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx

from inlay.errors import UsageError
from inlay.tosa.integer_graph import PROFILES, LegalityCheck, NotLowered, all_legal, build_integer_graph
from inlay.tosa.ir import Executor, IntegerGraph
from inlay.tosa.partition import Subgraph, host_model, split, without_compute
from inlay.tosa.serialize import TosaBinary, serialize
from inlay.tosa.static_model import StaticModel, static_model

IDLE = "it would be in a partition without any computation"
"""Why what only moves data between operators of the host stays there."""


@dataclass(frozen=True, eq=False)
class Partition:
    """One step of the lowered model."""

    subgraph: Subgraph  # its operators, inputs and outputs in the integer graph
    tosa: TosaBinary | None = None  # its flatbuffer, for a TOSA partition
    host: onnx.ModelProto | None = None  # its ONNX model, for a host partition

    @property
    def kind(self) -> str:
        """``tosa`` or ``host``."""
        return self.subgraph.executor.value

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the ONNX nodes in it."""
        return self.subgraph.nodes


@dataclass(frozen=True, eq=False)
class Lowered:
    """A lowered model."""

    profile: str  # `INT` or `INT+FP`
    graph: IntegerGraph  # the whole integer graph
    partitions: tuple[Partition, ...]  # in an order in which they can run
    not_lowered: tuple[NotLowered, ...]  # ONNX nodes that are not integer TOSA, each with its reason

    @property
    def tosa(self) -> tuple[TosaBinary, ...]:
        """The flatbuffers, in order."""
        return tuple(p.tosa for p in self.partitions if p.tosa is not None)


def lower(
    model: onnx.ModelProto,
    profile: str = "INT",
    bind: Mapping[str, int] | None = None,
    legality: LegalityCheck = all_legal,
    on_host: Mapping[str, str] | None = None,
) -> Lowered:
    """Lower a Q/DQ model to TOSA 1.0.

    Args:
        profile: ``INT``: everything in TOSA is integer, the rest stays on the host as ONNX; ``INT+FP``: what is not
            quantized becomes float TOSA where TOSA has it.
        bind: sizes of named dynamic dimensions (others become 1).
        legality: limits of the compiler that will take the flatbuffers; without it, all of TOSA.
        on_host: names of nodes that stay on the host, with the reason to report.

    Returns:
        The integer graph, its partitions with their flatbuffers and host models, and what was not lowered and why.

    Raises:
        ModelError: the model is not valid.
        UsageError: an unknown profile, or the extra ``arm`` is not installed.
    """
    if profile not in PROFILES:
        raise UsageError(f"unknown profile {profile!r}: choose one of {', '.join(PROFILES)}")
    static = static_model(model, bind)
    graph, not_lowered = _worthwhile_graph(static, profile, legality, on_host or {})
    return Lowered(profile, graph, tuple(_partition(graph, s, static) for s in split(graph)), not_lowered)


def _worthwhile_graph(
    model: StaticModel, profile: str, legality: LegalityCheck, on_host: Mapping[str, str]
) -> tuple[IntegerGraph, tuple[NotLowered, ...]]:
    """The integer graph without TOSA partitions that would compute nothing: their nodes stay on the host."""
    kept = dict(on_host)
    while True:
        graph, not_lowered = build_integer_graph(model, profile, kept, legality)
        idle = without_compute(split(graph))
        nodes = {n for subgraph in idle for n in subgraph.nodes} - set(kept)
        if not nodes:
            return _type_conversions_on_host(graph, idle), not_lowered
        kept.update(dict.fromkeys(sorted(nodes), IDLE))


def _type_conversions_on_host(graph: IntegerGraph, idle: tuple[Subgraph, ...]) -> IntegerGraph:
    """Move to the host what no node owns in partitions without compute: uint8 conversions of model inputs."""
    moved = {op.out for subgraph in idle for op in subgraph.ops}
    if not moved:
        return graph
    ops = tuple(replace(op, executor=Executor.HOST) if op.out in moved else op for op in graph.ops)
    return replace(graph, ops=ops)


def _partition(graph: IntegerGraph, subgraph: Subgraph, model: StaticModel) -> Partition:
    if subgraph.executor is Executor.HOST:
        return Partition(subgraph, host=host_model(graph, subgraph, model))
    binary = serialize(subgraph.ops, graph.tensors, graph.constants, subgraph.inputs, subgraph.outputs)
    return Partition(subgraph, tosa=binary)
