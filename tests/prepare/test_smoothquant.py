"""Outliers move into weights: the same float results, less noise from 8 bits, and only where it pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.compose
import pytest

from inlay.calibrate.observe import observe
from inlay.data import Feed, Samples
from inlay.deadline import Deadline
from inlay.model.load import load
from inlay.model.pieces import PiecewiseSession
from inlay.model.pool import Stored, pooled
from inlay.model.reference import Session
from inlay.prepare import smoothquant
from inlay.prepare.candidate_writer import CandidateWriter, tuned_for
from inlay.prepare.model import PreparedModel, Request, prepare
from inlay.prepare.smoothquant import ProductNoise, QuantMode, Scales, Variant, find_scales, smoothed
from inlay.quant import padding_propagation
from inlay.quant.accuracy import Outputs
from inlay.quant.qparams import QParamsTable
from inlay.targets.onnxruntime.target import capabilities_for
from inlay.testing import Builder
from inlay.types import Placement
from tests.support.pool import PoolHere

ORT = capabilities_for("x86_64", frozenset({"avx512_vnni"}))  # the same on every processor
WIDTH, OUTLIERS = 32, 8.0


def dense(
    outlier: float = 30.0,
    turned: bool = False,
    twice: bool = False,
    reshaped: bool = False,
    large: Sequence[int] = (3,),
) -> onnx.ModelProto:
    """A layer normalization with large channels, and a product behind it; ``twice``: something else reads it too."""
    b = Builder()
    scale = np.ones(WIDTH, np.float32)
    scale[[*large]] = outlier
    norm = [b.input("x", (1, 8, WIDTH)), b.constant("scale", scale), b.constant("shift", np.zeros(WIDTH, np.float32))]
    value = normal = b.node("norm", "LayerNormalization", norm, axis=-1)
    weight = b.rng.standard_normal((WIDTH, 16)).astype(np.float32)
    weight[[*large]] /= outlier
    if turned or reshaped:
        value = b.node("matrix", "Reshape", [value, b.constant("sizes", np.array([-1, WIDTH], np.int64))])
    if turned:
        value = b.node("product", "Gemm", [value, b.constant("w", weight.T.copy())], transB=1)
    else:
        value = b.node("product", "MatMul", [value, b.constant("w", weight)])
    b.output(b.node("after", "Tanh", [b.node("small", "Mul", [value, b.constant("c", np.float32(0.1))])]))
    if twice:
        b.output(b.node("other", "Sigmoid", [normal]))
    return b.model()


def headed(channels: int) -> onnx.ModelProto:
    """Two convolutions with so many channels between them, and what :func:`dense` has behind these."""
    b = Builder()
    image = b.node("image", "Reshape", [b.input("x", (1, 8, WIDTH)), b.constant("s4", np.array([1, 8, WIDTH, 1]))])
    for name, inner, outer in (("first", 8, channels), ("second", channels, 8)):
        kernel = b.constant(f"{name}_w", b.rng.standard_normal((outer, inner, 3, 3)).astype(np.float32))
        image = b.node(name, "Conv", [image, kernel], pads=[1, 1, 1, 1])
    rows = b.node("rows", "Reshape", [image, b.constant("s3", np.array([1, 8, WIDTH]))])
    scale = np.ones(WIDTH, np.float32)
    scale[3] = 30.0
    shift = b.constant("shift", np.zeros(WIDTH, np.float32))
    normal = b.node("norm", "LayerNormalization", [rows, b.constant("scale", scale), shift], axis=-1)
    weight = b.rng.standard_normal((WIDTH, 16)).astype(np.float32)
    weight[3] /= 30.0
    b.output(b.node("after", "Tanh", [b.node("product", "MatMul", [normal, b.constant("w", weight)])]))
    return b.model()


def feeds(count: int = 6) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((1, 8, WIDTH)).astype(np.float32)} for _ in range(count)]


def prepared_model(model: onnx.ModelProto, folder: Path) -> PreparedModel:
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return prepare(load(folder / "m.onnx"), ORT, feeds()[0], folder)


def scales_of(prepared: PreparedModel) -> dict[str, tuple[float, ...]]:
    """What is found with all the time that it takes."""
    found = find_scales(prepared, feeds())
    assert found.in_time
    return dict(found.scales)


def outputs(prepared: PreparedModel, placement: Placement, samples: Sequence[dict[str, np.ndarray]]) -> np.ndarray:
    table = QParamsTable(prepared.graph, prepared.rules, {})
    session = Session(prepared.emitter.emit(placement, table), prepared.store)
    return np.stack([session.run(feed)[prepared.graph.outputs[0]] for feed in samples])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("twice", [False, True])
def test_float_stays_and_noise_falls(turned: bool, twice: bool, tmp_path: Path) -> None:
    plain = prepared_model(dense(turned=turned, twice=twice), tmp_path)
    scales = scales_of(plain)
    assert scales.keys() == {plain.graph.node("norm").outputs[0]}
    (found,) = scales.values()
    assert int(np.argmax(found)) == 3
    even = smoothed(plain, scales, feeds()[0])
    assert all(v.uses() for v in even.normalized.model.graph.initializers.values()), "no weight is kept twice"
    written = [n.name for n in even.graph.nodes if n.op_type == "Mul" and n.name not in ("small",)]
    assert bool(written) == twice, "a Mul is written only where something else reads the value"
    unseen = feeds(9)[6:]
    exact = outputs(plain, Placement(), unseen)
    np.testing.assert_allclose(outputs(even, Placement(), unseen), exact, rtol=1e-4, atol=1e-6)
    before, after = (
        float(np.square(outputs(p, p.label({"product": "dynamic"}), unseen) - exact).sum()) for p in (plain, even)
    )
    assert after < before / 4.0


def test_a_model_whose_outliers_moved_says_whom_it_was_tuned_for(tmp_path: Path) -> None:
    plain = prepared_model(dense(), tmp_path)
    facts = {"target": "here", "isa": "avx2"}
    told = replace(plain, request=replace(plain.request, tuned_for=facts))
    for prepared in (told, smoothed(told, scales_of(told), feeds()[0])):
        writer = CandidateWriter(prepared, QParamsTable(prepared.graph, prepared.rules, {}), "none", "here")
        said = {p.key: p.value for p in writer.proto(Placement()).metadata_props}
        assert tuned_for(said) == facts


def test_a_reshape_that_keeps_the_channels_is_looked_through(tmp_path: Path) -> None:
    plain = prepared_model(dense(reshaped=True), tmp_path)
    assert scales_of(plain).keys() == {plain.graph.node("norm").outputs[0]}


def test_without_time_there_are_none(tmp_path: Path) -> None:
    plain = prepared_model(dense(), tmp_path)
    assert find_scales(plain, feeds(), Deadline(1e9, lambda: 0.0)).scales
    late = find_scales(plain, feeds(), Deadline(0.0, lambda: 0.0))
    assert (dict(late.scales), late.in_time) == ({}, False)
    even = prepared_model(dense(outlier=1.0), tmp_path)
    nothing = find_scales(even, feeds(), Deadline(1e9, lambda: 0.0))
    assert (dict(nothing.scales), nothing.in_time) == ({}, True), "nothing to find is not the same"


@pytest.mark.parametrize(("seconds", "runs"), [(100.0, 6), (14.0, 2)])
def test_what_cannot_be_judged_in_time_is_not_begun(
    seconds: float, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An inference takes a second: after two of them it is known that 12 seconds are too few for 4 + 2 * 5 others."""
    now, ran, run = 0.0, 0, PiecewiseSession.run

    def slow(session: PiecewiseSession, feed: Feed) -> Outputs:
        nonlocal now, ran
        now, ran = now + 1.0, ran + 1
        return run(session, feed)

    monkeypatch.setattr(PiecewiseSession, "run", slow)
    found = find_scales(prepared_model(dense(), tmp_path), feeds(6), Deadline(seconds, lambda: now))
    assert ran == runs
    assert bool(found.scales) == found.in_time == (runs == 6)


