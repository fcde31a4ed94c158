"""The form that no processor saturates in: the integers of numpy to the last bit, where the plain form may differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from inlay.errors import CompileFailed
from inlay.targets.base import Artifact
from inlay.targets.machine import processor_of
from inlay.targets.onnxruntime.exact_form import exact_form, has_int8
from inlay.targets.onnxruntime.processors import exact_limit
from inlay.targets.onnxruntime.target import OrtCpuTarget
from tests.support.examples import examples
from tests.support.runtime import optimized

ROWS, INNER, COLUMNS = 3, 8, 4
SUM = 128.0  # steps of an output for each product that is added: sums at the ends of int8 just fit


def product(op_type: str, x_type: type, weight: np.ndarray, stated: bool = True) -> onnx.ModelProto:
    """``op_type`` of integers with scale 1 and zero point 0 on all sides but the output's."""
    is_conv, inner = op_type == "Conv", len(weight)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(x_type))
    shape = [1, inner, 1, ROWS] if is_conv else [ROWS, inner]
    out = [1, COLUMNS, 1, ROWS] if is_conv else [ROWS, COLUMNS]
    arrays = {
        "one": np.array(1.0, np.float32),
        "scales": np.ones(COLUMNS, np.float32),
        "coarse": np.array(SUM * inner, np.float32),
        "zero": np.array(0, x_type),
        "zeros": np.zeros(COLUMNS, weight.dtype),
        "w": weight.T.reshape(COLUMNS, inner, 1, 1) if is_conv else weight,
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "one", "zero"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "one", "zero"], ["xd"]),
        helper.make_node(
            "DequantizeLinear", ["w", "scales", *(["zeros"] if stated else [])], ["wd"], axis=0 if is_conv else 1
        ),
        helper.make_node(op_type, ["xd", "wd"], ["p"]),
        helper.make_node("QuantizeLinear", ["p", "coarse", "zero"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "coarse", "zero"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in arrays.items()],
    )
    assert kind in (TensorProto.INT8, TensorProto.UINT8)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def expected(x: np.ndarray, weight: np.ndarray, x_type: type) -> np.ndarray:
    """In integers of numpy: none overflows, and the quotient by a power of two is exact in float32."""
    limits: Any = np.iinfo(x_type)
    step = SUM * len(weight)
    exact = x.astype(np.int64) @ weight.astype(np.int64)
    found: np.ndarray = np.clip(np.rint(exact / step), limits.min, limits.max) * step
    return found


def ran(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    feed = x.T.reshape(shape) if len(shape) == 4 else x
    found = np.asarray(session.run(None, {"x": feed.astype(np.float32)})[0])
    return found.reshape(COLUMNS, ROWS).T if len(shape) == 4 else found


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, type]:
    x_type = draw(st.sampled_from([np.uint8, np.int8]))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    x, w = np.iinfo(x_type), np.iinfo(np.int8)
    extreme = draw(st.booleans())  # at the ends of their types, where pairs of products exceed 16 bits
    values = rng.choice([x.min, x.max], (ROWS, INNER)) if extreme else rng.integers(x.min, x.max + 1, (ROWS, INNER))
    weight = rng.choice([w.min, w.max], (INNER, COLUMNS)) if extreme else rng.integers(-128, 128, (INNER, COLUMNS))
    return values, weight.astype(np.int8), x_type


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize("op_type", ["Conv", "MatMul", "Gemm"])
@given(case=cases())
@settings(max_examples=examples(40))
def test_the_exact_form_has_the_integers_of_numpy(
    op_type: str, stated: bool, case: tuple[np.ndarray, np.ndarray, type]
) -> None:
    x, weight, x_type = case
    model = product(op_type, x_type, weight, stated)
    assert exact_form(model, Path())
    np.testing.assert_array_equal(ran(model, x), expected(x, weight, x_type))


@pytest.mark.parametrize("x_type", [np.uint8, np.int8])
@pytest.mark.parametrize("op_type", ["Conv", "MatMul", "Gemm"])
def test_the_plain_form_saturates_where_the_processor_does(op_type: str, x_type: type, tmp_path: Path) -> None:
    """The control: the target for a processor that does not saturate gives others than this one."""
    limits: Any = np.iinfo(x_type)
    x = np.full((ROWS, INNER), limits.max)
    if x_type is np.int8:
        x[:, 1::2] = limits.min
    weight = np.full((INNER, COLUMNS), 127, np.int8)
    path = tmp_path / "model.onnx"
    model = product(op_type, x_type, weight)
    for tensor in model.graph.initializer:
        if tensor.name == "coarse":
            tensor.CopyFrom(numpy_helper.from_array(np.array(4096.0, np.float32), "coarse"))
    onnx.save(model, path)
    want = np.clip(np.rint(x @ weight.astype(np.int64) / 4096.0), limits.min, limits.max) * 4096.0
    there = OrtCpuTarget(processor="amx").compile(Artifact(path, "d"))
    feed = x.T.reshape(1, INNER, 1, ROWS) if op_type == "Conv" else x
    got = there.run({"x": feed.astype(np.float32)})["y"]
    got = got.reshape(COLUMNS, ROWS).T if op_type == "Conv" else got
    np.testing.assert_array_equal(got, want)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"], "the exact form is gone again"
    here = ran(model, x)
    if exact_limit(*processor_of(None)) < 127:
        assert x_type is np.int8 or (here != want).any()
    else:
        np.testing.assert_array_equal(here, want)


@pytest.mark.parametrize("op_type", ["Conv", "MatMul", "Gemm"])
def test_the_exact_form_still_fuses(op_type: str, tmp_path: Path) -> None:
    model = product(op_type, np.int8, np.ones((INNER, COLUMNS), np.int8))
    assert exact_form(model, Path())
    kinds = {n.op_type for n in optimized(model, tmp_path).graph.node}
    assert op_type not in kinds, kinds


def test_dynamic_products_are_exact_as_well(tmp_path: Path) -> None:
    """DynamicQuantizeMatMul leaves out the zero point of a symmetric weight."""
    weight = numpy_helper.from_array(np.full((INNER, COLUMNS), 127, np.int8), "w")
    scale = numpy_helper.from_array(np.array(1.0, np.float32), "s")
    node = helper.make_node("DynamicQuantizeMatMul", ["x", "w", "s"], ["y"], domain="com.microsoft")
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, INNER])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, COLUMNS])],
        [weight, scale],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    assert exact_form(model, tmp_path)
    x = np.full((ROWS, INNER), 255.0)
    np.testing.assert_allclose(ran(model, x), x @ np.full((INNER, COLUMNS), 127.0), rtol=1e-6)


def test_a_model_that_hands_out_int8_has_no_exact_form(tmp_path: Path) -> None:
    model = product("MatMul", np.int8, np.ones((INNER, COLUMNS), np.int8))
    model.graph.output.append(helper.make_tensor_value_info("yq", TensorProto.INT8, [ROWS, COLUMNS]))
    before = model.SerializeToString()
    assert has_int8(model)
    assert not exact_form(model, tmp_path)
    assert model.SerializeToString() == before
    if exact_limit(*processor_of(None)) < 127:
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        with pytest.raises(CompileFailed, match="int8"):
            OrtCpuTarget(processor="amx").compile(Artifact(path, "d"))
