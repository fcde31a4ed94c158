"""Whole runs on a board: the same bytes as without one, and no record lost though the connection is cut at random."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inlay
from inlay.measure.ssh.held import SshDevice
from inlay.testing import random_feed, small_model
from tests.support.fixtures import SaveModel
from tests.support.ssh_server import Board


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


def options(count: int) -> dict[str, Any]:
    feeds = [dict(random_feed(small_model(), seed)) for seed in range(8)]
    known = {"target": "null", "data": feeds, "min_sqnr": 10.0, "budget": None, "cost_db": False}
    return {**known, "max_measurements": count}


class Cuts:
    """Cuts a board off at random moments: not again before the call that it hit was answered.

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

    def answered(self, method: str) -> None:
        """An answer has come."""
        is_over = self._armed is None or not self._armed.is_alive()
        self._settled = self._settled or (is_over and method == "ask")

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
        cuts.answered(method)
        return answer

    monkeypatch.setattr(SshDevice, "_request", risky)


@pytest.mark.parametrize(
    ("count", "most", "seed"),
    [(4, 3, 1), pytest.param(40, 20, 2, marks=pytest.mark.exhaustive)],
)
def test_a_run_on_a_board_that_is_cut_off_ends_as_one_here(
    count: int, most: int, seed: int, full: Board, save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(small_model())
    plain = inlay.tune(path, out=tmp_path / "plain", **options(count))
    cuts = Cuts(full, most, 0.5, np.random.default_rng(seed))
    with monkeypatch.context() as patched:
        cut(patched, cuts)
        far = inlay.tune(path, out=tmp_path / "far", device=full.url(), **options(count))
        cuts.end()
    assert len(cuts.made) == most
    assert trials(tmp_path / "far") == trials(tmp_path / "plain")
    assert found(tmp_path / "far") == found(tmp_path / "plain")
    assert far.model_path.read_bytes() == plain.model_path.read_bytes()
    again = inlay.tune(path, out=tmp_path / "far", device=full.url(), **options(count))
    assert again.model_path.read_bytes() == plain.model_path.read_bytes(), "it goes on where it was"
    assert not [each for each in full.files.iterdir() if each.is_dir()]


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
