"""No pool is left that counts padding of data below zero, which the runtime takes for the least integer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from inlay.targets.base import Capabilities
from inlay.targets.openvino.float_rewrites import FLOAT_REWRITES
from inlay.targets.openvino.passes import leave_padding_out
from inlay.targets.openvino.rules import rules_for
from inlay.testing import Builder, random_feed
from tests.support.fixtures import RewriteModel
from tests.support.workspace import Workspace
from tests.targets.openvino.conftest import InRuntime


def pool(shape: tuple[int, ...] = (1, 4, 9, 8), before: str = "", **attributes: Any) -> onnx.ModelProto:
    b = Builder(opset=19)
    x = b.input("x", shape)
    if before:
        x = b.node("before", before, [x])
    window = {"kernel_shape": [3] * (len(shape) - 2), "pads": [1] * (2 * len(shape) - 4), "count_include_pad": 1}
    b.output(b.node("pool", "AveragePool", [x], **{**window, **attributes}))
    return b.model()


CASES = {
    "as it is": pool(),
    "with strides": pool(strides=[2, 3]),
    "uneven": pool(kernel_shape=[2, 4], pads=[1, 0, 0, 3]),
    "one dimension": pool((2, 3, 11)),
    "three dimensions": pool((1, 2, 5, 6, 7), strides=[1, 2, 2]),
}
OTHERS = {
    "not counted": pool(count_include_pad=0),
    "none": pool(pads=[0, 0, 0, 0]),
    "rounded up": pool(ceil_mode=1),
    "dilated": pool(dilations=[2, 2]),
    "from zero": pool(before="Relu"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_means_stay_the_same(case: str, rewritten: RewriteModel) -> None:
    done = rewritten(CASES[case], leave_padding_out)
    assert [n.op_type for n in done.model.graph] == ["AveragePool", "Mul"]
    done.assert_close(rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", OTHERS)
def test_others_are_left_alone(case: str) -> None:
    assert leave_padding_out(ir.from_proto(OTHERS[case]))[1] == 0


@pytest.mark.parametrize("aware", [True, False])
def test_the_runtime_gets_it_right_only_so(aware: bool, tmp_path: Path, in_runtime: InRuntime) -> None:
    """Where nothing but a slice before the pool is in 8 bits; the control is without the rewrite."""
    b = Builder()
    bounds = [b.constant(name, np.array([n])) for name, n in (("from", 0), ("to", 2), ("axis", 1))]
    x = b.node("part", "Slice", [b.input("x", (1, 4, 9, 9)), *bounds])
    b.output(b.node("pool", "AveragePool", [x], kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1))
    rewrites = FLOAT_REWRITES if aware else ()
    space = Workspace(b.model(), tmp_path, Capabilities(rules_for(), rewrites))
    path, feed = tmp_path / "written.onnx", random_feed(b.model())
    onnx.save(space.emit(space.label("part")), path)
    assert (in_runtime(path, feed, "f32") > 30.0) == aware
