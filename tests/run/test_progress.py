"""Long phases say what they do, how far they are, and how long they take at most; a log is never silent for long."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import inlay
from inlay.cli.progress import JsonLines, Lines, LiveTable
from inlay.cli.terminal import Terminal
from inlay.model import child
from inlay.model.guard import call
from inlay.model.heard import counting, doing, hearing
from inlay.run.progress import QUIET_S, Phases, Progress, Silent
from inlay.testing import random_feed, small_model


class Heard:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.stages, self.steps = list[str](), list[str]()

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def doing(self, text: str) -> None:
        self.steps.append(text)

    def trial(self, step: object) -> None:
        pass

    def close(self) -> None:
        pass


class Clock:
    """Stands still unless it is set."""

    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def model_and_samples(folder: Path) -> tuple[Path, list[dict[str, np.ndarray]]]:
    onnx.save(small_model(), folder / "m.onnx")
    return folder / "m.onnx", [dict(random_feed(small_model(), seed)) for seed in range(9)]


def test_a_run_says_where_each_of_its_phases_is(tmp_path: Path) -> None:
    path, samples = model_and_samples(tmp_path)
    heard = Heard()
    inlay.tune(path, data=samples, out=tmp_path / "out", target="null", budget=60, progress=heard, cost_db=False)
    for word in ("normalize", "calibrate", "search", "confirm the winner", "further samples", "write the report"):
        assert any(word in stage for stage in heard.stages), word
    for phase, step in (
        ("calibrate", "observe values on sample 1 of "),
        ("calibrate", "judge ranges by method 1 of "),
        ("search", "judge full-int8"),
        ("confirm", "in process 1 of 3"),
        ("confirm", "weigh what the samples say of "),
    ):
        found = [text for text in heard.steps if text.startswith(phase) and step in text]
        assert found, (phase, step)
        assert all(" s more by plan" in text for text in found), found


@pytest.mark.exhaustive
def test_without_a_budget_no_end_is_told(tmp_path: Path) -> None:
    path, samples = model_and_samples(tmp_path)
    heard = Heard()
    options: dict[str, Any] = {"target": "null", "max_measurements": 3, "cost_db": False}
    inlay.tune(path, data=samples, out=tmp_path / "out", budget="none", progress=heard, **options)
    assert any("in process 1 of " in text for text in heard.steps)
    assert not [text for text in (*heard.stages, *heard.steps) if "by plan" in text]


@pytest.mark.parametrize("command", ["quantize", "explain", "inspect"])
def test_other_commands_say_what_they_do(command: str, tmp_path: Path) -> None:
    path, samples = model_and_samples(tmp_path)
    heard = Heard()
    if command == "quantize":
        inlay.quantize(path, tmp_path / "q.onnx", data=samples, target="null", progress=heard)
    elif command == "explain":
        inlay.explain(path, data=samples, target="null", progress=heard)
    else:
        inlay.inspect(path, target="null", progress=heard)
    assert heard.stages or heard.steps


def test_progress_of_earlier_versions_is_heard_as_before(tmp_path: Path) -> None:
    stages: list[str] = []

    class Earlier:
        def stage(self, text: str) -> None:
            stages.append(text)

    phases = Phases(Earlier())  # type: ignore[arg-type]
    phases.begin("search")
    phases.doing("judge float")
    assert stages == ["search"]


def test_a_stage_keeps_its_name_and_its_end_while_its_steps_go_on() -> None:
    heard, left = Heard(), [30.0]
    phases = Phases(heard)
    phases.begin("confirm", lambda: left[0])
    phases.doing("process 1 of 3")
    left[0] = 12.0
    phases.doing("")
    left[0] = 0.0  # it takes longer than was planned: nothing more is promised
    phases.doing("")
    phases.begin("write", lambda: math.inf)
    phases.doing("")
    assert heard.stages == ["confirm, at most 30 s more by plan", "write"]
    assert heard.steps == [
        "confirm: process 1 of 3, at most 30 s more by plan",
        "confirm: process 1 of 3, at most 12 s more by plan",
        "confirm: process 1 of 3",
        "write",
    ]


def test_lines_tell_a_step_only_where_nothing_was_told_for_a_while() -> None:
    stream, clock = io.StringIO(), Clock()
    lines = Lines(stream, before_s=2.0, clock=clock)
    lines.stage("confirm")
    for passed in np.arange(0.0, 4 * QUIET_S, 0.5):
        clock.seconds = 100.0 + float(passed)
        lines.doing(f"confirm: block {passed:g}")
    told = [float(line[1:7]) - 2.0 for line in stream.getvalue().splitlines()]
    assert told == [0.0, QUIET_S, 2 * QUIET_S, 3 * QUIET_S]
    assert "block 20" in stream.getvalue()


def test_the_live_table_shows_the_step() -> None:
    table = LiveTable(Terminal(width=80))
    try:
        table.stage("confirm")
        table.doing("confirm: process [2] of 3")
        console = Terminal(width=80)
        with console.capture() as capture:
            console.print(table._live.get_renderable())
    finally:
        table.close()
    assert "confirm: process [2] of 3" in capture.get()


def test_json_lines_have_the_step_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    log = JsonLines(tmp_path / "log", heard)
    log.stage("confirm")
    log.doing("confirm: process 1 of 3")
    monkeypatch.setattr("inlay.run.progress.QUIET_S", 0.0)
    log.doing("confirm: process 2 of 3")
    log.close()
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(e["event"], e["text"]) for e in events] == [("stage", "confirm"), ("doing", "confirm: process 2 of 3")]
    assert heard.steps == ["confirm: process 1 of 3", "confirm: process 2 of 3"]


def test_whoever_waits_for_another_process_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "WAITING_S", 0.02)
    told: list[str] = []
    call("wait", time.sleep, 0.0)
    with hearing(told.append):
        call("wait", time.sleep, 0.3)
    assert told
    assert set(told) == {""}
    silent = len(told)
    call("wait", time.sleep, 0.3)  # nobody listens any more
    assert len(told) == silent


def test_counting_tells_each_before_it_is_given() -> None:
    told: list[str] = []
    with hearing(told.append):
        given = [(item, len(told)) for item in counting("abc", "letter")]
        doing("done")
    assert given == [("a", 1), ("b", 2), ("c", 3)]
    assert told == ["letter 1 of 3", "letter 2 of 3", "letter 3 of 3", "done"]


@pytest.mark.parametrize("make", [Silent, Heard])
def test_what_hears_runs_hears_steps(make: Callable[[], Progress]) -> None:
    make().doing("step")
