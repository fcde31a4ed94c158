"""Raise the opset to what Q/DQ nodes need.

The converter of the ``onnx`` package does the work, but gets one quirk wrong: ``Upsample`` (opset 7-9) and ``Resize``
of opset 10 always mean asymmetric coordinates with floor rounding, while the ``Resize`` that they are converted to
means half-pixel coordinates unless it says otherwise. Its attributes are set here.
"""

from __future__ import annotations

import onnx_ir as ir

from inlay.model.onnx_library import convert_opset

QDQ_OPSET = 13
"""First opset with a channel axis on QuantizeLinear/DequantizeLinear."""


def raise_opset(model: ir.Model, least: int = QDQ_OPSET) -> tuple[ir.Model, int]:
    """``model`` at opset ``least`` when it is older, and 1; or itself and 0.

    Raises:
        Exception: whatever the converter raises for an operator that it cannot convert.
    """
    version = model.opset_imports.get("", least)
    if version >= least:
        return model, 0
    resizes = [n.outputs[0].name for n in model.graph if _asymmetric(n, version)]
    converted = convert_opset(model, least)
    # The converter keeps the order of nodes, but gives the outputs of those that it replaces names of its own.
    made = [n for n in converted.graph if n.op_type == "Resize"]
    if len(made) == len(resizes):
        for node, output in zip(made, resizes, strict=True):
            node.outputs[0].name = output
            node.attributes["coordinate_transformation_mode"] = ir.AttrString(
                "coordinate_transformation_mode", "asymmetric"
            )
            if _mode(node) == "nearest":
                node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "floor")
    converted.ir_version = max(model.ir_version, 7)
    converted.metadata_props.update(model.metadata_props)
    return converted, 1


def _asymmetric(node: ir.Node, version: int) -> bool:
    return node.op_type == "Upsample" or (node.op_type == "Resize" and version == 10)


def _mode(node: ir.Node) -> str:
    attr = node.attributes.get("mode")
    return "nearest" if attr is None else str(attr.value)
