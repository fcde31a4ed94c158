"""Compiled functions of the ``onnx`` package, called in the guarded process: checks, conversion, shape inference.

Models go there without their weights: what is larger than ``INLINE_BYTES`` goes in as a graph input, so that it costs
no copies, and comes back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir

from inlay.errors import ModelError, RunFailed, TargetError
from inlay.model import native
from inlay.model.guard import call, limits_for
from inlay.model.store import INLINE_BYTES, to_proto


def convert_opset(model: ir.Model, version: int) -> ir.Model:
    """A model that computes the same in opset ``version``; ``model`` itself is not changed.

    Raises:
        RunFailed: the converter cannot convert an operator.
        Crashed, TimedOut: it ended its process.
    """
    light, kept = _light(model)
    listed = {v.name for v in model.graph.inputs}
    # The converter wants every initializer among the inputs up to IR version 3 and is happy without from 4 on.
    light.ir_version = max(light.ir_version or 0, 4)
    converted = ir.from_proto(_called("converting the opset", native.convert, light, version))
    for value in [v for v in converted.graph.inputs if v.name in kept and v.name not in listed]:
        converted.graph.inputs.remove(value)
    for value in [*converted.graph.inputs, *(v for n in converted.graph for v in n.inputs if v is not None)]:
        if value.name in kept and value.const_value is None:
            value.const_value = kept[value.name]
            converted.graph.register_initializer(value)
    return converted


def check(model: ir.Model) -> None:
    """Raise ModelError where ``model`` breaks a rule of ONNX, or checking it ends its process."""
    try:
        _called("checking the model", native.check, _light(model)[0])
    except TargetError as error:
        raise ModelError(str(error)) from error


def infer_shapes(model: ir.Model, strict: bool = True) -> None:
    """Set the types and shapes that ONNX's rules give the values of ``model``.

    Args:
        model: is changed.
        strict: where one operator breaks a rule, nothing changes; otherwise only its own results stay unknown.

    Raises:
        RunFailed: not strict, and nothing can be inferred.
        Crashed, TimedOut: inference ended its process.
    """
    try:
        inferred = ir.from_proto(_called("inferring shapes", native.infer, _light(model)[0], strict))
    except RunFailed:
        if strict:
            return
        raise
    for graph, found in zip(model.graphs(), inferred.graphs(), strict=True):
        known = {v.name: v for v in _values(found)}
        for value in _values(graph):
            other = known.get(value.name)
            if other is not None and other.shape is not None:
                value.shape = other.shape
            if other is not None and other.dtype is not None and other.dtype != value.dtype:
                value.dtype = other.dtype


def _values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *(v for n in graph for v in n.outputs)]


def _called(doing: str, function: Callable[..., bytes], model: ir.Model, *arguments: int) -> onnx.ModelProto:
    data = to_proto(model).SerializeToString()
    limits = limits_for(len(data), model.graph.num_nodes())
    return onnx.ModelProto.FromString(call(doing, function, data, *arguments, limits=limits))


def _light(model: ir.Model) -> tuple[ir.Model, dict[str | None, ir.TensorProtocol]]:
    """A copy of ``model`` whose large initializers are graph inputs, and those initializers."""
    light = model.clone()
    listed = {v.name for v in light.graph.inputs}
    kept: dict[str | None, ir.TensorProtocol] = {}
    for name, value in list(light.graph.initializers.items()):
        tensor = value.const_value
        if tensor is not None and tensor.nbytes >= INLINE_BYTES:
            kept[name] = tensor
            light.graph.initializers.pop(name)
            value.const_value = None
            if name not in listed:
                light.graph.inputs.append(value)
    return light, kept
