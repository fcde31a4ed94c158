"""Read a placement back from a Q/DQ model: the inverse of emit, for models of any origin.

``x -> QuantizeLinear -> DequantizeLinear -> consumers`` becomes ports that read ``x``; ``constant -> DequantizeLinear``
becomes a float constant again, and what computes in half precision (:mod:`inlay.quant.halves`) computes in float32. In
a model that ``emit`` wrote, the target's rewrites are undone first, by the notes that it left
(:mod:`inlay.quant.notes`); then operators on integers are written in their plain form (:mod:`inlay.quant.plain.form`).
What remains is the float model. Whatever does not have one of these forms (a Q whose result is read by an unknown
operator, an integer graph input) is left in place and listed with its reason. In a model of other origin a pair leaves
its saturation behind (:mod:`inlay.quant.saturation`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from inlay.model.flow import flattened
from inlay.model.metadata import cloned
from inlay.model.passes.names import fix_names
from inlay.model.passes.steps import add_constant
from inlay.quant.halves import read_halves
from inlay.quant.notes import forget, undo
from inlay.quant.plain.form import constant_behind, known_integer, write_plain
from inlay.quant.plain.graph import IntegerOperator, Leftover, float_name
from inlay.quant.qdq_graph import DEQUANTIZE, DYNAMIC_QUANTIZE, QUANTIZE
from inlay.quant.qparams import dequantize, scale_shape
from inlay.quant.saturation import Form, Saturation, Saturations, settle
from inlay.quant.site import grid_of
from inlay.types import GRAPH_OUTPUT, Placement, Port, PortRewrite, QParams, QType

_COARSEST_FLOAT_STEP = 32.0  # between the largest floats of 8 bits with 3 of them behind the point, 416 and 448

_TYPES = {(ir.DataType[t.element.upper()], t.block): t for t in QType if not (t.dynamic or t.half)}


@dataclass(frozen=True, eq=False)
class Extraction:
    """A Q/DQ model taken apart."""

    model: ir.Model  # the float model that is left
    placement: Placement  # the ports that read quantized values, by the model's node names
    # by value name (of the float model) and type; biases have none, theirs follow from the others
    qparams: Mapping[tuple[str, QType], QParams]
    leftovers: tuple[Leftover, ...]  # Q and DQ nodes, and operators on integers, that could not be taken out
    saturations: tuple[Saturation, ...] = ()  # what of the pairs is still in `model`
    # those ports of `placement` whose scales no DequantizeLinear can state: quantized anew
    anew: frozenset[Port] = frozenset()
    opaque: str = ""  # why nothing was taken out, where that is so: the model is then as it was given

    @classmethod
    def nothing(cls, model: ir.Model, operators: Sequence[IntegerOperator], why: str) -> Extraction:
        """A model that is taken as it is."""
        copy, _ = fix_names(cloned(model))
        forget(copy.graph)
        left = tuple(Leftover(str(n.name), why) for n in filter(known_integer(operators), copy.graph))
        return cls(copy, Placement(), {}, left, opaque=why)

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


SIZES = frozenset({"Shape", "Size"})
"""Operators that do not read what their input holds: for them a pair changes nothing."""


def extract(model: ir.Model, operators: Sequence[IntegerOperator] = ()) -> Extraction:
    """Take Q/DQ pairs out of a copy of ``model``; see the module's text. Never fails on a valid model.

    Besides those of ONNX, it knows the targets' ``operators`` on integers.
    """
    ours = is_ours(model)
    copy, selected = _undone(model)
    fix_names(copy)
    halves = read_halves(copy)
    copy.ir_version = max(copy.ir_version or 4, 4)  # before, initializers had to be inputs
    graph = copy.graph
    RemoveUnusedNodesPass()(copy)
    plain = write_plain(copy, operators)
    sites: dict[Port, QType] = {**(halves if ours else {}), **dict(plain.anew)}
    qparams: dict[tuple[str, QType], QParams] = {}
    leftovers = list(plain.leftovers)
    saturations = Saturations(plain)
    for node in list(graph):
        if node.op_type != DEQUANTIZE:
            continue
        found = _source(node, graph)
        if isinstance(found, str):
            constant = constant_behind(node)
            if constant is None or node.outputs[0].is_graph_output():
                leftovers.append(Leftover(str(node.name), found))
                continue
            leftovers.append(Leftover(str(node.name), f"{found}: Inlay cannot express that, so it is float now"))
            wish = float_name(node.inputs[0]) if node.inputs[0] is not None else str(node.name)
            node.outputs[0].replace_all_uses_with(add_constant(graph, wish, constant))
            continue
        source, params = found
        qtype = QType.DYNAMIC if params is None else params.qtype
        source.type = source.type or ir.TensorType(ir.DataType.FLOAT)  # as the scale's, which the operator asks for
        read = node.outputs[0]
        uses = [use for use in read.uses() if use.node.graph is graph]
        ports = [Port(str(use.node.name), use.idx) for use in uses if use.node.op_type not in SIZES]
        if len(uses) != len(read.uses()):
            leftovers.append(Leftover(str(node.name), "a subgraph reads it"))
            continue
        if not ours and params is not None:
            source = saturations.of(source, read, params)
        if read.is_graph_output():
            positions = [i for i, v in enumerate(graph.outputs) if v is read]  # an output may be listed twice
            if source.is_graph_output() or source.producer() is None:
                leftovers.append(Leftover(str(node.name), "it hands an input or another output to a graph output"))
                continue
            ports += [Port(GRAPH_OUTPUT, i) for i in positions]
            name = read.name
            read.name = f"{name}_dequantized"
            source.name = name
            source.type, source.shape = source.type or read.type, source.shape or read.shape
            for position in positions:
                graph.outputs[position] = source
        read.replace_all_uses_with(source)
        sites.update(dict.fromkeys(ports, qtype))
        if params is not None and qtype is not QType.INT32:
            qparams.setdefault((str(source.name), qtype), params)
    RemoveUnusedNodesPass()(copy)
    for key in [k for k in copy.metadata_props if k.startswith("inlay.")]:
        del copy.metadata_props[key]  # it speaks of the placement that was taken out
    left = {leftover.node for leftover in leftovers}
    quantizers = (n for n in graph if n.op_type == QUANTIZE and str(n.name) not in left)
    leftovers += [Leftover(str(n.name), _why_kept(n)) for n in quantizers]
    placement = Placement(sites.items(), (r for r in selected if r.port in sites))
    return Extraction(copy, placement, qparams, tuple(leftovers), saturations.made, frozenset(plain.anew))


def _why_kept(quantizer: ir.Node) -> str:
    """Why a QuantizeLinear is left: whoever needs its integers."""
    integers = quantizer.outputs[0]
    other = next((use.node for use in integers.uses() if use.node.op_type != DEQUANTIZE), None)
    if other is not None:
        return f"its integers are read by {other.op_type} {other.name}"
    return "its integers are an output of the model" if integers.is_graph_output() else "its DequantizeLinear stays"


def without_rewrites(model: ir.Model) -> ir.Model:
    """A Q/DQ model that ``emit`` wrote with a target's rewrites undone, in a copy; a model of other origin as it is."""
    if not is_ours(model):
        return model
    copy, _ = _undone(model)
    RemoveUnusedNodesPass()(copy)
    return copy


