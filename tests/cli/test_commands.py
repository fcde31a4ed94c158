"""Commands that succeed: exit codes, files, and what they name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay import api
from inlay.testing import residual_model, small_model
from tests.support.command_line import FAST, Outcome, RunCommand, failed
from tests.support.fixtures import SaveModel
from tests.support.hand_written_qdq import insert_qdq_everywhere
from tests.support.onnx_queries import ops
from tests.support.runtime import check_and_load


def test_version_and_help(run: RunCommand) -> None:
    assert run("--version")[1].startswith("inlay ")
    for command in ("tune", "bench", "quantize", "targets"):
        code, out, _ = run(command, "--help")
        assert code == 0
        assert "Usage" in out


@pytest.mark.exhaustive
def test_regions_load_no_package_of_the_search(save: SaveModel) -> None:
    code = (
        "import sys; from inlay.cli.commands import app, run\n"
        "code = run(lambda: app(sys.argv[1:], standalone_mode=False)); print(*sys.modules); sys.exit(code)"
    )
    command = [sys.executable, "-c", code, "regions", str(save(residual_model()))]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "onnx_ir" in loaded
    assert "scipy" not in loaded


def test_targets(run: RunCommand) -> None:
    code, out, _ = run("targets")
    assert code == 0
    assert "null" in out
    assert "ort-cpu" in out


@pytest.mark.exhaustive
def test_tune(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    code, out, err = run("tune", save(small_model()), "-o", tmp_path / "out", *FAST)
    assert code == 0, err
    assert "NO SAMPLES" in out, "accuracy on random inputs is not real, and that is said"
    assert json.loads((tmp_path / "out" / "result.json").read_text())["data"]["kind"] == "random"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "model.onnx",
        "pattern_cache.yaml",
        "recipe.yaml",
        "report.html",
        "result.json",
        "run.sqlite",
    ]
    check_and_load(onnx.load(tmp_path / "out" / "model.onnx"))


@pytest.mark.exhaustive
def test_lines_in_a_log(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    code, _, err = run("tune", save(small_model()), "-o", tmp_path / "out", *FAST[:-1])
    assert code == 0
    assert "full-int8" in err


def test_quantize(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    code, _, err = run("quantize", save(residual_model()), "-o", tmp_path / "q.onnx", "--target", "null")
    assert code == 0, err
    quantized = onnx.load(tmp_path / "q.onnx")
    assert "QuantizeLinear" in ops(quantized)
    check_and_load(quantized)


def test_quantize_ends_with_0_and_says_what_its_samples_do_not_show(
    run: RunCommand, save: SaveModel, tmp_path: Path
) -> None:
    """As docs/cli.md has it: a bound for new samples is what tune and check are for."""
    model, out = save(residual_model()), tmp_path / "q.onnx"
    command = ("quantize", model, "-o", out, "--target", "null", "--recipe", "full-int8")
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).normal(size=(8, 3, 12, 12)).astype(np.float32))
    missed = ("--data", tmp_path / "data.npz", "--min-sqnr", "90")
    for options, told in (((), "NO SAMPLES WERE GIVEN"), (missed, "WARNING: this is below 90 dB")):
        code, text, err = run(*command, *options)
        assert (code, told in text) == (0, True), err
        found = json.loads(run(*command, *options, "--json").out)
        if options:
            assert found["sqnr_db"] < found["min_sqnr_db"] == 90.0
        else:
            assert (found["sqnr_db"], found["samples"]) == (None, 0)


def test_bench(run: RunCommand, save: SaveModel) -> None:
    code, out, err = run("bench", save(residual_model()), save(residual_model(), "b.onnx"), "--target", "null")
    assert code == 0, err
    assert "b.onnx" in out


def test_the_installed_program(save: SaveModel, tmp_path: Path) -> None:
    """``python -m inlay`` in a process of its own: exit code, result, one-line error."""
    command = [sys.executable, "-m", "inlay", "tune", str(save(small_model())), *FAST]
    good = subprocess.run([*command, "-o", str(tmp_path / "out")], capture_output=True, text=True, check=False)
    assert good.returncode == 0, good.stderr
    assert good.stdout
    assert json.loads((tmp_path / "out" / "result.json").read_text())["target"]["name"] == "null"
    bad = subprocess.run(
        [*command[:4], str(tmp_path / "missing.onnx")], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    failed(Outcome(bad.returncode, bad.stdout, bad.stderr), 1, "missing.onnx", "no such file")


@pytest.mark.exhaustive
def test_a_qdq_baseline(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    model = residual_model()
    given, baseline = save(model), save(insert_qdq_everywhere(model), "qdq.onnx")
    options = ["--qdq-baseline", baseline, "--no-bound", *FAST]
    code, _, err = run("tune", given, "-o", tmp_path / "out", *options)
    assert code == 0, err
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert "qdq-baseline: qdq.onnx" in {a["name"] for a in result["anchors"]}
    failed(run("tune", given, "-o", tmp_path / "b", *FAST, "--qdq-baseline", given), 2, "no QuantizeLinear")
    failed(run("tune", given, "-o", tmp_path / "b", *FAST, "--qdq-baseline", tmp_path / "no.onnx"), 1, "no.onnx")
    other = save(insert_qdq_everywhere(small_model()), "other.onnx")
    failed(run("tune", given, "-o", tmp_path / "b", *FAST, "--qdq-baseline", other), 2, "other.onnx")


def test_interrupts_end_with_130(
    monkeypatch: pytest.MonkeyPatch, run: RunCommand, save: SaveModel, tmp_path: Path
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "tune", interrupted)
    code, _, err = run("tune", save(residual_model()), "-o", tmp_path / "out")
    assert code == 130
    assert "Traceback" not in err


@pytest.mark.parametrize("module", ["numpy", "random", "ml_dtypes", "json"])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_the_working_directory_is_data(module: str, save: SaveModel, tmp_path: Path) -> None:
    """A module beside a downloaded model is not imported, by the command as little as by its workers."""
    (tmp_path / f"{module}.py").write_text("open('executed', 'w')\nraise SystemExit(9)\n")
    command = [sys.executable, "-m", "inlay", "bench", *[str(save(small_model()))] * 2, "--target", "null"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()
