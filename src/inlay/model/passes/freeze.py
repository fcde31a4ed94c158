"""Dynamic dimensions that the user fixed: inputs take these sizes only, and what computes shapes becomes constants."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.constants import Evaluate, fix_shapes, fold_constants
from inlay.model.passes.steps import add_constant, constant_of, is_standard

METADATA = "inlay.frozen"
"""Under which the model says which dimensions were fixed."""
_ROUNDS = 8
"""Of inference and folding: each shape that becomes a constant may fix others behind it, and few models nest deeper."""


def freeze_dimensions(model: ir.Model, sizes: Mapping[str, int], evaluate: Evaluate) -> tuple[ir.Model, int]:
    """Give dynamic dimensions their sizes, by symbol, and compute once what followed from them.

    Shape, and what is computed from it alone (Gather, Slice, Concat, ConstantOfShape, Range, the target of an Expand),
    become constants. Where a dimension stays dynamic, what is taken from the others does.
    """
    fixed = 0
    for value in model.graph.inputs:
        shape = value.shape
        known = None if shape is None else [_size(d, sizes) for d in shape]
        if known is not None and shape is not None and known != list(shape):
            fixed += sum(a != b for a, b in zip(known, shape, strict=True))
            value.shape = ir.Shape(known)
    if not fixed:
        return model, 0
    for value in [*model.graph.outputs, *(v for node in model.graph for v in node.outputs)]:
        value.shape = None if value.shape is None else ir.Shape([_size(d, sizes) for d in value.shape])
    for _ in range(_ROUNDS):
        infer_shapes(model, strict=False)
        model, shapes = fix_shapes(model)
        parts = _fix_parts(model)
        model, folded = fold_constants(model, evaluate)
        if not shapes + parts + folded:
            break
        fixed += shapes + parts + folded
    model.metadata_props[METADATA] = ", ".join(f"{name}={size}" for name, size in sorted(sizes.items()))
    return model, fixed


def _size(dim: int | ir.SymbolicDim, sizes: Mapping[str, int]) -> int | ir.SymbolicDim:
    return dim if isinstance(dim, int) or dim.value is None else sizes.get(str(dim.value), dim)


def _fix_parts(model: ir.Model) -> int:
    """Turn what is taken from shapes into constants, where the sizes that are taken are fixed."""
    fixed = 0
    for node in list(model.graph):
        source = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
        if is_standard(node, "Shape"):
            sizes = _taken_by_shape(node)
        elif source is not None and is_standard(source, "Shape") and not source.attributes:
            shape = None if source.inputs[0] is None else source.inputs[0].shape
            sizes = None if shape is None else _taken_from(node, list(shape))
        else:
            continue
        if sizes is None or node.outputs[0].is_graph_output() or not all(isinstance(d, int) for d in sizes.flat):
            continue
        array = sizes.astype(np.int64)
        node.outputs[0].replace_all_uses_with(add_constant(model.graph, f"{node.outputs[0].name}_fixed", array))
        fixed += 1
    if fixed:
        RemoveUnusedNodesPass()(model)
    return fixed


def _taken_by_shape(node: ir.Node) -> np.ndarray | None:
    """Of a Shape that takes some of the sizes itself."""
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    if shape is None or not node.attributes:
        return None
    bounds = [node.attributes[name].as_int() if name in node.attributes else None for name in ("start", "end")]
    return np.array(list(shape)[slice(*bounds)], object)


def _taken_from(node: ir.Node, dims: list[int | ir.SymbolicDim]) -> np.ndarray | None:
    """What a Gather or a Slice takes of ``dims`` by constant numbers; None where it cannot be said."""
    numbers = [constant_of(v) for v in node.inputs[1:]]
    first, last = (*numbers, None, None)[:2]
    if is_standard(node, "Gather") and first is not None:
        inside = bool(((first >= -len(dims)) & (first < len(dims))).all())
        return np.array(np.array(dims, object)[first], object) if inside else None
    if is_standard(node, "Slice") and first is not None and last is not None:
        if len(node.inputs) > 4 and node.inputs[4] is not None and numbers[3] is None:
            return None
        step = numbers[3] if len(numbers) > 3 else None
        return np.array(dims, object)[int(first.flat[0]) : int(last.flat[0]) : 1 if step is None else int(step.flat[0])]
    return None
