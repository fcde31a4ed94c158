"""A program of two models, as a user has it: recorded, and tuned on ONNX Runtime without a further word."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.utils import Extractor

import inlay
from inlay.model.load import file_sha256
from inlay.portfolio.pipeline_result import PipelineResult
from inlay.run.progress import Silent

PROGRAM = """
import numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = 1
body, head = (ort.InferenceSession(f"{name}.onnx", options) for name in ("body", "head"))
for image in np.load("images.npy"):
    (features,) = body.run(None, {body.get_inputs()[0].name: image})
    head.run(None, {head.get_inputs()[0].name: features})
"""


def cut(path: Path, folder: Path) -> None:
    """A chain of operators in two, ``body.onnx`` and ``head.onnx``, behind its second activation."""
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    at = [node.output[0] for node in model.graph.node if node.op_type == "Relu"][1]
    extractor = Extractor(model)
    onnx.save(extractor.extract_model([model.graph.input[0].name], [at]), folder / "body.onnx")
    onnx.save(extractor.extract_model([at], [model.graph.output[0].name]), folder / "head.onnx")


@pytest.mark.exhaustive
def test_a_recorded_program_is_tuned_for_real(real_models: Path, tmp_path: Path) -> None:
    feeds = importlib.import_module("feeds")  # of the folder of trained models
    images = np.stack([next(iter(feed.values())) for feed in feeds.feeds("mnist")[0][:12]])
    cut(real_models / "mnist.onnx", tmp_path)
    np.save(tmp_path / "images.npy", images)
    (tmp_path / "program.py").write_text(PROGRAM)
    record = [sys.executable, "-m", "inlay", "record", "-o", "recorded", "--", sys.executable, "program.py"]
    subprocess.run(record, cwd=tmp_path, check=True, capture_output=True)
    out = tmp_path / "out"
    found = inlay.tune(
        tmp_path / "recorded", out=out, budget=None, strategy="anchors", max_measurements=3, progress=Silent()
    )
    assert isinstance(found, PipelineResult)
    assert [(part.name, part.runs) for part in found.parts] == [("body", 12), ("head", 12)]
    assert found.blocks > 0, "all models were timed together"
    together = {"float": tmp_path, "tuned": out / "pipeline"}
    scores = {}
    for name, folder in together.items():
        body, head = (ort.InferenceSession(folder / f"{each}.onnx") for each in ("body", "head"))
        features = [body.run(None, {body.get_inputs()[0].name: image})[0] for image in images]
        scores[name] = np.concatenate([head.run(None, {head.get_inputs()[0].name: each})[0] for each in features])
    noise = np.square(scores["float"] - scores["tuned"]).sum() / np.square(scores["float"]).sum()
    assert -10.0 * np.log10(max(noise, 1e-30)) > 15.0, "each keeps 20 dB by itself"
    for part in json.loads((out / "result.json").read_text())["models"]:
        assert part["output_sha256"] == file_sha256(out / "pipeline" / f"{part['name']}.onnx")
