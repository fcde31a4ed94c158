"""What recipes cost on an NPU: what they leave to the operators' neighbours must not go to the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("tosa_serializer", reason="the extra arm is not installed")

import inlay
from inlay.space.recipe import OpConfig, Recipe
from inlay.tosa.ethos_u.partitions import Cost, compile_partitions
from inlay.tosa.ethos_u.vela import Accelerator
from inlay.tosa.lowering import Lowered
from inlay.types import QType
from tests.tosa.float_models import FloatNet, samples

INT = OpConfig()
FULL, ONLY_CONVS = Recipe().set_global(INT), Recipe().set_global(None).set_op_type("Conv", INT)


def convs() -> onnx.ModelProto:
    """Three Convs, with a MaxPool and a join between them."""
    n = FloatNet(0)
    first = n.op("Relu", [n.conv("x", 3, 8)])
    pooled = n.op("MaxPool", [first], kernel_shape=[2, 2], strides=[2, 2])
    second = n.op("Relu", [n.conv(pooled, 8, 8)])
    y = n.conv(n.op("Concat", [pooled, second], axis=1), 16, 4)
    return n.model({y: [1, 4, 8, 8]})


def lowered(recipe: Recipe, folder: Path) -> tuple[set[str], Lowered, Cost]:
    """The precisions that the recipe decided on, the lowered model and its cost."""
    onnx.save(convs(), folder / "m.onnx")
    target = "ethos-u55-128"
    done = inlay.quantize(folder / "m.onnx", folder / "q.onnx", target=target, data=samples(4), recipe=recipe)
    precisions = {d.precision for d in done.decisions}
    return precisions, *compile_partitions(onnx.load(folder / "q.onnx"), Accelerator.of(target))


@pytest.mark.parametrize(
    "recipe",
    [FULL.set_io(None), ONLY_CONVS, ONLY_CONVS.set_io(None), ONLY_CONVS.set_io(OpConfig(QType.UINT8))],
    ids=["io: float", "only Convs", "only Convs, io: float", "only Convs, io: uint8"],
)
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_nothing_of_three_convs_goes_to_the_host(recipe: Recipe, tmp_path: Path) -> None:
    usual = lowered(FULL, tmp_path)[2]
    precisions, graph, cost = lowered(recipe, tmp_path)
    assert precisions == {"int8"}
    assert not graph.not_lowered
    assert [p.kind for p in graph.partitions] == ["tosa"]
    assert cost.host == 0
    assert cost.npu == pytest.approx(usual.npu, rel=0.1)


@pytest.mark.exhaustive
def test_a_float_operator_at_the_boundary_is_the_negative_control(tmp_path: Path) -> None:
    precisions, graph, cost = lowered(Recipe().set_name("*", None).set_name("conv3", INT), tmp_path)
    assert precisions == {"float", "int8"}
    assert graph.not_lowered
    assert cost.host > 0


@pytest.mark.exhaustive
def test_operators_that_have_rules_are_quantized_and_lowered(tmp_path: Path) -> None:
    """LayerNormalization, GlobalMaxPool, Where, BatchNormalization and LogSoftmax by the target's own recipe."""
    n = FloatNet(5)
    ones, zeros = np.ones(8, np.float32), np.zeros(8, np.float32)
    y = n.op("Relu", [n.conv("x", 3, 8)])
    statistics = [n.const(a) for a in (ones * 1.5, ones / 3, zeros + 0.1, ones)]
    y = n.op(
        "Where", [n.const(np.arange(16) % 3 > 0), n.op("BatchNormalization", [y, *statistics]), n.const(zeros[:1])]
    )
    y = n.op("Flatten", [n.op("GlobalMaxPool", [y])])
    y = n.op("LayerNormalization", [y, n.const(ones), n.const(zeros)])
    y = n.op("LogSoftmax", [n.linear(y, 8, 5)])
    onnx.save(n.model({y: [1, 5]}), tmp_path / "m.onnx")
    target = "ethos-u55-128"
    recipe = "full-int8"
    done = inlay.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", target=target, data=samples(4), recipe=recipe)
    assert {d.precision for d in done.decisions} == {"int8"}
    assert done.accuracy is not None
    assert done.accuracy.sqnr_db > 20
    graph, cost = compile_partitions(onnx.load(tmp_path / "q.onnx"), Accelerator.of(target))
    assert not graph.not_lowered
    assert cost.host == 0
