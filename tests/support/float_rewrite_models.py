"""Small float models with what float rewrites look for, one model for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from inlay.testing import Builder, small_model
from tests.support.attention import attention


def float_rewrite_models() -> Mapping[str, onnx.ModelProto]:
    """Models by what they hold."""
    return {
        "halves": halves(),
        "lrn": _one_node("LRN", (1, 6, 5, 4), size=3, alpha=0.3, bias=1.5),
        "prelu": _with_slope(),
        "batch norm": _batch_norm(),
        "average pool": _one_node("AveragePool", (1, 5, 8, 8), kernel_shape=[2, 2], strides=[2, 2]),
        "counted padding": _one_node(
            "AveragePool", (1, 5, 8, 9), kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1], count_include_pad=1
        ),
        "mean of all rows": _one_node("ReduceMean", (2, 7, 8), axes=[1], keepdims=0),
        "mean of all pixels": _one_node("ReduceMean", (1, 5, 8, 8), axes=[2, 3]),
        "normalization of rows": _normalization(),
        "gelu": _gelu(),
        "hard swish": hard_swish(),
        "hard swish as an operator": _one_node("HardSwish", (2, 3, 5)),
        "attention": attention(),
        "matmul and add": _dense(),
        "fused operators": fused_transformer(),
        "residual": _residual(),
        "patches": _patches(),
        "sequences": sequences(),
        "few outputs": _few_outputs(),
        "upsampling": _upsampling(),
        "full tile rows": _full_tile_rows(),
        "short rows": _short_rows(),
        "stacked values": _stacked(),
        "short rows of scores": _one_node("Softmax", (1, 300, 2), axis=-1),
    }


def sequences() -> onnx.ModelProto:
    """Two convolutions of one dimension."""
    b = Builder()
    x = b.input("x", (1, 16, 400))
    for name in ("first", "second"):
        weight = b.constant(f"{name}_w", b.rng.standard_normal((16, 16, 5)).astype(np.float32))
        x = b.node(f"{name}_relu", "Relu", [b.node(name, "Conv", [x, weight], channels=16, pads=[2, 2])])
    b.output(x)
    return b.model()


def fused_transformer() -> onnx.ModelProto:
    """A layer of a transformer as a runtime's optimizer writes it."""
    b, width, domain = Builder(opset=17), 16, "com.microsoft"
    x, mask = b.input("x", (2, 6, width)), b.input("mask", (2, 6), TensorProto.INT32)

    def numbers(name: str, *shape: int) -> str:
        return b.constant(name, b.rng.normal(0, 0.3, shape))

    inputs = [x, numbers("qkv", width, 3 * width), numbers("qkv_bias", 3 * width), mask]
    y = b.node("attention", "Attention", inputs, domain=domain, num_heads=2)
    y = b.node("out", "MatMul", [y, numbers("out_weight", width, width)])
    scale, shift, bias = (numbers(name, width) for name in ("scale", "shift", "bias"))
    y = b.node("skip", "SkipLayerNormalization", [y, x, scale, shift, bias], domain=domain, epsilon=1e-5)
    y = b.node("wide", "MatMul", [y, numbers("wide_weight", width, 32)])
    y = b.node("gelu", "BiasGelu", [y, numbers("gelu_bias", 32)], domain=domain)
    b.output(b.node("head", "FusedMatMul", [y, numbers("head_weight", 8, 32)], domain=domain, transB=1, alpha=0.5))
    model = b.model(check=False)
    model.graph.output[0].type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, (2, 6, 8)))
    return model


def table_before_a_product() -> onnx.ModelProto:
    """Embeddings of computed tokens, and a product of them."""
    b = Builder()
    tokens = b.node("tokens", "Cast", [b.input("x", (1, 6))], to=onnx.TensorProto.INT64)
    rows = b.node("rows", "Gather", [b.constant("table", b.rng.standard_normal((512, 32))), tokens])
    b.output(b.node("last", "MatMul", [rows, b.constant("weight", b.rng.standard_normal((32, 8)) / 6)]))
    return b.model()


def halves(kept: bool = False, dtype: int = TensorProto.FLOAT16) -> onnx.ModelProto:
    """A small model in half precision; ``kept``: its inputs and outputs are float32, by Casts."""
    model = small_model()
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            wide = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(wide.astype(np.float16), tensor.name))
    del model.graph.value_info[:]
    (x,), (y,) = model.graph.input, model.graph.output
    if not kept:
        x.type.tensor_type.elem_type = y.type.tensor_type.elem_type = dtype
        return model
    for node in model.graph.node:
        node.input[:] = [f"{v}_half" if v == x.name else v for v in node.input]
        node.output[:] = [f"{v}_half" if v == y.name else v for v in node.output]
    model.graph.node.insert(0, helper.make_node("Cast", [x.name], [f"{x.name}_half"], "in", to=dtype))
    cast = helper.make_node("Cast", [f"{y.name}_half"], [y.name], "out", to=TensorProto.FLOAT)
    model.graph.node.append(cast)
    return model


def _one_node(op_type: str, shape: tuple[int, ...], **attributes: Any) -> onnx.ModelProto:
    b = Builder()
    b.output(b.node("node", op_type, [b.input("x", shape)], **attributes))
    return b.model()


