"""The benchmark of GPUs, on a target that stands in for one: what it lacks, its limit of time, and how it goes on."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import gpu, rows, subjects
from packaging.requirements import Requirement

from inlay.deadline import Deadline
from inlay.errors import ModelError
from inlay.targets.base import TargetSpec
from inlay.targets.registry import create
from tests.prepare.test_halves import digits

STAND_IN = TargetSpec("null", {"half": True})
NAMES = ("a", "b", "c")


def test_without_a_gpu_one_line_says_what_is_missing() -> None:
    try:
        gpu.runtime()
    except SystemExit as end:
        said = str(end)
    else:
        pytest.skip("there is a GPU")
    assert "\n" not in said
    for spec in gpu.RUNTIMES:
        assert f"{spec.name}: " in said
    assert said.startswith("gpu: nothing is timed")
    assert said.endswith("python -m benchmarks gpu --wheels")


@pytest.mark.exhaustive
def test_the_first_runtime_that_runs_a_model_is_taken() -> None:
    spec, known = gpu.runtime((TargetSpec("ort-ep", {"provider": "no such"}), STAND_IN))
    assert spec == STAND_IN
    assert known["half"] == "True"


def test_the_wheels_are_requirements_with_versions() -> None:
    lines = list(gpu.wheels())
    every = [line for text in lines for line in text.splitlines()]
    needs = [Requirement(line.removeprefix("# ")) for line in every if "==" in line]
    assert all(len(need.specifier) == 1 for need in needs)
    names = {need.name for need in needs}
    assert {"inlay", "numpy", "onnx", "onnxruntime-gpu", "tensorrt-rtx-cu13-libs", "nvidia-modelopt"} <= names
    assert "onnxruntime" not in names, "both would be the same module"
    assert len(names) == len(needs)


class Clock:
    """Seconds that only work takes."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_no_time_is_left_for_is_not_begun(tmp_path: Path) -> None:
    """A call makes the steps that fit, in the seconds that they may take; the next one makes no step again."""
    clock, made = Clock(), []

    def step(name: str, seconds: float) -> Callable[[], str]:
        def make() -> str:
            made.append(name)
            clock.now += seconds
            return name * 2

        return make

    def call() -> list[str]:
        steps = gpu.Steps(tmp_path / "steps.json", Deadline(clock.now + 500.0, clock))
        return [steps.once(name, 200.0, step(name, 160.0)) for name in "abcde"]

    with pytest.raises(rows.OutOfTime, match=r"c may take 200 s, and 180 s are left"):
        call()
    assert (made, clock.now) == (["a", "b"], 320.0)
    with pytest.raises(rows.OutOfTime, match="e may take"):
        call()
    assert call() == ["aa", "bb", "cc", "dd", "ee"]
    assert made == list("abcde")


def test_an_alarm_ends_what_takes_longer_than_it_may() -> None:
    with rows.at_most(60.0):
        pass
    with pytest.raises(rows.OutOfTime, match="are over"), rows.at_most(0.02):
        _go_on()


def _go_on() -> None:
    while True:
        try:
            sum(range(1000))
        except Exception:  # no handler of errors stops it
            continue


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Of a call on the stand-in, for three models that are one."""
    model, data = digits(tmp_path / "models")

    def subject(name: str, models: Path | None, folder: Path) -> subjects.Subject:
        folder.mkdir(parents=True, exist_ok=True)
        return subjects.Subject(name, model, data, data, True)

    monkeypatch.setattr(gpu, "runtime", lambda specs: (STAND_IN, create(STAND_IN).fingerprint().facts))
    monkeypatch.setattr(gpu, "trained", lambda options: list(NAMES))
    monkeypatch.setattr(subjects, "names", lambda models: list(NAMES))
    monkeypatch.setattr(subjects, "make", subject)
    out = tmp_path / "out"
    out.mkdir()
    given: dict[str, Any] = {"out": out, "models": None, "only": [], "restart": False, "modelopt": "", "wheels": False}
    return argparse.Namespace(**given, budget=30.0, limit=540.0)


def test_a_call_ends_in_time_and_the_next_one_goes_on(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that are done stay; a row that was cut finds its folder; the table has all of them in the end."""
    clock, made = Clock(), list[str]()

    def row(subject: subjects.Subject, folder: Path, *rest: Any) -> dict[str, Any]:
        steps = gpu.Steps(folder / "steps.json", rest[-1])

        def work(name: str) -> str:
            made.append(f"{subject.name}{name}")
            clock.now += 90.0
            return name

        for name in "12":
            steps.once(name, 100.0, partial(work, name))
        if subject.name == "b":
            raise ModelError("it is broken")
        return recorded(subject.name)

    monkeypatch.setattr(gpu, "row", row)
    counts = []
    for _ in range(3):
        begun = clock.now
        gpu.run(options, Deadline(clock.now + 300.0, clock))
        assert clock.now - begun <= 300.0
        counts.append(len(json.loads((options.out / "gpu.json").read_text())["rows"]))
    assert made == ["a1", "a2", "b1", "b2", "c1", "c2"], "no step is made twice"
    assert counts == [1, 3, 3]
    said = capsys.readouterr().out
    assert "gpu: b: 2 may take 100 s, and 30 s are left: the same command goes on" in said
    assert said.count("done before") == 1 + 3
    text = (options.out / "gpu.md").read_text()
    assert "| b | fails: it is broken |" in text
    assert "| c | 2.00x" in text


