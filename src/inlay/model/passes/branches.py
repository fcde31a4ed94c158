"""Branches that are known before the model runs: an If whose condition follows from constants and sizes is decided.

Exporters write what a program decided at run time: whether a dimension is 1 (``torch.squeeze``), whether a state was
given, which sampling rate an input names. Once what decides is known, the branch that is taken becomes part of the
graph around it, and its operators are like any others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from inlay.data.fixed import shown
from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.constants import NOT_FOLDED, Evaluate, fix_parts, fix_shapes, fold_constants, lift_constants
from inlay.model.passes.names import free_name
from inlay.model.passes.steps import add_constant, is_standard

_ROUNDS = 16
"""Of inference and folding: each shape or branch that is known may make others behind it known; few nest deeper."""
_CHAIN = 100  # operators that a condition is computed from, at most
_SIZES = frozenset({"Shape", "Size"})


def fix_inputs(model: ir.Model, values: Mapping[str, np.ndarray]) -> tuple[ir.Model, int]:
    """Let whatever reads an input with a value in ``values`` read that.

    The input itself stays, unread, so that programs which feed it go on working; its description says what it is.
    """
    fixed = 0
    for value in list(model.graph.inputs):
        array = values.get(str(value.name))
        if array is None or not value.uses():
            continue
        fixed += len(value.uses())
        value.replace_all_uses_with(add_constant(model.graph, f"{value.name}_fixed", array))
        value.doc_string = f"fixed to {shown(array)}: the model computes the same whatever is fed"
    return model, fixed


def decide_branches(model: ir.Model, evaluate: Evaluate) -> tuple[ir.Model, int]:
    """Put the branch that is taken in place of each If whose condition is known; those within it are looked at too."""
    if not any(is_standard(node, "If") for node in model.graph.all_nodes()):
        return model, 0
    model, _, decided = settle(model, evaluate)
    return model, decided


def settle(model: ir.Model, evaluate: Evaluate) -> tuple[ir.Model, int, int]:
    """Compute what sizes and constants decide, until nothing more follows.

    Returns:
        The model, how many values became constants, and how many branches were decided.
    """
    computed = decided = 0
    for _ in range(_ROUNDS):
        infer_shapes(model, strict=False)
        _hoist_conditions(model)
        model, shapes = fix_shapes(model)
        parts = fix_parts(model)
        model, folded = fold_constants(model, evaluate)
        taken = _take_branches(model)
        if not shapes + parts + folded + taken:
            break
        computed, decided = computed + shapes + parts + folded, decided + taken
        if taken:
            model, _ = lift_constants(model)
    return model, computed, decided


def deciding_inputs(model: ir.Model) -> dict[str, tuple[str, ...]]:
    """The Ifs of the main graph that inputs' values alone decide, by the one input that does, as names."""
    inputs = {id(v): str(v.name) for v in model.graph.inputs}
    found: dict[str, tuple[str, ...]] = {}
    for node in model.graph:
        if is_standard(node, "If"):
            decide = {inputs[id(v)] for v in _read_by(node.inputs[0]) if id(v) in inputs}
            if len(decide) == 1:
                (name,) = decide
                found[name] = (*found.get(name, ()), str(node.name))
    return found


def _read_by(condition: ir.Value | None) -> Iterator[ir.Value]:
    """The values that a condition is computed from, itself included; what only gives its size is left out."""
    left, seen = [condition], set[int]()
    while left:
        value = left.pop()
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        node = value.producer()
        if node is not None and node.op_type not in _SIZES:
            left += node.inputs


def _hoist_conditions(model: ir.Model) -> None:
    """Compute outside, where constants are folded, what decides Ifs within bodies and depends on constants alone."""
    inner = [g for g in model.graphs() if g is not model.graph and isinstance(g, ir.Graph)]
    conditions = [node.inputs[0] for g in inner for node in g if is_standard(node, "If") and node.inputs]
    names = names_of(model) if conditions else Counter[str | None]()
    for condition in conditions:
        for found in _of_constants(condition, model.graph) or ():
            body = found.graph
            assert isinstance(body, ir.Graph), "it was found in one"
            if isinstance(found, ir.Value):
                del body.initializers[str(found.name)]
                name_apart(found, names)
                model.graph.register_initializer(found)
                continue
            body.remove(found)
            for value in found.outputs:
                name_apart(value, names)
            model.graph.insert_before(model.graph[0], found)


def _of_constants(condition: ir.Value | None, main: ir.Graph) -> list[ir.Node | ir.Value] | None:
    """The operators and initializers of bodies that compute ``condition``, in order; None where others have a part."""
    found: dict[int, ir.Node | ir.Value] = {}

    def visit(value: ir.Value | None) -> bool:
        if value is None or (value.is_initializer() and value.graph is main) or len(found) > _CHAIN:
            return len(found) <= _CHAIN
        if value.is_initializer():
            found[id(value)] = value
            return True
        node = value.producer()
        if node is None or node.graph is main or (node.op_type in NOT_FOLDED and node.op_type != "Constant"):
            return False
        if id(node) not in found:
            if not all(map(visit, node.inputs)):
                return False
            found[id(node)] = node
        return True

    return list(found.values()) if visit(condition) else None


