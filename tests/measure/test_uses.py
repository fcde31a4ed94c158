"""Readings besides the time of one inference: of many at once, of processors, behind other work, as a server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest

import inlay
from inlay.cli.speed import use_lines
from inlay.data import save_feed
from inlay.deadline import Deadline
from inlay.errors import TargetError, UsageError
from inlay.measure import readings
from inlay.measure.checked import Checked
from inlay.measure.client import Worker
from inlay.measure.readings import read_as
from inlay.measure.serving import Load, Served, answer_all
from inlay.model.load import file_sha256
from inlay.prepare.config import TuneConfig
from inlay.run import compare
from inlay.run.outcome.uses import _fitting, _others
from inlay.run.result import Use
from inlay.targets import objective
from inlay.targets.base import Artifact, TargetSpec
from inlay.targets.machine import timed_at_once
from inlay.targets.objective import aimed_at, objective_of
from inlay.targets.onnxruntime.target import OrtCpuTarget
from inlay.testing import random_feed, residual_model
from inlay.trial import Interval

WAIT_S = 30.0  # after which what was to happen at once did not


class Fake:
    """An executable whose inference is a function."""

    runs_at_once = True

    def __init__(self, infer: Callable[[], object]) -> None:
        self.infer = infer

    def run(self, feed: Any) -> dict[str, np.ndarray]:
        self.infer()
        return {}

    def time(self, feed: Any, repeats: int) -> np.ndarray:
        for _ in range(repeats):
            self.infer()
        return np.full(repeats, 1e6)

    def profile(self, feed: Any, repeats: int) -> list[Any]:
        return []

    def close(self) -> None:
        pass


def checked(infer: Callable[[], object]) -> Checked:
    return Checked(Fake(infer), lambda: None)


@pytest.mark.parametrize("streams", [1, 2, 5])
def test_streams_run_at_once_and_each_as_often_as_asked(streams: int) -> None:
    together, calls = threading.Barrier(streams, timeout=WAIT_S), list[int]()

    def infer() -> None:
        calls.append(together.wait())

    with ThreadPoolExecutor(max(1, streams - 1)) as others:
        ns = timed_at_once(infer, 3, others, streams)
    assert ns.shape == (3,)
    assert np.unique(ns).size == 1
    assert (ns > 0).all()
    assert len(calls) == 3 * streams


def test_a_server_answers_every_request_once_with_all_its_streams() -> None:
    together, calls = threading.Barrier(3, timeout=WAIT_S), list[int]()
    served = answer_all(lambda: calls.append(together.wait()), Load(streams=3, requests=30))
    assert len(calls) == 30
    assert 0.0 <= served.p50_ms <= served.p99_ms
    assert served.per_second > 0.0


def test_a_request_waits_from_the_moment_at_which_it_arrives() -> None:
    """Requests that arrive faster than they are answered wait for those before them; asked one by one they do not."""
    load = Load(streams=1, requests=40, rate=1e6)
    queued = answer_all(lambda: time.sleep(0.002), load)
    assert queued.p50_ms >= 20 * 2.0 - 1.0
    assert queued.p99_ms >= 39 * 2.0 - 1.0
    arrivals = list[float]()
    answer_all(lambda: arrivals.append(time.perf_counter()), replace(load, rate=1000.0, requests=30))
    assert arrivals[-1] - arrivals[0] > 0.005, "29 waits of 1 ms in the mean are no shorter than that together"


def test_what_an_answer_raises_is_raised() -> None:
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        answer_all(fails, Load(streams=2, requests=3))


def test_processor_time_is_that_of_all_threads_and_none_of_waiting() -> None:
    def spin() -> None:
        until = time.thread_time() + 0.03
        while time.thread_time() < until:
            pass

    def spin_twice() -> None:
        other = threading.Thread(target=spin)
        other.start()
        spin()
        other.join()

    waits, once, twice = (read_as([checked(f)], "cpu-time")[0] for f in (lambda: time.sleep(0.2), spin, spin_twice))
    assert waits.time({}, 1)[0] < 0.1e9
    assert once.time({}, 2).min() >= 0.03e9
    assert twice.time({}, 1)[0] >= 0.06e9


def test_behind_other_work_each_inference_comes_after_memory_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "last_level_bytes", lambda: 1024)
    monkeypatch.setattr(readings._Cold, "_others", None)
    seen: list[int] = []

    def infer() -> None:
        assert readings._Cold._others is not None
        assert readings._Cold._others.nbytes > 1024
        seen.append(int(readings._Cold._others[-1]))

    read_as([checked(infer)], "cold")[0].time({}, 4)
    assert seen == [1, 2, 3, 4]


def test_what_a_simulation_does_not_know_is_refused(tmp_path: Path) -> None:
    onnx.save(residual_model(), path := tmp_path / "model.onnx")
    save_feed(feed := tmp_path / "feed.npz", random_feed(residual_model(), 0))
    model = Artifact(path, file_sha256(path))
    with Worker(TargetSpec("null", reading="cpu-time"), tmp_path) as worker:
        with pytest.raises(TargetError, match="no cpu-time is known"):
            worker.time([model], feed, 1, 1000, 0)
        with pytest.raises(TargetError, match="one request at a time"):
            worker.serve(model, feed, Load(2, 10))


def test_a_worker_reads_what_it_was_started_for_or_is_asked(tmp_path: Path) -> None:
    onnx.save(residual_model(), path := tmp_path / "model.onnx")
    save_feed(feed := tmp_path / "feed.npz", random_feed(residual_model(), 0))
    model, spec = Artifact(path, file_sha256(path)), TargetSpec("ort-cpu", {"streams": 2})
    with Worker(spec, tmp_path) as worker:
        assert worker.fingerprint.facts["streams"] == "2"
        for reading in (None, *readings.READINGS):
            timing = worker.time([model, model], feed, 2, 100_000, 0, reading=reading)
            assert timing.ns.shape == (2, 2)
            assert (timing.ns > 0).all()
        assert worker.serve(model, feed, Load(2, 20)).per_second > 0


def test_streams_change_no_output_and_are_told_apart() -> None:
    one, two = OrtCpuTarget(), OrtCpuTarget(streams=2)
    assert one.fingerprint().digest != two.fingerprint().digest
    assert "streams" not in one.fingerprint().facts, "what was measured before keeps its place"
    assert two.on_device({**two.fingerprint().facts, "cpu": "another"}).streams == 2
    with pytest.raises(UsageError, match="streams must be 1 or more"):
        OrtCpuTarget(streams=0)


def test_an_objective_sets_a_target_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective, "streams_for", lambda threads: 8 // threads)
    spec = TargetSpec("ort-cpu", {"threads": 2})
    assert aimed_at(spec, "latency") == spec
    assert aimed_at(spec, "throughput").options == {"threads": 2, "streams": 4}
    assert aimed_at(spec, "throughput", 3).options["streams"] == 3
    assert [objective_of(aimed_at(spec, name)) for name in objective.OBJECTIVES] == list(objective.OBJECTIVES)
    of_each = {TuneConfig(target=aimed_at(spec, name)).identity().get("objective") for name in ("latency", "cpu-time")}
    assert of_each == {None, "cpu-time"}, "a run of one does not go on as the other"


@pytest.mark.parametrize(
    ("name", "asked", "streams", "elsewhere", "why"),
    [
        ("ort-cpu", "fast", 0, False, "--objective fast: give latency, throughput, cpu-time"),
        ("ort-cpu", "latency", 2, False, "--streams needs --objective throughput"),
        ("null", "throughput", 0, False, "target null runs one inference at a time"),
        ("ort-cpu", "throughput", 0, True, "needs --streams N"),
        ("ort-cpu", "throughput", 1, False, "give latency"),
    ],
)
def test_what_cannot_be_an_objective_is_refused(name: str, asked: str, streams: int, elsewhere: bool, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        aimed_at(TargetSpec(name), asked, streams, elsewhere)


def test_other_uses_are_all_but_the_one_that_was_tuned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective, "streams_for", lambda threads: 4)
    found = {o: [*_others(aimed_at(TargetSpec("ort-cpu"), o))] for o in objective.OBJECTIVES}
    names = {o: [name for _, readings in each for name in readings] for o, each in found.items()}
    assert names == {
        "latency": ["cold", "cpu-time", "throughput"],
        "throughput": ["latency", "cold", "cpu-time", "throughput"],  # the last: how it serves is not known yet
        "cpu-time": ["latency", "cold", "throughput"],
    }
    assert [spec.options.get("streams", 1) for spec, _ in found["throughput"]] == [1, 4]
    assert all(spec.reading == "latency" for each in found.values() for spec, _ in each)


@pytest.mark.parametrize(("block_s", "read"), [(0.1, 2), (0.2, 1), (1.0, 0)])
def test_where_time_is_short_the_use_that_matters_most_is_read(block_s: float, read: int) -> None:
    limit = Deadline(100.0, lambda: 0.0)
    plan = SimpleNamespace(before_writing=limit, is_limited=True, seconds=40.0)
    costs = SimpleNamespace(process_s=lambda models, blocks: block_s * blocks)
    assert _fitting(cast(Any, SimpleNamespace(plan=plan, costs=costs)), 2) == read
    unlimited = SimpleNamespace(plan=SimpleNamespace(before_writing=limit, is_limited=False), costs=costs)
    assert _fitting(cast(Any, unlimited), 2) == 2


def test_uses_are_told_in_two_lines() -> None:
    served = Served(1.0, 2.0, 100.0), Served(0.5, 1.0, 200.0)
    cold = Use(name="cold", streams=1, speedup=Interval(1.5, 1.4, 1.6), given_ms=1.0)
    many = Use(name="throughput", streams=2, speedup=Interval(1.8, 1.7, 1.9), given_ms=1.0, served=served)
    best = cast(Any, type("Best", (), {"uses": (cold, many)}))
    others, server = use_lines(best, "latency")
    assert "1.50x [1.40, 1.60] behind other work, 1.80x [1.70, 1.90] with 2 at once" in others
    assert "200 requests a second" in server
    assert len([*use_lines(best, "throughput")]) == 3
    assert "1.80x" not in " ".join(use_lines(best, "throughput")), "the verdict says it"


@pytest.mark.exhaustive
def test_a_whole_run_for_throughput_says_so(tmp_path: Path) -> None:
    model = residual_model()
    onnx.save(model, tmp_path / "model.onnx")
    feeds = [random_feed(model, seed) for seed in range(6)]
    result = inlay.tune(
        tmp_path / "model.onnx",
        data=feeds,
        out=tmp_path / "out",
        objective="throughput",
        streams=2,
        strategy="anchors",
        budget=None,
        no_bound=True,
    )
    said = json.loads((tmp_path / "out" / "result.json").read_text())
    assert said["search"]["objective"] == "throughput"
    assert said["target"]["facts"]["streams"] == "2"
    names = [use["use"] for use in said["best"]["uses"]]
    assert names in ([], ["latency", "cold", "cpu-time", "throughput"]), "none where the given model stays"
    assert len(names) == len(result.best.uses)


def test_bench_tells_how_models_answer_at_a_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_SERVED_S", 0.1)
    onnx.save(residual_model(), tmp_path / "a.onnx")
    onnx.save(residual_model(), tmp_path / "b.onnx")
    files = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    rows = inlay.bench(files, objective="throughput", streams=2, rate=500.0, blocks=2, processes=1)
    assert all(row.served is not None and row.served.p50_ms <= row.served.p99_ms for row in rows)
    assert all(row.served is None for row in inlay.bench(files, blocks=2, processes=1))
