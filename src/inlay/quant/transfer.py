"""Carry the placement of a Q/DQ model over to the normalized float model of the same network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from inlay.model.graph import Graph
from inlay.quant.extract import Extraction
from inlay.quant.matching import distance, match_nodes, turned
from inlay.quant.plain.graph import Leftover
from inlay.quant.qparams import scale_shape
from inlay.types import GRAPH_OUTPUT, Placement, Port, PortRewrite, QParams, QType

_DEPTH_TO_SPACE, _RESHAPE = "DepthToSpace", "Reshape"

SAME_WEIGHT = 0.1
"""Relative L2 distance of a weight from its dequantized form up to which its qparams still suit it: 8 bits round to
about 0.01; where normalization folded a scale into the weight its qparams are made anew."""


@dataclass(frozen=True, eq=False)
class Transferred:
    """A placement carried over to another form of the same model."""

    placement: Placement  # the ports of that form
    qparams: Mapping[tuple[str, QType], QParams]  # of the values that they read
    missing: tuple[Leftover, ...]  # sites without a counterpart, and why


def transfer(found: Extraction, source: Graph, target: Graph, normalized: Graph | None = None) -> Transferred:
    """Carry what was read from a Q/DQ model over to the normalized float model.

    Nodes are matched by structure and constants (:mod:`inlay.quant.matching`), slots by position. A port whose value is
    not float32 in ``target``, or has no counterpart, is listed with the reason. Where ``target`` computes a value in
    blocks of pixels, the DepthToSpace before it gets the same qparams: it can move bytes as well.

    Args:
        normalized: ``source`` after the passes that made ``target``; by default ``target`` itself, for a model that
            came quantized.
    """
    ports = _Ports(source, target if normalized is None else normalized, target)
    sites: dict[Port, QType] = {}
    qparams: dict[tuple[str, QType], QParams] = {}
    rewrites: list[PortRewrite] = []
    selected: dict[Port, list[str]] = {}
    for at, name in found.placement.rewrites:
        selected.setdefault(at, []).append(name)
    missing: list[Leftover] = []
    absent: list[tuple[Port, _Absent]] = []
    for port, qtype in found.placement:
        there = ports.counterparts(port)
        if isinstance(there, _Absent):
            absent.append((port, there))
            continue
        value = next((v for v in map(target.value_of, there) if not target.is_float(v)), "")
        if value:
            missing.append(Leftover(str(port), f"{value} is not float32"))
            continue
        if qtype.dynamic:  # the product itself must read it, which behind a Reshape has the same range
            there = [p for p in there if p.node == GRAPH_OUTPUT or target.node(p.node).op_type != _RESHAPE] or there
        sites.update(dict.fromkeys(there, qtype))
        rewrites += [PortRewrite(there[0], name) for name in selected.get(port, ())]
        params, given = found.qparams.get((source.value_of(port), qtype)), source.constant(source.value_of(port))
        if given is not None and turned(source.node(port.node), target.node(there[0].node), port.slot):
            params, given = None if params is None else _transposed(params, given.shape), given.T
        for value in map(target.value_of, there):
            if params is not None and _suits(params, given, target, value):
                qparams.setdefault((value, qtype), params)
    for (value, qtype), params in list(qparams.items()):
        move = target.producer(value)
        before = source.producer(value)
        own = before is not None and before.op_type == _DEPTH_TO_SPACE
        if move is not None and move.op_type == _DEPTH_TO_SPACE and not own:
            sites.setdefault(Port(move.name, 0), qtype)
            qparams.setdefault((move.inputs[0], qtype), params)
    for bias in ports.new_biases():  # else the runtime would compute the product in float
        data, weight = (sites.get(Port(bias.node, slot)) for slot in (0, 1))
        integer = data is not None and weight is not None and data.takes_bias and not data.dynamic
        if integer and target.is_constant(target.value_of(bias)):
            sites.setdefault(bias, QType.INT32)
    for site in [p for p, q in sites.items() if q is QType.INT32]:
        if Port(site.node, 0) not in sites or Port(site.node, 1) not in sites:
            missing.append(Leftover(str(site), "its node's data or weight is not quantized"))
            del sites[site]
    quantized = {p.node for p in sites}
    missing += [Leftover(str(p), a.reason, a.heir if a.heir in quantized else "") for p, a in absent]
    return Transferred(Placement(sites.items(), (r for r in rewrites if r.port in sites)), qparams, tuple(missing))


@dataclass(frozen=True)
class _Absent:
    """Why a port has no counterpart, and the node of the target that computes its operator together with others."""

    reason: str
    heir: str = ""


class _Ports:
    """Ports of ``source`` in ``target``, by way of ``normalized``: the same function in the form of the target."""

    def __init__(self, source: Graph, normalized: Graph, target: Graph) -> None:
        self._source, self._normalized, self._target = source, normalized, target
        self._nodes = match_nodes(normalized, target)
        self._by_output = {(n.op_type, n.outputs[0]): n.name for n in normalized.nodes if n.outputs}
        self._survivors = {self._survivor(n.name) for n in source.nodes}

    def counterparts(self, port: Port) -> list[Port] | _Absent:
        """The ports of the target that ``port`` stands for, or why there is none."""
        if port.node == GRAPH_OUTPUT:
            name = self._source.outputs[port.slot]
            outputs = self._target.outputs
            return [Port(GRAPH_OUTPUT, outputs.index(name))] if name in outputs else _Absent("no such output")
        if not self._source.has_node(port.node):
            return _Absent("its node no longer exists")
        found = self._after_normalization(port)
        if isinstance(found, str):
            return _Absent(found, self._heir(port.node))
        alike = [Port(name, at.slot) for at in found if (name := self._nodes.get(at.node, ""))]
        if not alike:
            return _Absent(f"the model has no {self._source.node(port.node).op_type} like it")
        there = [p for p in alike if p.slot < len(inputs := self._target.node(p.node).inputs) and inputs[p.slot]]
        return there or _Absent(f"the {self._target.node(alike[0].node).op_type} of the model has no such input")

    def new_biases(self) -> Iterator[Port]:
        """Ports of the biases of products that normalization made of a product and a sum."""
        for node in self._normalized.nodes:
            name = self._nodes.get(node.name, "") if node.op_type == "Gemm" else ""
            if name and node.name not in self._survivors and any(self._target.node(name).inputs[2:]):
                yield Port(name, 2)

    def _after_normalization(self, port: Port) -> list[Port] | str:
        node, value = self._source.node(port.node), self._source.value_of(port)
        name = self._survivor(port.node)
        if name:
            inputs = self._normalized.node(name).inputs
            if port.slot < len(inputs) and inputs[port.slot]:
                return [Port(name, port.slot)]
            return "normalization folds that input into another"
        fused = [p for p in self._normalized.consumers(value) if p.node and p.node not in self._survivors]
        if self._source.is_constant(value):
            same = distance(self._source.constant(value), self._normalized.constant(value)) == 0.0
            return fused if fused and same else f"normalization folds its {node.op_type} into another operator"
        behind = [
            q
            for p in fused
            if (node := self._normalized.node(p.node)).op_type == _RESHAPE and p.slot == 0
            for q in self._normalized.consumers(node.outputs[0])
            if q.node
        ]
        return [
            *behind,
            *fused,
        ] or f"the value is inside an operator that normalization makes of its {node.op_type} and others"

    def _heir(self, name: str) -> str:
        """The target's node that computes what node ``name`` of the source is a part of."""
        pending, seen = [name], {name}
        while pending:
            node = self._source.node(pending.pop())
            for value in filter(None, node.outputs):
                if (made := self._normalized.producer(value)) is not None:
                    return self._nodes.get(made.name, "")
                readers = {p.node for p in self._source.consumers(value) if p.node != GRAPH_OUTPUT} - seen
                seen |= readers
                pending += sorted(readers)
        return ""

    def _survivor(self, name: str) -> str:
        """The node of the normalized graph that ``name`` still is: by its first output, else by its name."""
        node = self._source.node(name)
        found = self._by_output.get((node.op_type, node.outputs[0] if node.outputs else ""), "")
        if not found and self._normalized.has_node(name) and self._normalized.node(name).op_type == node.op_type:
            return name
        return found


def _transposed(params: QParams, shape: tuple[int, ...]) -> QParams:
    """``params`` of a matrix of ``shape`` as those of its transpose."""
    if params.axis is None:
        return params
    scale, zero = params.scale, params.zero_point
    if params.qtype.block:
        grid = scale_shape(shape, params)
        scale = tuple(np.reshape(scale, grid).T.reshape(-1).tolist())
        zero = tuple(np.reshape(zero, grid).T.reshape(-1).tolist())
    return replace(params, scale=scale, zero_point=zero, axis=1 - params.axis)


def _suits(params: QParams, given: np.ndarray | None, target: Graph, value: str) -> bool:
    """Whether ``params`` of a value, which is ``given`` where it is constant, fit ``value`` of ``target``."""
    if target.is_constant(value) and distance(given, target.constant(value)) > SAME_WEIGHT:
        return False
    shape = target.shape(value)
    if params.axis is None:
        return True
    if shape is None or params.axis >= len(shape):
        return False
    if params.qtype.block:
        return bool(np.prod(scale_shape(shape, params)) == len(params.scale))
    return shape[params.axis] in (None, len(params.scale))
