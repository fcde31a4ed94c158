"""The command line: exit codes, one-line errors, no traceback, no half-written file.

Most cases run the command in this process, where it costs no start-up; a few run the installed program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from filelock import FileLock
from onnx import helper, numpy_helper

from inlay.cli import commands as cli
from inlay.testing import Builder, residual_model, run_reference, small_model
from tests.support.fixtures import SaveModel
from tests.support.hand_written_qdq import insert_qdq_everywhere
from tests.support.runtime import check_and_load

FAST = ["--target", "null", "--max-measurements", "3", "--quiet"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command; returns exit code, standard output and standard error."""

    def command(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = cli.run(lambda: cli.app([str(a) for a in arguments], standalone_mode=False))
        out, err = capfd.readouterr()
        return code, out, err

    return command


def failed(outcome: tuple[int, str, str], code: int, *words: str) -> None:
    """It ended with ``code`` and one line on standard error that has all ``words``."""
    found, _, err = outcome
    assert found == code, err
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("inlay: ")
    assert "Traceback" not in err
    for word in words:
        assert word in lines[0], lines[0]


def nothing_written(folder: Path) -> None:
    """No deliverable, and no scratch file, is left in ``folder``."""
    left = {p.name for p in folder.iterdir()} if folder.exists() else set()
    assert left <= {"run.sqlite", "run.sqlite-wal", "run.sqlite-shm"}, left


# what works


def test_version_and_help(run: Run) -> None:
    assert run("--version")[1].startswith("inlay ")
    for command in ("tune", "bench", "quantize", "targets"):
        code, out, _ = run(command, "--help")
        assert code == 0
        assert "Usage" in out


def test_targets(run: Run) -> None:
    code, out, _ = run("targets")
    assert code == 0
    assert "null" in out
    assert "ort-cpu" in out


def test_tune(run: Run, save: SaveModel, tmp_path: Path) -> None:
    code, out, err = run("tune", save(small_model()), "-o", tmp_path / "out", *FAST)
    assert code == 0, err
    assert "Verdict" in out
    assert "NO SAMPLES" in out, "it says loudly that accuracy is not real"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "model.onnx",
        "recipe.yaml",
        "result.json",
        "run.sqlite",
    ]
    check_and_load(onnx.load(tmp_path / "out" / "model.onnx"))


def test_lines_in_a_log(run: Run, save: SaveModel, tmp_path: Path) -> None:
    code, _, err = run("tune", save(small_model()), "-o", tmp_path / "out", *FAST[:-1])
    assert code == 0
    assert "full-int8" in err


def test_quantize(run: Run, save: SaveModel, tmp_path: Path) -> None:
    code, out, err = run("quantize", save(residual_model()), "-o", tmp_path / "q.onnx", "--target", "null")
    assert code == 0, err
    assert "operators in 8 bits" in out
    check_and_load(onnx.load(tmp_path / "q.onnx"))


def test_bench(run: Run, save: SaveModel) -> None:
    code, out, err = run("bench", save(residual_model()), save(residual_model(), "b.onnx"), "--target", "null")
    assert code == 0, err
    assert "1.00x" in out


def test_the_installed_program(save: SaveModel, tmp_path: Path) -> None:
    """``python -m inlay`` in a process of its own: exit code, verdict, one-line error."""
    command = [sys.executable, "-m", "inlay", "tune", str(save(small_model())), *FAST]
    good = subprocess.run([*command, "-o", str(tmp_path / "out")], capture_output=True, text=True, check=False)
    assert good.returncode == 0, good.stderr
    assert "Verdict" in good.stdout
    bad = subprocess.run(
        [*command[:4], str(tmp_path / "missing.onnx")], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    failed((bad.returncode, bad.stdout, bad.stderr), 1, "missing.onnx", "no such file")


# wrong usage


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
def test_wrong_options(options: list[str], word: str, run: Run, save: SaveModel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    failed(run("tune", save(residual_model()), "-o", out, "--target", "null", *options), 2, word)
    nothing_written(out)


def test_missing_arguments(run: Run) -> None:
    failed(run("tune"), 2, "MODEL")
    failed(run("no-such-command"), 2, "no-such-command")
    failed(run("quantize", "a.onnx"), 2, "--out")


def test_bench_needs_two_models_with_the_same_inputs(run: Run, save: SaveModel, tmp_path: Path) -> None:
    first = save(residual_model())
    failed(run("bench", first), 2, "two or more")
    b = Builder()
    b.output(b.node("relu", "Relu", [b.input("other", (1, 3))]))
    failed(run("bench", first, save(b.model(), "b.onnx"), "--target", "null"), 2, "b.onnx", "other")
    failed(run("bench", first, tmp_path / "missing.onnx"), 1, "missing.onnx")


def test_quantize_wants_a_known_recipe_and_a_folder(run: Run, save: SaveModel, tmp_path: Path) -> None:
    model = save(residual_model())
    failed(run("quantize", model, "-o", tmp_path / "q.onnx", "--recipe", "half", "--target", "null"), 2, "half")
    failed(run("quantize", model, "-o", tmp_path / "no" / "q.onnx", "--target", "null"), 2, "there is no folder")
    assert not (tmp_path / "q.onnx").exists()


# models that cannot be used


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
def test_files_that_are_no_models(command: str, content: bytes, word: str, run: Run, tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(content)
    arguments = {
        "tune": [bad, "-o", tmp_path / "out"],
        "quantize": [bad, "-o", tmp_path / "q.onnx"],
        "bench": [bad] * 2,
    }
    failed(run(command, *arguments[command], "--target", "null"), 1, "bad.onnx", word)
    nothing_written(tmp_path / "out")
    assert not (tmp_path / "q.onnx").exists()


def test_a_folder_is_no_model(run: Run, tmp_path: Path) -> None:
    failed(run("tune", tmp_path, "-o", tmp_path / "out"), 1, "is a folder")


def test_a_model_that_does_not_run(run: Run, save: SaveModel, tmp_path: Path) -> None:
    """An operator that the runtime does not know: the message names it."""
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 8, 8)), 4)
    b.node("strange", "Magic", [x], domain="com.example")
    model = b.model(check=False)
    model.graph.output.append(helper.make_tensor_value_info("strange_out", onnx.TensorProto.FLOAT, [1, 4, 8, 8]))
    path = save(model)
    failed(run("tune", path, "-o", tmp_path / "out", *FAST), 1, str(path), "Magic")
    nothing_written(tmp_path / "out")


