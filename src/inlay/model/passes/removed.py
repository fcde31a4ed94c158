"""Operators of old opsets that newer ones no longer have, in operators that they do have.

ONNX called them experimental and removed them with opset 10; runtimes still take them in models of older opsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import Steps, ints, is_standard

_TO_THE_END = 2**31 - 1  # as the end of a slice


def replace_removed(model: ir.Model) -> tuple[ir.Model, int]:
    """Write each removed operator on float32 values in others."""
    done = 0
    for node in list(model.graph):
        write, x = _FORMS.get(node.op_type), node.inputs[0] if node.inputs else None
        if write is None or x is None or not is_standard(node, *_FORMS) or not isinstance(node.graph, ir.Graph):
            continue
        if x.dtype in (None, ir.DataType.FLOAT):
            write(node, x, Steps(node, node.graph, x))
            done += 1
    return model, done


def _affine(node: ir.Node, x: ir.Value, steps: Steps) -> None:
    alpha, beta = (np.array(_number(node, name, default)) for name, default in (("alpha", 1.0), ("beta", 0.0)))
    scaled = steps.add("Mul", [x, steps.constant("alpha", alpha)], "scaled")
    _become(node, "Add", [scaled, steps.constant("beta", beta)])


def _image_scaler(node: ir.Node, x: ir.Value, steps: Steps) -> None:
    bias = np.array(node.attributes["bias"].as_floats()).reshape(-1, 1, 1)
    scaled = steps.add("Mul", [x, steps.constant("scale", np.array(_number(node, "scale", 1.0)))], "scaled")
    _become(node, "Add", [scaled, steps.constant("offsets", bias)])


def _scale(node: ir.Node, x: ir.Value, steps: Steps) -> None:
    _become(node, "Mul", [x, steps.constant("scale", np.array(_number(node, "scale", 1.0)))])


def _scaled(function: str) -> Callable[[ir.Node, ir.Value, Steps], None]:
    """``alpha * function(beta * x)``."""

    def write(node: ir.Node, x: ir.Value, steps: Steps) -> None:
        alpha, beta = (np.array(_number(node, name, 1.0)) for name in ("alpha", "beta"))
        inner = steps.add("Mul", [x, steps.constant("beta", beta)], "scaled")
        outer = steps.add(function, [inner], "function")
        _become(node, "Mul", [outer, steps.constant("alpha", alpha)])

    return write


def _crop(node: ir.Node, x: ir.Value, steps: Steps) -> None:
    """The border is given as left, top, right, bottom; with a size, only left and top count."""
    left, top, right, bottom = ints(node, "border", [0, 0, 0, 0])
    size = ints(node, "scale", [])
    ends = [top + size[0], left + size[1]] if size else [-bottom or _TO_THE_END, -right or _TO_THE_END]
    _become(node, "Slice", [x])
    for name, values in (("starts", [top, left]), ("ends", ends), ("axes", [2, 3])):
        node.attributes[name] = ir.AttrInt64s(name, values)


_FORMS: dict[str, Callable[[ir.Node, ir.Value, Steps], None]] = {
    "Affine": _affine,
    "Crop": _crop,
    "ImageScaler": _image_scaler,
    "ParametricSoftplus": _scaled("Softplus"),
    "Scale": _scale,
    "ScaledTanh": _scaled("Tanh"),
}


def _number(node: ir.Node, name: str, default: float) -> float:
    return float(node.attributes[name].as_float()) if name in node.attributes else default


def _become(node: ir.Node, op_type: str, inputs: Sequence[ir.Value]) -> None:
    """Turn ``node`` into another operator that computes the same outputs."""
    node.op_type = op_type
    node.attributes.clear()
    node.resize_inputs(len(inputs))
    for i, value in enumerate(inputs):
        node.replace_input_with(i, value)
