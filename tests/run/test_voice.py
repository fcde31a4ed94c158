"""Outputs whose length depends on values, and models that draw random numbers: judged, quantized, delivered as such."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import inlay
from inlay import api
from inlay.calibrate.observe import observe
from inlay.calibrate.tables import CalibrationChoice
from inlay.cli.quantized import quantized
from inlay.data import AUTO_MASK, Samples, bound, input_specs, random_samples, tuned_sizes
from inlay.errors import UsageError
from inlay.model.load import load
from inlay.model.pinned import random_operators
from inlay.model.reference import Session
from inlay.prepare.model import PreparedModel, prepare
from inlay.prepare.smoothquant import ProductNoise
from inlay.quant.accuracy import Judge
from inlay.quant.fake_quant import NoiseProbe
from inlay.quant.sensitivity import sensitivity
from inlay.targets.onnxruntime.target import capabilities_for
from inlay.types import Placement
from tests.support.speech import SYMBOLS, sentences, voice

pytestmark = pytest.mark.usefixtures("null_in_process")


def test_another_shape_is_all_noise_and_is_told_from_little_noise(tmp_path: Path) -> None:
    """Of a voice in low precision some durations change; what is behind them makes noise of an ordinary size."""
    onnx.save(voice(), tmp_path / "m.onnx")
    feeds = sentences(6)
    prepared = prepare(load(tmp_path / "m.onnx"), capabilities_for(), feeds[0], tmp_path)
    table = CalibrationChoice("minmax").table(prepared, observe(prepared, Samples(tuple(feeds), "feeds", "test")))
    probe = NoiseProbe(prepared.emitter.base, prepared.store, prepared.graph, prepared.units, prepared.rules, table)
    everything = Placement((port, switch.qtype) for switch in probe.switches for port in switch.ports)
    model = prepared.emitter.emit(everything, table)
    lengths = [
        [Session(m, prepared.store).run(f)["wave_out"].shape for f in feeds] for m in (prepared.emitter.base, model)
    ]
    assert lengths[0] != lengths[1], "some durations change"
    probe.use(feeds)
    assert probe.noise(everything) == (1e6,)
    assert probe.noise(everything, samples=2) == (1e6,)
    found = sensitivity(probe.switches, prepared.units, probe.noises, most=100)
    behind = [noise for name, (noise,) in found.constants.items() if name in ("conv0", "conv1", "conv2", "out")]
    assert behind
    assert all(0 < noise < 0.1 for noise in behind)


def test_the_noise_of_forms_counts_what_another_length_lacks() -> None:
    feeds = sentences(2)
    want = [{"audio": np.arange(4.0)[None]}, {"audio": np.arange(6.0)[None]}]
    judge = Judge.of_model(ir.from_proto(voice()), feeds, want, AUTO_MASK)
    noise = ProductNoise(cast(PreparedModel, None), [], {}, feeds, judge)
    lacking = noise._db([{"audio": np.arange(4.0)[None]}, {"audio": np.arange(5.0)[None]}])
    assert lacking == pytest.approx(10 * np.log10((14 + 55) / 25)), "the sixth number, 5, is noise as a whole"
    assert noise._db([{"audio": np.zeros((4, 1))}, {"audio": np.zeros((6, 1))}]) == -300.0, "in no common form"
    assert noise._db([{"audio": 1.1 * y["audio"]} for y in want]) == pytest.approx(20.0)


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.exhaustive
def test_a_voice_is_quantized_in_one_shot_and_never_a_fault(tmp_path: Path, noise: float) -> None:
    """Whatever becomes of its durations; what is written draws noise as the given model does."""
    model = voice(noise)
    onnx.save(model, tmp_path / "m.onnx")
    done = api.quantize(tmp_path / "m.onnx", data=sentences(12), out=tmp_path / "q.onnx", threads=1)
    assert done.accuracy is not None
    assert random_operators(onnx.load(tmp_path / "q.onnx").graph) == random_operators(model.graph)
    assert bool(noise) == any("draws random numbers (1 RandomNormalLike)" in line for line in quantized(done))


@pytest.mark.exhaustive
def test_noise_is_no_error_and_a_voice_with_noise_is_tuned(tmp_path: Path) -> None:
    """Two runs of float itself have 0 dB here; with the same noise, low precision is far better than that."""
    model = voice(noise=1.0, clear=True)
    onnx.save(model, tmp_path / "m.onnx")
    api.tune(
        tmp_path / "m.onnx", data=sentences(24), out=tmp_path / "out", target="null", max_measurements=8, min_sqnr=20
    )
    found = json.loads((tmp_path / "out/result.json").read_text())
    assert not found["best"]["is_float"]
    assert found["best"]["qdq_pairs"] > 0
    assert found["best"]["sqnr_db"] > 20
    assert any("draws random numbers" in note for note in found["notes"])
    assert not any("normalization left out" in note for note in found["notes"])
    delivered = onnx.load(tmp_path / "out/model.onnx")
    assert random_operators(delivered.graph) == {"RandomNormalLike": 1}
    assert not any("/pinned" in n.name or n.op_type == "Mod" for n in delivered.graph.node)


@pytest.mark.exhaustive
def test_a_delivered_file_remembers_the_sizes_that_it_was_tuned_at(tmp_path: Path) -> None:
    """Commands take them where no samples say it; ``--bind`` comes first, and the given model still has to be told."""
    onnx.save(voice(clear=True), tmp_path / "m.onnx")
    feeds = [{"symbols": np.random.default_rng(i).integers(0, SYMBOLS, (1, 13))} for i in range(16)]
    api.tune(tmp_path / "m.onnx", data=feeds, out=tmp_path / "out", target="null", max_measurements=4)
    delivered = tmp_path / "out/model.onnx"
    found = json.loads((tmp_path / "out/result.json").read_text())
    assert found["data"]["sizes"] == [{"sizes": {"length": 13}, "weight": 1.0}]
    assert tuned_sizes(load(delivered).model) == {"length": 13}
    specs = input_specs(load(delivered).model)
    assert random_samples(specs, np.random.default_rng(0), 1).feeds[0]["symbols"].shape == (1, 13)
    assert random_samples(bound(specs, {"length": 5}), np.random.default_rng(0), 1).feeds[0]["symbols"].shape == (1, 5)
    with pytest.raises(UsageError, match="--bind length="):
        api.bench([tmp_path / "m.onnx"] * 2, target="null")
    api.bench([tmp_path / "m.onnx", delivered], target="null", blocks=6, processes=1)
    inlay.explain(delivered, target="null")


@pytest.mark.parametrize("said", ["", "{", "[1]", '{"length": "5"}', '{"length": 0}', '{"length": -3}', "[" * 5000])
def test_sizes_that_say_something_else_are_none(said: str) -> None:
    model = voice()
    model.metadata_props.add(key="inlay.sizes", value=said)
    assert tuned_sizes(ir.from_proto(model)) == {}
