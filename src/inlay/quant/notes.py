"""What stood in a graph before a target's rewrites, noted on the nodes that they wrote: by it they are undone.

A written node carries, as metadata, how many nodes stood in its place. The first one carries what these were (packed
together they take a third of the bytes), with the constants and the stated shapes that were lost. Constants that the
file holds in another form are not kept twice: it is noted how to have them back. In a file that was changed since, in
which what is noted no longer fits, nothing is undone: it is read as it stands, as one of other origin or without notes.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from inlay.model.metadata import has_entries
from inlay.types import Port, PortRewrite

NOTE, WHOLE, SELECTED = "inlay.was", "inlay.before", "inlay.rewrites"
"""Metadata of a node: how many nodes stood in its place; on one of them, what all these were; and for which of its
inputs a placement named rewrites."""

Inverse = tuple[tuple[str, Any], ...]
"""Steps by which an array is had back from its rearranged form, by name, each with its argument."""

TRANSPOSED: Inverse = (("transpose", None),)  # of a transposed array

_MOST_BYTES = 1 << 28  # of what is noted, unpacked: a file may say anything

_STEPS: Mapping[str, Callable[[np.ndarray, Any], np.ndarray]] = {
    "less": lambda array, number: array - array.dtype.type(number),
    "reshape": lambda array, shape: array.reshape(shape),
    "transpose": lambda array, order: array.transpose(order),
    "flip": lambda array, axes: np.flip(array, axes),
    "crop": lambda array, bounds: array[tuple(slice(*b) for b in bounds)],
}


def inverted(array: np.ndarray, inverse: Iterable[tuple[str, Any]]) -> np.ndarray:
    """``array`` as it was. Raises KeyError, TypeError, ValueError or IndexError where it does not fit."""
    for step, argument in inverse:
        array = _STEPS[step](array, tuple(argument) if isinstance(argument, list) else argument)
    return np.ascontiguousarray(array)


class Unwritten:
    """A graph before it is rewritten; names of its nodes are unique."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._nodes = {n.name: n.SerializeToString() for n in graph.node}
        self._tensors = {t.name: t.SerializeToString() for t in graph.initializer}
        self._shapes = {i.name: i.SerializeToString() for i in graph.value_info}

    def note(
        self, graph: onnx.GraphProto, inverses: Mapping[str, Inverse], selected: Mapping[str, Mapping[str, list[int]]]
    ) -> None:
        """Leave notes on the nodes of ``graph``, the rewritten one, that are new.

        Args:
            inverses: of changed constants, by name; others are noted whole.
            selected: by node, the slots at which a placement named rewrites, by rewrite.
        """
        tensors = {t.name: t for t in graph.initializer}
        lost = {v for v, was in self._tensors.items() if v not in tensors or tensors[v].SerializeToString() != was}
        same = {n.name for n in graph.node if self._nodes.get(n.name) == n.SerializeToString()}
        written = {n.name: 0 for n in graph.node if n.name not in same}
        hosts = [n for n in graph.node if n.name in written] or [n for n in graph.node if lost.intersection(n.input)]
        whole, waiting = onnx.GraphProto(doc_string=str(len(written))), 0
        for name, was in self._nodes.items():
            if name not in same:
                whole.node.add().ParseFromString(was)
                waiting += 1
            if name in written:
                written[name], waiting = waiting, 0
        if written:
            written[next(reversed(written))] += waiting
        stated = {i.name for i in graph.value_info}
        whole.value_info.extend(onnx.ValueInfoProto.FromString(s) for v, s in self._shapes.items() if v not in stated)
        for value in sorted(lost):
            if value in inverses:
                whole.metadata_props.add(key=value, value=json.dumps(inverses[value]))
            else:
                whole.initializer.add().ParseFromString(self._tensors[value])
        for node in graph.node:
            if node.name in written:
                node.metadata_props.add(key=NOTE, value=str(written[node.name]))
            if node.name in selected:
                node.metadata_props.add(key=SELECTED, value=json.dumps(selected[node.name]))
        if hosts:
            packed = zlib.compress(whole.SerializeToString(deterministic=True))
            hosts[0].metadata_props.add(key=WHOLE, value=base64.b64encode(packed).decode())


