"""Ifs as part of the graph around them, and back: what is in a branch is placed and quantized like anything else.

In the *flat* form of a model the operators of both branches stand in the main graph, each with a tag that says where it
belongs, and an operator ``If`` of the domain :data:`FLOW` reads the condition and what either branch results in. All
analysis, calibration and writing works on that form. No runtime ever sees it: :func:`~inlay.model.nesting.nested` puts
the branches back wherever a model is run or becomes a file. Operators without a tag (Q/DQ pairs, those of rewrites) go
where what reads them is; a pair that is read in several graphs goes to each, since runtimes fuse within one graph only.

Bodies of Loop and Scan stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

import onnx
import onnx_ir as ir

from inlay.model.metadata import cloned
from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.branches import moved_out, names_of
from inlay.model.passes.names import fix_names
from inlay.model.passes.steps import is_standard

T = TypeVar("T")

FLOW = "inlay.flow"
"""The domain of the operator that stands for an If in a flat model."""
SCOPE = "inlay.scope"
"""The entry of a node's metadata that says in which branch of which If it belongs."""

BRANCHES = ("then_branch", "else_branch")


def flatten(model: ir.Model) -> tuple[ir.Model, int]:
    """Put the operators in branches of Ifs, and of the Ifs within them, into the main graph; counts the Ifs."""
    graph = model.graph
    if not any(is_standard(node, "If") for node in graph):
        return model, 0
    infer_shapes(model, strict=False)
    names = names_of(model)
    for node in graph:
        node.metadata_props.setdefault(SCOPE, "")
    left, done = [n for n in graph if is_standard(n, "If")], 0
    while left:
        node = left.pop()
        results = []
        for number, name in enumerate(BRANCHES):
            body = node.attributes[name].as_graph()
            results += [_passed_on(output, body) for output in body.outputs]
            inner = _moved(body, graph, node, names)
            for each in inner:
                each.metadata_props[SCOPE] = f"{number}{node.name}"
            left += [n for n in inner if is_standard(n, "If")]
        for name in BRANCHES:
            del node.attributes[name]
        condition = node.inputs[0]
        node.resize_inputs(1 + len(results))
        for slot, value in enumerate((condition, *results)):
            node.replace_input_with(slot, value)
        for output, result in zip(node.outputs, results, strict=False):
            output.type = output.type or result.type
        node.domain, done = FLOW, done + 1
    model.opset_imports[FLOW] = 1
    infer_shapes(model, strict=False)
    return model, done


def _passed_on(output: ir.Value, body: ir.Graph) -> ir.Value:
    """What a result of a branch is: Identities are only there because a branch cannot return what it captures."""
    node = output.producer()
    while node is not None and node.graph is body and is_standard(node, "Identity") and node.inputs[0] is not None:
        output, node = node.inputs[0], node.inputs[0].producer()
    return output


def branch_of(name: str, slot: int, slots: int) -> str:
    """The tag of what results in input ``slot`` of an If of that name with so many inputs, in the flat form."""
    return f"{(slot - 1) // ((slots - 1) // 2)}{name}"


def in_branches(graph: ir.Graph) -> Iterator[ir.Node]:
    """The operators of a graph, and those in branches of its Ifs, and of the Ifs within them."""
    for node in graph:
        yield node
        for name in BRANCHES if is_standard(node, "If") else ():
            yield from in_branches(node.attributes[name].as_graph()) if name in node.attributes else ()


def flattened(model: ir.Model) -> ir.Model:
    """A copy with every If of the main graph in its flat form, and all nodes named."""
    copy = cloned(model)
    return flatten(fix_names(copy)[0])[0] if any(is_standard(node, "If") for node in copy.graph) else copy


def tag_new(model: ir.Model) -> tuple[ir.Model, int]:
    """Say of operators that passes made in a flat model in which branch they are: where all that reads them is."""
    if FLOW not in model.opset_imports:
        return model, 0
    graph, done = model.graph, 0
    ifs = {str(n.name): n for n in graph if is_flat(n)}

    def path_of(tag: str) -> tuple[str, ...]:
        return (*path_of(ifs[tag[1:]].metadata_props.get(SCOPE, "")), tag) if tag and tag[1:] in ifs else ()

    def tag_of(node: ir.Node, slot: int) -> str:
        if is_flat(node) and slot:
            return branch_of(str(node.name), slot, len(node.inputs))
        return str(node.metadata_props.get(SCOPE, ""))

    for node in reversed(graph):
        if SCOPE not in node.metadata_props:
            paths = [path_of(tag_of(use.node, use.idx)) for v in node.outputs for use in v.uses()]
            paths += [()] if any(v.is_graph_output() for v in node.outputs) else []
            shared = common(paths)
            node.metadata_props[SCOPE] = shared[-1] if shared else ""
            done += 1
    return model, done


def _moved(body: ir.Graph, graph: ir.Graph, before: ir.Node, names: Counter[str | None]) -> list[ir.Node]:
    given = list(body.outputs)
    body.outputs.clear()
    for value in given:  # the Identities that were passed over
        node = value.producer()
        while node is not None and node.graph is body and is_standard(node, "Identity") and not node.outputs[0].uses():
            source = node.inputs[0]
            body.remove(node, safe=True)
            node = None if source is None else source.producer()
    return moved_out(body, graph, before, names)


def is_flat(node: onnx.NodeProto | ir.Node) -> bool:
    """Whether ``node`` stands for an If in a flat model."""
    return node.domain == FLOW


def common(paths: Sequence[tuple[T, ...]]) -> tuple[T, ...]:
    """The innermost graph around all of them."""
    if not paths:
        return ()
    first, depth = paths[0], min(map(len, paths))
    while any(p[:depth] != first[:depth] for p in paths):
        depth -= 1
    return first[:depth]
