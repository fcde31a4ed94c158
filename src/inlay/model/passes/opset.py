"""Raise the opset to what Q/DQ nodes need.

The converter of the ``onnx`` package does the work, but gets one quirk wrong: ``Upsample`` (opset 7-9) and ``Resize``
of opset 10 always mean asymmetric coordinates with floor rounding, while the ``Resize`` that they are converted to
means half-pixel coordinates unless it says otherwise. Its attributes are set here.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

import onnx
import onnx_ir as ir

from inlay.errors import RunFailed
from inlay.model.metadata import cloned
from inlay.model.onnx_library import convert_opset
from inlay.model.passes.functions import inlined

_STANDARD = ("", "ai.onnx")
_HIDDEN = "inlay.hidden"  # a domain that no model has

FIRST_QDQ_OPSET = 10  # the first one with QuantizeLinear and DequantizeLinear
QDQ_OPSET = 13  # first opset with a channel axis on QuantizeLinear/DequantizeLinear
LEAST_IR = {19: 9, 21: 10, 22: 10}
"""IR version of the opsets that brought types: floats of 8 bits, and scales that are halves; blocks, and integers of 4
and 16 bits; operators in bfloat16."""


def raise_opset(model: ir.Model, least: int = QDQ_OPSET) -> tuple[ir.Model, int]:
    """``model`` at opset ``least`` when it is older, and 1; or itself and 0. What is returned may be the given model.

    Operators that the converter cannot convert stay as they are: whether they mean the same in the newer opset, the
    numeric comparison shows. Local functions become part of the graph: the converter loses them.

    Raises:
        RunFailed: the converter fails.
        ModelError: they cannot.
    """
    version = model.opset_imports.get("", least)
    if version >= least:
        return model, 0
    if model.functions:
        model = inlined(model)
    if all(_only_wider(n.op_type, version, least) for n in model.graph.all_nodes() if n.domain in _STANDARD):
        model.opset_imports[""] = least
        model.ir_version = max(model.ir_version, 7)
        return model, 1
    asymmetric = ("Upsample", "Resize") if version == 10 else ("Upsample",)
    resizes = [n.outputs[0].name for n in model.graph if n.op_type in asymmetric]
    try:
        converted = convert_opset(model, least)
    except RunFailed:
        converted = _convert_around(model, least)
    # The converter keeps the order of nodes, but gives the outputs of those that it replaces names of its own.
    made = [n for n in converted.graph if n.op_type == "Resize"]
    if len(made) == len(resizes):
        for node, output in zip(made, resizes, strict=True):
            node.outputs[0].name = output
            node.attributes["coordinate_transformation_mode"] = ir.AttrString(
                "coordinate_transformation_mode", "asymmetric"
            )
            if node.attributes.get_string("mode", "nearest") == "nearest":
                node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "floor")
    converted.ir_version = max(model.ir_version, 7)
    converted.metadata_props.update(model.metadata_props)
    return converted, 1


@cache
def _only_wider(op_type: str, old: int, new: int) -> bool:
    """Whether an operator of opset ``old`` is the same in ``new``, where it may take more types and nothing else.

    The converter would leave it as it is, in a time that grows with the square of the model: 10,000 nodes take it 10 s.
    """
    try:
        before, after = (onnx.defs.get_schema(op_type, version, "") for version in (old, new))
    except onnx.defs.SchemaError:
        return False
    if before.since_version == after.since_version:
        return True
    if after.deprecated or _attributes(before) != _attributes(after):
        return False
    if (before.min_input, before.max_input, before.min_output) != (after.min_input, after.max_input, after.min_output):
        return False
    either = (before.inputs, after.inputs), (before.outputs, after.outputs)
    return all(len(a) == len(b) and all(map(_takes_as_much, a, b)) for a, b in either)


def _attributes(schema: onnx.defs.OpSchema) -> dict[str, tuple[object, ...]]:
    found = schema.attributes.items()
    return {name: (a.type, a.required, a.default_value.SerializeToString()) for name, a in found}


def _takes_as_much(before: onnx.defs.OpSchema.FormalParameter, after: onnx.defs.OpSchema.FormalParameter) -> bool:
    return before.name == after.name and before.option == after.option and before.types <= after.types


def _convert_around(model: ir.Model, least: int) -> ir.Model:
    """``model`` at opset ``least``, without the operators for which that fails; what fails besides is raised."""
    types = {n.op_type for n in model.graph if n.domain in _STANDARD}
    failing = {t for t in types if not _converts(_hidden(model, types - {t}), least)}
    converted = convert_opset(_hidden(model, failing), least)
    for node in converted.graph:
        if node.domain == _HIDDEN:
            node.domain = ""
    converted.opset_imports.pop(_HIDDEN)
    return converted


def _converts(model: ir.Model, least: int) -> bool:
    try:
        convert_opset(model, least)
    except RunFailed:
        return False
    return True


def _hidden(model: ir.Model, types: Collection[str]) -> ir.Model:
    """A copy of ``model`` whose operators of these types look like another domain's, which the converter skips."""
    copy = cloned(model)
    copy.opset_imports[_HIDDEN] = 1
    for node in copy.graph:
        if node.op_type in types and node.domain in _STANDARD:
            node.domain = _HIDDEN
    return copy