def undo(graph: ir.Graph) -> frozenset[PortRewrite]:
    """Undo all rewrites of ``graph`` by their notes, and return where a placement named them.

    Raises:
        ValueError: a note does not fit; the graph is left in an unknown state.
    """
    try:
        return _undo(graph)
    except (KeyError, TypeError, IndexError, AttributeError, RuntimeError, DecodeError, zlib.error) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def forget(graph: ir.Graph) -> None:
    """Remove all notes."""
    for node in graph:
        if has_entries(node, "metadata_props"):
            for key in (NOTE, WHOLE, SELECTED):
                node.metadata_props.pop(key, None)


def _undo(graph: ir.Graph) -> frozenset[PortRewrite]:
    noted = [n for n in graph if has_entries(n, "metadata_props")]
    written = [n for n in noted if NOTE in n.metadata_props]
    texts = [n.metadata_props[WHOLE] for n in noted if WHOLE in n.metadata_props]
    whole = _read(texts[0]) if texts else onnx.GraphProto(doc_string="0")
    counts = [int(n.metadata_props[NOTE]) for n in written]
    if len(texts) > 1 or len(written) != int(whole.doc_string) or sum(counts) != len(whole.node):
        raise ValueError("some notes are gone, or others there")
    gone = set(written)
    values = {str(v.name): v for v in (*graph.inputs, *graph.initializers.values())}
    values |= {str(v.name): v for n in graph if n not in gone for v in n.outputs}
    for tensor in whole.initializer:
        values[tensor.name] = _set_constant(graph, tensor.name, ir.from_proto(tensor))
    for entry in whole.metadata_props:
        held = values[entry.key].const_value
        array = inverted(held.numpy(), json.loads(entry.value))  # type: ignore[union-attr]
        _set_constant(graph, entry.key, ir.tensor(array, name=entry.key))
    for name in [v for proto in whole.node for v in proto.output if v]:
        if name in values:
            raise ValueError(f"{name} is there")
        values[name] = ir.Value(name=name)
    protos = iter(whole.node)
    for node, count in zip(written, counts, strict=True):
        graph.insert_before(node, [_node(proto, values) for proto in islice(protos, count)])
    for old in [v for n in written for v in n.outputs if v.name]:
        if str(old.name) in values:
            new = values[str(old.name)]
            new.type, new.shape = old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
    for info in whole.value_info:
        ir.serde.deserialize_value_info_proto(info, values[info.name])
    selected = [
        PortRewrite(Port(str(n.name), slot), name)
        for n in noted
        for name, slots in json.loads(n.metadata_props.get(SELECTED, "{}")).items()
        for slot in slots
    ]
    graph.remove(written, safe=True)  # raises ValueError where one of their values is still read
    graph.sort()
    return frozenset(selected)


def _read(text: str) -> onnx.GraphProto:
    """What is noted. Raises ValueError where it holds more than nodes and numbers: names of files, and bodies."""
    unpacking = zlib.decompressobj()
    note = onnx.GraphProto.FromString(unpacking.decompress(base64.b64decode(text, validate=True), _MOST_BYTES))
    attributes = [a for n in note.node for a in n.attribute]
    tensors = (*note.initializer, *(a.t for a in attributes), *(t for a in attributes for t in a.tensors))
    if (
        not unpacking.eof
        or any(t.external_data for t in tensors)
        or any(a.HasField("g") or a.graphs for a in attributes)
    ):
        raise ValueError("it is no note of a rewrite")
    return note


def _node(proto: onnx.NodeProto, values: Mapping[str, ir.Value]) -> ir.Node:
    return ir.Node(
        proto.domain,
        proto.op_type,
        [values[v] if v else None for v in proto.input],
        [ir.serde.deserialize_attribute(a) for a in proto.attribute],
        outputs=[values[v] if v else ir.Value(name="") for v in proto.output],
        name=proto.name,
        doc_string=proto.doc_string or None,
        metadata_props={m.key: m.value for m in proto.metadata_props},
    )


def _set_constant(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    value = graph.initializers.get(name)
    if value is None:
        value = ir.Value(name=name, const_value=tensor)
        graph.register_initializer(value)
    value.const_value, value.shape, value.type = tensor, ir.Shape(tensor.shape.numpy()), ir.TensorType(tensor.dtype)
    return value