def is_ours(model: ir.Model) -> bool:
    """Whether ``emit`` wrote it."""
    return any(key.startswith("inlay.") for key in model.metadata_props)


def _undone(model: ir.Model) -> tuple[ir.Model, frozenset[PortRewrite]]:
    """A copy without rewrites, and where a placement had named them; with them where the notes do not fit."""
    copy, selected = flattened(model), frozenset[PortRewrite]()
    if is_ours(model):
        try:
            selected = undo(copy.graph)
        except ValueError:
            copy = flattened(model)
    forget(copy.graph)
    return copy, selected


def _source(dq: ir.Node, graph: ir.Graph) -> tuple[ir.Value, QParams | None] | str:
    """The float value that ``dq`` dequantizes, and its qparams (None: dynamic); or why it cannot be taken out."""
    quantized = dq.inputs[0]
    assert quantized is not None
    dynamic = quantized.producer()
    if dynamic is not None and dynamic.op_type == DYNAMIC_QUANTIZE:
        source = dynamic.inputs[0]
        assert source is not None
        own = tuple(dq.inputs) == tuple(dynamic.outputs)
        return (source, None) if own else "its scale or zero point is not its DynamicQuantizeLinear's"
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
    return (source, params) if source is not None else "its QuantizeLinear reads nothing"


def _params(node: ir.Node) -> QParams | str:
    block = int(node.attributes["block_size"].value or 0) if "block_size" in node.attributes else 0
    scale, zero = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    if scale is None:
        return "it has no scale"
    for what, value in (("scale", scale), ("zero point", zero)):
        if value is not None and value.const_value is None:
            return f"its {what} is {'an input of the model' if value.is_graph_input() else 'computed at run time'}"
    assert scale.const_value is not None, "it is a constant"
    if scale.const_value.dtype is not ir.DataType.FLOAT:
        return f"its scale is {scale.const_value.dtype.name.lower()}, not float32"
    grid = grid_of(node)
    assert grid is not None, "nothing of it is computed"
    dtype, scales, zeros = grid.dtype, grid.scale, grid.zero
    if (dtype, block) not in _TYPES:
        return f"it is quantized to {dtype.name.lower()}{f' in blocks of {block}' if block else ''}"
    if zeros.size != scales.size:
        return f"it has {scales.size} scales and {zeros.size} zero points"
    axis = None
    if scales.size > 1 or block or (scales.ndim == 1 and "axis" in node.attributes):
        shape = node.inputs[0].shape if node.inputs[0] is not None else None
        axis = grid.axis + len(shape) if grid.axis < 0 and shape is not None else grid.axis
    numbers = tuple(scales.reshape(-1).tolist()), tuple(int(z) for z in zeros.reshape(-1))
    params = QParams(_TYPES[dtype, block], *numbers, axis)
    value = node.inputs[0]
    tensor = value.const_value if value is not None else None
    of = tuple(tensor.shape.numpy()) if tensor is not None else ()
    if block and (
        axis is None or axis not in range(len(of)) or of[axis] % block or scale_shape(of, params) != scales.shape
    ):
        return f"its blocks of {block} do not divide it"
    if tensor is not None and not block and not _broadcasts(params, of):
        return f"its {scales.size} scales do not fit axis {axis} of shape {list(of)}"
    return params


def _broadcasts(params: QParams, shape: Sequence[int]) -> bool:
    """Whether each number of ``params`` stands for one slice of a tensor of this shape."""
    counts = {len(params.scale), len(params.zero_point)}
    return counts == {1} or (params.axis in range(len(shape)) and counts == {shape[params.axis or 0]})


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
    steps = _COARSEST_FLOAT_STEP if params.qtype.floating else 1.0
    return bool(np.all(np.abs(tensor.numpy() - array) <= max(params.scale) * steps * 0.51))
