"""Wrong options, models and samples: exit codes, one-line errors, no traceback, no half-written file."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from inlay.testing import Builder, residual_model
from tests.support.command_line import FAST, RunCommand, failed, nothing_written
from tests.support.fixtures import SaveModel


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--target", "nothing"], "installed are"),
        (["--budget", "soon"], "--budget soon"),
        (["--budget", "-3s"], "--budget"),
        (["--max-measurements", "0"], "max-measurements"),
        (["--threads", "-1"], "threads"),
        (["--threads", "many"], "threads"),
        (["--seed", "-1"], "seed"),
        (["--bind", "N"], "--bind N"),
        (["--bind", "N=0"], "--bind N=0"),
        (["--bind", "N=two"], "--bind N=two"),
        (["--bind", "=3"], "--bind =3"),
        (["--metric", "top1"], "--labels"),
        (["--metric", "f1"], "--metric f1"),
        (["--metric", "no_such_module:f"], "no_such_module"),
        (["--max-drop", "0.1"], "--metric"),
        (["--max-drop", "-1%", "--metric", "math:fsum"], "--max-drop"),
        (["--max-drop", "a lot", "--metric", "math:fsum"], "--max-drop"),
        (["--no-bound", "--min-sqnr", "3"], "--no-bound"),
        (["--labels", "labels.npy"], "--data"),
        (["--no-such-option"], "--no-such-option"),
        (["--min-sqnr", "loud"], "min-sqnr"),
    ],
)
def test_wrong_options(options: list[str], word: str, run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    failed(run("tune", save(residual_model()), "-o", out, "--target", "null", *options), 2, word)
    nothing_written(out)


def test_missing_arguments(run: RunCommand) -> None:
    failed(run("tune"), 2, "MODEL")
    failed(run("no-such-command"), 2, "no-such-command")
    failed(run("quantize", "a.onnx"), 2, "--out")


def test_bench_needs_two_models_with_the_same_inputs(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    first = save(residual_model())
    failed(run("bench", first), 2, "two or more")
    b = Builder()
    b.output(b.node("relu", "Relu", [b.input("other", (1, 3))]))
    failed(run("bench", first, save(b.model(), "b.onnx"), "--target", "null"), 2, "b.onnx", "other")
    failed(run("bench", first, tmp_path / "missing.onnx"), 1, "missing.onnx")


def test_quantize_wants_a_known_recipe_and_a_folder(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    model = save(residual_model())
    failed(run("quantize", model, "-o", tmp_path / "q.onnx", "--recipe", "half", "--target", "null"), 2, "half")
    failed(run("quantize", model, "-o", tmp_path / "no" / "q.onnx", "--target", "null"), 2, "there is no folder")
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("command", ["tune", "quantize", "bench"])
@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "is empty"),
        (b"hello, this is not a model", "ONNX model"),
        (residual_model().SerializeToString()[:700], "bad.onnx"),
        (residual_model().SerializeToString()[:-9], "bad.onnx"),
    ],
)
def test_files_that_are_no_models(command: str, content: bytes, word: str, run: RunCommand, tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(content)
    arguments: dict[str, list[object]] = {
        "tune": [bad, "-o", tmp_path / "out"],
        "quantize": [bad, "-o", tmp_path / "q.onnx"],
        "bench": [bad, bad],
    }
    failed(run(command, *arguments[command], "--target", "null"), 1, "bad.onnx", word)
    nothing_written(tmp_path / "out")
    assert not (tmp_path / "q.onnx").exists()


def test_a_folder_is_no_model(run: RunCommand, tmp_path: Path) -> None:
    failed(run("tune", tmp_path, "-o", tmp_path / "out"), 1, "is a folder")


@pytest.mark.exhaustive
def test_a_model_that_does_not_run(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    """An operator that the runtime does not know: the message names it."""
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 8, 8)), 4)
    b.node("strange", "Magic", [x], domain="com.example")
    model = b.model(check=False)
    model.graph.output.append(helper.make_tensor_value_info("strange_out", onnx.TensorProto.FLOAT, [1, 4, 8, 8]))
    path = save(model)
    failed(run("tune", path, "-o", tmp_path / "out", *FAST), 1, str(path), "Magic")
    nothing_written(tmp_path / "out")


def test_a_model_whose_output_is_a_sequence(run: RunCommand, tmp_path: Path) -> None:
    node = helper.make_node("SplitToSequence", ["x"], ["parts"], "split", axis=0)
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3])
    parts = helper.make_tensor_sequence_value_info("parts", onnx.TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [parts]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(model, tmp_path / "m.onnx")
    done = run("quantize", tmp_path / "m.onnx", "-o", tmp_path / "q.onnx")
    failed(done, 1, "output parts is a sequence, and only tensors can be compared")
    assert not (tmp_path / "q.onnx").exists()


def test_a_model_without_outputs(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    model = residual_model()
    del model.graph.output[:]
    failed(run("tune", save(model), "-o", tmp_path / "out", *FAST), 1, "no outputs")


@pytest.mark.exhaustive
def test_unknown_dimensions(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    b = Builder()
    b.output(b.conv("conv", b.input("x", ("N", 3, "H", "W")), 4))
    path = save(b.model())
    failed(run("tune", path, "-o", tmp_path / "out", *FAST), 2, "--bind H=224 --bind W=224")
    nothing_written(tmp_path / "out")
    code, _, err = run("tune", path, "-o", tmp_path / "out", "--bind", "H=8", "--bind", "W=9", *FAST)
    assert code == 0, err
    done = onnx.load(tmp_path / "out" / "model.onnx")
    dims = [d.dim_param or d.dim_value for d in done.graph.input[0].type.tensor_type.shape.dim]
    assert dims == ["N", 3, 8, 9], "what the user binds is fixed in the written model, other symbols stay"


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"y": np.zeros((4, 3, 12, 12), np.float32)}, ("x: float32 [1, 3, 12, 12]",)),
        ({"x": np.zeros((4, 3, 12, 13), np.float32)}, ("x: float32 [1, 3, 12, 12]", "13")),
        ({"x": np.zeros((4, 3, 12, 12), np.uint8)}, ("x: float32 [1, 3, 12, 12]", "uint8")),
        ({"x": np.full((4, 3, 12, 12), np.nan, np.float32)}, ("x", "NaN")),
    ],
)
@pytest.mark.parametrize("command", ["tune", "quantize"])
def test_samples_that_do_not_fit(
    command: str,
    arrays: dict[str, np.ndarray],
    words: tuple[str, ...],
    run: RunCommand,
    save: SaveModel,
    tmp_path: Path,
) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    out = tmp_path / ("out" if command == "tune" else "q.onnx")
    outcome = run(command, save(residual_model()), "-o", out, "--target", "null", "--data", tmp_path / "bad.npz")
    failed(outcome, 1, "bad.npz", *words)
    assert not out.exists()


def test_labels_that_do_not_fit(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=np.zeros((4, 3, 12, 12), np.float32))
    np.save(tmp_path / "l.npy", np.zeros(3, np.int64))
    options = ["--data", tmp_path / "s.npz", "--labels", tmp_path / "l.npy", "--metric", "top1", *FAST]
    failed(run("tune", save(residual_model()), "-o", tmp_path / "out", *options), 1, "3 labels", "4 samples")


@pytest.mark.exhaustive
def test_a_metric_that_fails(run: RunCommand, save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "metrics_of_mine.py").write_text(
        "def broken(outputs, labels):\n    return outputs[0]['nothing']\n\n"
        "def nan(outputs, labels):\n    return float('nan')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, word in (("broken", "KeyError"), ("nan", "finite")):
        outcome = run(
            "tune", save(residual_model()), "-o", tmp_path / "out", "--metric", f"metrics_of_mine:{name}", *FAST
        )
        failed(outcome, 1, "metric", word)
        nothing_written(tmp_path / "out")


def test_external_data_must_stay_in_its_folder(run: RunCommand, tmp_path: Path) -> None:
    model = residual_model()
    tensor = model.graph.initializer[0]
    data = numpy_helper.to_array(tensor).tobytes()
    (tmp_path / "secret.bin").write_bytes(data)
    inner = tmp_path / "inner"
    inner.mkdir()
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")
    (inner / "model.onnx").write_bytes(model.SerializeToString())
    failed(run("tune", inner / "model.onnx", "-o", tmp_path / "out", *FAST), 1, "outside the model's folder")
    nothing_written(tmp_path / "out")