def _take_branches(model: ir.Model) -> int:
    taken = 0
    names = names_of(model)
    for graph in [g for g in model.graphs() if isinstance(g, ir.Graph)]:
        for node in list(graph):
            condition = _known(node)
            if condition is not None:
                taken_branch, other = ("then_branch", "else_branch") if condition else ("else_branch", "then_branch")
                left_out = node.attributes[other].as_graph()
                for each in (left_out, *left_out.subgraphs()):
                    names.subtract(v.name for v in values_of(each))
                    _read_nothing(each)
                _inline(graph, node, node.attributes[taken_branch].as_graph(), names)
                taken += 1
    if taken:
        RemoveUnusedNodesPass()(model)
    return taken


def _read_nothing(body: ir.Graph) -> None:
    """Let go of what a body reads that is left out: it would seem to have readers."""
    body.outputs.clear()
    for node in body:
        for slot in range(len(node.inputs)):
            node.replace_input_with(slot, None)


def _known(node: ir.Node) -> bool | None:
    """Which branch of an If is taken, where that is known."""
    if not is_standard(node, "If") or not node.inputs or node.inputs[0] is None:
        return None
    condition = ir.convenience.get_const_tensor(node.inputs[0])
    return None if condition is None or condition.size != 1 else bool(condition.numpy().reshape(-1)[0])


def values_of(graph: ir.Graph | ir.Function) -> Iterator[ir.Value]:
    """The inputs, initializers and results of a graph; those of bodies are not among them."""
    yield from graph.inputs
    if isinstance(graph, ir.Graph):
        yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def names_of(model: ir.Model) -> Counter[str | None]:
    """How many values of the model have each name: bodies beside each other may use the same ones."""
    return Counter(v.name for graph in model.graphs() for v in values_of(graph))


def name_apart(value: ir.Value, names: Counter[str | None]) -> None:
    """Rename a value whose name another one has too, before it moves to where both would be seen."""
    if value.name and names[value.name] > 1:
        names[value.name] -= 1
        if (tensor := value.const_value) is not None:  # the given model has the same one, by its old name
            value.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)
        value.name = free_name(value.name, {name for name in names if name and names[name] > 0})
        names[value.name] += 1


def moved_out(body: ir.Graph, graph: ir.Graph, before: ir.Node, names: Counter[str | None]) -> list[ir.Node]:
    """Move what ``body`` holds into ``graph``, ``before`` a node there; return the operators. It has no outputs left.

    Values keep their names where nothing else has them.
    """
    for initializer in list(body.initializers.values()):
        del body.initializers[str(initializer.name)]
        name_apart(initializer, names)
        graph.register_initializer(initializer)
    nodes = list(body)
    body.remove(nodes)
    for value in (v for n in nodes for v in n.outputs):
        name_apart(value, names)
    graph.insert_before(before, nodes)
    return nodes


def _inline(graph: ir.Graph, node: ir.Node, body: ir.Graph, names: Counter[str | None]) -> None:
    """Put the operators of ``body`` in place of ``node``; values keep their names where nothing else has them."""
    results = list(body.outputs)
    body.outputs.clear()
    inlined = {id(v) for n in moved_out(body, graph, node, names) for v in n.outputs}
    for output, result in zip(node.outputs, results, strict=True):
        _pass_on(graph, node, output, result, id(result) in inlined)
    graph.remove(node, safe=True)


def _pass_on(graph: ir.Graph, node: ir.Node, output: ir.Value, result: ir.Value, inlined: bool) -> None:
    """Let what read ``output`` of the If read ``result`` of the branch; outputs of the model keep their names."""
    if not output.is_graph_output():
        output.replace_all_uses_with(result)
        if result.shape is None:
            result.shape = output.shape
        return
    name, stated = output.name, (output.type, output.shape)
    output.name = f"{name}_of_branch"
    if not inlined or result.is_graph_output():  # what came from outside, or is another output already
        passed = ir.Value(name=name, type=stated[0] or result.type, shape=stated[1])
        graph.insert_before(node, ir.node("Identity", [result], outputs=[passed], name=f"{node.name}_{name}"))
        result = passed
    else:
        result.name = name
        result.type, result.shape = stated[0] or result.type, stated[1] if stated[1] is not None else result.shape
    output.replace_all_uses_with(result, replace_graph_outputs=True)


METADATA = "inlay.frozen"  # under which the model says which dimensions were fixed


def freeze_dimensions(model: ir.Model, sizes: Mapping[str, int], evaluate: Evaluate) -> tuple[ir.Model, int]:
    """Give dynamic dimensions their sizes, by symbol, and compute once what followed from them.

    Shape, and what is computed from it alone (Gather, Slice, Concat, ConstantOfShape, Range, the target of an Expand),
    become constants. Where a dimension stays dynamic, what is taken from the others does.
    """
    fixed = 0
    for value in model.graph.inputs:
        shape = value.shape
        known = None if shape is None else [_size(d, sizes, f"{value.name}_dim{i}") for i, d in enumerate(shape)]
        if known is not None and shape is not None and known != list(shape):
            fixed += sum(a != b for a, b in zip(known, shape, strict=True))
            value.shape = ir.Shape(known)
    if not fixed:
        return model, 0
    for value in [*model.graph.outputs, *(v for node in model.graph for v in node.outputs)]:
        value.shape = None if value.shape is None else ir.Shape([_size(d, sizes) for d in value.shape])
    model, computed, decided = settle(model, evaluate)
    model.metadata_props[METADATA] = ", ".join(f"{name}={size}" for name, size in sorted(sizes.items()))
    return model, fixed + computed + decided


def _size(dim: int | ir.SymbolicDim, sizes: Mapping[str, int], unnamed: str = "") -> int | ir.SymbolicDim:
    return dim if isinstance(dim, int) else sizes.get(str(dim.value or unnamed), dim)
