"""Samples are observed as far as there is time, spread over all of them, and a resumed run observes the same ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inlay.calibrate.tables import observe
from inlay.data import Samples
from inlay.deadline import Deadline
from inlay.measure.in_process import Clock
from inlay.model.reference import Session
from inlay.quant.calibrator import LEAST_SAMPLES, Observed, spread
from inlay.testing import random_feed
from inlay.testing.models import residual_model
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

    def observe(self, seconds: float = math.inf, most: int | None = None) -> Observed:
        return observe(self._prepared, self._samples, most=most, deadline=Deadline(self.clock() + seconds, self.clock))


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
