"""Raise the opset to what Q/DQ nodes need.

The converter of the ``onnx`` package does the work, but gets one quirk wrong: ``Upsample`` (opset 7-9) and ``Resize``
of opset 10 always mean asymmetric coordinates with floor rounding, while the ``Resize`` that they are converted to
means half-pixel coordinates unless it says otherwise. Its attributes are set here. Weights are kept out of the
conversion: they go in as graph inputs, and come back afterwards, so that it costs no copies.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx import version_converter

from inlay.model.store import INLINE_BYTES

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
    kept = {n: v.const_value for n, v in model.graph.initializers.items() if _heavy(v.const_value)}
    light = model.clone()
    listed = {v.name for v in light.graph.inputs}
    for name in kept:
        value = light.graph.initializers.pop(name)
        value.const_value = None
        if name not in listed:
            light.graph.inputs.append(value)
    proto = ir.to_proto(light)
    # The converter wants every initializer among the inputs up to IR version 3 and is happy without from 4 on.
    proto.ir_version = max(proto.ir_version, 4)
    converted = ir.from_proto(version_converter.convert_version(proto, least))
    for value in [v for v in converted.graph.inputs if v.name in kept and v.name not in listed]:
        converted.graph.inputs.remove(value)
    for value in [*converted.graph.inputs, *(v for n in converted.graph for v in n.inputs if v is not None)]:
        if value.name in kept and value.const_value is None:
            value.const_value = kept[value.name]
            converted.graph.initializers[value.name] = value
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


def _heavy(tensor: ir.TensorProtocol | None) -> bool:
    return tensor is not None and tensor.nbytes >= INLINE_BYTES


def _mode(node: ir.Node) -> str:
    attr = node.attributes.get("mode")
    return "nearest" if attr is None else str(attr.value)
