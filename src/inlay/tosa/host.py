"""Host partitions as ONNX models: the original nodes, with Q/DQ where they read or write integer tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from inlay.model.passes.names import free_name
from inlay.quant.keep_float import keep_float
from inlay.tosa import ir
from inlay.tosa.ir import Array, IntegerGraph, Op
from inlay.tosa.partition import Subgraph
from inlay.tosa.static_model import StaticModel


def host_model(graph: IntegerGraph, subgraph: Subgraph, static: StaticModel) -> onnx.ModelProto:
    """The ONNX model of a host partition; its inputs and outputs have the integer graph's tensor names."""
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, Array] = {}
    for op in subgraph.ops:
        constants.update({n: graph.constants[n] for n in op.inputs if n in graph.constants})
        nodes.extend(_nodes(graph, op, constants))
    proto = helper.make_graph(
        nodes,
        "host",
        [_value(graph, n) for n in subgraph.inputs],
        [_value(graph, n) for n in subgraph.outputs],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )
    names = {*graph.tensors, *constants, *(n.name for n in nodes)}
    opset = next((o.version for o in static.opsets if o.domain in ("", "ai.onnx")), 0)
    keep_float(proto, partial(free_name, taken=names), opset)
    model = helper.make_model(proto, opset_imports=static.opsets, ir_version=static.ir_version)
    model.functions.extend(static.functions)
    return model


def _value(graph: IntegerGraph, name: str) -> onnx.ValueInfoProto:
    tensor = graph.tensors[name]
    if not tensor.dtype:
        return onnx.ValueInfoProto(name=name)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype)), tensor.shape)


def _nodes(graph: IntegerGraph, op: Op, constants: dict[str, Array]) -> Sequence[onnx.NodeProto]:
    match op:
        case ir.Host():
            return _original(op)
        case ir.Quantize():
            return [
                helper.make_node(
                    "QuantizeLinear", [op.inputs[0], *_scale_and_zero_point(graph, op.out, constants)], [op.out]
                )
            ]
        case ir.Dequantize() if graph.tensors[op.inputs[0]].dtype == "int16":
            return _dequantize_16_bits(graph, op, constants)
        case ir.Dequantize():
            qparams = _scale_and_zero_point(graph, op.inputs[0], constants)
            return [helper.make_node("DequantizeLinear", [op.inputs[0], *qparams], [op.out])]
        case ir.Rescale():
            return _uint8_conversion(graph, op, constants)
        case ir.RowNumbers():
            return _row_numbers(graph, op, constants)
    raise AssertionError(f"{type(op).__name__} never runs on the host")


def _scale_and_zero_point(graph: IntegerGraph, tensor: str, constants: dict[str, Array]) -> tuple[str, str]:
    qparams = graph.tensors[tensor].qparams
    assert qparams is not None
    scale, zero = f"{tensor}/scale", f"{tensor}/zero_point"
    constants[scale] = np.array(qparams.scale[0], np.float32)
    constants[zero] = np.array(qparams.zero_point[0], qparams.qtype.value)
    return scale, zero


def _dequantize_16_bits(graph: IntegerGraph, op: Op, constants: dict[str, Array]) -> Sequence[onnx.NodeProto]:
    """DequantizeLinear takes 16 bits since opset 21 only; the zero point is 0."""
    scale, _ = _scale_and_zero_point(graph, op.inputs[0], constants)
    steps = f"{op.out}/steps"
    return [
        helper.make_node("Cast", [op.inputs[0]], [steps], to=TensorProto.FLOAT),
        helper.make_node("Mul", [steps, scale], [op.out]),
    ]


def _original(op: ir.Host) -> Sequence[onnx.NodeProto]:
    node = onnx.NodeProto()
    node.CopyFrom(op.node)
    own = len(node.input)
    # Values that a subgraph captures keep their ONNX names.
    extra = [
        helper.make_node("Identity", [tensor], [name])
        for tensor, name in zip(op.inputs[own:], op.captured, strict=True)
        if tensor != name
    ]
    del node.input[:]
    node.input.extend(op.inputs[:own])
    names = [tensor if name else "" for tensor, name in zip(op.outputs, node.output, strict=True)]
    del node.output[:]
    node.output.extend(names)
    return [*extra, node]


def _uint8_conversion(graph: IntegerGraph, op: ir.Rescale, constants: dict[str, Array]) -> Sequence[onnx.NodeProto]:
    """uint8 to int8 or back at a model boundary: the same grid, shifted by 128."""
    offset = f"{op.out}/offset"
    constants[offset] = np.array(op.out_zp - op.in_zp, np.int32)
    wide, moved = f"{op.out}/wide", f"{op.out}/moved"
    to = TensorProto.INT8 if graph.tensors[op.out].dtype == "int8" else TensorProto.UINT8
    return [
        helper.make_node("Cast", [op.inputs[0]], [wide], to=TensorProto.INT32),
        helper.make_node("Add", [wide, offset], [moved]),
        helper.make_node("Cast", [moved], [op.out], to=to),
    ]


def _row_numbers(graph: IntegerGraph, op: ir.RowNumbers, constants: dict[str, Array]) -> Sequence[onnx.NodeProto]:
    """The remainder by the size, which counts −1 as the last row, in the accelerator's type."""
    size, rows = f"{op.out}/size", f"{op.out}/rows"
    constants[size] = np.array(op.size, graph.tensors[op.inputs[0]].dtype)
    return [
        helper.make_node("Mod", [op.inputs[0], size], [rows]),
        helper.make_node("Cast", [rows], [op.out], to=TensorProto.INT32),
    ]