def test_a_model_without_outputs(run: Run, save: SaveModel, tmp_path: Path) -> None:
    model = residual_model()
    del model.graph.output[:]
    failed(run("tune", save(model), "-o", tmp_path / "out", *FAST), 1, "no outputs")


def test_unknown_dimensions(run: Run, save: SaveModel, tmp_path: Path) -> None:
    b = Builder()
    b.output(b.conv("conv", b.input("x", ("N", 3, "H", "W")), 4))
    path = save(b.model())
    failed(run("tune", path, "-o", tmp_path / "out", *FAST), 2, "--bind H=N")
    nothing_written(tmp_path / "out")
    code, _, err = run("tune", path, "-o", tmp_path / "out", "--bind", "H=8", "--bind", "W=9", *FAST)
    assert code == 0, err
    done = onnx.load(tmp_path / "out" / "model.onnx")
    dims = [d.dim_param or d.dim_value for d in done.graph.input[0].type.tensor_type.shape.dim]
    assert dims == ["N", 3, "H", "W"], "the written model keeps its symbols"


# samples that do not fit


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
    command: str, arrays: dict[str, np.ndarray], words: tuple[str, ...], run: Run, save: SaveModel, tmp_path: Path
) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)  # type: ignore[arg-type]
    out = tmp_path / ("out" if command == "tune" else "q.onnx")
    outcome = run(command, save(residual_model()), "-o", out, "--target", "null", "--data", tmp_path / "bad.npz")
    failed(outcome, 1, "bad.npz", *words)
    assert not out.exists()


def test_labels_that_do_not_fit(run: Run, save: SaveModel, tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=np.zeros((4, 3, 12, 12), np.float32))
    np.save(tmp_path / "l.npy", np.zeros(3, np.int64))
    options = ["--data", tmp_path / "s.npz", "--labels", tmp_path / "l.npy", "--metric", "top1", *FAST]
    failed(run("tune", save(residual_model()), "-o", tmp_path / "out", *options), 1, "3 labels", "4 samples")


def test_a_metric_that_fails(run: Run, save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# unusual models that must work


def _fp16() -> onnx.ModelProto:
    b = Builder()
    half = onnx.TensorProto.FLOAT16
    w = b.constant("w", np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float16))
    y = b.node("conv", "Conv", [b.input("x", (1, 3, 8, 8), half), w])
    b.output(b.node("relu", "Relu", [y]), half)
    return b.model()


def _with_if() -> onnx.ModelProto:
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 8, 8)), 4)
    flag = b.node("flag", "Greater", [b.node("sum", "ReduceSum", [x], keepdims=0), b.constant("zero", 0.0)])
    out = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 4, 8, 8]) for n in ("t", "e")]
    then = helper.make_graph([helper.make_node("Relu", [x], ["t"])], "then", [], out[:1])
    other = helper.make_graph([helper.make_node("Neg", [x], ["e"])], "else", [], out[1:])
    y = b.node("choose", "If", [flag], then_branch=then, else_branch=other)
    b.output(b.conv("last", b.node("add", "Add", [y, x], channels=4), 2))
    return b.model()


