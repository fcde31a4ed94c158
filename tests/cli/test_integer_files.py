"""Files with operators on integers, given to the commands: what is not taken over is told."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from inlay.errors import Crashed
from inlay.prepare import strip_qdq as module
from inlay.quant.extract import Extraction
from inlay.testing import random_feed, residual_model
from tests.prepare.test_constants_in_nodes import fake_quantized
from tests.prepare.test_integer_files import text_model
from tests.prepare.test_runtime_operators import dense_model, grouped_by_an_index
from tests.support.command_line import FAST, RunCommand, failed
from tests.support.hand_written_qdq import insert_qdq_everywhere
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


@pytest.mark.exhaustive
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
    assert any("1 quantized site" in note for note in results["none"]["notes"])


def test_constants_in_nodes_are_constants(run: RunCommand, tmp_path: Path) -> None:
    told = {}
    for kind in ("initializers", "nodes", "computed"):
        onnx.save(fake_quantized(kind), tmp_path / f"{kind}.onnx")
        code, out, err = run("inspect", tmp_path / f"{kind}.onnx")
        assert (code, err) == (0, "")
        told[kind] = out.partition("It is quantized already")[2].partition("Samples")[0]
    assert "2 of 2 Conv" in told["initializers"]
    assert told["nodes"] == told["computed"] == told["initializers"]


def _differs(*_: object) -> str:
    return "the first value that differs is a (3.0 dB)"


def _breaks(*_: object) -> Extraction:
    raise KeyError("a")


def _crashes(*_: object) -> Extraction:
    raise Crashed("building the model ended its process")


@pytest.mark.parametrize(
    ("function", "stand_in", "words"),
    [
        ("first_difference", _differs, "the first value that differs is a (3.0 dB)"),
        ("extract", _breaks, "KeyError"),
        ("_written", _crashes, "ended its process"),
    ],
)
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_what_does_not_match_is_one_opaque_model(
    function: str, stand_in: object, words: str, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import that fails, for whatever reason, does not end a command; what it was is told."""
    onnx.save(insert_qdq_everywhere(residual_model()), tmp_path / "given.onnx")
    given = ("given.onnx", "--target", "ort-cpu")
    monkeypatch.setattr(module, function, stand_in)
    monkeypatch.chdir(tmp_path)
    code, out, err = run("quantize", *given, "-o", "q.onnx")
    assert code == 0, err
    assert "not taken apart: " in out
    assert words in out
    code, _, err = run("tune", "given.onnx", "-o", "out", "--no-bound", *FAST)
    assert code == 0, err
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    missing = result["search"]["imported"]["missing"]
    assert len(missing) == sum(
        "quantizeLinear" in n.op_type.replace("Q", "q") for n in onnx.load("given.onnx").graph.node
    )
    assert all(words in row["reason"] for row in missing)
    assert any(words in note for note in result["notes"])
    code, _, err = run("select", "out", "--fastest", "--to", "again.onnx")
    assert code == 0, err
    code, _, err = run("explain", *given, "--repair", "better.onnx", "--budget", "5s")
    assert code == 1
    assert "given.onnx cannot be repaired: " in err.splitlines()[-1]
    assert words in err.splitlines()[-1]


def test_a_file_that_does_not_run_is_still_an_error(run: RunCommand, tmp_path: Path) -> None:
    model = insert_qdq_everywhere(residual_model())
    model.graph.node[-1].op_type = "NoSuchOperator"
    onnx.save(model, tmp_path / "given.onnx")
    failed(run("quantize", tmp_path / "given.onnx", "-o", tmp_path / "q.onnx", "--target", "ort-cpu"), 1)
