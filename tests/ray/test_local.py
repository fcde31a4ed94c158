"""A run through Ray on this machine: the same bytes as without, also where the device's process is killed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import inlay
from inlay.measure.remote.worker import RemoteWorker
from inlay.testing import random_feed, small_model
from tests.support.fixtures import SaveModel


def facts(out: Path) -> list[tuple[Any, ...]]:
    db = sqlite3.connect(out / "run.sqlite")
    try:
        return db.execute(
            "SELECT candidate, origin, placement, outcome, accepted FROM trials ORDER BY number"
        ).fetchall()
    finally:
        db.close()


def found(out: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((out / "result.json").read_text())
    del data["command"]
    return {name: value for name, value in data.items() if name != "search"}


def test_a_run_through_ray_ends_as_one_without_though_its_device_is_killed(
    save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    model = small_model()
    path, feeds = save(model), [dict(random_feed(model, seed)) for seed in range(8)]
    options: dict[str, Any] = {"target": "null", "data": feeds, "min_sqnr": 10.0, "budget": None}
    options["strategy"] = "anchors"
    plain = inlay.tune(path, out=tmp_path / "plain", **options)
    kinds, pids = list[str](), list[int]()
    forward = RemoteWorker._exchange

    def kill(worker: RemoteWorker, do: str, arguments: dict[str, Any]) -> dict[str, Any]:
        kinds.append(do)
        if kinds.count("time") in (1, 3) and do == "time":
            pids.append(worker._device.call("hello", limit_s=60.0)["pid"])
            os.kill(pids[-1], signal.SIGKILL)
        return forward(worker, do, arguments)

    monkeypatch.setattr(RemoteWorker, "_exchange", kill)
    capfd.readouterr()
    far = inlay.tune(path, out=tmp_path / "far", ray="local", **options)
    assert capfd.readouterr() == ("", "")
    assert len(set(pids)) == 2
    assert os.getpid() not in pids
    assert facts(tmp_path / "far") == facts(tmp_path / "plain")
    assert found(tmp_path / "far") == found(tmp_path / "plain")
    assert far.model_path.read_bytes() == plain.model_path.read_bytes()


def test_without_the_option_ray_is_not_imported() -> None:
    code = "import sys, inlay.cli.commands, inlay.api, inlay.ray.lab; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
