"""Operators that newer opsets removed: written in others, so that the model can be raised and quantized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from inlay.errors import RunFailed
from inlay.model.load import load
from inlay.patterns.search_space import find_search_space
from inlay.prepare.model import prepare
from inlay.targets.base import Capabilities, TargetSpec
from inlay.targets.registry import DEFAULT_TARGET, create
from inlay.testing import Builder, random_feed
from tests.support.fixtures import NormalizeModel
from tests.support.normalizing import no_roll_backs
from tests.support.onnx_queries import ops


def with_operator(op_type: str, opset: int, **attributes: Any) -> onnx.ModelProto:
    """Conv, the operator and Conv; built around a Relu, since the checker does not know the operator."""
    b = Builder(opset=opset)
    x = b.node("middle", "Relu", [b.conv("first", b.input("x", (1, 3, 12, 12)), 6)], channels=6)
    b.output(b.conv("last", x, 4))
    model = b.model()
    middle = next(n for n in model.graph.node if n.name == "middle")
    middle.op_type = op_type
    middle.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
    del model.graph.value_info[:]
    if op_type == "Crop":
        model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def opset_of(model: onnx.ModelProto) -> int:
    return next(o.version for o in model.opset_import if o.domain == "")


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("Affine", {"alpha": 0.5, "beta": -1.5}),
        ("Crop", {"border": [1, 2, 3, 0]}),
        ("Crop", {"border": [1, 2, 3, 4], "scale": [5, 6]}),
        ("ImageScaler", {"scale": 2.0, "bias": [0.5, -1.0, 0.0, 2.0, 3.0, -0.25]}),
        ("ParametricSoftplus", {"alpha": 1.5, "beta": 0.5}),
        ("ScaledTanh", {"alpha": 1.5, "beta": 0.5}),
    ],
)
def test_a_removed_operator_is_written_in_others(
    op_type: str, attributes: dict[str, Any], normalized: NormalizeModel
) -> None:
    """The gate compares the outputs with those of the runtime's own kernel for the removed operator."""
    proto, done = normalized(with_operator(op_type, 7, **attributes))
    assert op_type not in ops(proto)
    assert opset_of(proto) >= 13
    assert no_roll_backs(done)


def test_an_operator_that_cannot_be_converted_stays(normalized: NormalizeModel) -> None:
    """ThresholdedRelu was experimental before opset 10 and means the same since: the converter knows no way."""
    proto, done = normalized(with_operator("ThresholdedRelu", 9, alpha=0.5))
    assert "ThresholdedRelu" in ops(proto)
    assert opset_of(proto) >= 13
    assert not {o.domain for o in proto.opset_import} - {"", "ai.onnx"}
    assert no_roll_backs(done)


def test_local_functions_are_not_lost(normalized: NormalizeModel) -> None:
    model = with_operator("F", 11)
    next(n for n in model.graph.node if n.op_type == "F").domain = "local"
    inner = helper.make_function(
        "local", "G", ["a"], ["b"], [helper.make_node("Tanh", ["a"], ["b"])], [helper.make_opsetid("", 11)]
    )
    outer = helper.make_function(
        "local",
        "F",
        ["a"],
        ["c"],
        [helper.make_node("G", ["a"], ["b"], domain="local"), helper.make_node("Abs", ["b"], ["c"])],
        [helper.make_opsetid("", 11), helper.make_opsetid("local", 1)],
    )
    model.functions.extend([inner, outer])
    model.opset_import.append(helper.make_opsetid("local", 1))
    proto, done = normalized(model)
    assert {"Tanh", "Abs"} <= set(ops(proto))
    assert opset_of(proto) >= 13
    assert no_roll_backs(done)


def test_where_the_opset_cannot_be_raised_all_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search space is as empty as the list of units, and both give the reason."""
    b = Builder(opset=7)
    x = b.conv("last", b.conv("first", b.input("x", (1, 3, 12, 12)), 6, relu=True), 4)
    b.output(b.node("soft", "Softmax", [x]))  # whose axis is another one in newer opsets
    model = b.model()
    onnx.save(model, tmp_path / "model.onnx")

    def refuse(model: object, version: int) -> None:
        raise RunFailed("no adapter for Sigh")

    monkeypatch.setattr("inlay.model.passes.opset.convert_opset", refuse)
    target = Capabilities.of(create(TargetSpec(DEFAULT_TARGET)))
    prepared = prepare(load(tmp_path / "model.onnx"), target, random_feed(model), tmp_path)
    assert not prepared.selectable
    assert all("opset 7 has no Q/DQ nodes" in u.rejection and "Sigh" in u.rejection for u in prepared.units)
    rejections = find_search_space(prepared.graph, prepared.rules).rejections
    reasons = {r.reason for r in rejections.ports.values() if r is not None}
    assert len(reasons) == 1
    assert "Sigh" in reasons.pop()
    assert None not in rejections.ports.values()
