"""Control flow as part of the graph around it, and back: what is in a body is placed and quantized like anything else.

In the *flat* form of a model the operators in branches of Ifs and in bodies of Loops and Scans stand in the main graph,
each with a tag that says where it belongs. An operator ``If`` of the domain :data:`FLOW` reads the condition and what
either branch results in. A ``Loop`` or ``Scan`` of that domain reads what its body results in; before the operators of
the body stands a :data:`START`, which reads what the loop is given and gives what the body takes, and whose first
output the loop reads last, so that neither is without the other. What a loop carries
from one turn to the next thus is four values in float (given, taken, resulting, left), each with a scale of its own.
All analysis, calibration and writing works on that form. No runtime ever sees it:
:func:`~inlay.model.nesting.nested` puts the bodies back wherever a model is run or becomes a file.

Operators without a tag (Q/DQ pairs, those of rewrites) go where what reads them is; but what stands before a loop
stays there, since what was computed once is not to be computed in each turn. DequantizeLinears always go to what reads
them, to each graph where that is in several: runtimes fuse within one graph only.

Loops that carry or result in something else than tensors stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import onnx
import onnx_ir as ir

from inlay.model.metadata import cloned
from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.branches import moved_out, name_apart, names_of
from inlay.model.passes.names import fix_names, free_name
from inlay.model.passes.steps import behind_identities, is_standard

T = TypeVar("T")

FLOW = "inlay.flow"
"""The domain of the operators that stand for control flow in a flat model."""
SCOPE = "inlay.scope"
"""The entry of a node's metadata that says in which body of which operator it belongs."""

BODIES = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",)}
"""The attributes that hold bodies, by operator."""
_SEQUENCES = 11
"""The first opset with sequences, in which values of a loop's body are observed; it has the Scan of today as well."""
START = "Start"
"""The operator in a flat model that gives what the body of a Loop or Scan takes; it bears the tag of the body."""


def flatten(model: ir.Model) -> tuple[ir.Model, int]:
    """Put the operators in bodies, and in bodies within them, into the main graph; counts what had them."""
    graph = model.graph
    if not any(is_standard(node, *BODIES) for node in graph):
        return model, 0
    infer_shapes(model, strict=False)
    names, taken = names_of(model), {str(n.name) for n in model.graph.all_nodes()}
    for node in graph:
        node.metadata_props.setdefault(SCOPE, "")
    with_loops = model.opset_imports.get("", 0) >= _SEQUENCES
    left, done = [n for n in graph if _is_taken(n, with_loops)], 0
    while left:
        node = left.pop()
        attributes = BODIES[node.op_type]
        results: list[ir.Value | None] = []
        start = None if node.op_type == "If" else _started(node, graph, names, taken)
        for number, name in enumerate(attributes):
            body = node.attributes[name].as_graph()
            results += [_passed_on(output, body) for output in body.outputs]
            inner = _moved(body, graph, node, names)
            for each in inner if start is None else (start, *inner):
                each.metadata_props[SCOPE] = f"{number}{node.name}"
            left += [n for n in inner if _is_taken(n, with_loops)]
        for name in attributes:
            del node.attributes[name]
        results = [node.inputs[0], *results] if start is None else [*results, start.outputs[0]]
        node.resize_inputs(len(results))
        for slot, value in enumerate(results):
            node.replace_input_with(slot, value)
        for output, result in zip(node.outputs, results if node.op_type == "Scan" else results[1:], strict=False):
            output.type = output.type or (None if result is None else result.type)
        node.domain, done = FLOW, done + 1
    if done:
        model.opset_imports[FLOW] = 1
        infer_shapes(model, strict=False)
    return model, done


def _is_taken(node: ir.Node, with_loops: bool) -> bool:
    """Whether the bodies of ``node`` are put into the graph around it."""
    if not is_standard(node, *BODIES) or not with_loops or node.op_type == "If":
        return is_standard(node, "If")
    body = node.attributes["body"].as_graph()
    return all(isinstance(v.type, ir.TensorType) for v in (*_typed(node, body), *body.outputs))


def _typed(node: ir.Node, body: ir.Graph) -> Sequence[ir.Value]:
    """What a body takes, its types stated: a Loop's are those of what it is given, where the body does not say."""
    for value, given in zip(body.inputs, node.inputs, strict=False) if node.op_type == "Loop" else ():
        value.type = value.type or (None if given is None else given.type)
    return body.inputs


def _started(node: ir.Node, graph: ir.Graph, names: Counter[str | None], taken: set[str]) -> ir.Node:
    """The :data:`START` of a Loop or Scan, put before it."""
    body, given = node.attributes["body"].as_graph(), list(node.inputs)
    inputs = list(body.inputs)
    body.inputs.clear()
    outputs = [ir.Value(name=v.name, type=v.type, shape=v.shape) for v in inputs]
    for value, output in zip(inputs, outputs, strict=True):
        value.replace_all_uses_with(output, replace_graph_outputs=True)
        name_apart(output, names)
    name = free_name(f"{node.name}_start", taken)
    taken.add(name)
    start = ir.Node(FLOW, START, given, outputs=outputs, name=name)
    graph.insert_before(node, start)
    return start


