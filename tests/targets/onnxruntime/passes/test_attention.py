"""Attention as exporters write it becomes one operator that computes the same, whatever its masks keep out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from inlay.model.normalize import FloatRewrite, normalize
from inlay.model.pieces import run_model
from inlay.model.reference import ConstantEvaluator
from inlay.model.store import WeightStore
from inlay.targets.base import Feed
from inlay.targets.onnxruntime.passes.attention import gather_attention
from inlay.testing import Builder, random_feed
from tests.support.attention import BATCH, HEADS, ROWS, SIZE, attention
from tests.support.examples import examples
from tests.support.fixtures import RewriteModel
from tests.support.normalizing import no_roll_backs


def feed(
    model: onnx.ModelProto, masked: Sequence[int] = (), rows: int = ROWS, keys: int = ROWS
) -> dict[str, np.ndarray]:
    """Random inputs; the positions ``masked`` are kept out."""
    rng = np.random.default_rng(1)
    found = {
        "x": rng.standard_normal((BATCH, rows, 16), dtype=np.float32),
        "y": rng.standard_normal((BATCH, keys, 16), dtype=np.float32),
        "mask": np.zeros((BATCH, 1, 1, keys), np.float32),
    }
    found["mask"][..., list(masked)] = -1e4
    return {i.name: found[i.name] for i in model.graph.input}


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("key", ["at once", "twice"])
@pytest.mark.parametrize("scaled", ["products", "divided", "queries", "both", "not"])
@pytest.mark.parametrize("mask", ["", "added", "where", "other"])
def test_all_ways_to_write_it_are_gathered(scaled: str, mask: str, key: str, rewritten: RewriteModel) -> None:
    model = attention(scaled, mask, key)
    done = rewritten(model, gather_attention, feed(model, masked=[1, 4]))
    assert done.operators.count("Attention") == 1
    assert not {"Softmax", "Transpose", "Reshape", "Mul", "Div"} & set(done.operators)
    done.assert_close(rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mask", ["", "added"])
def test_sizes_may_vary(mask: str, rewritten: RewriteModel) -> None:
    model = attention(mask=mask, rows="n", keys="m")
    done = rewritten(model, gather_attention, feed(model, masked=[0], rows=5, keys=9))
    assert done.operators.count("Attention") == 1
    done.assert_close(rtol=1e-5, atol=1e-6)


def clipped(model: onnx.ModelProto, slots: Sequence[int], low: float = -0.6, high: float = 0.5) -> onnx.ModelProto:
    """Clips before the two products of activations, as Q/DQ pairs leave them that were taken out.

    ``slots`` counts their inputs: queries, keys, weights, values.
    """
    for name, end in (("clip_low", low), ("clip_high", high)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(end, np.float32), name))
    constants = {t.name for t in model.graph.initializer}
    products = [n for n in model.graph.node if n.op_type == "MatMul" and not constants & {*n.input}]
    assert len(products) == 2
    for slot in slots:
        node, value = products[slot // 2], f"clipped{slot}"
        clip = helper.make_node("Clip", [node.input[slot % 2], "clip_low", "clip_high"], [value], value)
        model.graph.node.insert(list(model.graph.node).index(node), clip)
        node.input[slot % 2] = value
    return model


@pytest.mark.parametrize("key", ["at once", "twice"])
@pytest.mark.parametrize("scaled", ["products", "queries", "both"])
def test_rows_that_are_clipped_are_clipped_before_the_operator(scaled: str, key: str, rewritten: RewriteModel) -> None:
    model = clipped(attention(scaled, "added", key), [0, 1, 3])
    plain = attention(scaled, "added", key)
    done = rewritten(model, gather_attention, feed(model, masked=[1, 4]))
    assert done.operators.count("Attention") == 1
    assert done.operators.count("Clip") == 3
    done.assert_close(rtol=1e-5, atol=1e-6)
    unclipped = rewritten(plain, gather_attention, feed(plain, masked=[1, 4])).wanted
    one, other = (next(iter(found.values())) for found in (unclipped, done.wanted))
    assert not np.allclose(one, other, rtol=0.05), "the clips do something"


@pytest.mark.parametrize("slots", [[2], [0, 2]])
def test_weights_that_are_clipped_stay(slots: list[int], rewritten: RewriteModel) -> None:
    model = clipped(attention(), slots, 0.0, 0.2)
    assert "Attention" not in rewritten(model, gather_attention, feed(model)).operators


def test_an_output_of_the_model_keeps_its_name(rewritten: RewriteModel) -> None:
    model = attention(last=True)
    done = rewritten(model, gather_attention, feed(model))
    assert done.operators.count("Attention") == 1
    assert [v.name for v in done.model.graph.outputs] == [o.name for o in model.graph.output]
    done.assert_close(rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scaled", ["products", "queries"])
def test_a_cache_becomes_the_operators_own(scaled: str, rewritten: RewriteModel) -> None:
    model = attention(scaled, key="twice", cached=True)
    done = rewritten(model, gather_attention, random_feed(model))
    assert done.operators.count("Attention") == 1
    assert "Concat" not in done.operators
    assert [v.name for v in done.model.graph.outputs] == [o.name for o in model.graph.output]
    done.assert_close(rtol=1e-5, atol=1e-6)


def test_a_cache_of_scaled_keys_stays(rewritten: RewriteModel) -> None:
    """What is scaled behind the cache may be scaled later; each new key alone may not."""
    model = attention(key="twice", cached=True)
    heads = next(n for n in model.graph.node if n.name == "present_k")
    model.graph.initializer.append(numpy_helper.from_array(np.array(2.0, np.float32), "two"))
    at = list(model.graph.node).index(heads)
    model.graph.node.insert(at, helper.make_node("Mul", [heads.input[1], "two"], ["doubled"], "double"))
    model.graph.node[at + 1].input[1] = "doubled"
    assert "Attention" not in rewritten(model, gather_attention, random_feed(model)).operators


def test_weights_that_something_else_reads_stay(rewritten: RewriteModel) -> None:
    model = attention(shown=True)
    assert "Attention" not in rewritten(model, gather_attention, feed(model)).operators


def test_heads_that_are_inputs_stay(rewritten: RewriteModel) -> None:
    """The kernel would transpose them, as the operators do that are there."""
    b = Builder()
    q, k, v = (b.input(n, (1, HEADS, ROWS, SIZE)) for n in "qkv")
    products = b.node("products", "MatMul", [q, b.node("kt", "Transpose", [k], perm=[0, 1, 3, 2])])
    weights = b.node("weights", "Softmax", [products], axis=-1)
    b.output(b.node("rows", "Transpose", [b.node("sum", "MatMul", [weights, v])], perm=[0, 2, 1, 3]))
    model = b.model()
    done = rewritten(model, gather_attention, random_feed(model))
    assert "Attention" not in done.operators
    assert done.model.opset_imports[""] < 23, "nothing is converted in vain"


def outputs(model: ir.Model, sample: Feed, folder: Path) -> Mapping[str, np.ndarray]:
    return run_model(model, WeightStore(folder), sample)  # a new store: models call different weights the same


def limited(model: onnx.ModelProto, sample: Feed, folder: Path) -> ir.Model:
    """``model`` normalized as a run does it, with what ``sample`` shows of its masks."""
    rewrite = FloatRewrite("attention", gather_attention, "", "", observes=True)
    run = partial(outputs, sample=sample, folder=folder)
    done = normalize(ir.from_proto(model), ConstantEvaluator(folder), run, rewrites=[rewrite])
    assert no_roll_backs(done)
    return done.model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


def operators(model: ir.Model) -> list[str]:
    return [n.op_type for n in model.graph]


@pytest.mark.parametrize("mask", ["added", "where", "other"])
def test_masks_are_limited_where_the_samples_mask(mask: str, folder: Path) -> None:
    model = attention(mask=mask)
    assert "ReduceMax" in operators(limited(model, feed(model, masked=[2, 3]), folder))
    assert "ReduceMax" not in operators(limited(model, feed(model), folder)), "finding the limit would only cost"


@pytest.mark.parametrize("mask", ["added", "where", "other"])
def test_a_constant_mask_is_limited_once(mask: str, folder: Path) -> None:
    """As causal models and relative positions have it: what depends on it alone is not computed in each inference."""
    model = attention(mask=mask)
    sample = feed(model, masked=[1, 2])
    del model.graph.input[[i.name for i in model.graph.input].index("mask")]
    model.graph.initializer.append(numpy_helper.from_array(sample.pop("mask"), "mask"))
    written = limited(model, sample, folder)
    assert {"Attention", "ReduceMax"} <= set(operators(written))
    constant = set(written.graph.initializers.values())
    assert not [n.op_type for n in written.graph if set(n.inputs) <= constant]
    want, found = (outputs(m, sample, folder) for m in (ir.from_proto(model), written))
    for name, array in want.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


@settings(max_examples=examples(25))
@given(
    gain=st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e3]),
    masked=st.sets(st.integers(0, ROWS - 1), min_size=1),
    mask=st.sampled_from(["added", "where"]),
    seed=st.integers(0, 100),
)
def test_a_limited_mask_keeps_out_what_it_kept_out(
    gain: float, masked: set[int], mask: str, seed: int, folder: Path
) -> None:
    """Also where products are so large that a mask of a fixed size would let positions in, and where all are masked."""
    model = attention(mask=mask, gain=gain)
    sample = feed(model, masked=sorted(masked))
    written = limited(model, sample, folder)
    assert "ReduceMax" in operators(written) or len(masked) == ROWS
    rng = np.random.default_rng(seed)
    other = {**sample, "x": rng.normal(0, 3, sample["x"].shape).astype(np.float32)}
    want, found = (outputs(m, other, folder) for m in (ir.from_proto(model), written))
    for name, array in want.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


def test_a_mask_of_fixed_size_would_let_positions_in(folder: Path) -> None:
    """The negative control: the products of this model reach further than any fixed limit that keeps from denormals."""
    model = attention(mask="added", gain=30.0)
    sample = feed(model, masked=[0, 1, 2])
    want = outputs(ir.from_proto(model), sample, folder)
    found = outputs(ir.from_proto(model), {**sample, "mask": np.maximum(sample["mask"], -60.0)}, folder)
    assert not all(np.allclose(found[n], a, rtol=1e-3, atol=1e-4) for n, a in want.items())
