"""Splits an integer graph into TOSA and host partitions that can run one after the other.

An operator's level is the number of changes between TOSA and host on the longest path to it. Those of a level that are
not worth a call of the accelerator, all together, wait for the first operator that needs them. Operators of one level
and one executor form a partition; every edge stays inside or goes to a higher level, so there are no cycles.

Host partitions are ONNX models: the original nodes, with Q/DQ where they read or write integer tensors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from inlay.model.passes.names import free_name
from inlay.quant.keep_float import keep_float
from inlay.tosa import ir
from inlay.tosa.ir import Array, Executor, IntegerGraph, Op
from inlay.tosa.static_model import StaticModel


@dataclass(frozen=True, eq=False)
class Subgraph:
    """Operators of one partition, in topological order."""

    executor: Executor  # TOSA or HOST
    ops: tuple[Op, ...]  # the operators
    # tensors that it reads and does not compute (constants excluded), model inputs first in their order
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]  # tensors that it computes and others read, model outputs first in their order

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the ONNX nodes in it, each once."""
        return tuple(dict.fromkeys(op.source for op in self.ops if op.source))

    @property
    def computes(self) -> bool:
        """Whether it holds work that is worth a call of the accelerator."""
        return any(isinstance(op, ir.COMPUTE) for op in self.ops)


def split(graph: IntegerGraph) -> tuple[Subgraph, ...]:
    """The partitions of ``graph``, in an order in which they can run."""
    ops = [op for op in graph.ops if op.executor is not Executor.CALLER]
    readers: defaultdict[str, list[Op]] = defaultdict(list)
    for op in graph.ops:
        for name in op.inputs:
            readers[name].append(op)
    levels = _levels(ops, readers)
    members: defaultdict[tuple[int, Executor], list[Op]] = defaultdict(list)
    for op in ops:
        members[levels[op.out], op.executor].append(op)
    ordered = sorted(members.items(), key=lambda item: (item[0][0], item[0][1].value))
    return tuple(_subgraph(graph, executor, ops, readers) for (_, executor), ops in ordered)


def _levels(ops: Sequence[Op], readers: Mapping[str, Sequence[Op]]) -> dict[str, int]:
    """The level of each operator, by its first output."""
    at: dict[str, int] = {}
    computed_by = {name: op for op in ops for name in op.outputs}
    for op in ops:
        before = [computed_by[name] for name in op.inputs if name in computed_by]
        at[op.out] = max((at[b.out] + (b.executor is not op.executor) for b in before), default=0)
    at_work = {at[op.out] for op in ops if op.executor is Executor.TOSA and isinstance(op, ir.COMPUTE)}
    for op in reversed(ops):
        after = [r for name in op.outputs for r in readers.get(name, ()) if r.out in at]
        if op.executor is not Executor.TOSA or at[op.out] in at_work or not after:
            continue
        same = min((at[r.out] for r in after if r.executor is op.executor), default=0)
        if same > at[op.out] and all(at[r.out] > same for r in after if r.executor is not op.executor):
            at[op.out] = same
    return at


def _subgraph(
    graph: IntegerGraph, executor: Executor, ops: Sequence[Op], readers: Mapping[str, Sequence[Op]]
) -> Subgraph:
    own = {id(op) for op in ops}
    computed = [name for op in ops for name in op.outputs]
    known = {"", *computed, *graph.constants}
    outputs = {i.tensor for i in graph.outputs}
    return Subgraph(
        executor=executor,
        ops=tuple(ops),
        inputs=_interface_first(
            [n for op in ops for n in op.inputs if n not in known], _carriers(graph, [i.tensor for i in graph.inputs])
        ),
        outputs=_interface_first(
            [n for n in computed if n in outputs or any(id(r) not in own for r in readers.get(n, ()))],
            _carriers(graph, [i.tensor for i in graph.outputs]),
        ),
    )


def _carriers(graph: IntegerGraph, interface: Sequence[str]) -> list[str]:
    """The model's inputs (outputs), each followed by its quantized forms, which the caller computes (or reads)."""
    by_caller = [(op.inputs[0], op.out) for op in graph.ops if op.executor is Executor.CALLER]
    forms = {name: [b if a == name else a for a, b in by_caller if name in (a, b)] for name in interface}
    return [n for name in interface for n in (name, *forms[name])]


def _interface_first(names: Sequence[str], first: Sequence[str]) -> tuple[str, ...]:
    """``names``, each once, those that are in ``first`` before the others."""
    return tuple(dict.fromkeys([*(n for n in first if n in set(names)), *names]))


def without_compute(subgraphs: Sequence[Subgraph]) -> tuple[Subgraph, ...]:
    """TOSA partitions that only move data or requantize, where another partition could do it instead."""
    if len(subgraphs) < 2:
        return ()
    return tuple(p for p in subgraphs if p.executor is Executor.TOSA and not p.computes)


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
