"""Options of targets: read by the annotations of its constructor, listed, and refused where they change nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import inlay
from inlay import api
from inlay.errors import UsageError
from inlay.measure.worker import Service
from inlay.targets.base import TargetSpec
from inlay.targets.registry import create, describe
from inlay.testing import residual_model
from tests.support.command_line import FAST, RunCommand, failed, nothing_written
from tests.support.fixtures import SaveModel


def test_values_are_of_the_kind_that_the_target_takes() -> None:
    found = describe("null", ["noise=0.5", "seed=7"]).options
    assert found == {"noise": 0.5, "seed": 7}
    assert isinstance(found["seed"], int)
    assert describe("ethos-u55-128", ["memory_mode=a=b,c"]).options == {"memory_mode": "a=b,c"}


def test_threads_are_an_option_like_others() -> None:
    assert describe("ort-cpu", ["threads=2"], threads=1).options == {"threads": 2}
    assert describe("ort-cpu", [], threads=3).options == {"threads": 3}
    with pytest.raises(UsageError, match="--threads 3 contradicts --target-option threads=2"):
        describe("ort-cpu", ["threads=2"], threads=3)


def test_more_threads_than_the_machine_could_use_are_refused_where_it_measures() -> None:
    """They take minutes to start, and the machine's memory. Another machine may have the cores."""
    spec = describe("ort-cpu", [], threads=1_000_000)
    assert create(spec).fingerprint().facts["threads"] == "1000000"
    answer = Service().handle({"do": "target", "with": {"name": spec.name, "options": dict(spec.options)}})
    assert re.match(r"threads=1000000: the machine that measures has \d+ cores; give \d+ or fewer$", answer["error"])


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ("noise", "NAME=VALUE"),
        ("=3", "NAME=VALUE"),
        ("noise=much", "noise=much: give a finite number"),
        ("noise=nan", "noise=nan: give a finite number"),
        ("seed=1.5", "seed=1.5: give a whole number"),
        ("speed=3", "target null does not take it; its options are noise"),
        ("advance_clock=print", "does not take it"),
    ],
)
def test_what_is_no_option_is_refused(given: str, word: str, run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    failed(run("tune", save(residual_model()), "-o", tmp_path / "out", *FAST, "--target-option", given), 2, word)
    nothing_written(tmp_path / "out")


@pytest.mark.exhaustive
def test_they_reach_the_target_and_add_to_those_of_a_spec(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    model, out = save(residual_model()), tmp_path / "out"
    assert run("tune", model, "-o", out, *FAST, "--target-option", "effect=0", "--target-option", "scale=3").code == 0
    facts = json.loads((out / "result.json").read_text())["target"]["facts"]
    assert (facts["effect"], facts["scale"], facts["noise"]) == ("0.0", "3.0", "0.0")
    slow = api.bench([model, model], target=TargetSpec("null", {"scale": 4.0}), target_options={"effect": 0.0})
    fast = api.bench([model, model], target="null", target_options={"effect": 0.0})
    assert slow[0].latency_ms == pytest.approx(4.0 * fast[0].latency_ms)


def test_they_are_listed_with_their_defaults() -> None:
    rows = {row.name: row for row in inlay.list_targets()}
    assert rows["ort-cpu"].options == ["threads=1", "processor=", "streams=1", "version="]
    assert "burst=0.0" in rows["null"].options


def test_what_needs_no_installation_says_so(run: RunCommand) -> None:
    failed(run("targets", "--install", "null"), 2, "nothing besides")
    failed(run("targets", "--install", "no-such"), 2, "no such target")
