"""Ranges that Q/DQ nodes do not state, measured on samples: what needs one becomes integer, and the cost is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks.lowering import inputs_only

from inlay.errors import DataError, UsageError
from inlay.tosa.command import lower_file
from inlay.tosa.lowering import lower
from inlay.tosa.measured_ranges import with_measured_ranges
from inlay.tosa.reference import LoweredRunner
from tests.tosa.comparison import assert_equal, by_oracle, host_by_ort, run_ort
from tests.tosa.float_models import FloatNet, samples
from tests.tosa.models import quantize
from tests.tosa.test_inputs_only import taken_apart


def normalized() -> onnx.ModelProto:
    """A normalization written out between two Convs, whose sums and roots have no bounds that follow."""
    n = FloatNet(3)
    x = n.conv("x", 3, 8)
    mean = n.op("ReduceMean", [x], axes=[1], keepdims=1)
    centred = n.op("Sub", [x, mean])
    variance = n.op("ReduceMean", [n.op("Mul", [centred, centred])], axes=[1], keepdims=1)
    scaled = n.op(
        "Mul", [centred, n.op("Reciprocal", [n.op("Sqrt", [n.op("Add", [variance, n.const(np.float32(0.1))])])])]
    )
    y = n.conv(scaled, 8, 4)
    return n.model({y: [1, 4, 16, 16]})


def sqnr(want: np.ndarray, got: np.ndarray) -> float:
    return float(10 * np.log10(np.square(want).sum() / np.square(want - got).sum()))


def test_what_lacks_a_range_becomes_integer() -> None:
    model = taken_apart(normalized())
    bare = lower(model)
    assert any(n.unstated for n in bare.not_lowered), "there is something to measure"
    measured, found = with_measured_ranges(model, samples(4))
    lowered = lower(measured)
    assert lowered.not_lowered == ()
    assert [p.kind for p in lowered.partitions] == ["tosa"]
    assert found.values > 0
    for value in ("input", "output"):
        assert [v.name for v in getattr(measured.graph, value)] == [v.name for v in getattr(model.graph, value)]
    for feed in samples(3, seed=9):
        ours = LoweredRunner(lowered).run(feed)
        assert_equal(ours, by_oracle(lowered.graph, feed, host_by_ort(lowered)))


def test_the_loss_that_is_told_is_the_runtimes() -> None:
    model, feeds = taken_apart(normalized()), samples(4)
    measured, found = with_measured_ranges(model, feeds)
    (want,), (got,) = (np.stack([run_ort(m, f) for f in feeds], axis=1) for m in (model, measured))
    assert found.sqnr_db == pytest.approx(sqnr(want, got), abs=0.5)
    assert found.sqnr_db is not None
    assert found.sqnr_db > 10.0
    assert f"{found.sqnr_db:.1f} dB" in str(found)


def test_the_loss_that_is_told_is_that_of_the_worst_part() -> None:
    """Of what is joined into one output, of which one is far larger."""
    n = FloatNet(3)
    x = n.conv("x", 3, 8)
    root = n.op("Sqrt", [n.op("Abs", [n.op("Sub", [x, n.op("ReduceMean", [x], axes=[1], keepdims=1)])])])
    large = n.op("Mul", [n.op("Sigmoid", [n.conv("x", 3, 4)]), n.const(np.float32(320))])
    joined = n.op("Concat", [large, n.op("Sigmoid", [n.conv(root, 8, 2)])], axis=1)
    model, feeds = taken_apart(n.model({joined: [1, 6, 16, 16]})), samples(4)
    measured, found = with_measured_ranges(model, feeds)
    (want,), (got,) = (np.stack([run_ort(m, f) for f in feeds], axis=1) for m in (model, measured))
    assert np.array_equal(want[:, :, :4], got[:, :, :4])
    scores_db = sqnr(want[:, :, 4:], got[:, :, 4:])
    assert found.sqnr_db == pytest.approx(scores_db, abs=0.5)
    assert sqnr(want, got) > scores_db + 5.0, "negative control: over the whole output it is another figure"


def test_ranges_are_those_of_all_samples() -> None:
    """Larger inputs in one sample more: what is measured grows, what the model states does not."""
    model = taken_apart(normalized())
    few, more = samples(2), [*samples(2), {k: 4 * a for k, a in samples(1, seed=5)[0].items()}]

    def scales(feeds: list[dict[str, np.ndarray]]) -> dict[str, float]:
        graph = with_measured_ranges(model, feeds)[0].graph
        return {
            t.name: float(onnx.numpy_helper.to_array(t)) for t in graph.initializer if t.name.endswith("measured_scale")
        }

    small, large = scales(few), scales(more)
    assert small.keys() == large.keys()
    assert all(large[name] >= small[name] for name in small)
    assert any(large[name] > small[name] for name in small)


def test_a_model_that_states_all_ranges_stays_as_it_is() -> None:
    n = FloatNet(5)
    y = n.conv(n.op("Relu", [n.conv("x", 3, 8)]), 8, 4)
    model = quantize(onnx.shape_inference.infer_shapes(n.model({y: [1, 4, 16, 16]})), samples(8))
    measured, found = with_measured_ranges(model, samples(2))
    assert (found.values, found.sqnr_db) == (0, None)
    assert lower(measured).not_lowered == lower(model).not_lowered
    for feed in samples(2, seed=9):
        assert_equal(run_ort(measured, feed), run_ort(model, feed))


def test_each_reader_of_a_float_constant_gets_a_pair_of_its_own() -> None:
    n = FloatNet(5)
    rows = n.const(n.rng.normal(size=(1, 4, 16, 16)).astype(np.float32))
    first, last = (n.op("Concat", [*order], axis=1) for order in ((rows, n.conv("x", 3, 4)), (n.conv("x", 3, 4), rows)))
    y = n.conv(n.op("Concat", [first, last], axis=1), 16, 4)
    whole = quantize(onnx.shape_inference.infer_shapes(n.model({y: [1, 4, 16, 16], first: [1, 8, 16, 16]})), samples(8))
    model = inputs_only(whole)
    assert sum(n.unstated == rows for n in lower(model).not_lowered) == 2, "there are two readers"
    measured, _ = with_measured_ranges(model, samples(2))
    onnx.checker.check_model(measured)
    assert not any(n.unstated == rows for n in lower(measured).not_lowered)
    for want, got in zip(*(run_ort(m, samples(1)[0]) for m in (model, measured)), strict=True):
        assert sqnr(want, got) > 20.0


def test_the_command_measures_and_says_so(tmp_path: Path) -> None:
    onnx.save(taken_apart(normalized()), tmp_path / "m.onnx")
    np.savez(tmp_path / "s.npz", **{k: np.concatenate([f[k] for f in samples(4)]) for k in samples(1)[0]})
    done = lower_file(tmp_path / "m.onnx", tmp_path / "o.tosa", data=tmp_path / "s.npz")
    assert done.measured is not None
    assert f"{done.measured.values} ranges that the model does not state are those of 4 samples" in done.lines()[-1]
    assert done.as_json()["measured_ranges"]["samples"] == 4
    assert lower_file(tmp_path / "m.onnx", tmp_path / "p.tosa").as_json()["measured_ranges"] is None


def test_samples_that_do_not_fit_are_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(taken_apart(normalized()), tmp_path / "m.onnx")
    np.savez(tmp_path / "s.npz", x=np.zeros((2, 5, 3), np.float32))
    with pytest.raises(DataError, match="input x"):
        lower_file(tmp_path / "m.onnx", tmp_path / "o.tosa", data=tmp_path / "s.npz")
    with pytest.raises(DataError, match="no such file"):
        lower_file(tmp_path / "m.onnx", tmp_path / "o.tosa", data=tmp_path / "no.npz")
    assert not (tmp_path / "o.tosa").exists()
    good = tmp_path / "good.npz"
    np.savez(good, **{k: np.concatenate([f[k] for f in samples(4)]) for k in samples(1)[0]})
    (tmp_path / "o.tosa").symlink_to(good)
    before = good.read_bytes()
    monkeypatch.delattr("inlay.tosa.command.with_measured_ranges")  # it is refused before the work
    with pytest.raises(UsageError, match="overwrite"):
        lower_file(tmp_path / "m.onnx", tmp_path / "o.tosa", data=good)
    assert good.read_bytes() == before
