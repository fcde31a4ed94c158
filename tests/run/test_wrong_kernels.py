"""A runtime that computes one operator wrong in low precision: the search finds out which one, and says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks.simulated import Clock, simulated

from inlay.data import Samples
from inlay.model.load import load
from inlay.prepare.config import TuneConfig
from inlay.quant.accuracy import Bound
from inlay.run.inputs import TuneRequest
from inlay.run.result import TuneResult
from inlay.run.tune import tune
from inlay.search import policy
from inlay.targets.base import Artifact, Feed, TargetSpec
from inlay.targets.null import NullExecutable, NullTarget
from inlay.testing import Builder, random_feed

FAULTY, LAYERS = "conv3", 6


class WrongTarget(NullTarget):
    """Known costs; what :data:`FAULTY` computes in 8 bits is something else."""

    def compile(self, model: Artifact) -> NullExecutable:
        return Wrong(model, self)


class Wrong(NullExecutable):
    def __init__(self, model: Artifact, target: NullTarget) -> None:
        super().__init__(model, target)
        graph = onnx.load(model.path, load_external_data=False).graph
        dequantized = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
        self._wrong = any(node.name == FAULTY and node.input[1] in dequantized for node in graph.node)

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        outputs = super().run(feed)
        return {name: np.roll(array, 1, -1) for name, array in outputs.items()} if self._wrong else outputs


def model() -> onnx.ModelProto:
    b = Builder()
    x = b.input("x", (1, 8, 12, 12))
    for i in range(LAYERS):
        x = b.conv(f"conv{i}", x, 8, relu=True)
    b.output(x)
    return b.model()


def run(folder: Path) -> TuneResult:
    proto, path = model(), folder / "model.onnx"
    folder.mkdir()
    onnx.save(proto, path)
    samples = Samples(tuple(dict(random_feed(proto, n)) for n in range(12)), "npz", "seeds")
    config = TuneConfig(target=TargetSpec("null"), bound=Bound(20.0), budget_s=None, cost_db=False)
    lab = simulated(WrongTarget(), Clock())
    return tune(
        TuneRequest(
            file=load(path), out=folder / "out", samples=samples, config=replace(config, max_measurements=20), lab=lab
        )
    )


@pytest.mark.exhaustive
def test_it_is_found_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(tmp_path / "found")
    written = json.loads((tmp_path / "found/out/result.json").read_text(encoding="utf8"))
    assert written["search"]["barred"] == [{"unit": FAULTY, "op_type": "Conv", "refused": False}]
    (note,) = [n for n in result.notes if "computes wrong results" in n]
    assert note.endswith(f"they were left as they were: {FAULTY} (Conv)")
    assert result.best.verification is not None
    assert result.best.verification.sqnr_db > 20.0
    delivered = onnx.load(result.model_path).graph
    low = {n.output[0] for n in delivered.node if n.op_type == "DequantizeLinear"}
    assert sum(n.op_type == "Conv" and n.input[0] in low for n in delivered.node) >= LAYERS - 2
    monkeypatch.setattr(policy, "BLAMES", 0)
    control = run(tmp_path / "control")
    assert not [n for n in control.notes if "computes something else" in n]
    assert control.best.speedup.value <= result.best.speedup.value
