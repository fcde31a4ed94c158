"""Blocks of interleaved timing: what a slot's reading and a block's drift say."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.measure import policy, preemption
from inlay.measure.blocks import reading, run_block, slot, slot_repeats
from inlay.measure.checked import Checked
from inlay.measure.preemption import Moment, Preempted, moment, preempted
from inlay.targets.base import Feed, KernelTime


class Slowing:
    """A model whose machine becomes slower with every inference: ``ns * exp(rate * inferences so far)``."""

    preempted = Preempted()
    warms_up = False
    one_by_one = False

    def __init__(self, ns: float, clock: list[int], rate: float, log: list[str] | None = None, name: str = "") -> None:
        self._ns, self._clock, self._rate = ns, clock, rate
        self._log, self._name = log, name

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        if self._log is not None:
            self._log.append(self._name)
        start = self._clock[0]
        self._clock[0] += repeats
        return np.asarray(self._ns * np.exp(self._rate * (start + np.arange(repeats))))

    def profile(self, feed: Feed, repeats: int) -> list[KernelTime]:
        raise NotImplementedError

    def close(self) -> None:
        pass


@pytest.mark.parametrize("repeats", [2, 3, 4, 8])
def test_a_reading_leaves_interruptions_out(repeats: int) -> None:
    rng = np.random.default_rng(repeats)
    quiet = rng.normal(1000.0, 30.0, (4000, repeats))
    busy = np.where(rng.random(quiet.shape) < 0.1, 1.5, 1.0) * quiet

    def scatter(ns: np.ndarray, how: object) -> float:
        return float(np.std([how(row) for row in ns]))  # type: ignore[operator]

    assert scatter(quiet, reading) < 1.25 * scatter(quiet, np.median), "little is lost on a quiet machine"
    assert scatter(busy, reading) < 0.75 * scatter(busy, np.median), "the median lets them through"


def test_the_mirror_image_cancels_a_linear_drift_and_says_how_large_it_was() -> None:
    for rate in (0.0, 1e-3, 4e-3):
        clock = [0]
        models = [Slowing(ns, clock, rate) for ns in (1e6, 2e6, 3e6)]
        block = run_block(models, [1, 1, 1], {}, np.random.default_rng(1))
        assert np.array(block.ns) / block.ns[0] == pytest.approx([1.0, 2.0, 3.0])
        assert block.drift == pytest.approx(3.0 * rate), "passes of three slots are three inferences apart"


def test_a_block_runs_every_model_twice_in_mirrored_order() -> None:
    orders = set()
    for seed in range(20):
        log: list[str] = []
        models = [Slowing(1e6, [0], 0.0, log, name) for name in "abc"]
        run_block(models, [1, 1, 1], {}, np.random.default_rng(seed))
        assert sorted(log[:3]) == ["a", "b", "c"]
        assert log[3:] == log[2::-1]
        orders.add(tuple(log[:3]))
    assert len(orders) == 6, "any order may come"


class Waiting(Slowing):
    """Inferences of 1 ms, some of which others hold up; the system tells of the last call."""

    def __init__(self, waits: np.ndarray, one_by_one: bool, alone: bool) -> None:
        super().__init__(1e6, [0], 0.0)
        self.waits, self.one_by_one, self._alone = list(waits), one_by_one, alone

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        now, self.waits = np.array(self.waits[:repeats]), self.waits[repeats:]
        self.preempted = Preempted(float(now.sum()) if self._alone else 0.0, float(now.sum()))
        return 1e6 + now


@given(st.integers(1, 12), st.floats(0.0, 0.9), st.integers(0, 10**6), st.booleans(), st.booleans())
def test_a_reading_without_what_other_processes_took(
    n: int, busy: float, seed: int, one_by_one: bool, alone: bool
) -> None:
    """Of inferences of known length, each with a wait of its own: only waits in the faster half are in the reading."""
    rng = np.random.default_rng(seed)
    waits = np.where(rng.random(n) < busy, rng.exponential(3e6, n), 0.0)
    on_clock, certain, own = slot(Waiting(waits, one_by_one, alone), {}, n)
    assert on_clock == pytest.approx(reading(1e6 + waits))
    assert own == pytest.approx(1e6), "all of them take as long by themselves"
    exact = alone and one_by_one and n <= policy.ONE_BY_ONE
    assert certain == pytest.approx(1e6 if exact else on_clock)


def test_a_thread_that_is_kept_from_running_knows_how_long() -> None:
    """Two threads of one processor: what one waits, the other ran."""
    if not Path("/proc/thread-self/schedstat").exists():
        pytest.skip("the system does not tell")

    class Spinning(Slowing):
        def time(self, feed: Feed, repeats: int) -> np.ndarray:
            begun, used = time.perf_counter_ns(), time.thread_time_ns()
            while time.thread_time_ns() - used < 200e6:
                pass
            return np.array([time.perf_counter_ns() - begun])

    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for _ in range(5):  # what a hypervisor takes, the system does not tell
            estimate = Checked(Spinning(1.0, [0], 0.0), lambda: None, estimated=True)
            estimate.time({}, 1)
            assert estimate.preempted == Preempted(), "nobody can take a part of an estimate"
            checked = Checked(Spinning(1.0, [0], 0.0), lambda: None)
            (ns,) = checked.time({}, 1)
            if ns - checked.preempted.least == pytest.approx(200e6, rel=0.1):
                break
    finally:
        rival.kill()
        rival.wait()
        os.sched_setaffinity(0, mine)
    assert ns - checked.preempted.least == pytest.approx(200e6, rel=0.1), "what is left is its own time"
    assert checked.preempted.least > policy.MAX_PREEMPTED * ns


def test_repeats_fill_a_slot() -> None:
    def repeats(ns: float) -> int:
        return slot_repeats(Slowing(ns, [0], 0.0), {}, 4_000_000)

    assert repeats(1e6) == 4
    assert repeats(3e6) == 2, "the first inference behind another model does not count, so there are two"
    assert repeats(policy.LONG_INFERENCE_SLOTS * 5e6) == 1
    assert repeats(10.0) == policy.MAX_REPEATS


@pytest.mark.parametrize("slots", [1.0, 1.5 * policy.LONG_WHEN_COLD * policy.LONG_INFERENCE_SLOTS])
def test_a_long_inference_is_not_repeated_to_know_that_it_is_long(slots: float) -> None:
    asked: list[int] = []

    class Counted(Slowing):
        def time(self, feed: Feed, repeats: int) -> np.ndarray:
            asked.append(repeats)
            return super().time(feed, repeats)

    slot_repeats(Counted(slots * 4e6, [0], 0.0), {}, 4_000_000)
    assert (sum(asked) == 1) is (slots > 1.0)


def _spin(ns: float) -> None:
    used = time.thread_time_ns()
    while time.thread_time_ns() - used < ns:
        pass


@pytest.mark.parametrize("tells", [True, False], ids=["by thread", "by switches"])
def test_waits_of_a_pools_threads_count(tells: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calling thread only waits for the pool's, which share a processor with another process."""
    if tells and not Path("/proc/self/schedstat").exists():
        pytest.skip("the system does not tell")
    if not tells:
        monkeypatch.setattr(preemption, "_threads", dict)
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with ThreadPoolExecutor(1) as pool:
            begun, since = time.perf_counter_ns(), moment()
            pool.submit(_spin, 200e6).result()
            wall, taken = time.perf_counter_ns() - begun, preempted(since, moment()).most
    finally:
        rival.kill()
        rival.wait()
        os.sched_setaffinity(0, mine)
    assert taken > 0.2 * wall
    assert taken <= wall


