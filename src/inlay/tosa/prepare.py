"""Brings a model into the form that lowering reads: static shapes, unique node names, constants folded to arrays.

Nothing here changes what the model computes, and the caller's proto is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import numpy_helper, shape_inference

from inlay.errors import ModelError
from inlay.model.graph import Graph, build_graph
from inlay.tosa.ir import Array

_ROUNDS = 8
"""Folding a shape computation can make further shapes known; real exports settle within three rounds."""

_IR_VERSION = 4

_KEPT = frozenset({"QuantizeLinear", "DequantizeLinear"})
"""Never folded with constant inputs: a dequantized constant must stay integers with their numbers."""

_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
)


@dataclass(frozen=True, eq=False)
class Source:
    """A prepared model.

    Attributes:
        graph: its nodes, shapes and consumers.
        protos: each node's proto by node name, for the parts that stay ONNX.
        constants: arrays by value name (initializers and folded values).
        dtypes: numpy's name of the element type, by value name.
        opsets, ir_version: what a model made of its nodes must declare.
        functions: local functions that host nodes may call.
    """

    graph: Graph
    protos: Mapping[str, onnx.NodeProto]
    constants: Mapping[str, Array]
    dtypes: Mapping[str, str]
    opsets: tuple[onnx.OperatorSetIdProto, ...]
    ir_version: int
    functions: tuple[onnx.FunctionProto, ...] = ()

    def shape(self, value: str) -> tuple[int, ...] | None:
        """Static shape of ``value``, or None where it is not known."""
        shape = self.graph.shape(value)
        if shape is None or any(d is None for d in shape):
            return None
        return tuple(int(d) for d in shape if d is not None)


def prepare(model: onnx.ModelProto, bind: Mapping[str, int] | None = None) -> Source:
    """Static shapes, names and folded constants of ``model``.

    Args:
        model: any valid ONNX model, with its weights loaded.
        bind: sizes of named dynamic dimensions; every other one becomes 1.

    Raises:
        ModelError: the model is not valid, or its shapes contradict each other.
    """
    work = onnx.ModelProto()
    work.CopyFrom(model)
    # Before version 4 initializers had to be inputs as well; shape inference overlooks those that are not.
    work.ir_version = max(work.ir_version, _IR_VERSION)
    _bind(work, bind or {})
    _constants_to_initializers(work)
    _unique_names(work)
    for _ in range(_ROUNDS):
        work = _infer(work)
        if not _fold(work):
            break
    try:
        graph = build_graph(ir.serde.deserialize_model(work))
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"the model cannot be read: {error}") from error
    return Source(
        graph=graph,
        protos={n.name: n for n in work.graph.node},
        constants={t.name: numpy_helper.to_array(t) for t in work.graph.initializer},
        dtypes={name: dtype.numpy().name for name, dtype in graph.dtypes.items() if _has_numpy(dtype)},
        opsets=tuple(work.opset_import),
        ir_version=work.ir_version,
        functions=tuple(work.functions),
    )


def _has_numpy(dtype: ir.DataType) -> bool:
    try:
        dtype.numpy()
    except TypeError:
        return False
    return True


def _bind(model: onnx.ModelProto, bind: Mapping[str, int]) -> None:
    graph = model.graph
    constants = {t.name for t in graph.initializer}
    inputs = [v for v in graph.input if v.name not in constants]
    del graph.input[:]
    graph.input.extend(inputs)
    for value in graph.input:
        if not value.type.HasField("tensor_type"):
            raise ModelError(f"model input {value.name!r} is not a tensor")
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param") or not dim.HasField("dim_value") or dim.dim_value <= 0:
                size = bind.get(dim.dim_param, 1)
                dim.ClearField("dim_param")
                dim.dim_value = size
    # Recorded shapes may hold the symbols that were just bound: they are inferred again.
    del graph.value_info[:]
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


def _constants_to_initializers(model: onnx.ModelProto) -> None:
    graph = model.graph
    kept = []
    for node in graph.node:
        value = _constant_value(node)
        if value is None:
            kept.append(node)
        else:
            graph.initializer.append(numpy_helper.from_array(value, node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)


def _constant_value(node: onnx.NodeProto) -> Array | None:
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.attribute) != 1:
        return None
    attr = node.attribute[0]
    if attr.name == "value":
        return numpy_helper.to_array(attr.t)
    if attr.name in ("value_float", "value_floats"):
        return np.asarray(onnx.helper.get_attribute_value(attr), np.float32)
    if attr.name in ("value_int", "value_ints"):
        return np.asarray(onnx.helper.get_attribute_value(attr), np.int64)
    return None


def _unique_names(model: onnx.ModelProto) -> None:
    taken = {n.name for n in model.graph.node}
    seen: set[str] = set()
    for index, node in enumerate(model.graph.node):
        if not node.name or node.name in seen:
            base = node.name or f"{node.op_type}_{index}"
            name, count = base, 0
            while name in taken or name in seen:
                count += 1
                name = f"{base}_{count}"
            node.name = name
        seen.add(node.name)


def _infer(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:  # onnx raises bare C++ exceptions of several types
        raise ModelError(f"shapes cannot be inferred: {error}") from error


def _fold(model: onnx.ModelProto) -> bool:
    """Replace nodes whose inputs are all constant by their values; tells whether there were any."""
    graph = model.graph
    shapes = {v.name: v for v in (*graph.value_info, *graph.input)}
    constants = {t.name for t in graph.initializer}
    folded, kept, values = [], [], {}
    for node in graph.node:
        static = _static_shape(node, shapes)
        if static is not None:
            values[node.output[0]] = static
            constants.add(node.output[0])
        elif _foldable(node, constants):
            folded.append(node)
            constants.update(node.output)
        else:
            kept.append(node)
    if not folded and not values:
        return False
    graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in values.items())
    if folded:
        read = {v for n in kept for v in n.input} | {o.name for o in graph.output}
        wanted = [o for n in folded for o in n.output if o and o in read]
        graph.initializer.extend(
            numpy_helper.from_array(v, n) for n, v in zip(wanted, _evaluate(model, folded, wanted), strict=True)
        )
    del graph.node[:]
    graph.node.extend(kept)
    return True


def _foldable(node: onnx.NodeProto, constants: set[str]) -> bool:
    if node.op_type in _RANDOM or node.domain not in ("", "ai.onnx"):
        return False
    if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
        return False
    return node.op_type not in _KEPT and all(v in constants for v in node.input if v)


def _static_shape(node: onnx.NodeProto, shapes: Mapping[str, onnx.ValueInfoProto]) -> Array | None:
    if node.op_type != "Shape" or node.domain not in ("", "ai.onnx") or node.input[0] not in shapes:
        return None
    tensor = shapes[node.input[0]].type.tensor_type
    if not tensor.HasField("shape") or any(not d.HasField("dim_value") for d in tensor.shape.dim):
        return None
    dims = np.array([d.dim_value for d in tensor.shape.dim], np.int64)
    limits = {a.name: a.i for a in node.attribute}
    return dims[limits.get("start", 0) : limits.get("end", len(dims))]


def _evaluate(model: onnx.ModelProto, nodes: list[onnx.NodeProto], wanted: list[str]) -> list[Array]:
    if not wanted:
        return []
    part = onnx.ModelProto()
    part.ir_version = model.ir_version
    part.opset_import.extend(model.opset_import)
    part.graph.name = "constants"
    part.graph.node.extend(nodes)
    read = {v for n in nodes for v in n.input}
    part.graph.initializer.extend(t for t in model.graph.initializer if t.name in read)
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
    try:
        session = ort.InferenceSession(part.SerializeToString(), providers=["CPUExecutionProvider"])
        return [np.asarray(v) for v in session.run(None, {})]
    except Exception as error:  # ONNX Runtime's own exceptions share no base class
        raise ModelError(f"constants of the model cannot be evaluated: {error}") from error
