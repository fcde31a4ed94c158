"""Dynamic dimensions that the user fixed: inputs take these sizes only, and what computes shapes becomes constants."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from inlay.model.passes.branches import settle
from inlay.model.passes.constants import Evaluate

METADATA = "inlay.frozen"
"""Under which the model says which dimensions were fixed."""


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
