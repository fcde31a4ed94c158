"""What loops carry from turn to turn, told apart from what they only pass along.

Some exporters write every value that the body of a loop reads as one that the loop carries, weights included, and give
what is carried the shape that it has in the first turn. What no turn changes is read from outside here: weights are
constants again, and what follows from them alone is computed once. A shape that a turn does not give back is forgotten:
what is built on it is wrong from the second turn on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.branches import names_of
from inlay.model.passes.names import free_name
from inlay.model.passes.steps import behind_identities, is_standard

_OPSET = 11  # the first in which states stand where they do today, in both operators


def settle_carried(model: ir.Model) -> tuple[ir.Model, int]:
    """Read from outside what no turn changes, and forget shapes that turns do not keep; counts both."""
    if model.opset_imports.get("", 0) < _OPSET:
        return model, 0
    return model, _capture_unchanged(model) + _forget_shapes(model)


def _places(node: ir.Node) -> tuple[int, int, int]:
    """Of what a Loop or Scan carries: the first input, of the node as of its body; the body's first output; how many.

    A Loop has the number of the turn and the condition before. The outputs of the node begin with what is carried.
    """
    if node.op_type == "Loop":
        return 2, 1, len(node.inputs) - 2
    return 0, 0, len(node.inputs) - node.attributes["num_scan_inputs"].as_int()


def _loops(model: ir.Model) -> list[ir.Node]:
    """Loops and Scans of all graphs, the innermost first."""
    return [n for n in model.graph.all_nodes() if is_standard(n, "Loop", "Scan")][::-1]


def _body(node: ir.Node) -> ir.Graph:
    return node.attributes["body"].as_graph()


# --- what no turn changes ------------------------------------------------------------------------------------------


def _capture_unchanged(model: ir.Model) -> int:
    captured, names = 0, set[str]()
    for node in _loops(model):
        body = _body(node)
        unchanged = [k for k, (taken, result) in enumerate(_carried(node)) if behind_identities(result, body) is taken]
        if unchanged:
            names = names or {str(name) for name in names_of(model)}
            _without(node, unchanged, names)
            captured += len(unchanged)
    return captured


def _without(node: ir.Node, unchanged: Sequence[int], names: set[str]) -> None:
    """Put in place of a loop one that does not carry these; what reads them reads what the loop is given."""
    (taken, resulting, _), body, graph = _places(node), _body(node), node.graph
    assert isinstance(graph, ir.Graph), "it was found in one"
    for k in reversed(unchanged):
        inner, outer = body.inputs.pop(taken + k), node.inputs[taken + k]
        body.outputs.pop(resulting + k)
        assert outer is not None, "it is carried"
        for place, read, before in ((body, inner, None), (graph, node.outputs[k], node)):
            if read.is_graph_output():  # of a body, or the model: it cannot be a value from elsewhere
                _pass_on(place, read, outer, before, names)
            read.replace_all_uses_with(outer)
    attributes = list(node.attributes.values())
    node.attributes.clear()
    kept = [v for k, v in enumerate(node.outputs) if k not in unchanged]
    inputs = [v for slot, v in enumerate(node.inputs) if slot - taken not in unchanged]
    made = ir.Node(
        node.domain, node.op_type, inputs, attributes, num_outputs=len(kept), name=node.name, doc_string=node.doc_string
    )
    made.metadata_props.update(node.metadata_props)
    graph.insert_before(node, made)
    for old, new in zip(kept, made.outputs, strict=True):
        new.name, new.type, new.shape = old.name, old.type, old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _pass_on(graph: ir.Graph, read: ir.Value, outer: ir.Value, before: ir.Node | None, names: set[str]) -> None:
    """Let a graph hand out ``outer`` under the name of what it hands out now."""
    passed = ir.Value(name=read.name, type=read.type or outer.type, shape=read.shape)
    read.name = free_name(f"{read.name}_carried", names)
    names.add(read.name)
    node = ir.node("Identity", [outer], outputs=[passed], name=free_name(f"{passed.name}_passed", names))
    if before is None:
        graph.append(node)
    else:
        graph.insert_before(before, node)
    for slot in [slot for slot, v in enumerate(graph.outputs) if v is read]:
        graph.outputs[slot] = passed


# --- shapes that turns do not keep ----------------------------------------------------------------------------------


def _forget_shapes(model: ir.Model) -> int:
    """By inference from what each turn takes: what a turn results in must have the shape that the next one takes."""
    loops = [node for node in _loops(model) if node.op_type == "Loop"]
    stated = {id(r): r.shape for node in loops for t, r in _carried(node) if r.producer() is not None}
    if not stated:
        return 0
    for node in loops:
        for _, result in _carried(node):
            result.shape = None if id(result) in stated else result.shape
    infer_shapes(model, strict=False)
    forgotten, false = 0, set[int]()
    while True:
        wrong = [
            (node, taken, result)
            for node in loops
            for taken, result in _carried(node)
            if taken.shape is not None and not _agree(taken.shape, result.shape, id(node) in false)
        ]
        if not wrong:
            break
        for node, taken, result in wrong:
            taken.shape = _kept(taken.shape, result.shape)
            false.add(id(node))
        for body in {id(node): _body(node) for node, _, _ in wrong}.values():
            for value in (v for n in body.all_nodes() for v in n.outputs):
                value.shape = None
        forgotten += len(wrong)
        infer_shapes(model, strict=False)
    for node in loops:
        for _, result in _carried(node) if id(node) not in false else ():
            result.shape = stated.get(id(result)) if result.shape is None else result.shape
    return forgotten


def _carried(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """What a turn takes, with what it results in."""
    (taken, resulting, count), body = _places(node), _body(node)
    for k in range(count):
        yield body.inputs[taken + k], body.outputs[resulting + k]


def _agree(taken: ir.Shape, result: ir.Shape | None, certainly: bool) -> bool:
    """Whether a shape may hold in the next turn; ``certainly``: where nothing is known of the result, it does not."""
    if result is None:
        return not certainly
    return len(taken) == len(result) and not any(
        isinstance(a, int) and (a != b if isinstance(b, int) else certainly) for a, b in zip(taken, result, strict=True)
    )


def _kept(taken: ir.Shape | None, result: ir.Shape | None) -> ir.Shape | None:
    """What both say."""
    if taken is None or result is None or len(taken) != len(result):
        return None
    return ir.Shape([a if a == b else None for a, b in zip(taken, result, strict=True)])
