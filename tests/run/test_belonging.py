"""A file says what it was quantized for, and what is known of running it on another processor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import inlay
from inlay.prepare.candidate_writer import TUNED_FOR, belongs, tuned_for
from inlay.run.belonging import differences
from inlay.targets.onnxruntime.processors import PROCESSORS
from inlay.targets.onnxruntime.target import OrtCpuTarget
from inlay.testing.models import Builder, random_feed, residual_model
from tests.targets.onnxruntime.test_exact_form import COLUMNS, product


def of(processor: str, **changes: str) -> dict[str, str]:
    return {**OrtCpuTarget(processor=processor).fingerprint().named_facts, **changes}


def test_a_file_of_this_processor_belongs_here(tmp_path: Path) -> None:
    model, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(residual_model(), model)
    feeds = [random_feed(model, seed) for seed in range(2)]
    inlay.quantize(model, out, data=feeds, recipe="conv-matmul")
    found = inlay.check(out)
    assert found.fits
    assert found.tuned_for == belongs(OrtCpuTarget().fingerprint())
    assert "run where it was quantized for" in str(found)
    said = inlay.check(model)
    assert (said.fits, said.tuned_for) == (True, {}), "the given one says nothing"
    assert "does not say" in str(said)


@pytest.mark.parametrize(
    ("then", "here", "told"),
    [
        (of("amx"), of("avx2"), ["isa avx2 avx512f", "OUTPUTS MAY DIFFER", "go up to 127"]),
        (of("avx2"), of("amx"), ["isa avx2 there", "7 bits, which are not needed here"]),
        (of("armv8"), of("amx"), ["machine aarch64 there, x86_64 here", "activations are int8, where uint8"]),
        (of("amx"), of("armv8", onnxruntime="1.26.0"), ["not run in 8 bits here: ConvTranspose, DepthToSpace"]),
        (of("armv8.2-dotprod"), of("armv8"), ["where two activations are multiplied", "OUTPUTS MAY DIFFER"]),
        (of("amx"), of("amx", onnxruntime="1.20.1"), ["onnxruntime", "1.20.1 here"]),
        (of("amx"), {**of("amx"), "target": "another"}, ["quantized for ort-cpu, and run on another"]),
    ],
)
def test_what_differs_is_told_with_what_follows(then: dict[str, str], here: dict[str, str], told: list[str]) -> None:
    said = "; ".join(differences(then, here))
    assert all(each in said for each in told), said
    assert "\n" not in said


@pytest.mark.parametrize("op_type", ["Conv", "MatMul", "Gemm"])
@pytest.mark.parametrize(
    ("least", "told"), [(-128, {"armv8": 127, "avx2": 63}), (-127, {"avx2": 63}), (-63, dict[str, int]())]
)
def test_weights_of_others_tell_where_sums_do_not_fit(
    op_type: str, least: int, told: dict[str, int], tmp_path: Path
) -> None:
    path, weight = tmp_path / "given.onnx", np.full((8, COLUMNS), 63, np.int8)
    weight[0] = least
    onnx.save(product(op_type, np.uint8, weight), path)
    for processor in PROCESSORS:
        found = inlay.check(path, target_options=[f"processor={processor}"])
        assert found.fits == (processor not in told)
        said = f"go up to {-least} in magnitude, and sums of products do not fit beyond {told.get(processor)}"
        assert (said in str(found)) == (processor in told)


def test_weights_that_nothing_multiplies_tell_nothing(tmp_path: Path) -> None:
    """A table of rows in int8, and a product in float with a weight in int8."""
    path, b = tmp_path / "given.onnx", Builder()
    scale, rng = b.constant("scale", np.array(0.01, np.float32)), np.random.default_rng(0)
    table, weight = (b.constant(name, rng.integers(-128, 128, (8, 8)).astype(np.int8)) for name in ("table", "weight"))
    rows = b.node("rows", "Gather", [table, b.constant("index", np.array([0, 3]))])
    data = b.node("data", "Add", [b.node("read", "DequantizeLinear", [rows, scale]), b.input("x", (2, 8))])
    b.output(b.node("y", "MatMul", [data, b.node("dequantized", "DequantizeLinear", [weight, scale])]))
    onnx.save(b.model(), path)
    assert inlay.check(path, target_options=["processor=avx2"]).fits


@pytest.mark.parametrize("processor", ["avx2", "amx", "armv8.2-dotprod"])
def test_nothing_is_told_of_the_same(processor: str) -> None:
    assert differences(of(processor), of(processor)) == ()
    assert differences({}, of(processor)) == ()


@pytest.mark.parametrize("text", ["", "[", "[1]", '{"target": 1}', '{"machine": "x"}'])
def test_metadata_of_others_says_nothing(text: str) -> None:
    assert tuned_for({TUNED_FOR: text}) == {}
