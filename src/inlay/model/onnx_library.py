"""Compiled functions of the ``onnx`` package, called in the guarded process: to check, convert, inline and infer.

Models go there without their weights: what is larger than ``INLINE_BYTES`` goes in as a graph input, so that it costs
no copies, and comes back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import onnx
import onnx_ir as ir

from inlay.errors import ModelError, RunFailed, TargetError
from inlay.model import native
from inlay.model.guard import call, limits_for
from inlay.model.serialize import proto_with
from inlay.model.store import INLINE_BYTES

T = TypeVar("T")


def convert_opset(model: ir.Model, version: int) -> ir.Model:
    """A model that computes the same in opset ``version``; ``model`` itself is not changed.

    Raises:
        RunFailed: the converter cannot convert an operator.
        Crashed, TimedOut: it ended its process.
    """
    # The converter wants every initializer among the inputs up to IR version 3 and is happy without from 4 on.
    light = _light(model, max(model.ir_version or 0, 4))
    return _rewritten(model, _called("converting the opset", native.convert, model, light, version))


def inline_functions(model: ir.Model) -> ir.Model:
    """``model`` with every call of a local function replaced by what is in it; ``model`` itself is not changed.

    Raises:
        RunFailed: a call does not fit its function.
        Crashed, TimedOut: the inliner ended its process.
    """
    return _rewritten(model, _called("inlining local functions", native.inline, model, _light(model)))


def _rewritten(model: ir.Model, data: bytes) -> ir.Model:
    """What was made of the light form of ``model``, with its weights."""
    kept = {
        name: v.const_value
        for name, v in model.graph.initializers.items()
        if v.const_value is not None and v.const_value.nbytes >= INLINE_BYTES
    }
    listed = {v.name for v in model.graph.inputs}
    made = ir.from_proto(onnx.ModelProto.FromString(data))
    for value in [v for v in made.graph.inputs if v.name in kept]:
        if value.name not in listed:
            made.graph.inputs.remove(value)
        value.const_value = kept[str(value.name)]
        made.graph.register_initializer(value)
    return made


def check(model: ir.Model) -> None:
    """Raise ModelError where ``model`` breaks a rule of ONNX, or checking it ends its process."""
    try:
        _called("checking the model", native.check, model, _light(model))
    except TargetError as error:
        raise ModelError(str(error)) from error


def infer_shapes(model: ir.Model, strict: bool = True) -> None:
    """Set the types and shapes that ONNX's rules give the values of ``model``.

    Args:
        strict: where one operator breaks a rule, nothing changes; otherwise only its own results stay unknown.

    Raises:
        RunFailed: not strict, and nothing can be inferred.
        Crashed, TimedOut: inference ended its process.
    """
    try:
        inferred = _called("inferring shapes", native.infer, model, _light(model), strict)
    except RunFailed:
        if strict:
            return
        raise
    read: dict[bytes, ir.Value] = {}  # values of one type share its shape, which is frozen
    for graph, found in zip(model.graphs(), inferred, strict=True):
        proto = onnx.GraphProto.FromString(found)
        known = {i.name: i for infos in (proto.value_info, proto.input, proto.output) for i in infos}
        for value in (*graph.inputs, *(v for n in graph for v in n.outputs)):
            if value.name not in known:
                continue
            info = known[value.name]
            key = info.type.SerializeToString()
            if key not in read:
                read[key] = ir.from_proto(info)
            other = read[key]
            if other.type is not None and not isinstance(other.type, ir.TensorType):
                value.type = other.type  # a sequence has no shape, and the type of its elements is not its own
                continue
            if other.shape is not None:
                value.shape = other.shape
            if other.dtype is not None and other.dtype != value.dtype:
                value.dtype = other.dtype


def inferred_shapes(model: ir.Model, inputs: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """The shapes in the main graph that follow from those of its ``inputs``, by name of the value.

    Raises:
        RunFailed: nothing can be inferred.
        Crashed, TimedOut: inference ended its process.
    """
    light = _light(model)
    for info in light.graph.input:
        if info.name in inputs:
            info.type.tensor_type.shape.CopyFrom(
                onnx.TensorShapeProto(dim=[onnx.TensorShapeProto.Dimension(dim_value=d) for d in inputs[info.name]])
            )
    for info in light.graph.output:  # what a model states of other sizes is no longer true
        info.type.tensor_type.ClearField("shape")
    del light.graph.value_info[:]
    graph = onnx.GraphProto.FromString(_called("inferring shapes", native.infer, model, light, False)[0])
    return {
        info.name: tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
        for info in (*graph.input, *graph.output, *graph.value_info)
        if info.type.tensor_type.HasField("shape")
        and all(d.HasField("dim_value") for d in info.type.tensor_type.shape.dim)
    }


def _called(doing: str, function: Callable[..., T], model: ir.Model, light: onnx.ModelProto, *arguments: int) -> T:
    data = light.SerializeToString()
    return call(doing, function, data, *arguments, limits=limits_for(len(data), model.graph.num_nodes()))


def _light(model: ir.Model, ir_version: int | None = None) -> onnx.ModelProto:
    """``model`` with its large initializers as inputs."""
    return proto_with(model, lambda _, tensor: tensor if tensor.nbytes < INLINE_BYTES else None, ir_version)
