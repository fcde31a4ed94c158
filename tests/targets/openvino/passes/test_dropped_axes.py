"""No axis is dropped right behind a product, whose scales the runtime would move to where it still is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from inlay.targets.base import Capabilities
from inlay.targets.openvino.float_rewrites import FLOAT_REWRITES
from inlay.targets.openvino.passes import drop_axes_behind
from inlay.targets.openvino.rules import rules_for
from inlay.testing import Builder, random_feed
from tests.support.fixtures import RewriteModel
from tests.support.workspace import Workspace
from tests.targets.openvino.conftest import InRuntime


def reduction(op_type: str = "ReduceMean", opset: int = 17, axes: Any = (1,), **attributes: Any) -> onnx.ModelProto:
    b = Builder(opset=opset)
    inputs = [b.input("x", (2, 7, 8))]
    as_input = axes is not None and (opset >= 18 or op_type == "ReduceSum")
    if as_input:
        inputs.append(b.constant("axes", np.array(axes)))
    elif axes is not None:
        attributes["axes"] = list(axes)
    b.output(b.node("tested", op_type, inputs, **{"keepdims": 0, **attributes}))
    return b.model()


def gather(axis: int, index: object = 0) -> onnx.ModelProto:
    b = Builder()
    x = b.input("x", (2, 7, 8))
    b.output(b.node("tested", "Gather", [x, b.constant("index", np.array(index))], axis=axis))
    return b.model()


def table() -> onnx.ModelProto:
    """A row of constants."""
    b = Builder()
    row = b.node("tested", "Gather", [b.constant("t", b.rng.standard_normal((4, 8))), b.constant("i", np.array(1))])
    b.output(b.node("sum", "Add", [b.input("x", (2, 8)), row]))
    return b.model()


CASES = {
    "mean": reduction(),
    "mean of two": reduction(axes=(0, -2)),
    "axes as an input": reduction(opset=18),
    "sum": reduction("ReduceSum"),
    "maximum": reduction("ReduceMax", axes=(-1,)),
    "first row": gather(1),
    "last channel": gather(-1, -1),
    "of a batch": gather(0, 1),
}
OTHERS = {
    "kept": reduction(keepdims=1),
    "all axes": reduction(axes=(0, 1, 2)),
    "all by default": reduction(axes=None),
    "a list": gather(1, [0]),
    "a table": table(),
    "an old opset": reduction(opset=11),
}


@pytest.mark.parametrize("case", CASES)
def test_results_stay_the_same(case: str, rewritten: RewriteModel) -> None:
    done = rewritten(CASES[case], drop_axes_behind)
    assert [n.op_type for n in done.model.graph] == [CASES[case].graph.node[0].op_type, "Squeeze"]
    done.assert_close(rtol=0.0, atol=0.0)


@pytest.mark.parametrize("case", OTHERS)
def test_others_are_left_alone(case: str) -> None:
    assert drop_axes_behind(ir.from_proto(OTHERS[case]))[1] == 0


def behind_product(op_type: str) -> onnx.ModelProto:
    """What drops the axis of rows behind a product, before another one."""
    b = Builder()
    x = b.node("one", "MatMul", [b.input("x", (2, 7, 16)), b.constant("w", b.rng.standard_normal((16, 8)) / 4)])
    if op_type == "Gather":
        x = b.node("row", "Gather", [x, b.constant("index", np.array(0))], axis=1)
    else:
        x = b.node("mean", op_type, [x], axes=[1], keepdims=0)
    weight, bias = b.constant("v", b.rng.standard_normal((5, 8))), b.constant("b", b.rng.standard_normal(5))
    b.output(b.node("two", "Gemm", [x, weight, bias], transB=1))
    return b.model()


@pytest.mark.parametrize("op_type", ["ReduceMean", "Gather"])
@pytest.mark.parametrize("aware", [True, False])
def test_the_runtime_gets_it_right_only_so(op_type: str, aware: bool, tmp_path: Path, in_runtime: InRuntime) -> None:
    """Both products in 8 bits; the control is without the rewrite."""
    model = behind_product(op_type)
    space = Workspace(model, tmp_path, Capabilities(rules_for(), FLOAT_REWRITES if aware else ()))
    path, feed = tmp_path / "written.onnx", random_feed(model)
    onnx.save(space.emit(space.label("one", "two")), path)
    assert (in_runtime(path, feed, "f32") > 25.0) == aware
