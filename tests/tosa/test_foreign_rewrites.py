"""A model quantized for another target is lowered without that target's own way to write its operators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("ethosu", reason="the extra arm is not installed")

import inlay
from inlay.targets.base import TargetSpec
from inlay.targets.registry import create
from inlay.testing.models import random_feed
from inlay.tosa import ir
from inlay.tosa.command import LowerReport, lower_file
from inlay.tosa.ethos_u import vela
from inlay.tosa.reference import LoweredRunner
from tests.tosa.float_models import FloatNet, samples
from tests.tosa.foreign_models import float_pass_models, rewrite_models


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


NATIVE = {
    "spell LRN out": "spelled out, its convolution and sums are integer; as it is, all of it is on the host",
    "multiply by constants in place of Resize": "products of interpolation are float on the other runtime",
    "take fused operators apart": "as it is, all of it is on the host",
    "gather attention": "what is inside is one float operator of the other runtime",
    "gather LayerNormalization": "what is inside is one float operator of the other runtime",
    "keep additions apart from normalizations": "its sums are float on the other runtime",
}
"""Passes that change which operators are quantized, with what that means here: cycles say nothing then."""

CLOSE = 1.1
"""Allowed cycles over those of a model quantized for the NPU: the scales of the two differ a little."""


WIDE, NARROW = "avx512-vnni", "avx2"
"""Processors for which ONNX Runtime's weights have 8 bits, as an NPU's do, and 7."""


@pytest.mark.parametrize(
    ("name", "processor"),
    [
        *((name, WIDE) for name in sorted({*float_pass_models(), *rewrite_models()} - NATIVE.keys())),
        ("compute few outputs in blocks", NARROW),  # corrected biases differ most there
    ],
)
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_no_way_to_write_a_model_for_another_runtime_costs_cycles(name: str, processor: str, tmp_path: Path) -> None:
    model = {**float_pass_models(), **rewrite_models()}[name]
    onnx.save(model, tmp_path / "m.onnx")
    data = [random_feed(model, seed) for seed in range(4)]
    reports = []
    for file, wish in (
        ("foreign", {"target": "ort-cpu", "processors": [processor]}),
        ("own", {"target": "ethos-u85-256"}),
    ):
        inlay.quantize(tmp_path / "m.onnx", tmp_path / f"{file}.onnx", data=data, recipe="full-int8", **wish)
        reports.append(lower_file(tmp_path / f"{file}.onnx", tmp_path / f"{file}.tosa"))
    foreign, own = reports
    assert len(foreign.lowered.not_lowered) <= len(own.lowered.not_lowered)
    assert cycles(foreign) <= CLOSE * cycles(own)


def test_the_models_above_are_those_of_every_pass_and_rewrite() -> None:
    passes = {r.name for r in create(TargetSpec("ort-cpu")).float_rewrites()}
    assert passes <= float_pass_models().keys()  # the others are of runtimes that may be absent
    assert {r.name for r in create(TargetSpec("ort-cpu")).rewrites()} == rewrite_models().keys()


def test_the_rewrites_of_another_target_are_undone(tmp_path: Path) -> None:
    path = quantized(tmp_path)
    model = onnx.load(path)
    for node in model.graph.node:
        del node.metadata_props[:]
    onnx.save(model, tmp_path / "unnoted.onnx")
    as_given = lower_file(tmp_path / "unnoted.onnx", tmp_path / "a.tosa")
    undone = lower_file(path, tmp_path / "b.tosa")
    kinds = [{type(op) for op in report.lowered.graph.ops} for report in (as_given, undone)]
    assert ir.TransposeConv2d not in kinds[0]
    assert ir.TransposeConv2d in kinds[1]
    assert not undone.lowered.not_lowered
    assert cycles(undone) < cycles(as_given)
    for feed in samples(2, seed=8):
        (a,), (b,) = (LoweredRunner(report.lowered).run(feed) for report in (as_given, undone))
        np.testing.assert_array_equal(a, b)
