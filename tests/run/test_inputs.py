"""The samples that candidates are judged on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inlay.data import Samples
from inlay.model.load import load
from inlay.run.inputs import MOST_JUDGED, RunInputs, TuneRequest
from inlay.testing import random_feed, small_model
from tests.support.fixtures import SaveModel


def inputs(path: Path, out: Path, count: int, kind: str = "npz") -> RunInputs:
    feeds = tuple(dict(random_feed(small_model(), seed)) for seed in range(count))
    labels = np.arange(count)
    request = TuneRequest(file=load(path), out=out, samples=Samples(feeds, kind, "test", labels))
    return RunInputs.of(request, np.random.default_rng(0))


def numbers(samples: Samples) -> list[int]:
    return [samples.number(i) for i in range(len(samples))]


@pytest.mark.parametrize(("count", "judged"), [(1, 1), (2, 1), (3, 2), (16, 12), (40, 24), (200, 50)])
def test_few_samples_are_joined_by_those_of_the_calibration(
    count: int, judged: int, save: SaveModel, tmp_path: Path
) -> None:
    """Those apart come first, and none of the unseen ones is among them; labels stay with their samples."""
    found = inputs(save(small_model()), tmp_path / "out", count)
    parts, judging = found.parts, found.judging
    assert len(judging) == found.judged == judged
    assert numbers(judging)[: len(parts.selection)] == numbers(parts.selection)
    assert set(numbers(judging)[len(parts.selection) :]) <= set(numbers(parts.calibration))
    assert len(set(numbers(judging))) == judged
    assert judging.labels is not None
    assert judging.labels.tolist() == numbers(judging)
    if parts.verified:
        assert not set(numbers(judging)) & set(numbers(parts.verification))


@pytest.mark.parametrize("limit", [1, 4, 7, 24])
def test_where_there_is_little_time_those_of_the_calibration_are_left_out_first(
    limit: int, save: SaveModel, tmp_path: Path
) -> None:
    found = inputs(save(small_model()), tmp_path / "out", 16)
    limited = found.judged_on(min(limit, found.judged), 2)
    assert len(limited.judging) == min(limit, found.judged)
    assert len(limited.parts.selection) == min(limit, 4)
    assert len(limited.parts.verification) == 2


def test_random_samples_are_not_joined(save: SaveModel, tmp_path: Path) -> None:
    found = inputs(save(small_model()), tmp_path / "out", 16, "random")
    assert len(found.judging) == len(found.parts.selection) < MOST_JUDGED