def test_what_was_made_for_other_settings_is_made_anew(options: argparse.Namespace, monkeypatch: Any) -> None:
    folders = []

    def row(subject: subjects.Subject, folder: Path, *rest: Any) -> dict[str, Any]:
        folders.append(sorted(p.name for p in folder.iterdir()))
        (folder / "left").touch()
        raise rows.OutOfTime("it is cut")

    monkeypatch.setattr(gpu, "row", row)
    for budget in (30.0, 30.0, 40.0):
        options.budget = budget
        gpu.run(options)
    assert folders == [["settings.json"], ["left", "settings.json"], ["settings.json"]]


def recorded(name: str, **changed: Any) -> dict[str, Any]:
    """A row as a run has written it."""

    def times(value: float) -> dict[str, float]:
        return {"value": value, "low": value / 1.01, "high": value * 1.01}

    made = {"model": name, "trained": True, "best_anchor": "fp16", "feasible": True, "sqnr_db": 31.0}
    made |= {"over_given": times(2.0), "over_fp16": times(1.25), "over_best_anchor": times(1.25)}
    anchors = [
        {"name": "given", "feasible": True, "sqnr_db": 300.0, "over_given": times(1.0), "note": ""},
        {"name": "ModelOpt", "feasible": False, "note": "nvidia-modelopt is not installed"},
    ]
    return {**made, "search": {"builds": 12}, "anchors": anchors, **changed}


def test_the_table_is_made_of_what_was_recorded() -> None:
    four = {"value": 4.0, "low": 4.0, "high": 4.0}
    made = [recorded("a"), recorded("b", over_fp16=four, over_autotuned=four), {"model": "c", "error": "no kernel"}]
    facts = {"inlay": "1", "onnxruntime": "2", "cpu": "a CPU", "isa": "avx", "cores": 2, "budget_s": 40.0}
    table = gpu.table(made)
    text = gpu.text({"machine": facts, "name": "tensorrt", "target": {"device": "NVIDIA H200"}, **table})
    assert text.startswith("# On a GPU: NVIDIA H200\n")
    assert table["geometric_mean"]["over_fp16"]["value"] == pytest.approx((1.25 * 4.0) ** 0.5)
    assert "- over FP16: 2.24x [" in text
    assert "- over its autotuner: 4.00x [4.00, 4.00]" in text
    assert "ModelOpt's PTQ: " not in text, "it was not measured"
    assert "| a | ModelOpt |  |  | no | nvidia-modelopt is not installed |" in text
    widths = {line.count("|") for line in text.splitlines() if re.match(r"\| (model|[abc]) \| (over|\d|fails)", line)}
    assert len(widths) == 1


@pytest.mark.exhaustive
def test_models_are_measured_against_every_anchor(
    options: argparse.Namespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole of it, on the stand-in, cut off at first: FP16 and INT8 beside it are made, timed and judged."""
    monkeypatch.setattr(gpu, "trained", lambda options: ["a"])
    options.budget, options.limit = 600.0, 3600.0  # it ends long before; a busy machine must not refuse it
    with monkeypatch.context() as cut:
        cut.setattr(gpu, "at_most", lambda seconds: rows.at_most(4.0))
        gpu.run(options)
    assert "gpu: a: 4 s are over: the same command goes on" in capsys.readouterr().out
    assert json.loads((options.out / "gpu.json").read_text())["rows"] == []
    gpu.run(options)
    (row,) = json.loads((options.out / "gpu.json").read_text())["rows"]
    assert "error" not in row
    anchors = {a["name"]: a for a in row["anchors"]}
    assert set(anchors) == set(gpu.ANCHORS)
    assert all("sqnr_db" in anchors[name] for name in ("given", *gpu.RECIPES))
    if importlib.util.find_spec("modelopt") is None:
        assert anchors[gpu.MODELOPT]["note"] == "nvidia-modelopt is not installed"
        assert "over_modelopt" not in row
    assert np.isfinite(row["over_fp16"]["value"])
    assert row["over_best_anchor"]["value"] >= 1.0, "an anchor is never faster than what is delivered"
