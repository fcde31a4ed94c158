"""A decoder's first step, whose past holds nothing, is a sample like any other, in every way in and at every stage."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay import api
from inlay.calibrate.observe import observe
from inlay.data import Feed, input_specs, parse_shapes, read_samples, stress_set, workload_of
from inlay.model.load import load
from inlay.prepare.model import prepare
from inlay.targets.onnxruntime.target import capabilities_for
from tests.support.decoder import VOCABULARY, WIDTH, decoder, steps

pytestmark = pytest.mark.usefixtures("null_in_process")


def saved(feeds: list[Feed], path: Path) -> Path:
    np.savez(path, **{f"{name}_{i}": array for i, feed in enumerate(feeds) for name, array in feed.items()})
    return path


@pytest.mark.parametrize("empty", [False, True])
def test_it_is_read_and_ranges_come_from_what_is_there(tmp_path: Path, empty: bool) -> None:
    """Ranges are those of the samples that hold something; where none does, of what the model computes."""
    onnx.save(decoder(), tmp_path / "m.onnx")
    file, feeds = load(tmp_path / "m.onnx"), steps(8, empty)
    specs = input_specs(file.model)
    samples = read_samples(saved(feeds, tmp_path / "s.npz"), specs)
    assert [f["past_key_values.k"].shape for f in samples.feeds] == [f["past_key_values.k"].shape for f in feeds]
    prepared = prepare(file, capabilities_for(), feeds[0], tmp_path)
    histograms = observe(prepared, samples).histograms
    for name in ("past_key_values.k", "past_key_values.v"):
        whole = np.concatenate([f[name].ravel() for f in feeds])
        found = histograms.get(name)
        assert (found is None or not found.counts.sum()) == empty
        if found is not None and not empty:
            assert found.counts.sum() == whole.size
    stress_set(samples, specs, "auto", np.random.default_rng(0), 3, 8)


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_it_is_tuned(tmp_path: Path, empty: bool) -> None:
    onnx.save(decoder(), tmp_path / "m.onnx")
    data = saved(steps(24, empty), tmp_path / "s.npz")
    api.tune(tmp_path / "m.onnx", data=data, out=tmp_path / "out", target="null", max_measurements=6, min_sqnr=15)
    found = json.loads((tmp_path / "out/result.json").read_text())
    assert found["data"]["samples"] == 24
    assert found["best"]["qdq_pairs"] > 0
    sizes = [each["sizes"] for each in found["data"]["sizes"]]
    assert any(each["past"] == 0 for each in sizes)


def test_lines_of_text_and_shapes_take_it_too(tmp_path: Path) -> None:
    """``[]`` is an empty past. Of the first steps alone, a wish for a longer past is met with zeros."""
    onnx.save(decoder(), tmp_path / "m.onnx")
    specs = input_specs(load(tmp_path / "m.onnx").model)
    line = {"input_ids": [1, 2, VOCABULARY - 1], "past_key_values.k": [], "past_key_values.v": []}
    (tmp_path / "s.jsonl").write_text(json.dumps(line) + "\n")
    samples = read_samples(tmp_path / "s.jsonl", specs)
    assert samples.feeds[0]["past_key_values.v"].shape == (1, 0, WIDTH)
    wishes = parse_shapes([f"past_key_values.k=1x6x{WIDTH}"], specs)
    (feed,) = workload_of(samples.feeds, specs, wishes).feeds
    assert feed["past_key_values.k"].shape == feed["past_key_values.v"].shape == (1, 6, WIDTH)


def test_a_model_of_one_past_is_quantized_from_given_feeds(tmp_path: Path) -> None:
    onnx.save(decoder(), tmp_path / "m.onnx")
    done = api.quantize(tmp_path / "m.onnx", data=steps(12), out=tmp_path / "q.onnx", recipe="full-int8", threads=1)
    assert done.accuracy is not None
    assert done.ports
    assert done.accuracy.sqnr_db > 10