def normalization(b: Builder, x: str, channels: int = 16) -> str:
    """A layer normalization as exporters write it below opset 17."""
    centred = b.node("centred", "Sub", [x, b.node("average", "ReduceMean", [x], axes=[-1])])
    squares = b.node("squares", "Pow", [centred, b.constant("two", np.float32(2.0))])
    variance = b.node("variance", "ReduceMean", [squares], axes=[-1])
    spread = b.node("spread", "Sqrt", [b.node("more", "Add", [variance, b.constant("e", np.float32(1e-5))])])
    rows = [b.constant(name, b.rng.uniform(0.5, 2.0, channels)) for name in ("gain", "offset")]
    scaled = b.node("scaled", "Mul", [b.node("even", "Div", [centred, spread]), rows[0]])
    return b.node("shifted", "Add", [scaled, rows[1]])


def gelu(b: Builder, x: str) -> str:
    """A Gelu as exporters write it below opset 20."""
    erf = b.node("erf", "Erf", [b.node("small", "Div", [x, b.constant("root", np.float32(2.0**0.5))])])
    plus = b.node("plus", "Add", [erf, b.constant("one", np.float32(1.0))])
    return b.node("gelu", "Mul", [b.node("product", "Mul", [x, plus]), b.constant("half", np.float32(0.5))])


def _gelu() -> onnx.ModelProto:
    b = Builder()
    b.output(gelu(b, b.input("x", (2, 5, 16))))
    return b.model()


def _normalization() -> onnx.ModelProto:
    b = Builder()
    b.output(normalization(b, b.input("x", (2, 5, 16))))
    return b.model()


def _stacked() -> onnx.ModelProto:
    b = Builder()
    x = b.input("x", (1, 32, 40, 1))
    b.output(b.node("stack", "Concat", [x, b.node("other", "Tanh", [x])], axis=3))
    return b.model()


def _with_slope() -> onnx.ModelProto:
    b = Builder()
    slope = b.constant("slope", np.array([0.25, 0.0, -2.0, 1.0]).reshape(4, 1, 1))
    b.output(b.node("act", "PRelu", [b.input("x", (1, 4, 6, 6)), slope]))
    return b.model()


def _batch_norm() -> onnx.ModelProto:
    """Behind a Concat, so that no convolution takes it in."""
    b = Builder()
    x = b.input("x", (1, 3, 5, 4))
    both = b.concat("cat", [x, x])
    parameters = [b.constant(name, b.rng.uniform(0.5, 2.0, 6)) for name in ("gamma", "beta", "mean", "var")]
    b.output(b.node("norm", "BatchNormalization", [both, *parameters]))
    return b.model()


def hard_swish() -> onnx.ModelProto:
    b = Builder()
    x = b.input("x", (2, 3, 5))
    shifted = b.node("shift", "Add", [x, b.constant("three", np.float32(3.0))])
    clipped = b.node("clip", "Clip", [shifted, b.constant("low", np.float32(0.0)), b.constant("six", np.float32(6.0))])
    b.output(b.node("out", "Div", [b.node("mul", "Mul", [x, clipped]), "six"]))
    return b.model()


def _dense() -> onnx.ModelProto:
    b = Builder()
    product = b.node("dense", "MatMul", [b.input("x", (3, 4)), b.constant("w", b.rng.standard_normal((4, 5)))])
    b.output(b.node("sum", "Add", [product, b.constant("row", b.rng.standard_normal(5))]))
    return b.model()


def _residual() -> onnx.ModelProto:
    b = Builder()
    x = b.input("x", (1, 6, 16))
    parameters = [b.constant(name, b.rng.uniform(0.5, 2.0, 16)) for name in ("gamma", "beta")]
    total = b.node("total", "Add", [x, b.node("act", "Tanh", [x])])
    b.output(b.node("norm", "LayerNormalization", [total, *parameters], axis=-1))
    return b.model()


def patches(b: Builder, x: str) -> str:
    """Every second pixel of an image, from each of four starts, in the channels of a convolution."""
    found = []
    end, by = b.constant("end", np.array([np.iinfo(np.int64).max])), b.constant("by", np.array([2]))
    rows, columns = b.constant("rows", np.array([2])), b.constant("columns", np.array([3]))
    starts = [b.constant(f"start_{i}", np.array([i])) for i in (0, 1)]
    for i, row in enumerate(starts):
        half = b.node(f"rows_{i}", "Slice", [x, row, end, rows, by])
        found += [b.node(f"patch_{i}{j}", "Slice", [half, c, end, columns, by]) for j, c in enumerate(starts)]
    return b.conv("gathered", b.concat("cat", found), 5)


def _patches() -> onnx.ModelProto:
    b = Builder()
    b.output(patches(b, b.input("x", (1, 3, 12, 12))))
    return b.model()


def _few_outputs() -> onnx.ModelProto:
    b = Builder()
    b.output(b.conv("conv", b.input("x", (1, 8, 20, 24)), 3))
    return b.model()


def upsampling(b: Builder, x: str) -> str:
    """One channel of an image of 12x12, enlarged to four times the size."""
    y = b.conv("scores", x, 1, kernel=1)
    return b.node("enlarged", "Resize", [y, "", b.constant("scales", [1.0, 1.0, 4.0, 4.0])], mode="linear")


def _upsampling() -> onnx.ModelProto:
    b = Builder()
    b.output(upsampling(b, b.input("x", (1, 8, 12, 12))))
    return b.model()


def _full_tile_rows() -> onnx.ModelProto:
    b = Builder()
    b.output(b.conv("conv", b.input("x", (1, 8, 12, 24)), 16, kernel=8))
    return b.model()


def _short_rows() -> onnx.ModelProto:
    b = Builder()
    b.output(b.node("mul", "Mul", [b.input("x", (1, 70, 80, 1)), b.constant("c", np.array([1.5]))]))
    return b.model()
