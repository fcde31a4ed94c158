"""Real trained models, fully quantized: one integer partition, exact on the reference model, close to ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay.tosa.lowering import lower
from inlay.tosa.reference import LoweredRunner
from tests.tosa.comparison import assert_equal, by_oracle, exact_weight_limit, host_by_ort, output_steps, run_ort
from tests.tosa.models import light, load, quantize, random_feeds

MODELS = ("mnist", "ultraface_rfb320_simplified", "fastestdet")
LIGHT = ("squeezenet", "resnet50")
DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.onnx"


@pytest.mark.real_model
@pytest.mark.parametrize("qtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.matrix
def test_whole_model(name: str, qtype: str) -> None:
    compare(load(name), qtype)


@pytest.mark.parametrize("name", LIGHT)
@pytest.mark.matrix
def test_light_model(name: str) -> None:
    compare(light(name), "int8")


def test_digits() -> None:
    if not DIGITS.exists():
        pytest.skip(f"{DIGITS} does not exist")
    compare(onnx.shape_inference.infer_shapes(onnx.load(DIGITS)), "int8")


def compare(model: onnx.ModelProto, qtype: str) -> None:
    *calibration, feed = random_feeds(model, 3)
    qdq = quantize(model, calibration, qtype, exact_weight_limit())
    lowered = lower(qdq)
    assert not lowered.not_lowered
    assert [p.kind for p in lowered.partitions] == ["tosa"]
    ours = LoweredRunner(lowered).run(feed)
    assert_equal(ours, by_oracle(lowered.graph, feed, host_by_ort(lowered)))
    # ONNX Runtime rounds ties to even, TOSA up, and its float and integer kernels differ from each other as well; later
    # layers propagate such a step. So: within two steps of its integer kernels or, where the two kinds of kernels lie
    # farther apart, within that distance; and within that distance and one step of its float kernels.
    integer, plain = run_ort(qdq, feed, integer_kernels=True), run_ort(qdq, feed)
    for a, b, c, step in zip(ours, integer, plain, output_steps(lowered.graph), strict=True):
        between = np.abs(b - c).max() / step
        assert np.abs(a - b).max() / step <= max(2, between) + 1e-3
        assert np.abs(a - c).max() / step <= between + 1 + 1e-3


@pytest.mark.matrix(every=3)
@pytest.mark.real_model
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("profile", ["INT", "INT+FP"])
def test_float_model(name: str, profile: str) -> None:
    """A model without any Q/DQ: all host in INT; in INT+FP float TOSA that agrees with ONNX Runtime."""
    model = load(name)
    feed = random_feeds(model, 1)[0]
    lowered = lower(model, profile)
    for a, b in zip(LoweredRunner(lowered).run(feed), run_ort(model, feed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * np.abs(b).max())
    assert all(n.reason for n in lowered.not_lowered)
    if profile == "INT":
        assert [p.kind for p in lowered.partitions] == ["host"]
    else:
        assert lowered.partitions[0].kind == "tosa"
