"""Read a placement back from a Q/DQ model: the inverse of emit, for models of any origin.

``x -> QuantizeLinear -> DequantizeLinear -> consumers`` becomes ports that read ``x``; ``constant -> DequantizeLinear``
becomes a float constant again. In a model that ``emit`` wrote, the target's rewrites (:mod:`inlay.quant.rewrite`) are
undone first. What remains is the float model. Whatever does not have one of these forms (a Q whose result is read by an
integer operator, an integer graph input) is left in place and listed with its reason. In a model of other origin a pair
leaves its saturation behind (:mod:`inlay.quant.saturation`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from inlay.model.graph import Graph
from inlay.model.passes.names import fix_names
from inlay.model.passes.steps import add_constant
from inlay.quant.qdq_graph import DEQUANTIZE, QUANTIZE
from inlay.quant.qparams import dequantize
from inlay.quant.rewrite import Rewrite
from inlay.quant.saturation import Form, Saturation, Saturations, settle
from inlay.types import GRAPH_OUTPUT, Placement, Port, PortRewrite, QParams, QType

_DEPTH_TO_SPACE = "DepthToSpace"

_TYPES = {ir.DataType[t.name]: t for t in QType}


@dataclass(frozen=True)
class Leftover:
    """A Q or DQ node that stands for no port, and why."""

    node: str
    reason: str


@dataclass(frozen=True, eq=False)
class Extraction:
    """A Q/DQ model taken apart.

    Attributes:
        model: the float model that is left.
        placement: the ports that read quantized values, by the model's node names.
        qparams: by value name (of the float model) and type; biases have none, theirs follow from the others.
        leftovers: Q and DQ nodes that could not be taken out.
        saturations: what of the pairs is still in ``model``.
    """

    model: ir.Model
    placement: Placement
    qparams: Mapping[tuple[str, QType], QParams]
    leftovers: tuple[Leftover, ...]
    saturations: tuple[Saturation, ...] = ()

    def settled(self, forms: Mapping[str, Form]) -> Extraction:
        """With the saturations in ``forms``, by node, and without the others; changes ``model``."""
        gone = settle(self.model.graph, self.saturations, forms)
        qparams: dict[tuple[str, QType], QParams] = {}
        for (value, qtype), params in self.qparams.items():
            while value in gone:
                value = gone[value]
            qparams.setdefault((value, qtype), params)
        kept = (replace(s, form=forms[s.node]) for s in self.saturations if s.node in forms)
        return replace(self, qparams=qparams, saturations=tuple(kept))


def is_quantized(model: ir.Model) -> bool:
    """Whether the main graph holds Q or DQ nodes."""
    return any(n.op_type in (QUANTIZE, DEQUANTIZE) for n in model.graph)


def extract(model: ir.Model, rewrites: Sequence[Rewrite[Any]] = ()) -> Extraction:
    """Take Q/DQ pairs out of a copy of ``model``; see the module's text. Never fails on a valid model.

    Args:
        model: of any origin.
        rewrites: those to undo where ``emit`` wrote the model.
    """
    copy, _ = fix_names(model.clone())
    graph = copy.graph
    ours = any(key.startswith("inlay.") for key in model.metadata_props)
    selected = _undo(graph, rewrites) if ours else frozenset()
    sites: dict[Port, QType] = {}
    qparams: dict[tuple[str, QType], QParams] = {}
    leftovers: list[Leftover] = []
    outputs = {id(v): i for i, v in enumerate(graph.outputs)}
    saturations = Saturations(graph)
    for node in list(graph):
        if node.op_type != DEQUANTIZE:
            continue
        found = _source(node, graph)
        if isinstance(found, str):
            leftovers.append(Leftover(str(node.name), found))
            continue
        source, params = found
        source.type = source.type or ir.TensorType(ir.DataType.FLOAT)  # as the scale's, which the operator asks for
        read = node.outputs[0]
        ports = [Port(str(use.node.name), use.idx) for use in read.uses() if use.node.graph is graph]
        if len(ports) != len(read.uses()):
            leftovers.append(Leftover(str(node.name), "a subgraph reads it"))
            continue
        if not ours:
            source = saturations.of(source, read, params)
        if read.is_graph_output():
            position = outputs[id(read)]
            if source.is_graph_output() or source.producer() is None:
                leftovers.append(Leftover(str(node.name), "it hands an input or another output to a graph output"))
                continue
            ports.append(Port(GRAPH_OUTPUT, position))
            name = read.name
            read.name = f"{name}_dequantized"
            source.name = name
            source.type, source.shape = source.type or read.type, source.shape or read.shape
            graph.outputs[position] = source
        read.replace_all_uses_with(source)
        sites.update(dict.fromkeys(ports, params.qtype))
        if params.qtype is not QType.INT32:
            qparams.setdefault((str(source.name), params.qtype), params)
    RemoveUnusedNodesPass()(copy)
    for key in [k for k in copy.metadata_props if k.startswith("inlay.")]:
        del copy.metadata_props[key]  # it speaks of the placement that was taken out
    left = {leftover.node for leftover in leftovers}
    leftovers += [
        Leftover(str(n.name), "its integers are read by an operator other than DequantizeLinear")
        for n in graph
        if n.op_type in (QUANTIZE, DEQUANTIZE) and str(n.name) not in left
    ]
    placement = Placement(sites.items(), (r for r in selected if r.port in sites))
    return Extraction(copy, placement, qparams, tuple(leftovers), saturations.made)


def _undo(graph: ir.Graph, rewrites: Sequence[Rewrite[Any]]) -> frozenset[PortRewrite]:
    """Undo ``rewrites``, the last one first; where a selectable one had been applied."""
    undone = [(rewrite, tuple(rewrite.undo(graph))) for rewrite in reversed(rewrites)]
    return frozenset(PortRewrite(port, r.name) for r, ports in undone if r.selectable for port in ports)


def _source(dq: ir.Node, graph: ir.Graph) -> tuple[ir.Value, QParams] | str:
    """The float value that ``dq`` dequantizes, and its qparams; or why it cannot be taken out."""
    quantized = dq.inputs[0]
    assert quantized is not None
    params = _params(dq)
    if isinstance(params, str):
        return params
    if quantized.const_value is not None and quantized.name in graph.initializers:
        return _float_constant(quantized, params, graph), params
    q = quantized.producer()
    if q is None:
        return "it reads an integer input of the graph"
    if q.op_type != QUANTIZE:
        return f"it reads integers that {q.op_type} {q.name} computes"
    before = _params(q)
    if isinstance(before, str):
        return before
    if before != params:
        return "its scale or zero point differs from that of its QuantizeLinear"
    source = q.inputs[0]
    assert source is not None
    return source, params


def _params(node: ir.Node) -> QParams | str:
    if "block_size" in node.attributes and node.attributes["block_size"].value:
        return "it is quantized in blocks"
    scale, zero = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    if scale is None or scale.const_value is None or (zero is not None and zero.const_value is None):
        return "its scale or zero point is computed at run time"
    if scale.const_value.dtype is not ir.DataType.FLOAT:
        return f"its scale is {scale.const_value.dtype.name.lower()}, not float32"
    scales = np.asarray(scale.const_value.numpy(), np.float32)
    if zero is not None and zero.const_value is not None:
        dtype: ir.DataType = zero.const_value.dtype
        zeros = np.asarray(zero.const_value.numpy()).astype(np.int64)
    else:
        dtype, zeros = _stated_type(node), np.zeros(scales.shape, np.int64)
    if dtype not in _TYPES:
        return f"it is quantized to {dtype.name.lower()}"
    axis = None
    if scales.size > 1 or (scales.ndim == 1 and "axis" in node.attributes):
        axis = int(node.attributes["axis"].value) if "axis" in node.attributes else 1
        shape = node.inputs[0].shape if node.inputs[0] is not None else None
        axis = axis % len(shape) if axis < 0 and shape is not None else axis
    return QParams(_TYPES[dtype], tuple(scales.reshape(-1).tolist()), tuple(int(z) for z in zeros.reshape(-1)), axis)


def _stated_type(node: ir.Node) -> ir.DataType:
    """The integer type of a pair without zero point."""
    if "output_dtype" in node.attributes and node.op_type == QUANTIZE and node.attributes["output_dtype"].value:
        return ir.DataType(node.attributes["output_dtype"].value)
    value = node.inputs[0] if node.op_type == DEQUANTIZE else node.outputs[0]
    return value.dtype if value is not None and value.dtype is not None else ir.DataType.UINT8


def _float_constant(quantized: ir.Value, params: QParams, graph: ir.Graph) -> ir.Value:
    """The dequantized constant, under its name before quantization where that can be recovered."""
    name = str(quantized.name).removesuffix("_quantized")
    assert quantized.const_value is not None
    array = dequantize(np.asarray(quantized.const_value.numpy()), params)
    original = graph.initializers.get(name)
    if original is not None and _is_form_of(original, array, params):
        return original
    while name in graph.initializers:
        name += "_float"
    return add_constant(graph, name, array)


def _is_form_of(original: ir.Value, array: np.ndarray, params: QParams) -> bool:
    """Whether ``array`` is what quantizing ``original`` gives: the model kept the float form for other consumers."""
    tensor = original.const_value
    if tensor is None or tensor.dtype is not ir.DataType.FLOAT or tuple(tensor.shape.numpy()) != array.shape:
        return False
    return bool(np.all(np.abs(tensor.numpy() - array) <= max(params.scale) * 0.51))


@dataclass(frozen=True, eq=False)
class Transferred:
    """A placement carried over to another form of the same model."""

    placement: Placement
    qparams: Mapping[tuple[str, QType], QParams]
    missing: tuple[Leftover, ...]


def transfer(found: Extraction, source: Graph, target: Graph) -> Transferred:
    """Carry what was read from a Q/DQ model over to the normalized float model.

    Nodes are matched by operator and name of their first output, then by operator and node name; slots by position. A
    port whose value is not float32 in ``target``, or has no counterpart, is listed. Where ``target`` computes a value
    in blocks of pixels, the DepthToSpace before it gets the same qparams: it can move bytes as well.
    """
    by_output = {(n.op_type, n.outputs[0]): n.name for n in target.nodes if n.outputs}
    by_name = {(n.op_type, n.name): n.name for n in target.nodes}
    sites: dict[Port, QType] = {}
    qparams: dict[tuple[str, QType], QParams] = {}
    rewrites: list[PortRewrite] = []
    selected: dict[Port, list[str]] = {}
    for at, name in found.placement.rewrites:
        selected.setdefault(at, []).append(name)
    missing: list[Leftover] = []

    def counterpart(port: Port) -> Port | str:
        if port.node == GRAPH_OUTPUT:
            name = source.outputs[port.slot]
            return Port(GRAPH_OUTPUT, target.outputs.index(name)) if name in target.outputs else "no such output"
        if not source.has_node(port.node):
            return "its node is gone"
        node = source.node(port.node)
        name = by_output.get((node.op_type, node.outputs[0])) or by_name.get((node.op_type, node.name), "")
        if not name:
            return f"the model has no {node.op_type} like it"
        inputs = target.node(name).inputs
        return Port(name, port.slot) if port.slot < len(inputs) and inputs[port.slot] else "it has no such input"

    for port, qtype in found.placement:
        there = counterpart(port)
        if isinstance(there, str):
            missing.append(Leftover(str(port), there))
            continue
        value = target.value_of(there)
        if not target.is_float(value):
            missing.append(Leftover(str(port), f"{value} is not float32"))
            continue
        sites[there] = qtype
        rewrites += [PortRewrite(there, name) for name in selected.get(port, ())]
        params = found.qparams.get((source.value_of(port), qtype))
        if params is not None and _suits(params, value, target):
            qparams.setdefault((value, qtype), params)
    for (value, qtype), params in list(qparams.items()):
        move = target.producer(value)
        if move is not None and move.op_type == _DEPTH_TO_SPACE and not _writes(source, _DEPTH_TO_SPACE, value):
            sites.setdefault(Port(move.name, 0), qtype)
            qparams.setdefault((move.inputs[0], qtype), params)
    for site in _incomplete_biases(sites):
        missing.append(Leftover(str(site), "its node's data or weight is not quantized"))
        del sites[site]
    return Transferred(Placement(sites.items(), (r for r in rewrites if r.port in sites)), qparams, tuple(missing))


def _writes(graph: Graph, op_type: str, value: str) -> bool:
    node = graph.producer(value)
    return node is not None and node.op_type == op_type


def _suits(params: QParams, value: str, graph: Graph) -> bool:
    shape = graph.shape(value)
    if params.axis is None:
        return True
    return shape is not None and params.axis < len(shape) and shape[params.axis] == len(params.scale)


def _incomplete_biases(sites: Mapping[Port, QType]) -> Iterator[Port]:
    for port in [p for p, q in sites.items() if q is QType.INT32]:
        if Port(port.node, 0) not in sites or Port(port.node, 1) not in sites:
            yield port
