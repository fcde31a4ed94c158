"""Machines that build ahead of a device spare it the work, and a run ends as it does without them, lost or not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any
from unittest.mock import create_autospec

import pytest

import inlay
from inlay.errors import NoDevice, UsageError
from inlay.measure.remote.held import Tell
from inlay.measure.remote.worker import RemoteWorker
from inlay.ray import ahead as building
from inlay.ray import announce, policy
from inlay.ray.ahead import BuilderPool
from inlay.ray.lab import builder_of, resource_of
from inlay.targets.base import Artifact, TargetSpec
from inlay.testing import random_feed, small_model
from tests.support.fixtures import SaveModel
from tests.support.ray_cluster import Cluster

DEVICE = resource_of(TargetSpec("null", {}))
BUILDER = builder_of(DEVICE)


class Listening:
    """Hears the stages of a run."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.said.append(str(given[0])) if name == "stage" else None


class Ready(BuilderPool):
    """Builders that have started before a run goes on: on ``null`` it would be over before."""

    def __init__(self, starts: Sequence[Callable[[], RemoteWorker]], tell: Tell) -> None:
        super().__init__(starts, tell)
        wait(self.started)


def found(
    save: SaveModel, out: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> tuple[bytes, Any, list[str]]:
    """The delivered file, the result without times, and what was said."""
    cluster.join(monkeypatch)
    monkeypatch.setattr(building, "BuilderPool", Ready)
    data = [dict(random_feed(small_model(), seed)) for seed in range(8)]
    heard, model = Listening(), save(small_model())
    options: dict[str, Any] = {"data": data, "min_sqnr": 10.0, "budget": None, "max_measurements": 12}
    inlay.tune(model, out=out, target="null", strategy=strategy, ray="10.0.0.1:6379", progress=heard, **options)
    result = json.loads((out / "result.json").read_text())
    del result["command"], result["search"]["wall_s"]
    return (out / "model.onnx").read_bytes(), result, heard.said


@pytest.mark.parametrize("strategy", ["auto", "evolve", "refine"])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_a_run_ends_the_same_with_builders_and_without(
    strategy: str, save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, helped = Cluster(resources={DEVICE: 1.0}), Cluster(resources={DEVICE: 1.0, BUILDER: 2.0})
    plain = found(save, tmp_path / "alone", alone, monkeypatch, strategy)
    ahead = found(save, tmp_path / "helped", helped, monkeypatch, strategy)
    assert ahead[:2] == plain[:2], "builds are counted wherever they are made"
    assert (len(alone.actors), len(helped.actors)) == (1, 3)
    assert not helped.held, "a builder was not let go"
    assert "2 builders of the cluster build ahead of the device" in ahead[2]
    (told,) = [line for line in ahead[2] if "built ahead were asked for" in line]
    used, begun = (int(word) for word in told.split() if word.isdigit())
    assert 0 < used <= begun


@pytest.mark.exhaustive
def test_builders_that_fail_are_done_without(save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, failing = Cluster(resources={DEVICE: 1.0}), Cluster(resources={DEVICE: 1.0, BUILDER: 1.0})
    plain = found(save, tmp_path / "alone", alone, monkeypatch, "evolve")
    failing.sound = 1  # actors, of which the device is the first
    helpless = found(save, tmp_path / "failing", failing, monkeypatch, "evolve")
    assert helpless[:2] == plain[:2]
    assert len(failing.actors) > 2, "no builder was tried again"
    assert not failing.held


def test_who_waits_for_a_builder_does_not_keep_a_run_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "END_LIMIT_S", 0.1)
    pool = BuilderPool([lambda: create_autospec(RemoteWorker, instance=True)], lambda line: None)
    pool._idle.get()  # as the end of a run takes it, before whoever waits for it
    waits = pool.build(Artifact(tmp_path / "a", "a"), [])
    while not waits.running():
        sleep(0.01)
    ended = Thread(target=pool.close, args=(lambda: None,), daemon=True)
    ended.start()
    ended.join(timeout=10.0)
    assert not ended.is_alive()
    assert isinstance(waits.exception(), NoDevice)


def test_what_fails_to_start_in_any_way_is_done_without(tmp_path: Path) -> None:
    def breaks() -> RemoteWorker:
        raise OSError("the disk is full")

    pool = BuilderPool([breaks], lambda line: None)
    with pytest.raises(NoDevice, match="there is no builder"):
        pool.build(Artifact(tmp_path / "a", "a"), []).result(timeout=60.0)
    pool.close(lambda: None)


@pytest.mark.exhaustive
def test_a_builder_is_announced_for_what_the_device_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(announce.resources(["--builders", "3", "null"])) == {BUILDER: 3}
    assert json.loads(announce.resources(["null"])) == {DEVICE: 1}
    assert DEVICE.rpartition(":")[2] == BUILDER.rpartition(":")[2]
    for words in (["--builders"], ["--builders", "0", "null"], ["--builders", "null"]):
        with pytest.raises(UsageError, match="how many processors"):
            announce.resources(words)
