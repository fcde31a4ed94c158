"""What a runtime's optimizer fused is taken apart: the same numbers, by the runtime itself, in operators of ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from inlay.targets.passes.fused_operators import DOMAIN, take_fused_apart
from inlay.testing import Builder, run_reference
from tests.support.float_rewrite_models import fused_transformer
from tests.support.normalizing import Rewritten, rewrite
from tests.support.workspace import Workspace

SAMPLES, ROWS, WIDTH, HEADS = 2, 6, 16, 2
DATA = (SAMPLES, ROWS, WIDTH)
_RNG = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return _RNG.normal(0, 0.5, shape).astype(np.float32)


def model(op_type: str, inputs: list[Any], outputs: int = 1, unread: int = 0, **attributes: Any) -> onnx.ModelProto:
    """One operator between others: shapes are float inputs, arrays constants, names integer inputs, None is left out.

    So many of its outputs are read; behind them it has ``unread`` ones.
    """
    b = Builder(opset=17)
    names = []
    for i, given in enumerate(inputs):
        if given is None:
            names.append("")
        elif isinstance(given, np.ndarray):
            names.append(b.constant(f"c{i}", given))
        elif isinstance(given, str):
            shape = (SAMPLES,) if given == "ends" else (SAMPLES, ROWS)
            names.append(b.input(given, shape, TensorProto.INT32))
        else:
            names.append(b.node(f"before{i}", "Neg", [b.input(f"x{i}", given)]))
    made = ["" if op_type == "SkipLayerNormalization" and i in (1, 2) else f"y{i}" for i in range(outputs)]
    rest = [f"unread{i}" for i in range(unread)]
    b.node("op", op_type, names, [*made, *rest], domain=DOMAIN, **attributes)
    kinds = {"EmbedLayerNormalization": {"y1": TensorProto.INT32}}.get(op_type, {})
    for name in filter(None, made):
        b.output(name, kinds.get(name, TensorProto.FLOAT))
    return b.model(check=False)


def feed(proto: onnx.ModelProto) -> Mapping[str, np.ndarray]:
    rng = np.random.default_rng(1)
    found: dict[str, np.ndarray] = {}
    for value in proto.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        known = {"ends": np.array([4, ROWS]), "mask": np.arange(ROWS) < np.array([[4], [ROWS]])}
        if value.type.tensor_type.elem_type == TensorProto.INT32:
            found[value.name] = known.get(value.name, rng.integers(0, 2, shape)).astype(np.int32)
        else:
            found[value.name] = rng.normal(0, 1, shape).astype(np.float32)
    return found


QKV = [DATA, numbers(WIDTH, 3 * WIDTH), numbers(3 * WIDTH)]
ROW, MATRIX = numbers(WIDTH), numbers(WIDTH, 12)
TABLES = [numbers(5, WIDTH), numbers(ROWS + 2, WIDTH), numbers(2, WIDTH)]
IMAGE, KERNEL = (1, 3, 8, 8), numbers(4, 3, 3, 3)

APART: Mapping[str, onnx.ModelProto] = {
    "attention": model("Attention", QKV, num_heads=HEADS),
    "attention of a mask": model("Attention", [*QKV, "mask"], num_heads=HEADS),
    "attention up to an end": model("Attention", [*QKV, "ends"], num_heads=HEADS),
    "attention of what came before": model("Attention", QKV, num_heads=HEADS, unidirectional=1),
    "attention of both": model("Attention", [*QKV, "mask"], num_heads=HEADS, unidirectional=1),
    "attention with a bias": model(
        "Attention", [*QKV, None, None, (SAMPLES, HEADS, ROWS, ROWS)], num_heads=HEADS, scale=0.3
    ),
    "attention of other sizes": model(
        "Attention", [DATA, numbers(WIDTH, 56), numbers(56)], num_heads=HEADS, qkv_hidden_sizes=[16, 16, 24]
    ),
    "skip": model("SkipLayerNormalization", [DATA, DATA, ROW, ROW, ROW], epsilon=1e-3),
    "skip alone": model("SkipLayerNormalization", [DATA, DATA, ROW]),
    "skip with its sum": model("SkipLayerNormalization", [DATA, DATA, ROW, ROW, ROW], outputs=4),
    "embedding": model(
        "EmbedLayerNormalization", ["ids", "segments", *TABLES, ROW, ROW, "mask"], outputs=2, epsilon=1e-5
    ),
    "embedding of positions": model(
        "EmbedLayerNormalization", ["ids", None, *TABLES[:2], None, ROW, ROW, None, "positions"], unread=1
    ),
    "bias and gelu": model("BiasGelu", [DATA, ROW]),
    "gelu": model("Gelu", [DATA]),
    "fast gelu": model("FastGelu", [DATA, ROW]),
    "quick gelu": model("QuickGelu", [DATA], alpha=1.5),
    "product": model("FusedMatMul", [DATA, MATRIX], alpha=0.5),
    "turned product": model("FusedMatMul", [DATA, MATRIX.T.copy()], alpha=0.5, transB=1),
    "product of two": model("FusedMatMul", [DATA, DATA], alpha=0.25, transA=1),
    "convolution": model("FusedConv", [IMAGE, KERNEL, numbers(4)], activation="Relu", pads=[1, 1, 1, 1]),
    "clipped convolution": model(
        "FusedConv", [IMAGE, KERNEL], activation="Clip", activation_params=[-0.5, 0.5], strides=[2, 2]
    ),
    "leaky convolution": model("FusedConv", [IMAGE, KERNEL], activation="LeakyRelu", activation_params=[0.2]),
    "gemm": model(
        "FusedGemm", [(3, WIDTH), MATRIX, numbers(12)], activation="LeakyRelu", activation_alpha=0.3, alpha=0.5
    ),
}
LEFT: Mapping[str, onnx.ModelProto] = {
    "attention with a past": model(
        "Attention", [*QKV, None, (2, SAMPLES, HEADS, 3, WIDTH // HEADS)], outputs=2, num_heads=HEADS
    ),
    "product of turned batches": model("FusedMatMul", [DATA, DATA], transBatchA=1, transBatchB=1, transA=1),
}


def taken_apart(proto: onnx.ModelProto, folder: Path) -> Rewritten:
    return rewrite(proto, folder, take_fused_apart, feed(proto))


@pytest.mark.parametrize("what", APART)
def test_the_numbers_stay_the_same(what: str, tmp_path: Path) -> None:
    done = taken_apart(APART[what], tmp_path)
    assert not any(n.domain for n in done.model.graph)
    assert all(v.shape is not None and v.dtype is not None for n in done.model.graph for v in n.outputs)
    done.assert_close(rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("axis", "known"), [(1, True), (0, False)])
def test_sums_of_a_mask_s_rows_are_ends_of_samples(axis: int, known: bool, tmp_path: Path) -> None:
    """Of unknown sizes, below the opset with LayerNormalization, as the runtime's optimizer for transformers writes."""
    b = Builder(opset=11)
    mask = b.input("attention_mask", ("samples", "rows"), TensorProto.INT64)
    ends = b.node("ends", "ReduceSum", [b.node("cast", "Cast", [mask], to=TensorProto.INT32)], axes=[axis], keepdims=0)
    data = b.node("data", "Add", [b.input("x", ("samples", "rows", WIDTH)), b.input("y", ("many", "rows", WIDTH))])
    weight, bias = (b.constant(name, array) for name, array in zip(("w", "b"), QKV[1:], strict=True))
    b.output(b.node("op", "Attention", [data, weight, bias, ends], domain=DOMAIN, num_heads=HEADS))
    given = {name: np.random.default_rng(3).normal(0, 1, DATA).astype(np.float32) for name in "xy"}
    given["attention_mask"] = (np.arange(ROWS) < np.array([[4], [ROWS]])).astype(np.int64)
    if not known:  # nothing that the runtime would run
        made, count = take_fused_apart(ir.from_proto(b.model(check=False)))
        assert (count, [n.op_type for n in made.graph].count("Attention")) == (0, 1)
        return
    found = rewrite(b.model(check=False), tmp_path, take_fused_apart, given)
    assert not any(n.domain for n in found.model.graph)
    found.assert_close(rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("what", LEFT)
def test_what_onnx_has_no_words_for_stays(what: str, tmp_path: Path) -> None:
    assert [n.domain for n in taken_apart(LEFT[what], tmp_path).model.graph].count(DOMAIN) == 1


def test_masks_are_seen(tmp_path: Path) -> None:
    """The control: other masks give other numbers."""
    first, second = (taken_apart(APART[f"attention {end}"], tmp_path) for end in ("of a mask", "up to an end"))
    np.testing.assert_allclose(first.got["y0"], second.got["y0"], rtol=1e-4, atol=1e-5)
    whole = taken_apart(APART["attention"], tmp_path)
    assert np.abs(whole.got["y0"] - first.got["y0"]).max() > 0.01


def test_every_product_has_a_precision(tmp_path: Path) -> None:
    """Projections too, which held most of the weights and were nobody's."""
    units = Workspace(fused_transformer(), tmp_path).prepared.units
    assert len([u for u in units if "dynamic" in u.forms]) == 4


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16])
@pytest.mark.parametrize(("op_type", "given"), [("FastGelu", {}), ("QuickGelu", {}), ("FusedMatMul", {"alpha": 0.5})])
def test_numbers_have_the_type_of_the_data(op_type: str, given: dict[str, Any], kind: int) -> None:
    """Also behind an operator whose type nobody infers; a type that the parts may lack stays as it is."""
    b = Builder(opset=17)
    x = b.input("x", (4, 4), kind)
    inputs = [x, x] if op_type == "FusedMatMul" else [x]
    y = b.node("op", op_type, inputs, ["y"], domain=DOMAIN, **given)
    z = b.node("unknown", "BiasSplitGelu", [y], ["z"], domain=DOMAIN)
    b.output(b.node("last", "QuickGelu", [z], ["last_y"], domain=DOMAIN), kind)
    found, done = take_fused_apart(ir.from_proto(b.model(check=False)))
    assert done == (0 if kind == TensorProto.BFLOAT16 else 2)
    onnx.shape_inference.infer_shapes(ir.to_proto(found), check_type=True, strict_mode=True)


@pytest.mark.parametrize(("op_type", "given"), [("FastGelu", {}), ("QuickGelu", {}), ("FusedMatMul", {"alpha": 0.5})])
def test_doubles_are_computed_as_in_float32(op_type: str, given: dict[str, Any]) -> None:
    outputs = []
    x = np.random.default_rng(0).normal(0, 1, (4, 4))
    for kind, data in ((TensorProto.FLOAT, x.astype(np.float32)), (TensorProto.DOUBLE, x)):
        b = Builder(opset=17)
        name = b.input("x", (4, 4), kind)
        inputs = [name, name] if op_type == "FusedMatMul" else [name]
        b.output(b.node("op", op_type, inputs, ["y"], domain=DOMAIN, **given), kind)
        found, _ = take_fused_apart(ir.from_proto(b.model(check=False)))
        outputs.append(run_reference(ir.to_proto(found), {"x": data})["y"])
    assert outputs[1].dtype == np.float64
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-4, atol=1e-6)