def _passed_on(output: ir.Value, body: ir.Graph) -> ir.Value:
    """What a result of a branch is: Identities are only there because a branch cannot return what it captures."""
    passed = behind_identities(output, body)
    passed.shape = output.shape if passed.shape is None else passed.shape  # what is carried is of none otherwise
    return passed


class Named(Protocol):
    """What is asked of a node."""

    @property
    def name(self) -> str | None:
        """Unique in the graph."""

    @property
    def op_type(self) -> str:
        """The operator."""

    @property
    def domain(self) -> str:
        """Where that is defined."""


def is_start(node: Named) -> bool:
    """Whether ``node`` gives what the body of a loop takes: no operator of the user's."""
    return node.domain == FLOW and node.op_type == START


def scope_of_input(node: Named, slot: int, slots: int) -> str | None:
    """In which body input ``slot`` of so many is read, as its tag; None where ``node`` itself is.

    What a :data:`START` reads is read around the loop, for which there is no tag here.
    """
    if node.domain != FLOW or is_start(node) or (node.op_type == "If" and not slot):
        return None
    return f"{(slot - 1) // ((slots - 1) // 2) if node.op_type == 'If' else 0}{node.name}"


def in_bodies(graph: ir.Graph) -> Iterator[ir.Node]:
    """The operators of a graph, and those in its bodies, and in bodies within them."""
    for node in graph:
        yield node
        for name in BODIES[node.op_type] if is_standard(node, *BODIES) else ():
            yield from in_bodies(node.attributes[name].as_graph()) if name in node.attributes else ()


def flattened(model: ir.Model) -> ir.Model:
    """A copy with all control flow of the main graph in its flat form, and all nodes named."""
    copy = cloned(model)
    return flatten(fix_names(copy)[0])[0] if any(is_standard(node, *BODIES) for node in copy.graph) else copy


def tag_new(model: ir.Model) -> tuple[ir.Model, int]:
    """Say of operators that passes made in a flat model in which body they are: where all that reads them is.

    What reads nothing of a loop is computed before it, though: it is the same in each turn.
    """
    if FLOW not in model.opset_imports:
        return model, 0
    nodes = list(model.graph)
    owners = {str(n.name): n for n in nodes if is_flat(n) and not is_start(n)}
    paths: dict[int, tuple[str, ...]] = {}

    def path_of(tag: str) -> tuple[str, ...]:
        return (*path_of(scope_of(owners[tag[1:]])), tag) if tag and tag[1:] in owners else ()

    def path_at(node: ir.Node, slot: int) -> tuple[str, ...]:
        tag = scope_of_input(node, slot, len(node.inputs))
        path = paths.get(id(node), ()) if tag is None else path_of(tag)
        return path[:-1] if is_start(node) else path

    new = [node for node in nodes if SCOPE not in node.metadata_props]
    for node in reversed(nodes):
        paths[id(node)] = path_of(scope_of(node))
        if SCOPE not in node.metadata_props:
            read = [path_at(use.node, use.idx) for v in node.outputs for use in v.uses()]
            paths[id(node)] = common([*read, *([()] if any(v.is_graph_output() for v in node.outputs) else [])])
    for node in new:
        makers = [v.producer() for v in node.inputs if v is not None]
        least = max((paths.get(id(maker), ()) for maker in makers), key=len, default=())
        path, loops = paths[id(node)], (owners[tag[1:]].op_type != "If" for tag in paths[id(node)])
        cut = next((depth for depth, is_loop in enumerate(loops) if is_loop and depth >= len(least)), len(path))
        paths[id(node)] = path[:cut]
        node.metadata_props[SCOPE] = path[cut - 1] if cut else ""
    return model, len(new)


def scope_of(node: ir.Node) -> str:
    """The tag of a node; empty in the main graph."""
    return str(node.metadata_props.get(SCOPE, ""))


def before_loops(path: tuple[T, ...], place: int, starts: Mapping[T, int]) -> tuple[T, ...]:
    """As far along ``path`` as no loop starts behind ``place``: what stands before a loop is computed once, before it.

    Args:
        path: where a node is read, the outermost first.
        place: of the node in the flat graph.
        starts: places of the :data:`START` of loops.
    """
    return path[: next((depth for depth, body in enumerate(path) if starts.get(body, -1) > place), len(path))]


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
    """Whether ``node`` stands for control flow in a flat model."""
    return node.domain == FLOW


def common(paths: Sequence[tuple[T, ...]]) -> tuple[T, ...]:
    """The innermost graph around all of them."""
    if not paths:
        return ()
    first, depth = paths[0], min(map(len, paths))
    while any(p[:depth] != first[:depth] for p in paths):
        depth -= 1
    return first[:depth]