def test_bounds_of_what_others_took_of_several_threads() -> None:
    """No more than all waits together, and no less is left than the busiest thread ran."""
    before = Moment(0, 0, 0, {"a": (10, 0), "b": (0, 5)}, 0)

    def taken(**threads: tuple[int, int]) -> tuple[float, float]:
        found = preempted(before, Moment(1000, 0, 0, threads, 0))
        return found.least, found.most

    assert taken(a=(610, 0), b=(500, 5)) == (0.0, 0.0)
    assert taken(a=(610, 100), b=(500, 205)) == (0.0, 300.0)
    assert taken(a=(910, 90), b=(500, 505)) == (0.0, 100.0), "the busiest thread ran for 900 of 1000"
    assert taken(b=(0, 5), new=(700, 60)) == (60.0, 60.0), "one thread began, another ended"
    assert taken(a=(710, 200), b=(10, 45)) == (200.0, 240.0), "what computes alone has lost what it waited"
    assert taken(a=(910, 200), b=(0, 5)) == (100.0, 100.0), "no more than there was"
    assert preempted(Moment(0, 0, 0, {}, 3), Moment(1000, 400, 400, {}, 3)).most == 0.0, "no switch, nothing taken"
    found = preempted(Moment(0, 0, 50, {}, 3), Moment(1000, 400, 420, {}, 4))
    assert found == Preempted(0.0, 600.0, 350.0), "what the thread ran while the system was asked is not the span's"


@pytest.mark.parametrize("repeats", [3, 20])
def test_what_others_took_while_the_system_was_asked_is_not_taken_from_an_inference(repeats: int) -> None:
    """A turn of 4 ms beside an inference of 0.2 ms: its own thread ran for all of the 0.2 ms."""

    class Short(Slowing):
        def __init__(self, ran: float) -> None:
            super().__init__(0.2e6, [0], 0.0)
            self.ran = ran

        def time(self, feed: Feed, repeats: int) -> np.ndarray:
            self.preempted = Preempted(4e6, 4e6, self.ran * repeats)
            return np.full(repeats, 0.2e6)

    on_clock, least, own = slot(Short(ran=0.205e6), {}, repeats)
    assert (on_clock, least, own) == (0.2e6, 0.2e6, 0.2e6)
    assert slot(Short(ran=0.0), {}, repeats)[2] < 0.02 * 0.2e6, "negative control: a thread that only waits"
