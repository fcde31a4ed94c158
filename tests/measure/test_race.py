"""Races: their intervals cover the truth although they decide when to stop, and they stop when they should."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inlay.measure import race
from inlay.measure.paired import hodges_lehmann
from inlay.measure.race import predictive_power
from inlay.prepare.protocol import Protocol
from inlay.trial import Interval
from tests.support.noisy_machine import noisy_meter

RUNS = 300


def test_intervals_of_a_fixed_number_of_pairs_cover_the_truth() -> None:
    rng = np.random.default_rng(1)
    for n in (7, 8, 24):
        covered = 0
        for _ in range(2000):
            differences = rng.normal(0.1, 0.03, n)
            found = hodges_lehmann(differences)
            covered += found.low <= 0.1 <= found.high
        assert 0.93 <= covered / 2000 <= 0.97, n


@pytest.mark.exhaustive
def test_intervals_of_races_that_stop_early_cover_the_truth_as_often_as_they_say(tmp_path: Path) -> None:
    """Races of 7 blocks (a clear gain), of all 28 (none), and in between."""
    hits: dict[float, list[bool]] = {}
    for truth in (1.0, 1.03, 1.1):
        (tmp_path / str(truth)).mkdir()
        for seed in range(RUNS):
            with noisy_meter({"base": 1e6, "new": 1e6 / truth}, seed, tmp_path / str(truth)) as (made, files):
                found = made.race("race", files["base"], files["base"], files["new"])
            hits.setdefault(truth, []).append(found.latency.speedup.low <= truth <= found.latency.speedup.high)
            assert found.versus.low <= found.latency.speedup.low, "the interval that decides is the stricter one"
    assert all(np.mean(h) >= 0.91 for h in hits.values()), {t: np.mean(h) for t, h in hits.items()}
    assert 0.93 <= np.mean([h for each in hits.values() for h in each]) <= 0.97


def test_predictive_power_is_the_share_of_races_that_would_still_show_a_gain() -> None:
    """Against simulation: the truth drawn from what the first blocks say, the remaining blocks from the truth."""
    rng = np.random.default_rng(5)
    level, blocks, most, noise = 0.95, 7, 28, 0.02
    z = 1.959964
    for estimate in (-0.01, 0.0, 0.01, 0.02):
        now = noise / np.sqrt(blocks)
        found = Interval(*(float(np.exp(estimate + d * z * now)) for d in (0, -1, 1)))
        truth = rng.normal(estimate, now, 200_000)
        rest = rng.normal(truth, noise / np.sqrt(most - blocks))
        final = (blocks * estimate + (most - blocks) * rest) / most
        share = float((final > z * noise / np.sqrt(most)).mean())
        assert abs(predictive_power(found, level, blocks, most) - share) < 0.01
    assert predictive_power(Interval(1.0, 0.0, float("inf")), level, blocks, most) == 1.0


@pytest.mark.exhaustive
def test_a_race_of_little_predictive_power_is_short(tmp_path: Path) -> None:
    counts: dict[float, list[int]] = {}
    for truth in (1.0, 1.02):
        for seed in range(30):
            folder = tmp_path / str(truth)
            folder.mkdir(exist_ok=True)
            with noisy_meter({"base": 1e6, "best": 1e6, "new": 1e6 / truth}, seed, folder) as (made, files):
                found = made.race("race", files["base"], files["best"], files["new"])
            counts.setdefault(truth, []).append(found.latency.blocks)
    assert np.median(counts[1.0]) < np.median(counts[1.02])


@pytest.mark.parametrize(("race_s", "blocks"), [(float("inf"), 28), (1.0, 7)])
def test_a_race_ends_when_its_time_is_spent(
    race_s: float, blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ended = Interval(1.01, 1.005, 1.03)
    monkeypatch.setattr(race, "speedup", lambda base, new, level: open_ended)
    ticks = iter(range(1000))
    protocol = Protocol(race_s=race_s, worth=0.0, discards=0.0, least_gain=10.0)
    ns = {"base": 1e6, "best": 1e6, "new": 1e6 / 1.01}
    each_look_takes_a_second = noisy_meter(ns, 3, tmp_path, protocol, clock=lambda: float(next(ticks)))
    with each_look_takes_a_second as (meter, files):
        assert meter.race("race", files["base"], files["best"], files["new"]).latency.blocks == blocks


def test_a_brief_race_has_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "speedup", lambda base, new, level: Interval(1.01, 1.005, 1.03))
    protocol = Protocol(worth=0.0, discards=0.0, least_gain=10.0)
    with noisy_meter({"base": 1e6, "best": 1e6, "new": 1e6 / 1.01}, 3, tmp_path, protocol) as (meter, files):
        artifacts = files["base"], files["best"], files["new"]
        assert meter.race("race", *artifacts, brief=True).latency.blocks == 7
        assert meter.race("race", *artifacts).latency.blocks == 28, "the control"