def test_what_there_was_time_for_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The normalization that takes its scales in is judged first; then a Mul besides, for which there is no time."""
    free, paid = dense(), onnx.compose.add_prefix(dense(twice=True), "paid_")
    whole = onnx.compose.merge_graphs(free.graph, paid.graph, [])
    model = onnx.helper.make_model(whole, opset_imports=free.opset_import, ir_version=free.ir_version)
    samples = [{"x": f["x"], "paid_x": g["x"]} for f, g in zip(feeds(12)[:6], feeds(12)[6:], strict=True)]
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    plain = prepare(load(tmp_path / "m.onnx"), ORT, samples[0], tmp_path)
    monkeypatch.setattr(smoothquant, "_gains", lambda *_: True)
    both, even = find_scales(plain, samples), smoothquant._smoothed
    assert {*both.scales} == {"norm_out", "paid_norm_out"}

    def late(prepared: PreparedModel, scales: Scales, *arguments: Any) -> tuple[PreparedModel, Outputs]:
        if len(scales) > 1:
            monkeypatch.setattr(Deadline, "left", 0.0)
        return even(prepared, scales, *arguments)

    monkeypatch.setattr(smoothquant, "_smoothed", late)
    found = find_scales(plain, samples, Deadline(1e9, lambda: 0.0))
    assert found.scales == {"norm_out": both.scales["norm_out"]}
    assert not found.in_time


@pytest.mark.parametrize("sound", [100, 2])
def test_helpers_find_the_same_scales(sound: int, tmp_path: Path) -> None:
    """Of two attempts, one behind the other; whoever of them is lost."""
    plain, pool = prepared_model(dense(twice=True), tmp_path), PoolHere(2, sound)
    alone = find_scales(plain, feeds())
    with pooled(pool.open_pool, 1e9):
        found = find_scales(plain, feeds())
    assert found.scales == alone.scales
    assert alone.scales
    assert pool.asked["outputs_of"] >= 3


@pytest.mark.parametrize(("seconds", "forms"), [(100.0, 2), (8.0, 2), (6.0, 1), (3.0, 0)])
def test_one_form_tells_where_there_is_no_time_for_both(
    seconds: float, forms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One judgement takes a second here; the first one shows whether there is time for others, or for none."""
    now, told, model = 0.0, list[QuantMode](), ProductNoise._model

    def slow(noise: ProductNoise, variant: Variant, mode: QuantMode, factors: bool) -> Stored:
        nonlocal now
        now += 1.0
        told.append(mode)
        return model(noise, variant, mode, factors)

    monkeypatch.setattr(ProductNoise, "_model", slow)
    found = find_scales(prepared_model(dense(), tmp_path), feeds(), Deadline(seconds, lambda: now))
    assert (
        told == {2: [QuantMode.STATIC, QuantMode.DYNAMIC] * 2, 1: [QuantMode.STATIC] * 2, 0: [QuantMode.STATIC]}[forms]
    )
    assert bool(found.scales) == found.in_time == bool(forms)


