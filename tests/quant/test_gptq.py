"""Weights rounded by what operators read: never worse than to nearest, near the best there is, kept as they were."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from inlay.model.pieces import PiecewiseSession
from inlay.model.store import WeightStore
from inlay.quant.gptq import (
    MOST_ROWS,
    NEAREST,
    AddMoments,
    Moments,
    Reads,
    Rounding,
    Steps,
    Window,
    nearest_output,
    scale_digest,
)
from inlay.quant.qparams import dequantize, quantize
from inlay.quant.weight_scales import weight_params
from inlay.types import QType


def drawn(seed: int, channels: int, inputs: int, rows: int, alike: float = 0.9) -> tuple[np.ndarray, ...]:
    """Weight, scales and rows whose elements are alike."""
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(1, channels, inputs))
    scale = np.abs(weight).max(axis=2, keepdims=True) / 7
    common = rng.normal(size=(rows, 1))
    x = alike * common + (1 - alike) * rng.normal(size=(rows, inputs))
    return weight, scale, x


def change(weight: np.ndarray, scale: np.ndarray, integers: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Mean square by which each channel's output changes."""
    return np.asarray(np.square(x @ (integers * scale - weight)[0].T).mean(axis=0))


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 90), st.integers(1, 60))
def test_no_channel_is_worse_than_with_the_nearest_integers(seed: int, channels: int, inputs: int, rows: int) -> None:
    weight, scale, x = drawn(seed, channels, inputs, rows)
    found = nearest_output(weight, scale, Reads.of((x.T @ x)[None]), -7, 7)
    nearest = np.clip(np.rint(weight / scale), -7, 7)
    assert np.array_equal(found, np.rint(found))
    assert np.abs(found).max() <= 7
    assert (change(weight, scale, found, x) <= change(weight, scale, nearest, x) * (1 + 1e-6) + 1e-18).all()


def test_where_inputs_are_alike_much_is_gained_and_where_they_are_not_nothing_can_be() -> None:
    weight, scale, x = drawn(1, 8, 64, 400)
    found, nearest = (f(weight, scale, (x.T @ x)[None]) for f in (_rounded, _nearest))
    assert change(weight, scale, found, x).mean() < 0.1 * change(weight, scale, nearest, x).mean()
    apart = np.eye(64)[None] * np.arange(1.0, 65.0)
    assert np.array_equal(_rounded(weight, scale, apart), _nearest(weight, scale, apart)), "negative control"


def _rounded(weight: np.ndarray, scale: np.ndarray, moment: np.ndarray) -> np.ndarray:
    return nearest_output(weight, scale, Reads.of(moment), -7, 7)


def _nearest(weight: np.ndarray, scale: np.ndarray, moment: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip(np.rint(weight / scale), -7, 7))


def test_it_is_near_the_best_of_all_ways() -> None:
    """Brute force: every weight of 30 channels up or down."""
    weight, scale, x = drawn(0, 30, 9, 50, 0.7)
    low = np.floor(weight / scale)
    ways = [np.clip(low + np.array(up), -7, 7) for up in itertools.product((0, 1), repeat=9)]
    best = np.min([change(weight, scale, way, x) for way in ways], axis=0).mean()
    moment = (x.T @ x)[None]
    found, nearest = (change(weight, scale, f(weight, scale, moment), x).mean() for f in (_rounded, _nearest))
    assert best <= found <= best + 0.35 * (nearest - best)


def test_groups_are_rounded_each_by_its_own_moments() -> None:
    one, two = (drawn(seed, 3, 5, 40) for seed in (1, 2))
    weight, scale = (np.concatenate([one[i], two[i]]) for i in range(2))
    moments = np.stack([each[2].T @ each[2] for each in (one, two)])
    both = nearest_output(weight, scale, Reads.of(moments), -7, 7)
    apart = [_rounded(w, s, m[None])[0] for w, s, m in zip(weight[:, None], scale[:, None], moments, strict=True)]
    assert np.array_equal(both, np.stack(apart))


def test_what_is_not_finite_is_refused_and_inputs_that_are_never_read_do_no_harm() -> None:
    weight, scale, x = drawn(3, 2, 6, 20)
    with pytest.raises(np.linalg.LinAlgError):
        _rounded(weight, scale, np.full((1, 6, 6), np.nan))
    x[:, 2:4] = 0.0
    assert np.isfinite(_rounded(weight, scale, (x.T @ x)[None])).all()
    assert np.array_equal(_rounded(weight, scale, np.zeros((1, 6, 6))), _nearest(weight, scale, np.empty(0)))


