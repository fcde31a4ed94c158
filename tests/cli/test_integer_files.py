"""Files with operators on integers, given to the commands: what is not taken over is told."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from inlay.testing import random_feed
from tests.prepare.test_integer_files import text_model
from tests.prepare.test_runtime_operators import dense_model, grouped_by_an_index
from tests.support.command_line import FAST, RunCommand
from tests.support.runtime_quantizer import quantize_by_runtime, quantize_dynamically

pytestmark = pytest.mark.filterwarnings("ignore")  # the runtime's quantizer warns about this and that


def test_quantize_tells_what_it_could_not_take_apart(tmp_path: Path, run: RunCommand) -> None:
    path = grouped_by_an_index(tmp_path)
    code, out, _ = run("quantize", path, "-o", tmp_path / "q.onnx", "--target", "ort-cpu")
    assert code == 0
    assert "not taken apart: dense_Q4: MatMulNBits" in out


def test_a_dynamic_file_as_model_is_quantized_anew(tmp_path: Path, run: RunCommand) -> None:
    path = quantize_dynamically(text_model(), tmp_path)
    code, out, _ = run("quantize", path, "-o", tmp_path / "q.onnx", "--target", "ort-cpu")
    assert code == 0
    assert "MatMulInteger" not in out
    assert "MatMulInteger" not in {n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node}


def test_tune_lists_every_site_of_a_baseline(tmp_path: Path, run: RunCommand) -> None:
    model = text_model()
    path = quantize_by_runtime(model, tmp_path, [random_feed(model, i) for i in range(3)], operators=True)
    onnx.save(dense_model(), tmp_path / "dense.onnx")
    pairs = {"whole": (tmp_path / "float.onnx", path), "none": (tmp_path / "dense.onnx", grouped_by_an_index(tmp_path))}
    results = {}
    for name, (given, baseline) in pairs.items():
        options: tuple[str | Path, ...] = ("--no-bound", *FAST, "--qdq-baseline", baseline)
        assert run("tune", given, "-o", tmp_path / name, *options).code == 0
        results[name] = json.loads((tmp_path / name / "result.json").read_text())
    whole, none = (results[name]["search"]["imported"] for name in pairs)
    assert whole["sites"]["qdq-baseline"] > 25
    assert whole["missing"] == []
    assert none["sites"] == {"qdq-baseline": 0}
    (lost,) = none["missing"]
    assert (lost["site"], "g_idx" in lost["reason"]) == ("dense_Q4", True)
    assert any("1 quantized sites" in note for note in results["none"]["notes"])
