"""What loops carry from turn to turn, told apart from what they only pass along.

Exporters of dynamic graphs write each value that a loop's body reads as one that the loop carries, weights included,
and state of what is carried the shape that it has in the first turn. What no turn changes is read from outside here, so
that weights are constants again, and what is computed from them alone is computed once. A shape that a turn does not
give back is forgotten: whatever is built on it is wrong from the second turn on, while runtimes never looked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.branches import names_of
from inlay.model.passes.names import free_name
from inlay.model.passes.steps import is_standard

_OPSET = 11  # the first in which states stand where they do today, in both operators


@dataclass(frozen=True)
class _States:
    """Where a Loop or Scan carries what, as slots: of the node and of its body, of inputs and of outputs."""

    given: int
    taken: int
    resulting: int
    left: int
    count: int


def settle_carried(model: ir.Model) -> tuple[ir.Model, int]:
    """Read from outside what no turn changes, and forget shapes that turns do not keep; counts both."""
    if model.opset_imports.get("", 0) < _OPSET:
        return model, 0
    return model, _capture_unchanged(model) + _forget_shapes(model)


def _states(node: ir.Node) -> _States:
    if node.op_type == "Loop":
        return _States(2, 2, 1, 0, len(node.inputs) - 2)
    return _States(0, 0, 0, 0, len(node.inputs) - node.attributes["num_scan_inputs"].as_int())


def _loops(model: ir.Model) -> list[ir.Node]:
    """Loops and Scans of all graphs, the innermost first."""
    return [n for n in model.graph.all_nodes() if is_standard(n, "Loop", "Scan")][::-1]


def _body(node: ir.Node) -> ir.Graph:
    return node.attributes["body"].as_graph()


# --- what no turn changes ------------------------------------------------------------------------------------------


def _capture_unchanged(model: ir.Model) -> int:
    captured, names = 0, set[str]()
    for node in _loops(model):
        states, body = _states(node), _body(node)
        unchanged = [
            k
            for k in range(states.count)
            if node.inputs[states.given + k] is not None
            and _source(body.outputs[states.resulting + k], body) is body.inputs[states.taken + k]
        ]
        if unchanged:
            names = names or {str(name) for name in names_of(model)}
            _without(node, unchanged, names)
            captured += len(unchanged)
    return captured


def _source(result: ir.Value, body: ir.Graph) -> ir.Value | None:
    """What a result of a body is, behind operators that pass it on."""
    value: ir.Value | None = result
    while value is not None and (node := value.producer()) is not None:
        if node.graph is not body or not is_standard(node, "Identity"):
            break
        value = node.inputs[0]
    return value


def _without(node: ir.Node, unchanged: Sequence[int], names: set[str]) -> None:
    """Put in place of a loop one that does not carry these; what reads them reads what the loop is given."""
    states, body, graph = _states(node), _body(node), node.graph
    assert isinstance(graph, ir.Graph), "it was found in one"
    given = [node.inputs[states.given + k] for k in unchanged]
    taken = [body.inputs[states.taken + k] for k in unchanged]
    left = [node.outputs[states.left + k] for k in unchanged]
    for k in reversed(unchanged):
        body.outputs.pop(states.resulting + k)
        body.inputs.pop(states.taken + k)
    for inner, outer, after in zip(taken, given, left, strict=True):
        assert outer is not None, "it is carried"
        for place, read, number in ((body, inner, None), (graph, after, node)):
            if read.is_graph_output():  # of a body, or the model: it cannot be a value from elsewhere
                _pass_on(place, read, outer, number, names)
            read.replace_all_uses_with(outer)
    dropped = {states.given + k for k in unchanged}
    attributes = list(node.attributes.values())
    node.attributes.clear()
    kept = [v for k, v in enumerate(node.outputs) if k - states.left not in unchanged]
    inputs = [v for slot, v in enumerate(node.inputs) if slot not in dropped]
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
    states, body = _states(node), _body(node)
    for k in range(states.count):
        yield body.inputs[states.taken + k], body.outputs[states.resulting + k]


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