@pytest.mark.parametrize(
    ("gains_db", "hidden_db", "gain"),
    [
        ([3.5, 3.3, -1.0], None, True),  # all in low precision loses less than half of what static products gain
        ([3.5, 3.3, -2.0], None, False),
        ([0.8, 0.8, -12.7], None, False),
        ([3.5, -0.6, 3.5], None, False),  # the other form may lose next to nothing
        ([0.6, -0.4, -0.4], None, True),
        ([0.4, 0.4, 0.4], 0.4, False),
        ([0.4, 0.4, 0.4], 5.6, True),
    ],
)
def test_what_one_form_gains_another_may_lose_in_part(
    gains_db: list[float], hidden_db: float | None, gain: bool
) -> None:
    """What is hidden is asked for only where it decides."""
    asked: list[float | None] = [hidden_db] if hidden_db is not None else []
    assert smoothquant._gains(np.array(gains_db), 0.5, lambda: asked.pop() or 0.0) is gain
    assert not asked


def test_nothing_is_done_without_outliers_or_samples(tmp_path: Path) -> None:
    assert not scales_of(prepared_model(dense(outlier=1.0), tmp_path))
    plain = prepared_model(dense(), tmp_path)
    assert scales_of(plain), "the control"
    assert not find_scales(plain, []).scales
    assert smoothed(plain, {}, feeds()[0]) is plain


