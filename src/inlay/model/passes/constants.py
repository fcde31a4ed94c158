"""Constants as initializers: ``Constant`` nodes, initializers among inputs, fixed shapes, subgraphs of constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import (
    LiftConstantsToInitializersPass,
    RemoveInitializersFromInputsPass,
    RemoveUnusedNodesPass,
)

from inlay.errors import InlayError, Late
from inlay.model.metadata import cloned
from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.names import fix_names
from inlay.model.passes.steps import add_constant, constant_of, is_standard
from inlay.model.pinned import DRAWS

_GROWTH = 1 << 20  # bytes that a folded constant may be larger than what it was made of
_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
NOT_FOLDED = frozenset({*DRAWS, "QuantizeLinear", "DequantizeLinear", "If", "Loop", "Scan"})

Evaluate = Callable[[ir.Model, list[str]], dict[str, np.ndarray]]
"""Runs a model without inputs, and returns the named values."""


def _any(_: ir.Node) -> bool:
    return True


def drop_initializer_inputs(model: ir.Model) -> tuple[ir.Model, int]:
    """Take initializers off the list of inputs (IR version 3 wanted them there). Their values become final."""
    before = len(model.graph.inputs)
    RemoveInitializersFromInputsPass()(model)
    return model, before - len(model.graph.inputs)


def lift_constants(model: ir.Model) -> tuple[ir.Model, int]:
    """Turn ``Constant`` nodes of the main graph into initializers."""
    before = model.graph.num_nodes()
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    return model, before - model.graph.num_nodes()


def with_constants(model: ir.Model, evaluate: Evaluate, read_by: Callable[[ir.Node], bool] = _any) -> ir.Model:
    """A copy of ``model`` with what runtimes compute as they load it: whatever depends on constants alone is one.

    What cannot be computed stays as it is, and so does what none of the nodes ``read_by`` reads.
    """
    copy, _ = lift_constants(fix_names(cloned(model))[0])
    try:
        return fold_constants(copy, evaluate, read_by)[0]
    except Late:
        raise
    except InlayError:
        return copy


def drop_dead(model: ir.Model) -> tuple[ir.Model, int]:
    """Remove nodes and initializers that no output depends on."""
    before = model.graph.num_nodes() + len(model.graph.initializers)
    forgotten = True
    while forgotten:
        if _may_have_dead(model):
            RemoveUnusedNodesPass()(model)
        forgotten = _forget_removed_readers(model)
    return model, before - model.graph.num_nodes() - len(model.graph.initializers)


def _forget_removed_readers(model: ir.Model) -> bool:
    """Let bodies of nodes that are gone read nothing: what they read would seem to be used. Whether there were any."""
    graph, live, forgotten = model.graph, set[int](), False
    for value in chain(graph.initializers.values(), chain.from_iterable(node.outputs for node in graph)):
        for use in value.uses():
            if use.node.graph is not graph:
                live = live or {id(g) for g in model.graphs()}
                if id(use.node.graph) not in live:
                    use.node.replace_input_with(use.idx, None)
                    forgotten = True
    return forgotten


def _may_have_dead(model: ir.Model) -> bool:
    """Whether the library's pass may find something; it looks up every operator, and takes ten times as long as this.

    It also cuts off unused outputs and absent inputs at the end of a node, enters bodies and functions, and takes
    ``training_mode`` off BatchNormalization.
    """

    def unused(value: ir.Value) -> bool:
        return not value.uses() and not value.is_graph_output()

    def is_special(node: ir.Node) -> bool:
        absent = bool(node.inputs) and node.inputs[-1] is None
        return (
            absent or node.op_type == "BatchNormalization" or any(a.type in _BODIES for a in node.attributes.values())
        )

    graph = model.graph
    values = chain(graph.initializers.values(), chain.from_iterable(node.outputs for node in graph))
    return bool(model.functions) or any(map(unused, values)) or any(map(is_special, graph))


def fix_shapes(model: ir.Model) -> tuple[ir.Model, int]:
    """Turn shapes that the model itself fixes into constants, as exporters' simplifiers do.

    What is computed from them (the target of a Reshape) then is a constant too. A dynamic dimension stays computed.
    """
    asked = [n for n in model.graph if is_standard(n, "Shape") and not n.attributes and n.inputs[0] is not None]
    if any(n.inputs[0] is not None and n.inputs[0].shape is None for n in asked):
        infer_shapes(model)
    return model, _fix(model, asked, _sizes)


def fix_parts(model: ir.Model) -> int:
    """Turn what is taken from shapes into constants, where the sizes that are taken are fixed."""
    return _fix(model, list(model.graph), _taken)


def _fix(model: ir.Model, nodes: Sequence[ir.Node], sizes_of: Callable[[ir.Node], np.ndarray | None]) -> int:
    """Turn what ``nodes`` compute into constants where it is sizes that are all known; how many there were."""
    fixed = 0
    for node in nodes:
        sizes, output = sizes_of(node), node.outputs[0]
        if sizes is None or output.is_graph_output() or not all(isinstance(d, int) for d in sizes.flat):
            continue
        output.replace_all_uses_with(add_constant(model.graph, f"{output.name}_fixed", sizes.astype(np.int64)))
        fixed += 1
    if fixed:
        RemoveUnusedNodesPass()(model)
    return fixed


def _sizes(shape_of: ir.Node) -> np.ndarray | None:
    """The sizes, known ones or not, of what a Shape reads; None where not even their number is known."""
    shape = None if shape_of.inputs[0] is None else shape_of.inputs[0].shape
    return None if shape is None else np.array([*shape], object)


def _taken(node: ir.Node) -> np.ndarray | None:
    """What a node takes from a shape: a Shape with ends, a Size, or a Gather or Slice behind a whole Shape."""
    if is_standard(node, "Shape"):
        return _taken_by_shape(node)
    if is_standard(node, "Size"):
        return _count(node.inputs[0])
    source = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    if source is None or not is_standard(source, "Shape") or source.attributes:
        return None
    sizes = _sizes(source)
    return None if sizes is None else _taken_from(node, sizes)


def _count(value: ir.Value | None) -> np.ndarray | None:
    """The number of elements of a value whose sizes are all known, such as the shape of one of known rank."""
    sizes = [None] if value is None or value.shape is None else [*value.shape]
    known = [d for d in sizes if isinstance(d, int)]
    return np.array(math.prod(known), object) if len(known) == len(sizes) else None


def _taken_by_shape(node: ir.Node) -> np.ndarray | None:
    """Of a Shape that takes some of the sizes itself."""
    sizes = _sizes(node)
    if sizes is None or not node.attributes:
        return None
    begin, end = (node.attributes[name].as_int() if name in node.attributes else None for name in ("start", "end"))
    return sizes[begin:end]


def _taken_from(node: ir.Node, sizes: np.ndarray) -> np.ndarray | None:
    """What a Gather or a Slice takes of ``sizes`` by constant numbers; None where it cannot be said."""
    numbers = [constant_of(v) for v in node.inputs[1:]]
    first, last = (*numbers, None, None)[:2]
    if is_standard(node, "Gather") and first is not None:
        inside = bool(((first >= -sizes.size) & (first < sizes.size)).all())
        return np.array(sizes[first], object) if inside else None
    if is_standard(node, "Slice") and first is not None and last is not None:
        if len(node.inputs) > 4 and node.inputs[4] is not None and numbers[3] is None:
            return None
        step = numbers[3] if len(numbers) > 3 else None
        return sizes[int(first.flat[0]) : int(last.flat[0]) : 1 if step is None else int(step.flat[0])]
    return None


def correct_shapes(model: ir.Model, seen: Mapping[str, Sequence[int]]) -> int:
    """Forget stated shapes that differ from those ``seen`` in an inference, and infer them anew; how many there were.

    A file whose batch was changed at its input alone still states the old one elsewhere. Runtimes are lenient there as
    long as no operator is added between two such values.
    """
    false = 0
    for value in (v for node in model.graph for v in node.outputs):
        sizes = seen.get(str(value.name))
        if value.shape is None or sizes is None:
            continue
        stated = tuple(d if isinstance(d, int) else None for d in value.shape)
        if len(stated) != len(sizes) or any(d not in (None, n) for d, n in zip(stated, sizes, strict=True)):
            value.shape = None
            false += 1
    if false:
        infer_shapes(model, strict=False)
    return false


def fold_constants(
    model: ir.Model, evaluate: Evaluate, read_by: Callable[[ir.Node], bool] = _any
) -> tuple[ir.Model, int]:
    """Compute once what depends on constants only, so that a weight computed by an Unsqueeze is recognized as a weight.

    Values that would grow the model by more than a megabyte (a large ConstantOfShape) are left as they are, and those
    that none of the nodes ``read_by`` reads.
    """
    graph, foldable = model.graph, _foldable(model.graph)
    if not foldable:
        return model, 0
    inside = {id(n) for n in foldable}
    frontier = [
        v
        for node in foldable
        for v in node.outputs
        if v.name and (v.is_graph_output() or any(id(use.node) not in inside and read_by(use.node) for use in v.uses()))
    ]
    if not frontier:
        return model, 0
    numbers = evaluate(_constant_part(model, foldable, frontier), [str(v.name) for v in frontier])
    size = sum(v.const_value.nbytes for v in graph.initializers.values() if v.const_value is not None)
    folded = 0
    for value in frontier:
        array = numbers[str(value.name)]
        if value.is_graph_output() or array.nbytes > size + _GROWTH or array.dtype == object:
            continue
        value.replace_all_uses_with(add_constant(graph, f"{value.name}_folded", array))
        folded += 1
    RemoveUnusedNodesPass()(model)
    return model, folded


def computed_constants(model: ir.Model, evaluate: Evaluate, wanted: Collection[ir.Value]) -> dict[ir.Value, np.ndarray]:
    """The arrays of those values of the main graph that are constants, or depend on constants alone."""
    found = {v: array for v in wanted if (array := constant_of(v)) is not None}
    nodes = _foldable(model.graph)
    asked = [v for node in nodes for v in node.outputs if v in wanted and v.name]
    if asked:
        numbers = evaluate(_constant_part(model, nodes, asked), [str(v.name) for v in asked])
        found.update((v, numbers[str(v.name)]) for v in asked)
    return found


def _foldable(graph: ir.Graph) -> list[ir.Node]:
    """Operators that depend on constants alone, and may be computed before the model runs."""
    constant = {id(v) for v in graph.initializers.values()}
    found: list[ir.Node] = []
    for node in graph:
        plain = node.op_type not in NOT_FOLDED and node.domain in ("", "ai.onnx") and node.inputs
        if plain and all(v is None or id(v) in constant for v in node.inputs):
            found.append(node)
            constant.update(id(v) for v in node.outputs)
    return found


def _constant_part(model: ir.Model, nodes: list[ir.Node], outputs: list[ir.Value]) -> ir.Model:
    """The model that computes ``outputs`` from constants."""
    copy = cloned(model)
    wanted = {v.name for v in outputs}
    produced = {v.name: v for n in copy.graph for v in n.outputs}
    copy.graph.outputs[:] = [produced[name] for name in (v.name for v in outputs) if name in wanted]
    copy.graph.inputs.clear()
    names = {n.name for n in nodes}
    copy.graph.remove([n for n in copy.graph if n.name not in names], safe=False)
    RemoveUnusedNodesPass()(copy)
    return copy
