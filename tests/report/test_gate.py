"""The gate: limits are held against what is measured here; what cannot be checked is no pass."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import typer.main
import yaml

import inlay
from inlay.cli.commands import app, run
from inlay.errors import InlayError, JournalError, NoSuchFile, UsageError
from inlay.report.gate import Gate, _in_speed
from inlay.report.gate_options import GateOptions, options_said
from inlay.testing import random_feed
from inlay.testing.models import residual_model
from inlay.trial import Interval
from tests.conftest import ROOT

FAST: dict[str, Any] = {"blocks": 6, "processes": 1}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, samples, labels, and a finished run of them that was called as a command."""
    folder = tmp_path_factory.mktemp("gate")
    model = residual_model()
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    feeds = [random_feed(model, seed) for seed in range(24)]
    np.savez(folder / "d.npz", **{name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]})
    inlay.tune(
        folder / "m.onnx", out=folder / "out", target="null", data=folder / "d.npz", min_sqnr=5, max_measurements=4,
        cost_db=False,
    )  # fmt: skip
    assert not json.loads((folder / "out" / "result.json").read_text())["best"]["is_float"]
    return folder


def test_limits_that_are_kept(made: Path) -> None:
    found = inlay.gate(made / "out", fail_below="1.01x", fail_sqnr=5, **FAST)
    assert found.exit_code == 0
    assert found.same_machine
    assert str(found).startswith("PASS: ")
    said = json.loads((made / "out" / "result.json").read_text())["best"]
    assert found.speedup is not None
    assert found.speedup.low <= said["speedup_high"]
    assert said["speedup_low"] <= found.speedup.high


def test_the_figures_are_those_of_the_two_files(made: Path) -> None:
    """By the runtime itself, without anything of Inlay's."""
    found = inlay.gate(made / "out", fail_sqnr=300)
    samples = np.load(made / "d.npz")
    plain = onnxruntime.SessionOptions()  # fused integer kernels round in other places than null does
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    given, ours = (onnxruntime.InferenceSession(made / name, plain) for name in ("m.onnx", "out/model.onnx"))
    count = len(next(iter(samples.values())))
    feeds = [{name: array[i : i + 1] for name, array in samples.items()} for i in range(count)]
    signal, noise = 0.0, 0.0
    for feed in feeds:
        y, z = given.run(None, feed)[0], ours.run(None, feed)[0]
        signal, noise = signal + float((y**2).sum()), noise + float(((y - z) ** 2).sum())
    assert found.sqnr_db == pytest.approx(10 * np.log10(signal / noise), abs=0.1)
    assert found.exit_code == 4
    assert found.samples == 24


def test_a_metric_tells_the_drop(made: Path) -> None:
    def mean(outputs: list[dict[str, np.ndarray]], labels: object) -> float:
        return float(np.mean([np.abs(each).mean() for y in outputs for each in y.values()]))

    found = inlay.gate(made / "out", fail_drop=10, metric=mean)
    assert found.fall is not None
    assert found.fall != 0.0
    limits = found.fall - 1e-6, found.fall + 1e-6
    if found.fall > 1e-6:
        codes = [inlay.gate(made / "out", fail_drop=limit, metric=mean).exit_code for limit in limits]
        assert codes == [4, 0]


def looks(*intervals: tuple[float, float]) -> Iterator[tuple[Interval, float, str, bool]]:
    for low, high in intervals:
        yield Interval((low + high) / 2, low, high), 1.0, "ms", False
    raise AssertionError("nobody asked for another look")


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        ([(1.1, 1.3)], 0),
        ([(0.9, 1.09)], 4),
        ([(1.0, 1.2), (1.12, 1.15)], 0),
        ([(1.0, 1.2), (1.0, 1.05)], 4),
    ],
)
def test_an_open_question_is_looked_at_longer(seen: list[tuple[float, float]], code: int) -> None:
    none = Gate(path=Path("m"), sha256="", target="t", facts={}, same_machine=True)
    assert _in_speed(none, looks(*seen), 1.1).exit_code == code


def test_what_stays_open_is_no_pass_unless_that_was_accepted() -> None:
    both = [(1.0, 1.2), (1.05, 1.15)]
    for accept, code in ((False, 3), (True, 0)):
        none = Gate(path=Path("m"), sha256="", target="t", facts={}, same_machine=True, accept_unproven=accept)
        seen = (each for each in [next(looks(pair)) for pair in both])
        found = _in_speed(none, seen, 1.1)
        assert found.exit_code == code
        assert str(found).startswith("NOT SHOWN: ")


def test_what_cannot_be_checked_is_an_error(made: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(made / "out", tmp_path / "out"))

    def refused(kind: type[InlayError], words: str, **options: Any) -> None:
        with pytest.raises(kind, match=words):
            inlay.gate(out, **options)

    refused(UsageError, "give a limit")
    refused(UsageError, "--fail-below 0: give a ratio", fail_below=0)
    refused(UsageError, "--fail-below fast: give a ratio", fail_below="fast")
    refused(UsageError, "--fail-drop -1", fail_drop="-1")
    refused(UsageError, "no metric tells a drop", fail_drop="1%")
    refused(NoSuchFile, "name it with --given", fail_below=1, given=tmp_path / "gone.onnx")
    other = tmp_path / "other.onnx"
    other.write_bytes((made / "out" / "model.onnx").read_bytes())
    refused(UsageError, "its digest is another one", fail_below=1, given=other)
    result = json.loads((out / "result.json").read_text())
    result["command"] = result["command"].replace("d.npz", "gone.npz")
    (out / "result.json").write_text(json.dumps(result))
    refused(UsageError, "need samples", fail_sqnr=5)
    result["command"] += " --metric module:function --data " + str(made / "d.npz")
    (out / "result.json").write_text(json.dumps(result))
    refused(UsageError, "name it with --metric", fail_drop=5)  # a folder from elsewhere calls nothing
    with (out / "model.onnx").open("ab") as file:
        file.write(b"\0")
    refused(JournalError, "not the file that was measured", fail_below=1)


def test_the_command_is_one_line_and_a_code(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for limit, code, word in (("5", 0, "PASS"), ("200", 4, "FAIL")):
        asked = ["check", str(made / "out"), "--fail-sqnr", limit]
        assert run(partial(app, asked, standalone_mode=False)) == code
        shown = capsys.readouterr()
        assert shown.out.startswith(f"{word}: ")
        assert shown.out.count("\n") == 1
        assert not shown.err


def test_options_of_a_command_line() -> None:
    said = options_said("inlay tune 'a b.onnx' --data 'my data.npz' --restart --shape x=1x2 --shape x=1x4:2 --seed 1")
    assert said == {"--data": ["my data.npz"], "--shape": ["x=1x2", "x=1x4:2"], "--seed": ["1"]}


def test_the_example_for_ci_calls_what_there_is() -> None:
    """Each command of the workflow has options that its command knows."""
    steps = yaml.safe_load((ROOT / "examples" / "ci" / "model-gate.yml").read_text())["jobs"]["gate"]["steps"]
    commands = [shlex.split(step["run"]) for step in steps if step.get("run", "").startswith("inlay ")]
    assert [words[1] for words in commands] == ["check", "card"]
    group: Any = typer.main.get_command(app)
    for _, name, *words in commands:
        group.get_command(None, name).make_context(name, words)
    least = GateOptions(fail_below=commands[0][commands[0].index("--fail-below") + 1]).least
    assert least == 1.1
