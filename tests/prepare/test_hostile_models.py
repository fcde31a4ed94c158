"""Models that crash, hang or exhaust native code are refused in one line; the process of the caller lives on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from inlay.data.samples import input_specs
from inlay.errors import InlayError, ModelError
from inlay.model.guard import limited
from inlay.model.load import load
from inlay.model.store import WeightStore, externalize_weights
from inlay.prepare.model import PreparedModel, prepare
from inlay.targets.base import Capabilities, TargetSpec
from inlay.targets.registry import DEFAULT_TARGET, create
from inlay.testing import Builder, random_feed, residual_model
from inlay.tosa.command import lower_file

SECONDS = 20.0  # that a call may take here: much more than a small model needs, also on a busy machine


def recursive() -> onnx.ModelProto:
    """A local function that calls itself: shape inference and the runtime overflow their stack."""
    model = with_function(["F"])
    model.functions[0].node[0].domain = "local"
    model.functions[0].opset_import.append(helper.make_opsetid("local", 1))
    return model


def expanding() -> onnx.ModelProto:
    """Functions that call the one before ten times each: 10^7 nodes."""
    model = with_function(["Relu"])
    for level in range(1, 8):
        names = ["a", *(f"t{i}" for i in range(9)), "b"]
        nodes = [
            helper.make_node(f"F{level - 1}" if level > 1 else "F", [x], [y], domain="local")
            for x, y in pairwise(names)
        ]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        model.functions.append(helper.make_function("local", f"F{level}", ["a"], ["b"], nodes, opsets))
    next(n for n in model.graph.node if n.name == "called").op_type = "F7"
    return model


def with_function(operators: list[str]) -> onnx.ModelProto:
    b = Builder()
    x = b.node("called", "Relu", [b.conv("conv", b.input("x", (1, 3, 16, 16)), 8)], channels=8)
    b.output(b.conv("last", x, 8))
    model = b.model()
    body = [helper.make_node(op, ["a"], ["b"]) for op in operators]
    model.functions.append(helper.make_function("local", "F", ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    model.opset_import.append(helper.make_opsetid("local", 1))
    next(n for n in model.graph.node if n.name == "called").MergeFrom(onnx.NodeProto(op_type="F", domain="local"))
    del model.graph.value_info[:]
    return model


def endless() -> onnx.ModelProto:
    """A Loop whose condition stays true."""
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 16, 16)), 8)
    kinds = {"i": TensorProto.INT64, "go": TensorProto.BOOL, "on": TensorProto.BOOL}
    i, go, on = (helper.make_tensor_value_info(n, t, []) for n, t in kinds.items())
    v, w = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8, 16, 16]) for n in ("v", "w"))
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Relu", ["v"], ["w"])], "b", [i, go, v], [on, w]
    )
    loop = b.node("loop", "Loop", ["", b.constant("true", np.array(True)), x], body=body)
    b.outputs.append(helper.make_tensor_value_info(loop, TensorProto.FLOAT, [1, 8, 16, 16]))
    return b.model()


def enormous(op_type: str) -> Callable[[], onnx.ModelProto]:
    """A value of 2^42 bytes."""

    def model() -> onnx.ModelProto:
        b = Builder()
        x = b.conv("conv", b.input("x", (1, 3, 16, 16)), 8)
        size = b.constant("size", np.array([2**40] if op_type == "ConstantOfShape" else [2**29, 8, 16, 16]))
        large = b.node("large", op_type, [size] if op_type == "ConstantOfShape" else [x, size])
        b.output(b.node("add", "Add", [x, b.node("sum", "ReduceSum", [large], keepdims=0)]))
        return b.model()

    return model


def prepared(model: onnx.ModelProto, folder: Path) -> PreparedModel:
    onnx.save(model, folder / "model.onnx")
    target = Capabilities.of(create(TargetSpec(DEFAULT_TARGET)))
    with limited(lambda: SECONDS):
        return prepare(load(folder / "model.onnx"), target, random_feed(model), folder)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (recursive, "ended its process .signal SIG"),
        (expanding, "took more than|memory|ended its process|function"),
        (endless, "running the model took more than 20 s"),
        (enormous("ConstantOfShape"), "memory"),
        (enormous("Expand"), "memory"),
    ],
)
@pytest.mark.matrix
def test_a_hostile_model_is_refused_in_one_line(
    make: Callable[[], onnx.ModelProto], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InlayError, match=message) as caught:
        prepared(make(), tmp_path)
    assert "\n" not in str(caught.value)
    assert len(prepared(residual_model(), tmp_path).selectable) > 2, "the next model is worked on as ever"


def test_a_harmless_function_is_no_reason_to_refuse(tmp_path: Path) -> None:
    assert {"conv", "last"} <= {u.name for u in prepared(with_function(["Relu"]), tmp_path).selectable}


@pytest.mark.parametrize("make", [recursive, enormous("ConstantOfShape")])
def test_lowering_takes_no_native_code_on_trust(
    make: Callable[[], onnx.ModelProto], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    onnx.save(make(), tmp_path / "model.onnx")
    with limited(lambda: SECONDS), pytest.raises(InlayError) as caught:
        lower_file(tmp_path / "model.onnx", tmp_path / "model.tosa")
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "temp").iterdir())


def untyped(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.add(name="odd")


def mistyped(model: onnx.ModelProto) -> None:
    node = next(n for n in model.graph.node if n.op_type == "Conv")
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("group", [1, 1]))


def short(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[0] = 2**40


def unfed(model: onnx.ModelProto) -> None:
    next(n for n in model.graph.node if n.op_type == "Conv").input[1] = ""


def cut_short(model: onnx.ModelProto) -> None:
    del next(n for n in model.graph.node if n.op_type == "Conv").input[1:]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (unfed, "Conv .* lacks its input 1"),
        (cut_short, "Conv .* lacks its input 1"),
        (mistyped, "attribute group of node .* has the wrong type INTS"),
        (untyped, "attribute odd of node .* has no type"),
        (short, "tensor .* cannot be read"),
    ],
)
def test_what_cannot_be_written_again_is_refused_as_it_is_read(
    damage: Callable[[onnx.ModelProto], None], message: str, tmp_path: Path
) -> None:
    model = residual_model()
    damage(model)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=message):
        load(tmp_path / "model.onnx")


def test_an_input_without_element_type_is_refused(tmp_path: Path) -> None:
    model = residual_model()
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UNDEFINED
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="has no element type that arrays have"):
        input_specs(load(tmp_path / "model.onnx").model)


def test_a_dimension_that_tosa_has_no_number_for_is_refused(tmp_path: Path) -> None:
    model = residual_model()
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 2**62
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="has a dimension of more than"):
        lower_file(tmp_path / "model.onnx", tmp_path / "model.tosa")


def test_a_function_that_reads_what_nothing_computes_is_refused(tmp_path: Path) -> None:
    model = with_function(["Relu"])
    model.functions[0].node[0].input[0] = "nowhere"
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="reads nowhere, which nothing computes"):
        load(tmp_path / "model.onnx")


def test_what_cannot_be_written_is_an_error_of_the_model(tmp_path: Path) -> None:
    onnx.save(residual_model(), tmp_path / "model.onnx")
    model = load(tmp_path / "model.onnx").model
    model.graph[0].attributes["odd"] = ir.Attr("odd", ir.AttributeType.UNDEFINED, None)
    with pytest.raises(ModelError, match="not well-formed: Unsupported attribute type"):
        externalize_weights(model, WeightStore(tmp_path))