def _int64_inputs() -> onnx.ModelProto:
    b = Builder()
    table = b.constant("table", np.random.default_rng(0).standard_normal((10, 8)).astype(np.float32))
    words = b.node("embed", "Gather", [table, b.input("ids", (1, 6), onnx.TensorProto.INT64)])
    w = b.constant("w", np.random.default_rng(1).standard_normal((8, 5)).astype(np.float32))
    b.output(b.node("matmul", "MatMul", [words, w]))
    return b.model()


def _no_float_ops() -> onnx.ModelProto:
    b = Builder()
    int64 = onnx.TensorProto.INT64
    x = b.input("ids", (1, 6), int64)
    b.output(b.node("add", "Add", [x, b.constant("one", np.array([1], np.int64))]), int64)
    return b.model()


def _zero_batch() -> onnx.ModelProto:
    b = Builder()
    b.output(b.conv("conv", b.input("x", (0, 3, 8, 8)), 4))
    return b.model()


def _unnamed() -> onnx.ModelProto:
    model = small_model()
    for node in model.graph.node:
        node.name = ""
    return model


def _twins() -> onnx.ModelProto:
    model = small_model()
    for node in model.graph.node:
        node.name = "twin"
    return model


def _constant_input_range() -> onnx.ModelProto:
    """A value that is zero whatever comes in."""
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 8, 8)), 4)
    nothing = b.node("nothing", "Mul", [x, b.constant("zero", np.zeros((1, 4, 1, 1)))])
    b.output(b.conv("last", nothing, 4))
    return b.model()


def _huge() -> onnx.ModelProto:
    b = Builder()
    x = b.node("scale", "Mul", [b.input("x", (1, 3, 8, 8)), b.constant("big", 1e30)])
    y = b.conv("conv", x, 4)
    b.output(b.node("back", "Mul", [y, b.constant("small", 1e-30)]))
    return b.model()


def _identity() -> onnx.ModelProto:
    b = Builder()
    x = b.input("x", (1, 3, 8, 8))
    b.output(b.node("same", "Identity", [x]))
    return b.model()


def _sequence() -> onnx.ModelProto:
    """A value that is no tensor, inside."""
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 8, 8)), 4)
    pair = b.node("pair", "SequenceConstruct", [x, x])
    b.output(b.node("join", "ConcatFromSequence", [pair], axis=1))
    return b.model()


def _local_function() -> onnx.ModelProto:
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 8, 8)), 4)
    b.output(b.node("call", "Twice", [x], domain="local"))
    model = b.model(check=False)
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    model.functions.append(helper.make_function("local", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("call_out", onnx.TensorProto.FLOAT, [1, 4, 8, 8]))
    return model


def _runtimes_own_operator() -> onnx.ModelProto:
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 8, 8)), 4)
    y = b.node("gelu", "Gelu", [x], domain="com.microsoft")
    b.output(b.conv("last", y, 4))
    model = b.model(check=False)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("last_out", onnx.TensorProto.FLOAT, [1, 4, 8, 8]))
    return model


UNUSUAL: dict[str, Callable[[], onnx.ModelProto]] = {
    "FP16": _fp16,
    "If": _with_if,
    "int64 inputs": _int64_inputs,
    "no float operators": _no_float_ops,
    "no names": _unnamed,
    "a constant tensor": _constant_input_range,
    "a huge range": _huge,
    "nothing but Identity": _identity,
    "a sequence": _sequence,
    "a local function": _local_function,
    "an operator of the runtime's own domain": _runtimes_own_operator,
    "quantized already": lambda: insert_qdq_everywhere(residual_model()),
}


