"""A fleet on ``null``: as many runs by hand, also after a kill at any moment; a run that fails stops no other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import yaml

import inlay
from inlay.cli.commands import app
from inlay.cli.commands import run as run_command
from inlay.cli.terminal import say
from inlay.errors import UNPROVEN, ModelError, TooShort
from inlay.portfolio import policy
from inlay.portfolio.command import fleet_verdict as verdict
from inlay.portfolio.fleet import JOURNAL, fleet, run_fleet
from inlay.portfolio.plan import read_plan
from inlay.run.progress import Silent
from inlay.testing import small_model
from tests.support.fixtures import SaveModel

OPTIONS: dict[str, Any] = {"target": "null", "strategy": "anchors"}


def write(folder: Path, models: list[str], **more: Any) -> Path:
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump({"budget": "10m", "defaults": OPTIONS, "models": models, **more}))
    return path


def delivered(out: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in sorted(out.glob("*/model.onnx"))}


def runs(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((out / "result.json").read_text())["runs"]
    for row in found:
        del row["seconds"]
    return found


@pytest.mark.exhaustive
def test_a_fleet_delivers_what_its_runs_deliver_and_names_what_fails(save: SaveModel, tmp_path: Path) -> None:
    good = [str(save(small_model(), f"{name}/model.onnx")) for name in "ab"]
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no model")
    path = write(tmp_path, [good[0], str(bad), good[1]], constraints=[{"min-sqnr": 10}])
    found = fleet(path, out=tmp_path / "out", progress=Silent())
    assert [row.name for row in found.rows] == ["a-model-null", "bad-null", "b-model-null"]
    assert [row.name for row in found.failed] == ["bad-null"]
    assert str(bad) in found.rows[1].why
    alone = inlay.tune(good[0], out=tmp_path / "alone", min_sqnr=10, budget="60s", progress=Silent(), **OPTIONS)
    assert delivered(tmp_path / "out")["a-model-null"] == alone.model_path.read_bytes()
    assert found.rows[0].figures is not None
    assert found.rows[0].figures.speedup == alone.best.speedup.value
    page = (tmp_path / "out" / "fleet.html").read_text()
    assert 'href="a-model-null/report.html"' in page
    assert "bad.onnx" in page
    known = json.loads((tmp_path / "out" / "result.json").read_text())
    assert known == json.loads(json.dumps(found.as_json()))
    again = fleet(path, out=tmp_path / "out", progress=Silent())
    assert [row.slices for row in again.rows] == [1, 0, 1], "what is done is not done again"
    assert again.rows[0] == found.rows[0]


PATIENT = """
from inlay.cli.commands import main
from inlay.portfolio import policy
policy.FIRST_SLICE_S = 3600.0
main()
"""
"""The command with slices that no machine is too busy for: what is cut short for want of time depends on it."""


@pytest.mark.exhaustive
def test_killed_at_any_moment_it_ends_as_if_nothing_had_happened(
    save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [str(save(small_model(), f"{name}/model.onnx")) for name in "ab"]
    path = write(tmp_path, models, budget="none")
    plain = tmp_path / "plain"
    monkeypatch.setattr(policy, "FIRST_SLICE_S", 3600.0)
    fleet(path, out=plain, progress=Silent())
    out, kills = tmp_path / "killed", 0
    command = [sys.executable, "-c", PATIENT, "fleet", str(path), "--out", str(out), "--quiet"]
    for wait_s in (2.0, 3.5, 5.0):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            process.wait(wait_s)
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
    ended = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    assert ended.returncode == UNPROVEN, "there are no samples"
    assert kills > 0, "the control: it was killed"
    assert delivered(out) == delivered(plain)
    assert runs(out) == runs(plain)


class Told:
    """In place of ``tune``: what it is called with, and one real result that it returns."""

    def __init__(self, result: Any, clock: list[float]) -> None:
        self.calls, self.result, self.clock = list[dict[str, Any]](), result, clock

    def __call__(self, **given: Any) -> Any:
        self.calls.append(given)
        out, total_s = Path(given["out"]), float(given["budget"].rstrip("s"))
        if given["model"] == "slow.onnx" and total_s < 200:
            raise TooShort("--budget is too short: give 200s or more", 200.0)
        if given["model"] == "broken.onnx":
            raise ModelError("broken.onnx is broken")
        if given["model"] == "odd.onnx":
            raise RuntimeError("odd\nthings")
        out.mkdir(parents=True, exist_ok=True)
        (out / "model.onnx").touch()
        had_s = max(
            (float(c["budget"].rstrip("s")) for c in self.calls[:-1] if c["model"] == given["model"]), default=0
        )
        self.clock[0] += total_s - had_s
        return self.result


@pytest.fixture
def result(save: SaveModel, tmp_path: Path) -> Any:
    return inlay.tune(save(small_model()), out=tmp_path / "one", progress=Silent(), budget="60s", **OPTIONS)


@pytest.mark.exhaustive
def test_slices_are_resumed_runs_with_growing_budgets(
    result: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    tune = Told(result, clock)
    monkeypatch.setattr("inlay.portfolio.fleet._done", lambda *_: False)
    monkeypatch.setattr(
        "inlay.portfolio.fleet.spent_in",
        lambda path: max(float(c["budget"][:-1]) for c in tune.calls if Path(c["out"]) == path.parent),
    )
    plan = read_plan(write(tmp_path, ["slow.onnx", "broken.onnx", "odd.onnx", "x.onnx"]))
    out = tmp_path / "out"
    found = run_fleet(plan, out, Silent(), tune=tune, clock=lambda: clock[0])
    assert clock[0] <= 600.0
    budgets = {row.model: [c["budget"] for c in tune.calls if c["model"] == row.model] for row in found.rows}
    assert budgets["slow.onnx"][:2] == ["60s", "200s"], "what it needs is known from its own words"
    assert budgets["x.onnx"][:2] == ["60s", "180s"]
    assert not any(c["restart"] for c in tune.calls)
    assert {row.model: row.why for row in found.failed} == {
        "broken.onnx": "broken.onnx is broken",
        "odd.onnx": "RuntimeError: odd things",
    }
    before = len(tune.calls)
    more = run_fleet(plan, out, Silent(), tune=tune, clock=lambda: clock[0])
    assert {c["model"] for c in tune.calls[before:]} <= {"broken.onnx", "odd.onnx"}, "the budget is spent"
    assert [row.slices for row in more.rows] == [row.slices for row in found.rows]
    run_fleet(plan, out, Silent(), tune=tune, clock=lambda: clock[0], restart=True)
    assert tune.calls[-1]["model"] != "broken.onnx"
    assert any(c["restart"] for c in tune.calls[before:])


@pytest.mark.exhaustive
def test_every_run_goes_through_ray_where_that_is_asked_for(
    result: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[Any]()

    @wraps(inlay.tune)
    def tune(**given: Any) -> Any:
        seen.append(given["ray"])
        return Told(result, [0.0])(**given)

    monkeypatch.setattr("inlay.api.tune", tune)
    fleet(write(tmp_path, ["x.onnx", "y.onnx"]), out=tmp_path / "out", progress=Silent(), ray="local", budget="20s")
    assert set(seen) == {"local"}


@pytest.mark.exhaustive
def test_the_command(
    save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(small_model())
    write(tmp_path, ["model.onnx", "missing.onnx"])
    began = time.monotonic()
    code = run_command(lambda: app(["fleet", "fleet.yaml", "-q"], standalone_mode=False))
    shown = capsys.readouterr().out
    assert code == 1, "one of them failed"
    assert "missing-null: missing.onnx" in shown
    assert "1 of 2 runs have a result" in shown
    assert json.loads(Path("inlay-fleet/result.json").read_text())["wall_s"] < time.monotonic() - began + 60
    write(tmp_path, ["model.onnx"])
    code = run_command(lambda: app(["fleet", "fleet.yaml", "-q", "--json"], standalone_mode=False))
    assert code == UNPROVEN, "there are no samples"
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 1
    assert run_command(lambda: app(["fleet", "model.onnx"], standalone_mode=False)) == 2
    write(tmp_path, [f"inlay-fleet/{JOURNAL}"])
    assert run_command(lambda: app(["fleet", "fleet.yaml"], standalone_mode=False)) == 2
    assert "would overwrite" in capsys.readouterr().err


@pytest.mark.parametrize("broken", [True, False])
@pytest.mark.exhaustive
def test_a_bound_that_a_run_breaks_is_told_as_such(
    broken: bool, result: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note, clock = "mine falls by 0.3", [0.0]
    best = replace(result.best, bound_shown=False, bound_note=note, bound_broken=broken)
    tune = Told(replace(result, best=best), clock)
    plan = read_plan(write(tmp_path, ["x.onnx"]))
    found = run_fleet(plan, tmp_path / "out", Silent(), tune=tune, clock=lambda: clock[0])
    say(verdict(found))
    word = "BELOW THE BOUND" if broken else "BOUND NOT SHOWN"
    assert f"{found.rows[0].name}: {word}: {note}." in capsys.readouterr().out
    (run,) = found.as_json()["runs"]
    assert (run["figures"]["bound_note"], run["figures"]["bound_broken"]) == (note, broken)
    assert f"{word}: {note}" in (tmp_path / "out" / "fleet.html").read_text()
    assert found.exit_code == UNPROVEN
