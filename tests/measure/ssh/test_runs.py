"""Whole runs on a board: the same bytes as without one, and no record lost though the connection is cut at random.

Twenty cuts, ten in each of two runs, are on a board of the Python here, three further ones on the emulated ARM64 board,
where all takes longer.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import inlay
from inlay.data import save_feed
from inlay.errors import NoDevice
from inlay.measure.lab import measuring
from inlay.measure.ssh.held import SshDevice
from inlay.targets.base import Artifact, Feed, TargetSpec
from inlay.testing import random_feed, small_model
from inlay.testing.models import run_reference
from tests.support import emulated_arm
from tests.support.fixtures import SaveModel
from tests.support.ssh_server import Board, bare_packages


def trials(out: Path) -> list[tuple[Any, ...]]:
    database = sqlite3.connect(out / "run.sqlite")
    try:
        return database.execute(
            "SELECT candidate, origin, placement, outcome, accepted FROM trials ORDER BY number"
        ).fetchall()
    finally:
        database.close()


def found(out: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((out / "result.json").read_text())
    del data["command"]
    varies = ("wall_s", "overhead", "machine", "builds")  # models are built again where they were lost
    data["search"] = {name: value for name, value in data["search"].items() if name not in varies}
    return data


def options(count: int, data: Sequence[Feed] = ()) -> dict[str, Any]:
    feeds = data or [dict(random_feed(small_model(), seed)) for seed in range(8)]
    known = {"target": "null", "data": feeds, "min_sqnr": 10.0, "budget": None, "cost_db": False}
    return {**known, "max_measurements": count}


class Cuts:
    """Cuts a board off at random moments: not again before the call that it hit was answered, as a board that is lost
    three times in one is taken for a model's victim. A call may load the model first.

    Args:
        board: that is cut off.
        most: how often.
        share: of messages during which it may be.
        rng: of the moments.
    """

    def __init__(self, board: Board, most: int, share: float, rng: np.random.Generator) -> None:
        self._ways = [board.cut_connections, board.cut_workers, board.reboot]
        self._left, self._share, self._rng = most, share, rng
        self._armed: threading.Thread | None = None
        self._settled = True
        self.made: list[str] = []

    def before(self, method: str) -> None:
        """A message is about to be sent."""
        is_over = self._armed is None or not self._armed.is_alive()
        if self._left and self._settled and is_over and self._rng.random() < self._share:
            self._left -= 1
            self._settled = False
            way, wait_s = self._ways[self._rng.integers(3)], float(self._rng.uniform(0.0, 0.1))
            self._armed = threading.Thread(target=self._cut, args=(way, wait_s, method))
            self._armed.start()

    def answered(self, method: str, arguments: Sequence[Any]) -> None:
        """An answer has come."""
        is_over = self._armed is None or not self._armed.is_alive()
        self._settled = self._settled or (is_over and method == "ask" and arguments[1] != "load")

    def _cut(self, way: Any, wait_s: float, method: str) -> None:
        time.sleep(wait_s)
        way()
        self.made.append(f"{way.__name__} in {method}")

    def end(self) -> None:
        """Wait for the last one."""
        if self._armed is not None:
            self._armed.join()


def cut(monkeypatch: pytest.MonkeyPatch, cuts: Cuts) -> None:
    """Have messages cut off."""
    request = SshDevice._request

    def risky(self: SshDevice, method: str, arguments: Sequence[Any], limit_s: float) -> Any:
        cuts.before(method)
        answer = request(self, method, arguments, limit_s)
        cuts.answered(method, arguments)
        return answer

    monkeypatch.setattr(SshDevice, "_request", risky)


@pytest.mark.parametrize(
    ("count", "most", "seed"),
    [(4, 3, 1), *(pytest.param(60, 10, seed, marks=pytest.mark.exhaustive) for seed in (2, 3))],
)
@pytest.mark.exhaustive
def test_a_run_on_a_board_that_is_cut_off_ends_as_one_here(
    count: int, most: int, seed: int, bare: Board, save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(small_model())
    plain = inlay.tune(path, out=tmp_path / "plain", **options(count))
    cuts = Cuts(bare, most, 0.9, np.random.default_rng(seed))
    with monkeypatch.context() as patched:
        cut(patched, cuts)
        far = inlay.tune(path, out=tmp_path / "far", device=bare.url(), **options(count))
        cuts.end()
    assert len(cuts.made) == most
    assert trials(tmp_path / "far") == trials(tmp_path / "plain")
    assert found(tmp_path / "far") == found(tmp_path / "plain")
    assert far.model_path.read_bytes() == plain.model_path.read_bytes()
    again = inlay.tune(path, out=tmp_path / "far", device=bare.url(), **options(count))
    assert again.model_path.read_bytes() == plain.model_path.read_bytes(), "it goes on where it was"
    assert not bare.runs()


@pytest.mark.matrix
@pytest.mark.parametrize("way", ["cut_connections", "cut_workers", "reboot"])
def test_a_board_that_is_cut_off_as_it_is_let_go_is_left_empty(
    way: str, bare: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, times = SshDevice._request, list[int]()

    def cut_at_the_end(self: SshDevice, method: str, arguments: Sequence[Any], limit_s: float) -> Any:
        if method == "close":
            times.append(len(bare.runs()))
            if len(times) == 1:
                getattr(bare, way)()
        return request(self, method, arguments, limit_s)

    monkeypatch.setattr(SshDevice, "_request", cut_at_the_end)
    spec = TargetSpec("null")
    with measuring(None, [spec], print, bare.url()) as lab:
        lab.start(spec, tmp_path, lambda: 600.0).close()
    assert times == [1, 1], "the board is reached once more, where its folder still is"
    assert not bare.runs()


@pytest.mark.exhaustive
def test_one_shot_and_comparison_on_a_board_of_a_runtime_alone(bare: Board, save: SaveModel, tmp_path: Path) -> None:
    """With the board's real readings, which say nothing beside other tests: that it ends in order is what counts."""
    path, out = save(small_model()), tmp_path / "quantized.onnx"
    data = options(1)["data"]
    inlay.quantize(path, out, data=data, recipe="full-int8", device=bare.url())
    here = tmp_path / "here.onnx"
    inlay.quantize(path, here, data=data, recipe="full-int8")
    assert out.read_bytes() == here.read_bytes()
    rows = inlay.bench([path, out], data=data, blocks=2, processes=1, device=bare.url())
    assert all(row.latency_ms > 0.0 for row in rows)


