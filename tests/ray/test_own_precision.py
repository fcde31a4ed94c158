"""A device that is announced as it computes by itself computes in float32 as well, where that is faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import inlay
from inlay.errors import NoDevice
from inlay.measure import own_precision
from inlay.measure.lab import measuring
from inlay.ray.lab import builder_of, resource_of
from inlay.targets.base import TargetSpec
from inlay.targets.null import NullTarget
from inlay.testing import random_feed, small_model
from tests.support.fixtures import SaveModel
from tests.support.ray_cluster import Cluster
from tests.support.rounding import Rounding

OWN = TargetSpec("null", {"noise": 0.01})
EXACT = TargetSpec("null", {"noise": 0.01, "effect": 0.9})


@pytest.fixture(autouse=True)
def _halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NullTarget, "own_precision", Rounding.own_precision, raising=False)


@pytest.mark.parametrize("is_faster", [True, False])
@pytest.mark.exhaustive  # tests/run/test_own_precision.py has both in a simulation
def test_a_run_on_a_device_is_in_the_precision_that_is_faster(
    is_faster: bool, save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_precision, "is_faster", lambda gain: is_faster)
    name = resource_of(OWN)
    cluster = Cluster(resources={name: 2.0, builder_of(name): 1.0})  # an equal device, and a builder
    cluster.join(monkeypatch)
    model = save(small_model())
    feeds = [dict(random_feed(small_model(), seed)) for seed in range(4)]
    options: dict[str, Any] = {"data": feeds, "min_sqnr": 10.0, "strategy": "anchors", "budget": None}
    result = inlay.tune(model, out=tmp_path / "out", target=OWN, ray="cluster", max_measurements=3, **options)
    assert result.precision is not None
    assert result.facts["effect"] == ("0.9" if is_faster else "1.0")
    assert result.best.confirmed
    again = inlay.tune(model, out=tmp_path / "out", target=OWN, ray="cluster", max_measurements=5, **options)
    assert again.precision == result.precision
    assert again.target == result.target


@pytest.mark.exhaustive
def test_other_options_than_those_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(resources={resource_of(OWN): 1.0})
    cluster.join(monkeypatch)
    with measuring("cluster", [OWN], lambda line: None) as lab, lab.start(OWN, tmp_path, lambda: 60.0) as own:
        with lab.start(EXACT, tmp_path, lambda: 60.0) as exact:
            assert own.fingerprint.facts["effect"] == "1.0"
            assert exact.fingerprint.facts["effect"] == "0.9"
        for refused in (TargetSpec("null", {"noise": 0.02}), TargetSpec("null", {**EXACT.options, "scale": 2.0})):
            with pytest.raises(NoDevice, match="announce it again"):
                lab.start(refused, tmp_path, lambda: 60.0)
