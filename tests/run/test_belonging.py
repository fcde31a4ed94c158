"""A file says what it was quantized for, and what is known of running it on another processor."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import inlay
from inlay.prepare.candidate_writer import TUNED_FOR, belongs, tuned_for
from inlay.run.belonging import differences
from inlay.targets.onnxruntime.target import OrtCpuTarget
from inlay.testing.models import random_feed, residual_model


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
        (of("amx"), of("amx", onnxruntime="1.20.1"), ["onnxruntime", "1.20.1 here"]),
        (of("amx"), {**of("amx"), "target": "another"}, ["quantized for ort-cpu, and run on another"]),
    ],
)
def test_what_differs_is_told_with_what_follows(then: dict[str, str], here: dict[str, str], told: list[str]) -> None:
    said = "; ".join(differences(then, here))
    assert all(each in said for each in told), said
    assert "\n" not in said


@pytest.mark.parametrize("processor", ["avx2", "amx", "armv8.2-dotprod"])
def test_nothing_is_told_of_the_same(processor: str) -> None:
    assert differences(of(processor), of(processor)) == ()
    assert differences({}, of(processor)) == ()


@pytest.mark.parametrize("text", ["", "[", "[1]", '{"target": 1}', '{"machine": "x"}'])
def test_metadata_of_others_says_nothing(text: str) -> None:
    assert tuned_for({TUNED_FOR: text}) == {}
