"""Samples are observed as far as there is time, spread over all of them, and a resumed run observes the same ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.simulated import Clock

from inlay.calibrate.observe import LEAST_SAMPLES, Observed, observe, spread, stretched
from inlay.data import Samples, StressSet, Variation
from inlay.deadline import Deadline
from inlay.model.pool import OpenPool, TaskLost, WorkerPool, pooled
from inlay.model.reference import Session
from inlay.quant.observers import STRESS
from inlay.testing import random_feed
from inlay.testing.models import residual_model
from tests.support.pool import PoolHere
from tests.support.workspace import Workspace

COUNT = 40


@pytest.mark.parametrize("count", [1, 2, 3, 8, 13, 100])
def test_any_beginning_is_spread_over_all_samples(count: int) -> None:
    order = spread(count)
    assert sorted(order) == [*range(count)]
    for length in range(1, count + 1):
        marks = [-1, *sorted(order[:length]), count]
        assert max(np.diff(marks)) <= 3 * math.ceil(count / length), "no long stretch is left out"
        assert abs(2 * sum(i < count // 2 for i in order[:length]) - length) <= 1, "both halves are seen"


class _Slow:
    """Samples that take a second each to observe."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        model = residual_model()
        self._samples = Samples(tuple(dict(random_feed(model, seed)) for seed in range(COUNT)), "feeds", "test")
        self._prepared = Workspace(model, folder).prepared
        inside = Session.inside

        def slow(session: Session, feeds: Any, *arguments: Any) -> Any:
            self.clock.sleep(float(len(feeds)))
            return inside(session, feeds, *arguments)

        monkeypatch.setattr(Session, "inside", slow)

    def observe(
        self, seconds: float = math.inf, most: int | None = None, open_pool: OpenPool | None = None
    ) -> Observed:
        deadline = Deadline(self.clock() + seconds, self.clock)
        with pooled(open_pool):
            return observe(self._prepared, self._samples, most=most, deadline=deadline)


def test_as_many_samples_are_observed_as_there_is_time_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = _Slow(tmp_path, monkeypatch)
    for seconds, least, most in ((0.0, LEAST_SAMPLES, LEAST_SAMPLES), (10.0, 9, 10), (99.0, COUNT, COUNT)):
        begun = slow.clock()
        found = slow.observe(seconds)
        assert least <= found.samples <= most
        assert slow.clock() - begun == found.samples, "each of them once"
        again = slow.observe(most=found.samples)
        assert again.digest == found.digest
        assert all(h.limit for half in found.halves for h in half.values()), "both halves hold something"
    assert slow.observe().digest == found.digest, "without a limit, all"


@pytest.mark.parametrize("count", [1, 2, 5])
def test_variations_widen_ranges_that_ask_for_it_and_count_nowhere(count: int, tmp_path: Path) -> None:
    model = residual_model()
    prepared = Workspace(model, tmp_path).prepared
    feeds = tuple(dict(random_feed(model, seed)) for seed in range(count))
    louder = tuple({name: 3.0 * array for name, array in feed.items()} for feed in feeds)
    refused = {name: array[..., :-1] for name, array in feeds[0].items()}
    of = [*(Variation("up", feed, int(i >= count // 2)) for i, feed in enumerate(louder)), Variation("cut", refused, 1)]
    plain = observe(prepared, Samples(feeds, "feeds", "test"))
    found = stretched(plain, prepared, StressSet(tuple(of)))
    alone = observe(prepared, Samples(louder, "feeds", "test"))
    for value, histogram in plain.histograms.items():
        both = histogram.range("minmax") | alone.histograms[value].range("minmax")
        assert found.histograms[value].range("minmax") == histogram.range("minmax")
        assert found.histograms[value].range(STRESS) == both
        assert np.array_equal(found.histograms[value].counts, histogram.counts)
        assert histogram.reach is None, "what was observed stays as it is"
    assert found.digest != plain.digest
    assert found.samples == plain.samples == count


class _Helpers(PoolHere):
    """Helpers that share this process; each answer is there at once, or is lost."""

    def __init__(self, width: int, sound: int) -> None:
        super().__init__(width, sound)
        self.observed = 0

    def submit(self, seconds: float, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        if self.observed >= self.sound:
            answer.set_exception(TaskLost("its node no longer exists"))
            return answer
        self.observed += len(arguments[-1])
        answer.set_result(function(*arguments))
        return answer


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("sound", [COUNT, 17, 0])
@pytest.mark.parametrize("width", [1, 3])
def test_helpers_change_nothing_but_the_time_even_where_they_are_lost(
    width: int, sound: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = _Slow(tmp_path, monkeypatch)
    found: list[_Helpers] = []

    @contextlib.contextmanager
    def open_pool() -> Iterator[WorkerPool]:
        found.append(_Helpers(width, sound))
        yield found[-1]

    alone, together = slow.observe(), slow.observe(open_pool=open_pool)
    assert [h.observed > 0 for h in found] == [sound > 0], "asked once"
    assert found[0].observed == COUNT - 2 or sound < COUNT, "all but those that told how long one takes"
    assert together.samples == alone.samples == COUNT
    assert together.digest == alone.digest
    for value, histogram in alone.histograms.items():
        assert together.histograms[value].headroom == histogram.headroom
    assert slow.observe(most=COUNT - 1).digest != alone.digest, "a sample more or less is seen"


@pytest.mark.parametrize(("sound", "observed"), [(COUNT, COUNT), (17, 17), (0, 0)])
def test_helpers_that_are_here_already_begin_at_once(
    sound: int, observed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one sample each, until they know how long that takes; then with as many as take them four seconds."""
    slow, helpers = _Slow(tmp_path, monkeypatch), _Helpers(3, sound)
    with pooled(lambda: contextlib.nullcontext(helpers), 1e9):
        together = slow.observe()
    assert together.digest == slow.observe().digest
    assert helpers.observed == observed or 0 < sound < COUNT


def test_what_is_quick_is_observed_without_helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Any:
        raise AssertionError("asked for helpers")

    assert _Slow(tmp_path, monkeypatch).observe(most=9, open_pool=nobody).samples == 9


def test_with_helpers_too_no_more_is_begun_than_there_is_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = _Slow(tmp_path, monkeypatch)

    @contextlib.contextmanager
    def open_pool() -> Iterator[WorkerPool]:
        yield _Helpers(1, COUNT)

    begun = slow.clock()
    found = slow.observe(20.0, open_pool=open_pool)
    assert 15 <= found.samples <= 20
    assert slow.clock() - begun <= 21.0
    assert slow.observe(most=found.samples).digest == found.digest, "a resumed run observes the same ones"