def test_steps_hold_for_the_scales_that_they_were_found_for() -> None:
    weight = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    params, others = (weight_params(weight * factor, 1, 127) for factor in (1.0, 0.9))
    delta = np.zeros((4, 6), np.int8)
    delta[1, 2] = 1
    rounding = Rounding({("w", QType.INT8): Steps(scale_digest(params), delta)})
    again = Rounding.from_arrays(rounding.as_arrays())
    assert again == rounding
    assert again.digest == rounding.digest != NEAREST.digest
    steps = again.of("w", params)
    assert steps is not None
    assert again.of("w", others) is None
    assert again.of("v", params) is None
    found = dequantize(quantize(weight, params, steps), params) - dequantize(quantize(weight, params), params)
    expected = 0.0 if quantize(weight, params)[1, 2] == 127 else params.scale[2]
    assert np.flatnonzero(found).tolist() == ([8] if expected else [])
    with pytest.raises(ValueError, match="unpack"):
        Rounding.from_arrays({"no name": delta})


@pytest.mark.parametrize(
    ("shape", "weight", "window"),
    [
        ((2, 4, 9, 8), (6, 4, 3, 2), {"strides": (2, 1), "dilations": (1, 2), "pads": (1, 0, 2, 1), "groups": 1}),
        ((1, 6, 7, 7), (6, 1, 3, 3), {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 6}),
        ((1, 4, 20), (8, 2, 5), {"strides": (3,), "dilations": (2,), "pads": (4, 0), "groups": 2}),
    ],
    ids=["plain", "depthwise", "1-d"],
)
def test_windows_are_what_a_convolution_reads(
    shape: tuple[int, ...], weight: tuple[int, ...], window: dict[str, Any]
) -> None:
    """Their products with the weight are the outputs of ONNX Runtime's Conv."""
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=s).astype(np.float32) for s in (shape, weight))
    names = {"strides": "strides", "dilations": "dilations", "pads": "pads", "groups": "group"}
    node = helper.make_node("Conv", ["x", "w"], ["y"], **{names[k]: v for k, v in window.items()})
    graph = helper.make_graph(
        [node],
        "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": x})
    rows = Window("x", weight[2:], **window).rows(x)
    groups = window["groups"]
    got = np.stack([r @ k.reshape(weight[0] // groups, -1).T for r, k in zip(rows, np.split(w, groups), strict=True)])
    flat = np.moveaxis(want, 1, -1).reshape(-1, groups, weight[0] // groups).transpose(1, 0, 2)
    np.testing.assert_allclose(got, flat, rtol=1e-4, atol=1e-4)


def test_moments_add_up_over_samples_and_leave_out_what_is_not_finite() -> None:
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=(3, 5, 4)).astype(np.float32) for _ in range(2))
    window, found = Window("x"), dict[str, Moments]()
    broken = np.full((1, 4), np.inf, np.float32)
    for array in (first, broken, second):
        AddMoments([window, Window("of another piece")])(found, {"x": array})
    rows = np.concatenate([first, second]).reshape(-1, 4)
    np.testing.assert_allclose(found["x"][window][0], rows.T @ rows, rtol=1e-4)
    many = rng.normal(size=(3 * MOST_ROWS, 2)).astype(np.float32)
    assert window.rows(many).shape == (1, MOST_ROWS, 2)


def test_moments_add_up_where_a_graph_is_computed_in_pieces(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("MatMul", [f"v{i}", "w"], [f"v{i + 1}"]) for i in range(6)]
    ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [2, 3]) for v in ("v0", "v6")]
    w = numpy_helper.from_array(rng.normal(size=(3, 3)).astype(np.float32), "w")
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    add = AddMoments([Window(f"v{i}") for i in range(1, 6)])
    feeds = [{"v0": rng.normal(size=(2, 3)).astype(np.float32)} for _ in range(3)]
    sums = []
    for most in (6, 2):
        session = PiecewiseSession(model, WeightStore(tmp_path), [f"v{i}" for i in range(1, 6)], nodes=most)
        found: dict[str, Moments] = {}
        for feed in feeds:
            found = session.gather([feed], add, found)
        sums.append(found)
    whole, pieces = sums
    assert sorted(whole) == sorted(pieces) == [f"v{i}" for i in range(1, 6)]
    for value, of in whole.items():
        np.testing.assert_allclose(pieces[value][Window(value)], of[Window(value)], rtol=1e-4)