def test_without_dynamic_kernels_static_products_decide(tmp_path: Path) -> None:
    for name, twice in (("free", False), ("paid", True)):
        (tmp_path / name).mkdir()
        made = prepared_model(dense(twice=twice), tmp_path / name)
        assert scales_of(replace(made, rules=replace(made.rules, forms=())))


def test_what_costs_time_must_gain_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read twice, the normalization cannot take the scales in, and a Mul is written."""
    for name in ("free", "paid"):
        (tmp_path / name).mkdir()
    free, paid = (prepared_model(dense(twice=twice), tmp_path / n) for n, twice in (("free", False), ("paid", True)))
    assert scales_of(paid)
    monkeypatch.setattr(smoothquant, "_PAID_GAIN_DB", 100.0)
    assert scales_of(paid) == {}
    assert scales_of(free), "it costs nothing"


def test_factors_that_low_precision_cannot_hold_are_not_written(tmp_path: Path) -> None:
    """Where all is quantized, so are they; the controls are a target that leaves them in float, and no Mul at all."""
    spread = dense(outlier=OUTLIERS, twice=True, large=range(0, WIDTH, 2))
    plain = prepared_model(spread, tmp_path)
    assert scales_of(plain) == {}
    operators = {name: rule for name, rule in ORT.rules.ops.items() if name != "Mul"}
    float_mul = replace(ORT, rules=replace(ORT.rules, ops=operators))
    assert find_scales(replace(plain, request=Request(float_mul)), feeds()).scales
    (tmp_path / "free").mkdir()
    free = prepared_model(dense(outlier=OUTLIERS, large=range(0, WIDTH, 2)), tmp_path / "free")
    assert scales_of(free)


def padded(seed: int) -> list[dict[str, np.ndarray]]:
    """Samples of which three positions count; what the others hold depends on ``seed``, and has outliers of its own."""
    rng = np.random.default_rng(seed)
    found = []
    for feed in feeds():
        x = feed["x"].copy()
        x[:, 3:] = rng.standard_normal(x[:, 3:].shape) ** 5
        found.append({"x": x, "mask": (np.arange(8) < 3).astype(np.int64)[None]})
    return found


def masked_model(folder: Path) -> PreparedModel:
    model = dense()
    model.graph.input.append(onnx.helper.make_tensor_value_info("mask", onnx.TensorProto.INT64, (1, 8)))
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return prepare(load(folder / "m.onnx"), ORT, padded(1)[0], folder)


def test_what_the_model_goes_by_is_found_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, samples = masked_model(tmp_path), Samples(tuple(padded(1)), "feeds", "test")
    found = find_scales(prepared, samples.feeds).model
    assert found is not None
    asked = list[str]()

    def ask(_proto: Any, _store: Any, _feeds: Any, mask: str, _given: Any) -> bool:
        asked.append(mask)
        return True

    monkeypatch.setattr(padding_propagation, "_goes_by", ask)
    assert observe(found, samples).positions.mask == "mask"
    assert not asked
    assert observe(prepared, samples).positions.mask == "mask"
    assert asked == ["mask"], "the control"


def test_scales_do_not_depend_on_padding(tmp_path: Path) -> None:
    prepared = masked_model(tmp_path)
    one, other = (find_scales(prepared, padded(seed)).scales for seed in (1, 2))
    assert one
    assert one == other
    one, other = (find_scales(prepared, padded(seed), mask="none").scales for seed in (1, 2))
    assert one != other, "without a mask all of it counts"


def test_the_small_head_of_convolutions_is_left_alone(tmp_path: Path) -> None:
    assert scales_of(prepared_model(headed(1), tmp_path)), "the control"
    assert not scales_of(prepared_model(headed(64), tmp_path))
