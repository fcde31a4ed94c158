"""A model quantized for another target is lowered without that target's own way to write its operators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("ethosu", reason="the extra arm is not installed")

import inlay
from inlay.targets.ethos_u import vela
from inlay.targets.registry import known_rewrites
from inlay.tosa import ir
from inlay.tosa.command import LowerReport, lower_file
from inlay.tosa.reference import LoweredRunner
from tests.tosa.float_models import FloatNet, samples


def quantized(folder: Path) -> Path:
    """A transposed convolution, which ONNX Runtime gets as a Conv and a DepthToSpace."""
    n = FloatNet(4)
    w = n.const((n.rng.normal(size=(8, 4, 2, 2)) / 4).astype(np.float32))
    y = n.op("ConvTranspose", [n.op("Relu", [n.conv("x", 3, 8)]), w], kernel_shape=[2, 2], strides=[2, 2])
    onnx.save(n.model({n.conv(n.op("Relu", [y]), 4, 4): [1, 4, 32, 32]}), folder / "m.onnx")
    inlay.quantize(folder / "m.onnx", folder / "q.onnx", target="ort-cpu", data=samples(4), recipe="full-int8")
    assert "DepthToSpace" in {n.op_type for n in onnx.load(folder / "q.onnx").graph.node}
    return folder / "q.onnx"


def cycles(report: LowerReport) -> float:
    accelerator = vela.Accelerator.of("ethos-u85-256")
    return sum(vela.estimate(binary.data, accelerator).cycles for binary in report.lowered.tosa)


def test_the_rewrites_of_another_target_are_undone(tmp_path: Path) -> None:
    path = quantized(tmp_path)
    as_given = lower_file(path, tmp_path / "a.tosa")
    undone = lower_file(path, tmp_path / "b.tosa", rewrites=known_rewrites())
    kinds = [{type(op) for op in report.lowered.graph.ops} for report in (as_given, undone)]
    assert ir.TransposeConv2d not in kinds[0]
    assert ir.TransposeConv2d in kinds[1]
    assert not undone.lowered.not_lowered
    assert cycles(undone) < cycles(as_given)
    for feed in samples(2, seed=8):
        (a,), (b,) = (LoweredRunner(report.lowered).run(feed) for report in (as_given, undone))
        np.testing.assert_array_equal(a, b)
