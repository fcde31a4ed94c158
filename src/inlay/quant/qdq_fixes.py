"""The least changes by which a Q/DQ graph meets one precondition: experiments that show whether a reason is true.

They change where Q and DQ nodes stand, and their types; the numbers of what they add are made up, since what a runtime
fuses does not depend on them. A mended model is built and profiled, and never delivered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import add_constant, insert_behind
from inlay.quant.qdq_graph import DEQUANTIZE, QUANTIZE
from inlay.quant.site import Grid, Read, Result, Site, dequantizers, grid_of
from inlay.types import QType

_SCALE = np.asarray(0.05, np.float32)  # of what is added
_NUMPY: Mapping[ir.DataType, Any] = {
    ir.DataType.INT8: np.int8,
    ir.DataType.UINT8: np.uint8,
    ir.DataType.INT32: np.int32,
}


def quantize_read(site: Site, read: Read) -> None:
    """Let an operator read a float activation, or a float constant, through Q/DQ."""
    if read.is_constant:
        array = np.asarray(read.value.const_value.numpy(), np.float32)  # type: ignore[union-attr]
        bias, weight = read.slot == site.rule.bias, read.slot in site.rule.weights
        qtype = QType.INT32 if bias else site.rules.weight if weight else site.rules.activation
        _read_constant(site, read, array, _stored(qtype))
        return
    known = [u.node for u in read.value.uses() if u.node.op_type == QUANTIZE]
    site.node.replace_input_with(read.slot, _dequantized(site, read.value, known[0] if known else None))


def quantize_result(site: Site, result: Result) -> None:
    """Let all readers of a result, and the graph's output where it is one, read it through one Q/DQ pair."""
    value = result.value
    old = [(u.node, u.idx) for u in value.uses() if u.node not in result.quantizers]
    outputs = [i for i, v in enumerate(site.graph.outputs) if v is value]
    known = result.quantizers[0] if result.quantizers else None
    read = _dequantized(site, value, known, bool(result.absorbed))
    for reader, slot in old:
        if reader is not read.producer():
            reader.replace_input_with(slot, read)
    for i in outputs:
        read.type, read.shape = value.type, value.shape
        site.graph.outputs[i] = read


def join_quantizers(result: Result) -> None:
    """Let all readers behind several QuantizeLinear nodes of a value read the first one's."""
    first = result.quantizers[0]
    found = dequantizers(first)
    for other in result.quantizers[1:]:
        for dq in dequantizers(other):
            if found and not dq.outputs[0].is_graph_output():
                dq.outputs[0].replace_all_uses_with(found[0].outputs[0])


def set_grid(node: ir.Node, dtype: ir.DataType, scale: np.ndarray, zero: np.ndarray) -> None:
    """Give a Q node and the DQ nodes behind it, or a DQ node alone, another grid."""
    assert isinstance(node.graph, ir.Graph)
    numbers = np.asarray(scale, np.float32), np.asarray(zero, _NUMPY[dtype])
    new = [_constant(node.graph, str(node.name), a) for a in numbers]
    behind = dequantizers(node) if node.op_type == QUANTIZE else ()
    for each in (node, *behind):
        for slot, value in enumerate(new, 1):
            if slot < len(each.inputs):
                each.replace_input_with(slot, value)
            else:
                each.resize_inputs(slot + 1)
                each.replace_input_with(slot, value)
        if scale.ndim == 0:
            each.attributes.pop("axis", None)
        each.attributes.pop("output_dtype", None)
    if node.op_type == QUANTIZE:
        node.outputs[0].type = ir.TensorType(dtype)


def make_unsigned(node: ir.Node) -> None:
    """Write int8 as uint8: the same numbers, 128 higher. A Q with its DQ nodes, or the DQ of a constant."""
    grid = grid_of(node)
    if grid is None or grid.dtype is not ir.DataType.INT8:
        return
    if node.op_type == DEQUANTIZE:
        value = node.inputs[0]
        assert value is not None
        assert value.const_value is not None
        assert isinstance(node.graph, ir.Graph)
        array = (np.asarray(value.const_value.numpy()).astype(np.int16) + 128).astype(np.uint8)
        node.replace_input_with(0, _constant(node.graph, f"{value.name}_unsigned", array))
    set_grid(node, ir.DataType.UINT8, grid.scale, grid.zero + 128)


def one_scale(node: ir.Node, grid: Grid) -> None:
    """Give a Q node with its DQ nodes, or a DQ, a single scale that is a scalar, the largest that it had."""
    set_grid(node, grid.dtype, np.asarray(grid.scale.max()), grid.zero.reshape(-1)[:1].reshape(()))