@pytest.mark.parametrize("name", ["FP16", "If", "no float operators", "a constant tensor", "quantized already"])
def test_unusual_models(name: str, run: Run, save: SaveModel, tmp_path: Path) -> None:
    model = UNUSUAL[name]()
    path = save(model)
    options = [*FAST, "--no-bound"]
    code, _, err = run("tune", path, "-o", tmp_path / "out", *options)
    assert code == 0, err
    assert err == ""
    done = onnx.load(tmp_path / "out" / "model.onnx")
    assert [i.name for i in done.graph.input] == [i.name for i in model.graph.input]
    assert [o.name for o in done.graph.output] == [o.name for o in model.graph.output]
    onnx.checker.check_model(done, full_check=True)


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_models_quantize(name: str, run: Run, save: SaveModel, tmp_path: Path) -> None:
    model = UNUSUAL[name]()
    path = save(model)
    code, _, err = run("quantize", path, "-o", tmp_path / "q.onnx")
    assert code == 0, err
    done = onnx.load(tmp_path / "q.onnx")
    onnx.checker.check_model(done, full_check=True)
    rng = np.random.default_rng(0)
    feed = {}
    for i in model.graph.input:
        kind = i.type.tensor_type
        shape = [d.dim_value for d in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        feed[i.name] = (rng.integers(0, 2, shape) if dtype.kind in "iu" else rng.standard_normal(shape)).astype(dtype)
    want, got = run_reference(model, feed), run_reference(done, feed)
    for output in want:
        assert want[output].shape == got[output].shape
        assert want[output].dtype == got[output].dtype
        assert np.isfinite(got[output].astype(np.float64)).all()


def test_one_name_for_all_nodes(run: Run, save: SaveModel, tmp_path: Path) -> None:
    """The runtime refuses such a model itself: the message names the node."""
    failed(run("tune", save(_twins()), "-o", tmp_path / "out", *FAST), 1, "two nodes with same node name", "twin")
    nothing_written(tmp_path / "out")


def test_a_batch_of_zero(run: Run, save: SaveModel, tmp_path: Path) -> None:
    """Nothing can be measured on nothing: a message, or a result; never a traceback."""
    code, _, err = run("tune", save(_zero_batch()), "-o", tmp_path / "out", *FAST)
    assert code in (0, 1, 2)
    assert "Traceback" not in err
    if code:
        assert len(err.strip().splitlines()) == 1


def test_a_qdq_baseline(run: Run, save: SaveModel, tmp_path: Path) -> None:
    model = residual_model()
    given, baseline = save(model), save(insert_qdq_everywhere(model), "qdq.onnx")
    options = ["--qdq-baseline", baseline, "--no-bound", *FAST]
    code, out, err = run("tune", given, "-o", tmp_path / "out", *options)
    assert code == 0, err
    assert "qdq-baseline: qdq.onnx" in out
    failed(run("tune", given, "-o", tmp_path / "b", *FAST, "--qdq-baseline", given), 2, "no QuantizeLinear")
    failed(run("tune", given, "-o", tmp_path / "b", *FAST, "--qdq-baseline", tmp_path / "no.onnx"), 1, "no.onnx")
    other = save(insert_qdq_everywhere(small_model()), "other.onnx")
    failed(run("tune", given, "-o", tmp_path / "b", *FAST, "--qdq-baseline", other), 2, "other.onnx")


# the output folder


def test_another_run_holds_the_folder(run: Run, save: SaveModel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with FileLock(out / ".lock"):
        failed(run("tune", save(residual_model()), "-o", out, *FAST), 1, "another run is using", str(out))


def test_another_models_folder(run: Run, save: SaveModel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("tune", save(residual_model()), "-o", out, *FAST)[0] == 0
    before = (out / "model.onnx").read_bytes()
    other = save(small_model(), "other.onnx")
    failed(run("tune", other, "-o", out, *FAST), 1, "belongs to another run", "--restart", "model")
    assert (out / "model.onnx").read_bytes() == before, "a refused run leaves the result alone"
    failed(run("tune", save(residual_model()), "-o", out, *FAST, "--seed", "7"), 1, "belongs to another run", "seed")
    assert run("tune", other, "-o", out, *FAST, "--restart")[0] == 0
    result = json.loads((out / "result.json").read_text())
    assert result["model"]["path"] == str(other)


def test_the_folder_is_a_file(run: Run, save: SaveModel, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    failed(run("tune", save(residual_model()), "-o", tmp_path / "out", *FAST), 1, str(tmp_path / "out"))
    assert (tmp_path / "out").read_text() == "a file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes to read-only folders")
def test_a_read_only_folder(run: Run, save: SaveModel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o500)
    failed(run("tune", save(residual_model()), "-o", out, *FAST), 1, str(out), "cannot be written")
    failed(run("quantize", save(residual_model()), "-o", out / "q.onnx", "--target", "null"), 1, "cannot be written")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can write to")
def test_a_folder_that_nobody_can_write_to(run: Run, save: SaveModel) -> None:
    failed(run("tune", save(residual_model()), "-o", "/proc/self/inlay", *FAST), 1, "/proc/self/inlay")
    failed(run("quantize", save(residual_model()), "-o", "/proc/self/q.onnx", "--target", "null"), 1, "/proc/self")


def test_a_journal_that_is_none(run: Run, save: SaveModel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "run.sqlite").write_bytes(b"this is not a database, but long enough to be one" * 40)
    failed(run("tune", save(residual_model()), "-o", out, *FAST), 1, "run.sqlite", "journal")
    assert run("tune", save(residual_model()), "-o", out, *FAST, "--restart")[0] == 0


def test_interrupts_end_with_130(monkeypatch: pytest.MonkeyPatch, run: Run, save: SaveModel, tmp_path: Path) -> None:
    from inlay import api

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "tune", interrupted)
    code, _, err = run("tune", save(residual_model()), "-o", tmp_path / "out")
    assert code == 130
    assert "Traceback" not in err


def test_external_data_must_stay_in_its_folder(run: Run, tmp_path: Path) -> None:
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
