"""Models as protos, with other tensors for their constants: no copy in between, and each type is written once.

The library's own functions write all that is unusual. They take most of their time for the shapes of values and for
attributes, which repeat in thousands of operators: those are written once and copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import cast

import onnx
import onnx_ir as ir

from inlay.errors import ModelError
from inlay.model.gc_pause import gc_paused
from inlay.model.metadata import has_entries

_DEVICES = "device_configurations"  # older versions of the library know none
_HASHED = frozenset({ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.STRING})  # equal means the same

Constant = Callable[[str, ir.TensorProtocol], ir.TensorProtocol | onnx.TensorProto | None]


@gc_paused()
def proto_with(model: ir.Model, constant: Constant, ir_version: int | None = None) -> onnx.ModelProto:
    """``model`` as a proto with other tensors for its initializers.

    Args:
        constant: gives the tensor that stands for an initializer, by its name and its own tensor, where it is another
            one as a proto of that name; None makes it an input of the graph.

    Raises:
        ModelError: something was read that cannot be written.
    """
    with _well_formed():
        return _proto_with(model, constant, ir_version)


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """``model`` as a proto. Raises ModelError where something was read that cannot be written."""
    return proto_with(model, lambda _, tensor: tensor)


@contextmanager
def _well_formed() -> Iterator[None]:
    try:
        yield
    except (ir.serde.SerdeError, TypeError, ValueError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ModelError(f"the model is not well-formed: {cause}") from error


def _proto_with(model: ir.Model, constant: Constant, ir_version: int | None) -> onnx.ModelProto:
    graph = model.graph
    inputs, initializers = list(graph.inputs), list[ir.Value]()
    others: dict[str | None, onnx.TensorProto] = {}
    listed = {v.name for v in inputs}
    for name, value in graph.initializers.items():
        tensor = value.const_value
        given = None if tensor is None else constant(name, tensor)
        if given is None and tensor is not None:
            if name not in listed:
                inputs.append(value)
            continue
        initializers.append(value)
        if isinstance(given, onnx.TensorProto):
            others[name] = given
    computed = (v for node in graph for v in node.outputs)
    if model.functions or any(has_entries(v, "meta") for v in chain(inputs, initializers, computed)):
        twins = [_twin(v, others[v.name]) if v.name in others else v for v in initializers]
        return ir.to_proto(_seen(model, inputs, twins, graph, ir_version))
    proto = ir.to_proto(_seen(model, inputs, (), (), ir_version))
    _write(proto.graph, initializers, others, listed, graph)
    return proto


def _twin(value: ir.Value, proto: onnx.TensorProto) -> ir.Value:
    """``value`` with another tensor."""
    tensor = ir.serde.deserialize_tensor(proto)
    twin = ir.Value(
        name=value.name, type=value.type, shape=value.shape, doc_string=value.doc_string, const_value=tensor
    )
    twin.metadata_props.update(value.metadata_props)
    twin.meta.update(value.meta)
    return twin


def _seen(
    model: ir.Model,
    inputs: list[ir.Value],
    initializers: list[ir.Value] | tuple[()],
    nodes: ir.Graph | tuple[()],
    ir_version: int | None,
) -> ir.Model:
    """``model`` with other inputs, initializers and nodes."""
    graph = model.graph
    view = ir.GraphView(
        inputs,
        graph.outputs,
        nodes=nodes,
        initializers=initializers,
        doc_string=graph.doc_string,
        opset_imports=graph.opset_imports,
        name=graph.name,
        metadata_props=graph.metadata_props,
    )
    return ir.Model(
        cast(ir.Graph, view),  # as its documentation says: a view can be serialized as a model
        ir_version=ir_version or model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=tuple(model.functions.values()),
        metadata_props=model.metadata_props,
    )


def _sizes(value: ir.Value) -> Sequence[int] | None:
    """The sizes of a tensor where nothing more is known of it."""
    kind, shape = value.type, value.shape
    if (
        type(kind) is not ir.TensorType
        or kind.denotation
        or shape is None
        or value.doc_string
        or has_entries(value, "metadata_props")
    ):
        return None
    if not shape.is_static() or any(shape.get_denotation(i) for i in range(len(shape))):
        return None
    return shape.numpy()


def _write(
    proto: onnx.GraphProto,
    initializers: list[ir.Value],
    others: Mapping[str | None, onnx.TensorProto],
    listed: set[str | None],
    graph: ir.Graph,
) -> None:
    """Add constants, nodes and the types of values, as the library does and in its order."""
    types: dict[tuple[ir.DataType, Sequence[int]], onnx.TypeProto] = {}
    attributes: dict[tuple[object, ...], onnx.AttributeProto] = {}

    def note(value: ir.Value) -> None:
        if (
            value.shape is None
            and value.type is None
            and not value.doc_string
            and not has_entries(value, "metadata_props")
        ):
            return
        if not value.name:
            return
        sizes = _sizes(value)
        if sizes is None or value.dtype is None:
            ir.serde.serialize_value_into(proto.value_info.add(), value)
            return
        key = (value.dtype, sizes)
        if key not in types:
            types[key] = ir.serde.serialize_value(value).type
        proto.value_info.add(name=value.name, type=types[key])

    def written(attribute: ir.Attr) -> onnx.AttributeProto:
        if attribute.is_ref():
            return ir.serde.serialize_reference_attribute(attribute)
        if attribute.type not in _HASHED or attribute.doc_string:
            return ir.serde.serialize_attribute(attribute)
        value = attribute.value
        key = (attribute.name, attribute.type, tuple(value) if isinstance(value, list) else value)
        if key not in attributes:
            attributes[key] = ir.serde.serialize_attribute(attribute)
        return attributes[key]

    for value in initializers:
        if value.name not in listed:
            note(value)
        tensor = value.const_value
        if value.name in others:
            proto.initializer.append(others[value.name])
        elif tensor is not None:
            tensor.name = value.name
            ir.serde.serialize_tensor_into(proto.initializer.add(), tensor)
    for node in graph:
        remarks = node.doc_string or has_entries(node, "metadata_props")
        if remarks or node.overload or getattr(node, _DEVICES, None):
            ir.serde.serialize_node_into(proto.node.add(), node)
        else:
            outputs = [v.name or "" for v in node.outputs]
            while outputs and not outputs[-1]:
                outputs.pop()
            proto.node.add(
                op_type=node.op_type,
                domain=node.domain or None,
                name=node.name or None,
                input=["" if v is None else v.name for v in node.inputs],
                output=outputs,
                attribute=[written(a) for a in node.attributes.values()],
            )
        for value in node.outputs:
            if not value.is_graph_output():
                note(value)