def _stored(qtype: QType) -> ir.DataType:
    return ir.DataType[qtype.element.upper()]


def _read_constant(site: Site, read: Read, array: np.ndarray, dtype: ir.DataType) -> None:
    info = np.iinfo(_NUMPY[dtype])
    zero = 128 if dtype is ir.DataType.UINT8 else 0
    largest = float(np.abs(array).max(initial=0.0)) or 1.0
    scale = np.asarray(largest / (2**20 if dtype is ir.DataType.INT32 else 127.0), np.float32)
    if dtype is ir.DataType.INT32:
        products = product_scale(site)
        scale = scale if products is None else products
    integers = np.clip(np.round(array / scale) + zero, info.min, info.max).astype(info.dtype)
    name = f"{read.value.name}_quantized"
    zeros = np.full(scale.shape, zero, info.dtype)
    inputs = [_constant(site.graph, name, a) for a in (integers, scale, zeros)]
    node = _node(site.graph, DEQUANTIZE, inputs, name)
    if scale.ndim:
        node.attributes["axis"] = ir.AttrInt64("axis", 0)
    site.graph.insert_before(site.node, node)
    site.node.replace_input_with(read.slot, node.outputs[0])


def product_scale(site: Site) -> np.ndarray | None:
    """The scale of the products that a bias is added to: input's times weight's, for each channel where it has several.

    None where one of the two is float, or computed, or the input has several.
    """
    now = Site(site.node, site.rules)  # what was mended since ``site`` was looked at counts
    read = now.read(now.rule.weight)  # also of a float constant behind a Q, as ModelOpt writes it
    weight = None if read is None else read.grid
    given = now.activations[0].grid if now.activations else None
    if weight is None or given is None or given.scale.size > 1:
        return None
    scale = np.asarray(given.scale.reshape(()) * weight.scale, np.float32)
    return scale if scale.size > 1 else scale.reshape(())


def requantize_bias(site: Site) -> None:
    """Give a quantized bias the scale of the products and int32, so that it stays as near to its values as it can."""
    bias, scale = site.bias, product_scale(site)
    if bias is None or bias.dequantizer is None or bias.grid is None or scale is None or not bias.is_constant:
        return
    stored, grid = bias.dequantizer.inputs[0], bias.grid
    assert stored is not None
    assert stored.const_value is not None
    array = (np.asarray(stored.const_value.numpy()).astype(np.float64) - grid.zero.reshape(-1)) * grid.scale.reshape(-1)
    _read_constant(site, bias, array.astype(np.float32), ir.DataType.INT32)


def _dequantized(site: Site, value: ir.Value, quantizer: ir.Node | None, at_least: bool = False) -> ir.Value:
    """``value`` behind the pair that it has, or behind a new one; its least integer is its zero where ``at_least``."""
    if quantizer is None:
        return _pair(site.graph, value, _stored(site.rules.activation), at_least)
    found = dequantizers(quantizer)
    if found:
        return found[0].outputs[0]
    node = _node(site.graph, DEQUANTIZE, [quantizer.outputs[0], *quantizer.inputs[1:]], str(value.name))
    site.graph.insert_after(quantizer, node)
    return node.outputs[0]


def _pair(graph: ir.Graph, value: ir.Value, dtype: ir.DataType, at_least: bool) -> ir.Value:
    """A new pair for ``value``, behind the node that writes it, or at the graph's beginning."""
    signed = dtype is ir.DataType.INT8
    zero = (-128 if signed else 0) if at_least else (0 if signed else 128)
    name = f"{value.name}_mended"
    grid = [_constant(graph, name, a) for a in (_SCALE, np.asarray(zero, _NUMPY[dtype]))]
    q = _node(graph, QUANTIZE, [value, *grid], name)
    q.outputs[0].type = ir.TensorType(dtype)
    dq = _node(graph, DEQUANTIZE, [q.outputs[0], *grid], name)
    insert_behind(value, [q, dq], graph)
    return dq.outputs[0]


def _node(graph: ir.Graph, op_type: str, inputs: Sequence[ir.Value | None], name: str) -> ir.Node:
    unique = f"{name}_{op_type}_{len(graph)}"  # nothing is removed before the model is written
    node = ir.Node("", op_type, inputs, name=unique)
    node.outputs[0].name = f"{unique}_out"
    return node


def _constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """A new initializer whose name depends on its content: stores of weights keep one array for each name."""
    array = np.asarray(array)
    digest = hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).hexdigest()[:12]
    return add_constant(graph, f"{name}_{digest}", array)
