"""Commands without a search through a cluster: the same answers as without one, and all of them from its device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inlay
from inlay.cli import commands
from inlay.errors import NoDevice
from inlay.measure.remote.device import Answer, Device
from inlay.ray.lab import resource_of
from inlay.run.instant import quantize as quantizing
from inlay.run.machine_costs import read_costs, write_costs
from inlay.search.cost_table import CostTable, Fit
from inlay.space.recipe import Recipe
from inlay.targets.base import Fingerprint, TargetSpec
from inlay.targets.null import NullTarget
from inlay.testing import random_feed, small_model
from tests.support.fixtures import SaveModel
from tests.support.ray_cluster import Cluster

ADDRESS = "10.0.0.1:6379"
NULL = TargetSpec("null", {})


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """One with a device for ``null``."""
    found = Cluster(resources={"CPU": 1.0, resource_of(NULL): 1.0})
    found.join(monkeypatch)
    return found


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried does not depend on what else the machine does."""
    monkeypatch.setattr(quantizing, "INSTANT_S", 600.0)


@pytest.fixture
def model(save: SaveModel) -> Path:
    return save(small_model())


def feeds(count: int = 8) -> list[dict[str, np.ndarray]]:
    return [dict(random_feed(small_model(), seed)) for seed in range(count)]


@pytest.mark.parametrize("recipe", ["by-costs", "full-int8"])
@pytest.mark.matrix
def test_quantize_writes_the_same_bytes(cluster: Cluster, model: Path, tmp_path: Path, recipe: str) -> None:
    options: dict[str, Any] = {"target": "null", "data": feeds(), "min_sqnr": 10.0}
    options |= {} if recipe == "by-costs" else {"recipe": recipe}
    near = inlay.quantize(model, tmp_path / "near.onnx", **options)
    assert not cluster.asked
    far = inlay.quantize(model, tmp_path / "far.onnx", ray=ADDRESS, **options)
    assert (far.sha256, far.accuracy, far.warning) == (near.sha256, near.accuracy, near.warning)
    assert cluster.asked.count("start") == 1
    assert cluster.asked.count("ask") > 1
    assert cluster.asked[-1] == "close"


@pytest.mark.exhaustive
def test_bench_tells_what_the_device_measured(
    cluster: Cluster, model: Path, save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that is half as fast says so; each process is a fresh one of the same actor."""
    quantized = tmp_path / "q.onnx"
    inlay.quantize(model, quantized, target="null", data=feeds(), recipe="full-int8")
    near = inlay.bench([model, quantized], target="null", processes=3)
    ask = Device.ask

    def slower(device: Device, key: str, do: str, *more: Any) -> tuple[Answer, bytes]:
        answer, out = ask(device, key, do, *more)
        return {**answer, "ns": [2.0 * ns for ns in answer["ns"]]} if do == "time" else answer, out

    monkeypatch.setattr(Device, "ask", slower)
    far = inlay.bench([model, quantized], target="null", processes=3, ray=ADDRESS)
    assert [row.latency_ms for row in far] == [2.0 * row.latency_ms for row in near]
    assert [row.speedup for row in far] == [row.speedup for row in near]
    assert cluster.asked.count("start") == 3
    assert len(cluster.actors) == 1


@pytest.mark.exhaustive
def test_the_command_line_takes_the_option(cluster: Cluster, model: Path, tmp_path: Path) -> None:
    words = ["quantize", str(model), "-o", str(tmp_path / "q.onnx"), "--target", "null", "--ray", ADDRESS]
    assert commands.run(lambda: commands.app(words, standalone_mode=False)) == 0
    assert "ask" in cluster.asked
    cluster.asked.clear()
    words = ["bench", str(model), str(tmp_path / "q.onnx"), "--target", "null", "--ray", ADDRESS]
    assert commands.run(lambda: commands.app(words, standalone_mode=False)) == 0
    assert "ask" in cluster.asked


@pytest.mark.exhaustive
def test_a_lost_device_is_tried_again(cluster: Cluster, model: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"target": "null", "data": feeds(), "min_sqnr": 10.0}
    near = inlay.quantize(model, tmp_path / "near.onnx", **options)
    dies = [False, True, False, True]
    cluster.fails = lambda method: method == "ask" and bool(dies) and dies.pop(0)
    far = inlay.quantize(model, tmp_path / "far.onnx", ray=ADDRESS, **options)
    assert not dies
    assert len(cluster.actors) == 3
    assert far.sha256 == near.sha256


@pytest.mark.parametrize("command", ["quantize", "bench", "tune"])
@pytest.mark.matrix
def test_every_command_says_what_it_waits_for(
    cluster: Cluster, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    cluster.late = True
    more = {"quantize": ["-o", str(tmp_path / "q.onnx")], "bench": [str(model)]}
    more["tune"] = ["-o", str(tmp_path / "run"), "--no-bound", "--budget", "none", "--max-measurements", "1"]
    words = [command, str(model), *more[command], "--target", "null", "--ray", ADDRESS]
    assert commands.run(lambda: commands.app(words, standalone_mode=False)) == 0
    said = [line for line in capfd.readouterr().err.splitlines() if "device inlay:null:" in line]
    assert [" wait for device " in line for line in said] == [True, False]
    assert "answers after" in said[1]


def test_without_a_device_nothing_is_written(cluster: Cluster, model: Path, tmp_path: Path) -> None:
    cluster.away = True
    with pytest.raises(NoDevice, match="give the same command when a node announces it"):
        inlay.quantize(model, tmp_path / "q.onnx", target="null", data=feeds(), ray=ADDRESS)
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.exhaustive
def test_a_recipe_is_held_against_the_device_not_this_machine(
    cluster: Cluster, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = NullTarget().fingerprint()
    there = {**here.facts, "cpu": "Z80"}
    start = Device.start
    monkeypatch.setattr(Device, "start", lambda *given: {**start(*given), "facts": there})
    cluster.resources = {f"inlay:null:{Fingerprint('null', there).digest}": 1.0}
    tuned_there = Recipe(tuned_for={"target": "null", **there})
    tuned_here = Recipe(tuned_for={"target": "null", **here.facts})
    options: dict[str, Any] = {"target": "null", "data": feeds(), "ray": ADDRESS}
    assert inlay.quantize(model, tmp_path / "a.onnx", recipe=tuned_there, **options).warning == ""
    said = inlay.quantize(model, tmp_path / "b.onnx", recipe=tuned_here, **options).warning
    assert "tuned for cpu unknown; this is cpu Z80: " in said


class _Shipping(NullTarget):
    """A table ships for the machine that it is created on."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def shipped_costs(self) -> Path:
        return self.path


def test_what_ships_for_this_machine_is_not_taken_for_the_device(tmp_path: Path) -> None:
    table = CostTable({("Conv", "float"): Fit((1.0, 2.0, 3.0, 4.0), 0.1, 5)})
    target = _Shipping(write_costs(Fingerprint("null", {"cpu": "like this one"}), table, tmp_path / "shipped"))
    here = target.fingerprint()
    assert read_costs(target, here, tmp_path).table == table
    assert read_costs(target, Fingerprint("null", {**here.facts, "cpu": "Z80"}), tmp_path).table is None
