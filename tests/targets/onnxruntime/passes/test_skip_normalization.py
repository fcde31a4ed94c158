"""The runtime makes one slow kernel of a residual addition and a normalization, unless it is kept from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from inlay.targets.onnxruntime.passes.respelled import keep_additions_apart
from inlay.testing import Builder, random_feed
from tests.support.fixtures import RewriteModel
from tests.support.runtime import optimized

SKIP = "SkipLayerNormalization"


def residual(in_pieces: bool, later: bool = False) -> onnx.ModelProto:
    """Two values are added and normalized; ``later``: the sum is read once more, as in nets that normalize first."""
    b = Builder()
    total = b.node("total", "Add", [b.input("x", (1, 6, 16)), b.node("half", "Tanh", [b.input("y", (1, 6, 16))])])
    gamma, beta = (b.constant(n, b.rng.uniform(0.5, 2.0, 16)) for n in ("gamma", "beta"))
    if in_pieces:
        centered = b.node("centered", "Sub", [total, b.node("mean", "ReduceMean", [total], axes=[-1])])
        squared = b.node("squared", "Pow", [centered, b.constant("two", np.array(2.0))])
        variance = b.node("variance", "ReduceMean", [squared], axes=[-1])
        root = b.node("root", "Sqrt", [b.node("more", "Add", [variance, b.constant("small", np.array(1e-5))])])
        scaled = b.node("scaled", "Mul", [b.node("divided", "Div", [centered, root]), gamma])
        normal = b.node("moved", "Add", [scaled, beta])
    else:
        normal = b.node("norm", "LayerNormalization", [total, gamma, beta], axis=-1)
    out = b.node("act", "Relu", [normal])
    b.output(b.node("again", "Add", [out, total]) if later else out)
    return b.model()


def kernels(model: onnx.ModelProto, folder: Path) -> list[str]:
    return [n.op_type for n in optimized(model, folder).graph.node]


@pytest.mark.parametrize("in_pieces", [False, True])
def test_the_two_are_not_fused(in_pieces: bool, rewritten: RewriteModel, tmp_path: Path) -> None:
    model = residual(in_pieces)
    assert SKIP in kernels(model, tmp_path), "the runtime does not fuse them any more: the rewrite has no reason left"
    done = rewritten(model, keep_additions_apart, random_feed(model))
    assert done.operators.count("Sum") == 1
    done.assert_close(rtol=1e-5, atol=1e-6)
    written = kernels(ir.to_proto(done.model), tmp_path)
    assert SKIP not in written
    assert "LayerNormalization" in written


def test_positions_are_added_apart_too(rewritten: RewriteModel, tmp_path: Path) -> None:
    """A constant of the values' own shape, as embeddings of positions are."""
    b = Builder()
    total = b.node("total", "Add", [b.input("x", (1, 6, 16)), b.constant("places", b.rng.standard_normal((1, 6, 16)))])
    parameters = [b.constant(n, b.rng.uniform(0.5, 2.0, 16)) for n in ("gamma", "beta")]
    b.output(b.node("norm", "LayerNormalization", [total, *parameters], axis=-1))
    model = b.model()
    assert SKIP in kernels(model, tmp_path)
    done = rewritten(model, keep_additions_apart, random_feed(model))
    assert SKIP not in kernels(ir.to_proto(done.model), tmp_path)
    done.assert_close(rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("in_pieces", [False, True])
def test_what_the_runtime_keeps_apart_stays(in_pieces: bool, rewritten: RewriteModel, tmp_path: Path) -> None:
    model = residual(in_pieces, later=True)
    assert SKIP not in kernels(model, tmp_path)
    assert "Sum" not in rewritten(model, keep_additions_apart, random_feed(model)).operators


def test_other_additions_stay() -> None:
    """A bias belongs to its product, and a mean over an image's pixels normalizes nothing."""
    b = Builder()
    x = b.input("x", (1, 6, 16))
    biased = b.node("biased", "Add", [x, b.constant("bias", b.rng.standard_normal(16))])
    ones, zeros = b.constant("ones", np.ones(16)), b.constant("zeros", np.zeros(16))
    b.output(b.node("norm", "LayerNormalization", [biased, ones, zeros], axis=-1))
    image = b.input("image", (1, 4, 5, 5))
    total = b.node("total", "Add", [image, b.node("other", "Relu", [image])])
    b.output(b.node("pooled", "ReduceMean", [total], axes=[2, 3]))
    assert keep_additions_apart(ir.from_proto(b.model()))[1] == 0
