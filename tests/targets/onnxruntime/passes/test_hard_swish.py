"""HardSwish is spelled out, and runs in 8 bits then."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from inlay.targets.onnxruntime.passes.respelled import spell_out_hardswish
from inlay.testing import Builder
from tests.support.fixtures import RewriteModel
from tests.support.runtime import optimized
from tests.support.workspace import Workspace


def test_the_numbers_are_those_of_the_operator(rewritten: RewriteModel) -> None:
    b = Builder()
    b.output(b.node("act", "HardSwish", [b.input("x", (2, 5, 7, 8))], channels=5))
    feed = {"x": np.random.default_rng(0).normal(0, 4, (2, 5, 7, 8)).astype(np.float32)}
    done = rewritten(b.model(), spell_out_hardswish, feed)
    assert done.operators == ["HardSigmoid", "Mul"]
    done.assert_close(rtol=1e-6, atol=1e-6)


def test_between_convolutions_nothing_is_left_in_float(tmp_path: Path) -> None:
    b = Builder()
    stem = b.conv("stem", b.input("x", (1, 3, 12, 12)), 8)
    b.output(b.conv("last", b.node("act", "HardSwish", [stem]), 4, kernel=1))
    space = Workspace(b.model(), tmp_path)
    kinds = [n.op_type for n in optimized(space.emit(space.full()), tmp_path).graph.node]
    assert {"QLinearConv", "QLinearMul", "QLinearLeakyRelu"} <= set(kinds)
    assert kinds.count("DequantizeLinear") == 1, "the output's"