# --- an emulated ARM64 board: times mean nothing there ------------------------------------------------------------


@pytest.mark.exhaustive
def test_an_emulated_board_tells_what_it_is_and_runs_models(arm: Board, save: SaveModel, tmp_path: Path) -> None:
    path, feed = save(small_model()), random_feed(small_model(), 0)
    save_feed(tmp_path / "feed.npz", feed)
    spec = TargetSpec("ort-cpu", {"threads": 1})
    with measuring(None, [spec], print, arm.url()) as lab, lab.start(spec, tmp_path, lambda: 600.0) as worker:
        facts = worker.fingerprint.facts
        assert (facts["machine"], facts["onnxruntime"]) == ("aarch64", emulated_arm.VERSION)
        assert "asimddp" in facts["isa"].split()
        (outputs,) = worker.run(Artifact(path, "0123"), [tmp_path / "feed.npz"])
    for name, array in run_reference(onnx.load(path), feed).items():
        np.testing.assert_allclose(outputs[name], array, atol=1e-5)
    assert not arm.runs()


@pytest.mark.exhaustive
def test_packages_of_another_architecture_on_a_board(arm: Board, tmp_path: Path) -> None:
    spec, own = TargetSpec("ort-cpu", {"threads": 1}), f"PYTHONPATH={emulated_arm.CACHE / 'site'}"
    here, site = bare_packages(tmp_path / "here"), emulated_arm.CACHE / "site"
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for name, place in (("numpy", site), ("numpy.libs", site), ("onnxruntime", here)):
        (mixed / name).symlink_to(place / name)
    for folder, wrong in ((here, "numpy"), (mixed, "onnxruntime")):
        python = arm.python.replace(own, f"PYTHONPATH={folder}")
        with pytest.raises(NoDevice) as raised, measuring(None, [spec], print, arm.url(python=python)) as lab:
            lab.start(spec, tmp_path, lambda: 600.0)
        assert f"there, run: {python} -m pip install --force-reinstall {wrong}" in str(raised.value)
        assert "\n" not in str(raised.value)
    assert not arm.runs()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "count", "most"), [("mnist", 3, 3), ("ppocr_cls", 4, 0)])
def test_a_trained_model_tuned_on_an_emulated_board(
    name: str, count: int, most: int, arm: Board, real_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With simulated times, so that speed plays no part, and ARM64's arithmetic: the bytes of a run here.

    What is done in order at the end takes the emulated board longer than any real one.
    """
    import feeds  # type: ignore[import-not-found]

    monkeypatch.setattr("inlay.measure.policy.END_LIMIT_S", 120.0)
    monkeypatch.setattr("inlay.measure.ssh.held._REACH_S", 120.0)

    given = options(count, feeds.feeds(name)[0][:6])
    path = real_models / f"{name}.onnx"
    plain = inlay.tune(path, out=tmp_path / "plain", **given)
    cuts = Cuts(arm, most, 0.5, np.random.default_rng(3))
    with monkeypatch.context() as patched:
        cut(patched, cuts)
        far = inlay.tune(path, out=tmp_path / "far", device=arm.url(), **given)
        cuts.end()
    assert len(cuts.made) == most
    assert far.model_path.read_bytes() == plain.model_path.read_bytes()
    here, there = trials(tmp_path / "plain"), trials(tmp_path / "far")
    assert [row[:3] for row in there] == [row[:3] for row in here], "no record is lost"  # outcomes hold their accuracy
    assert not arm.runs()


@pytest.mark.exhaustive
def test_a_trained_model_tuned_by_the_readings_of_an_emulated_board(
    arm: Board, real_models: Path, tmp_path: Path
) -> None:
    """The readings say nothing of ARM64: that the run ends in order, by the rules of that processor, is what counts."""
    import feeds

    given = {**options(2, feeds.feeds("mnist")[0][:6]), "target": "ort-cpu"}
    done = inlay.tune(real_models / "mnist.onnx", out=tmp_path / "out", device=arm.url(), **given)
    assert done.facts["machine"] == "aarch64"
    said = json.loads((tmp_path / "out" / "result.json").read_text())
    assert said["target"]["facts"]["machine"] == "aarch64"
    assert len(trials(tmp_path / "out")) >= 2
    onnx.checker.check_model(str(done.model_path))
