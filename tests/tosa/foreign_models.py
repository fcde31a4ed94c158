"""Small float models in which one rewrite or float pass of some target applies, between operators of any target."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx

from inlay.testing import Builder
from inlay.testing.models import large_image_model, recurrent_model, small_model, upsampling_model
from tests.support.attention import attention
from tests.support.float_rewrite_models import (
    fused_transformer,
    halves,
    normalization,
    patches,
    sequences,
    table_before_a_product,
    upsampling,
)

Inside = Callable[[Builder, str], str]
"""Adds what a pass looks for behind a value, and gives its result."""


def between_convs(inside: Inside, size: int = 12, channels: int = 8) -> onnx.ModelProto:
    """``Conv -> Relu -> inside -> Conv``."""
    b = Builder()
    stem = b.conv("stem", b.input("x", (1, 3, size, size)), channels, relu=True)
    b.output(b.conv("last", inside(b, stem), 4, kernel=1))
    return b.model()


def between_products(inside: Inside, rows: int = 6) -> onnx.ModelProto:
    """``MatMul -> inside -> MatMul`` over rows of 16."""
    b = Builder()
    weights = [b.constant(f"w{i}", b.rng.standard_normal((16, 16)) / 4) for i in (0, 1)]
    first = b.node("first", "MatMul", [b.input("x", (1, rows, 16)), weights[0]])
    b.output(b.node("last", "MatMul", [inside(b, first), weights[1]]))
    return b.model()


def _lrn(b: Builder, x: str) -> str:
    return b.node("lrn", "LRN", [x], size=3, alpha=0.3, bias=1.5)


def _rounded_up_pool(b: Builder, x: str) -> str:
    return b.node(
        "pool", "AveragePool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, ceil_mode=1, count_include_pad=1
    )


def _prelu(b: Builder, x: str) -> str:
    slope = b.constant("slope", b.rng.uniform(-0.5, 0.5, (8, 1, 1)))
    return b.node("act", "PRelu", [b.conv("before", x, 8), slope])


def _batch_norm(b: Builder, x: str) -> str:
    both = b.concat("cat", [x, x])
    parameters = [b.constant(name, b.rng.uniform(0.5, 2.0, 16)) for name in ("gamma", "beta", "mean", "var")]
    return b.node("norm", "BatchNormalization", [both, *parameters])


def _average_pool(b: Builder, x: str) -> str:
    return b.node("pool", "AveragePool", [x], kernel_shape=[2, 2], strides=[2, 2])


def _spatial_mean(b: Builder, x: str) -> str:
    gate = b.node("gate", "Sigmoid", [b.node("mean", "ReduceMean", [x], axes=[2, 3])])
    return b.node("mul", "Mul", [x, gate])


def _hard_swish(b: Builder, x: str) -> str:
    x = b.conv("before", x, 8)
    shifted = b.node("shift", "Add", [x, b.constant("three", np.float32(3.0))])
    clipped = b.node("clip", "Clip", [shifted, b.constant("low", np.float32(0.0)), b.constant("six", np.float32(6.0))])
    return b.node("out", "Div", [b.node("mul", "Mul", [x, clipped]), "six"])


def _hard_swish_operator(b: Builder, x: str) -> str:
    return b.node("act", "HardSwish", [b.conv("before", x, 8)])


def _bias(b: Builder, x: str) -> str:
    return b.node("act", "Relu", [b.node("sum", "Add", [x, b.constant("row", b.rng.standard_normal(16))])])


def _dense() -> onnx.ModelProto:
    """A product of two dimensions and its bias, which make a Gemm."""
    b = Builder()
    y = b.input("x", (6, 16))
    for i in range(2):
        weight = b.constant(f"w{i}", b.rng.standard_normal((16, 16)) / 4)
        row = b.constant(f"row{i}", b.rng.standard_normal(16))
        y = b.node(f"act{i}", "Relu", [b.node(f"sum{i}", "Add", [b.node(f"dense{i}", "MatMul", [y, weight]), row])])
    b.output(y)
    return b.model()


def _residual(b: Builder, x: str) -> str:
    parameters = [b.constant(name, b.rng.uniform(0.5, 2.0, 16)) for name in ("gamma", "beta")]
    total = b.node("total", "Add", [x, b.node("middle", "MatMul", [x, "w0"])])
    return b.node("norm", "LayerNormalization", [total, *parameters], axis=-1)


def _few_outputs(b: Builder, x: str) -> str:
    return b.node("few_relu", "Relu", [b.conv("few", x, 3)])


def _short_rows() -> onnx.ModelProto:
    b = Builder()
    x = b.input("x", (1, 3, 70, 1))
    first = b.conv("stem", x, 80, relu=True)
    turned = b.node("turn", "Transpose", [first], perm=[0, 2, 1, 3], channels=70)
    b.output(b.conv("last", b.node("mul", "Mul", [turned, b.constant("c", np.array([1.5]))]), 4, kernel=1))
    return b.model()


def _stacked() -> onnx.ModelProto:
    b = Builder()
    first = b.conv("stem", b.input("x", (1, 3, 32, 40)), 1, relu=True)
    sizes = b.constant("sizes", np.array([1, 32, 40, 1]))
    images = [
        b.node(f"image_{i}", "Reshape", [v, sizes], channels=32)
        for i, v in enumerate((first, b.conv("other", first, 1, relu=True)))
    ]
    b.output(b.conv("last", b.node("stack", "Concat", images, axis=3), 4))
    return b.model()


def _scores(count: int) -> onnx.ModelProto:
    """Softmax over short rows of what a convolution computes."""
    b = Builder()
    scores = b.conv("scores", b.input("x", (1, 3, 20, 20)), count)
    rows = b.node("rows", "Reshape", [scores, b.constant("sizes", np.array([1, count, 400]))])
    b.output(b.node("shares", "Softmax", [b.node("turn", "Transpose", [rows], perm=[0, 2, 1])], axis=-1))
    return b.model()


def float_pass_models() -> Mapping[str, onnx.ModelProto]:
    """For every float pass, by its name, a model that it changes."""
    return {
        "compute halves in float32": halves(kept=True),
        "spell LRN out": between_convs(_lrn),
        "spell PRelu out": between_convs(_prelu),
        "turn BatchNormalization into Conv": between_convs(_batch_norm),
        "turn AveragePool into Conv": between_convs(_average_pool),
        "turn ReduceMean into GlobalAveragePool": between_convs(_spatial_mean),
        "gather LayerNormalization": between_products(normalization),
        "gather HardSigmoid": between_convs(_hard_swish),
        "spell HardSwish out": between_convs(_hard_swish_operator),
        "gather HardSwish": between_convs(_hard_swish),
        "gather attention": attention(),
        "gather MatMul and Add into Gemm": _dense(),
        "keep additions apart from normalizations": between_products(_residual),
        "fold the patches of an image into Conv": between_convs(patches),
        "compute sequences as images of one row": sequences(),
        "compute few outputs in blocks": between_convs(_few_outputs, 20),
        "multiply by constants in place of Resize": between_convs(upsampling),
        "write out constants along short rows": _short_rows(),
        "join stacked values": _stacked(),
        "spread short Softmax": _scores(2),
        "take fused operators apart": fused_transformer(),
    }


def rewrite_models() -> Mapping[str, onnx.ModelProto]:
    """For every rewrite, by its name, a model that it changes."""
    return {
        "transposed convolution as convolution": upsampling_model(),
        "space to depth": small_model(),
        "off zero": small_model(),
        "saturating hard sigmoid": between_convs(_hard_swish),
        "row tiling": large_image_model(),
        "dynamic LSTM": recurrent_model(),
        "dynamic product": recurrent_model(),
        "float8 pairs": small_model(),
        "float weight": upsampling_model(),
        "float kernel": between_convs(_rounded_up_pool),
        "upright weight": small_model(),
        "quantized table": table_before_a_product(),
    }
