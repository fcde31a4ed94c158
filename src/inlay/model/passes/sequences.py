"""Sequences of tensors, as exporters write ``torch.split`` and ``torch.stack``, become Split and Concat.

Only where every reader takes an element at a constant position, or joins all of them: any other sequence stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.steps import add_constant, constant_of, is_standard

_MOST_PARTS = 256  # a Split of more outputs than that is no layer of a network


def fold_sequences(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each sequence whose elements are known one by one."""
    graph = model.graph
    made = [
        n for n in graph if is_standard(n, "SplitToSequence", "SequenceConstruct") and _is_plain(n.outputs[0], graph)
    ]
    if any(n.inputs[0] is not None and n.inputs[0].shape is None for n in made):
        infer_shapes(model, strict=False)
    folded = 0
    for node in made:
        sizes = None if node.op_type == "SequenceConstruct" else _sizes(node)
        count = len(node.inputs) if node.op_type == "SequenceConstruct" else len(sizes or ())
        readers = [use.node for use in node.outputs[0].uses()]
        if not 0 < count <= _MOST_PARTS or not all(_is_known(reader, count) for reader in readers):
            continue
        parts = [v for v in node.inputs if v is not None] if sizes is None else _split(node, sizes, graph)
        for reader in readers:
            _replace(reader, parts, graph)
        folded += 1
    if folded:
        RemoveUnusedNodesPass()(model)
    return model, folded


def _is_plain(value: ir.Value, graph: ir.Graph) -> bool:
    """Whether only operators of ``graph`` read a sequence."""
    return not value.is_graph_output() and all(use.node.graph is graph for use in value.uses())


def _sizes(node: ir.Node) -> Sequence[int] | None:
    """How large the parts of a SplitToSequence are along its axis; None where that is not known."""
    split = constant_of(node.inputs[1]) if len(node.inputs) > 1 else np.array(1)
    if split is None or (len(node.inputs) > 1 and node.inputs[1] is None) or not split.size:
        return None
    if split.ndim == 1:
        return [int(n) for n in split]
    axis, x = node.attributes.get_int("axis", 0), node.inputs[0]
    dims = () if x is None or x.shape is None else tuple(x.shape)
    whole = dims[axis] if -len(dims) <= axis < len(dims) else None
    each = int(split)
    if not isinstance(whole, int) or each < 1 or whole < 1 or whole > each * _MOST_PARTS:
        return None
    return [min(each, whole - start) for start in range(0, whole, each)]


def _is_known(reader: ir.Node, count: int) -> bool:
    """Whether ``reader`` takes one element of a sequence of ``count`` by a constant, or joins them."""
    if is_standard(reader, "ConcatFromSequence"):
        return True
    at = constant_of(reader.inputs[1]) if is_standard(reader, "SequenceAt") else None
    return at is not None and at.size == 1 and -count <= int(at.reshape(-1)[0]) < count


def _split(node: ir.Node, sizes: Sequence[int], graph: ir.Graph) -> list[ir.Value]:
    """The parts of a SplitToSequence, by a Split."""
    name, axis = str(node.name), node.attributes.get_int("axis", 0)
    lengths = add_constant(graph, f"{name}_sizes", np.array(sizes, np.int64))
    split = ir.node("Split", [node.inputs[0], lengths], {"axis": axis}, num_outputs=len(sizes), name=f"{name}_split")
    graph.insert_before(node, split)
    for number, part in enumerate(split.outputs):
        part.name = f"{name}_part{number}"
    kept = node.attributes.get_int("keepdims", 1) != 0
    if len(node.inputs) > 1 or kept:
        return list(split.outputs)
    axes = add_constant(graph, f"{name}_axis", np.array([axis], np.int64))
    return [_one(f"{part.name}_squeezed", "Squeeze", [part, axes], node, graph) for part in split.outputs]


def _replace(reader: ir.Node, parts: Sequence[ir.Value], graph: ir.Graph) -> None:
    """Put an operator on tensors in the place of one that reads a sequence."""
    if reader.op_type == "SequenceAt":
        at = constant_of(reader.inputs[1])
        assert at is not None, "it is known"
        reader.op_type = "Identity"
        taken = [parts[int(at.reshape(-1)[0])]]
        if not reader.outputs[0].is_graph_output():
            reader.outputs[0].replace_all_uses_with(taken[0])
    else:
        axis, taken = reader.attributes.get_int("axis", 0), list(parts)
        if reader.attributes.get_int("new_axis", 0):
            axes = add_constant(graph, f"{reader.name}_axes", np.array([axis], np.int64))
            names = (f"{reader.name}_unsqueezed{number}" for number in range(len(parts)))
            taken = [_one(name, "Unsqueeze", [p, axes], reader, graph) for name, p in zip(names, parts, strict=True)]
        reader.op_type = "Concat"
        reader.attributes.pop("new_axis", None)
    reader.resize_inputs(len(taken))
    for slot, value in enumerate(taken):
        reader.replace_input_with(slot, value)


def _one(name: str, op_type: str, inputs: Sequence[ir.Value], before: ir.Node, graph: ir.Graph) -> ir.Value:
    made = ir.node(op_type, inputs, name=name)
    made.outputs[0].name = name
    graph.insert_before(before, made)
    return made.outputs[0]
