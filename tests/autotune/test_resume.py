"""A workflow that is killed goes on as if it had not been: nothing measured is lost or measured again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import pytest

from inlay.autotune import (
    CacheEntry,
    Config,
    InsertionScheme,
    PatternCache,
    QDQAutotuner,
    region_pattern_autotuning_workflow,
)
from inlay.autotune.state_file import read_state
from inlay.errors import UsageError
from tests.support.branches import branches

FAST = Config(schemes_per_region=6, confirmations=0, final_pairs=0)


class Killed(BaseException):
    """As if the process had been killed: nothing after it is to be relied on."""


class Device:
    """Counts what it measures, and is killed at one of its measurements."""

    def __init__(self, kill_at: int = 0) -> None:
        self.seen: list[str] = []
        self.kill_at = kill_at

    def __call__(self, path: Path) -> float:
        if len(self.seen) + 1 == self.kill_at:
            raise Killed
        self.seen.append(hashlib.sha256(path.read_bytes()).hexdigest())
        return 10.0 - 0.1 * sum(n.op_type == "DequantizeLinear" for n in onnx.load(path).graph.node)


def run(out: Path, device: Device, config: Config = FAST, cache: Path | None = None) -> QDQAutotuner:
    return region_pattern_autotuning_workflow(branches(), out, device, config=config, pattern_cache_file=cache)


def killed(out: Path, at: int, monkeypatch: pytest.MonkeyPatch, config: Config = FAST) -> Device:
    """A run of which only what was written before the kill is left."""
    device = Device(at)
    with monkeypatch.context() as patch:
        patch.setattr("inlay.autotune.workflow._finish", lambda *_: None)
        with pytest.raises(Killed):
            run(out, device, config)
    return device


@pytest.mark.parametrize("at", [2, 3, 4, 6, 9, 14, 20])
@pytest.mark.matrix
def test_nothing_is_measured_twice_and_nothing_is_lost(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = killed(tmp_path, at, monkeypatch)
    after = Device()
    tuner = run(tmp_path, after)
    assert not set(before.seen) & set(after.seen)
    whole = run(tmp_path / "whole", Device())
    assert tuner.best_placement == whole.best_placement or (tuner.latency_ms or 99) <= (whole.latency_ms or 0)
    assert tuner.baseline_latency_ms == whole.baseline_latency_ms
    assert sum(tuner.profiled_patterns.values()) + 1 == len(before.seen) + len(after.seen)


def test_the_region_at_hand_keeps_its_records(tmp_path: Path) -> None:
    state = tmp_path / "state.yaml"
    tuner = QDQAutotuner(branches())
    tuner.initialize(FAST)
    tuner.submit(10.0)
    tuner.set_profile_region(tuner.regions[0])
    for latency in (11.0, 9.0):
        tuner.generate()
        tuner.submit(latency)
    tuner.save_state(state)
    other = QDQAutotuner(branches())
    other.initialize(FAST)
    other.load_state(state)
    assert other.profile_region is not None
    assert other.records == tuner.records
    other.set_profile_region(other.profile_region)
    assert other.records == tuner.records
    assert (other.latency_ms, other.speedup) == (tuner.latency_ms, tuner.speedup)
    assert other.generate() == len(tuner.records)


@pytest.mark.parametrize("carried", [False, True])
def test_a_duel_goes_on(carried: bool, tmp_path: Path) -> None:
    state = tmp_path / "state.yaml"

    def begun() -> QDQAutotuner:
        tuner = QDQAutotuner(branches())
        tuner.initialize(Config(schemes_per_region=6, confirmations=2))
        return tuner

    tuner = begun()
    tuner.submit(10.0)
    tuner.set_profile_region(tuner.regions[0])
    for latency in (8.0, 10.0, 8.0):
        tuner.generate()
        tuner.submit(latency)
    if carried:
        tuner._state = tuner._state.__class__(**vars(tuner._state))
        from inlay.autotune.state import committed

        tuner._state = committed(tuner._state)
    tuner.save_state(state)
    other = begun()
    other.load_state(state)
    other.set_profile_region(other.regions[1] if carried else other.regions[0])
    for _ in range(2):
        index = other.generate()
        other.submit(10.0 if index == 0 else 8.0)
    assert other.records[1].accepted
    assert other.speedup == pytest.approx(1.25)


def test_a_scheme_that_was_generated_but_not_measured_comes_again(tmp_path: Path) -> None:
    tuner = QDQAutotuner(branches())
    tuner.initialize(FAST)
    tuner.submit(10.0)
    tuner.set_profile_region(tuner.regions[0])
    tuner.generate()
    scheme = tuner.records[1].scheme
    tuner.save_state(tmp_path / "state.yaml")
    other = QDQAutotuner(branches())
    other.initialize(FAST)
    other.load_state(tmp_path / "state.yaml")
    assert other.generate() == 1
    assert other.records[1].scheme == scheme


def test_the_given_cache_is_kept(tmp_path: Path) -> None:
    """On resuming too: what no pattern of this model matches stays in the file that the run leaves."""
    cache = PatternCache()
    cache.add("0" * 20, "Conv of another model", [CacheEntry(InsertionScheme(), 1.2)])
    cache.save(tmp_path / "given.yaml")
    for _ in range(2):
        run(tmp_path / "out", Device(), cache=tmp_path / "given.yaml")
        assert "0" * 20 in list(PatternCache.load(tmp_path / "out" / "pattern_cache.yaml"))


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), None, "fast", RuntimeError("crashed")])
def test_what_measure_returns_or_raises_is_recorded_and_the_workflow_goes_on(bad: object, tmp_path: Path) -> None:
    calls = 0

    def measure(path: Path) -> float:
        nonlocal calls
        calls += 1
        if calls == 1:
            return 10.0
        if calls % 2:
            return 10.0 - 0.1 * calls
        if isinstance(bad, Exception):
            raise bad
        return bad  # type: ignore[return-value]

    with pytest.warns(UserWarning, match="failed: "):
        tuner = region_pattern_autotuning_workflow(branches(), tmp_path, measure, config=FAST)
    assert calls > 4
    count = calls
    with pytest.warns(UserWarning, match="failed: "):
        again = region_pattern_autotuning_workflow(branches(), tmp_path, measure, config=FAST)
    assert calls == count
    assert again.failed_readings == tuner.failed_readings
    assert again.best_placement == tuner.best_placement


def test_a_baseline_that_cannot_be_measured_is_said_and_can_be_tried_again(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="float model"):
        region_pattern_autotuning_workflow(branches(), tmp_path, lambda _: float("inf"), config=FAST)
    tuner = run(tmp_path, Device())
    assert tuner.baseline_latency_ms == 10.0


def test_states_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """They hold the incumbent and the finished patterns only."""
    path = tmp_path / "state.yaml"
    tuner = run(tmp_path / "out", Device())
    tuner.save_state(path)
    lines = path.read_text().splitlines()
    cut = next(i for i, line in enumerate(lines) if line.startswith("variance"))
    path.write_text("\n".join(lines[:cut]) + "\n")
    read = read_state(path, tuner._subject.sha256, tuner._subject.graph)
    assert read.region is None
    other = QDQAutotuner(branches())
    other.initialize(FAST)
    other.load_state(path)
    assert other.best_placement == tuner.best_placement
