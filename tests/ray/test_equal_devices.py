"""A run on one of several equal devices has the others measure beside it, and ends with the same bytes as on one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import inlay
from inlay.ray.lab import resource_of
from inlay.targets.base import TargetSpec
from inlay.testing import random_feed, small_model
from tests.support.fixtures import SaveModel
from tests.support.ray_cluster import Cluster

NOISY: dict[str, Any] = {"noise": 0.03, "seed": 4}
NAME = resource_of(TargetSpec("null", NOISY))


def found(save: SaveModel, out: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, Any]:
    """The delivered file, and the result without times, of one run with readings that differ."""
    cluster.join(monkeypatch)
    data = [dict(random_feed(small_model(), seed)) for seed in range(8)]
    options: dict[str, Any] = {"data": data, "min_sqnr": 10.0, "budget": None, "strategy": "anchors"}
    model = save(small_model())
    inlay.tune(model, out=out, target="null", target_options=NOISY, ray="10.0.0.1:6379", **options)
    result = json.loads((out / "result.json").read_text())
    result["search"] = {k: v for k, v in result["search"].items() if k not in ("wall_s", "overhead", "machine")}
    del result["command"]
    return (out / "model.onnx").read_bytes(), result


@pytest.mark.exhaustive  # three runs on devices; the next test has one
def test_two_devices_end_as_one_does(save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, dying = (Cluster(resources={NAME: n}) for n in (1.0, 2.0, 2.0))
    alone = found(save, tmp_path / "one", one, monkeypatch)
    assert alone[1]["best"]["speedup_low"] < alone[1]["best"]["speedup_high"], "there is noise"
    assert len(one.actors) == 1
    together = found(save, tmp_path / "two", two, monkeypatch)
    assert len(two.actors) > 1
    assert together == alone
    before = len(two.actors)
    dying.sound = 1
    assert found(save, tmp_path / "dying", dying, monkeypatch) == alone
    assert len(dying.actors) >= before
    assert not [*one.held, *two.held, *dying.held], "a device was not let go"


@pytest.mark.exhaustive
def test_a_device_that_another_run_holds_is_left_to_it(
    save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(resources={NAME: 2.0})
    cluster.held.append(NAME)
    found(save, tmp_path / "out", cluster, monkeypatch)
    assert len(cluster.actors) == 1
    assert cluster.held == [NAME]
