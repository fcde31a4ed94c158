"""The loop that ported code has: a fixed number of steps for each region, whatever ``generate`` returns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from inlay.autotune import Config, QDQAutotuner
from tests.support.branches import branches

Measure = Callable[[bytes], float]


def pairs(data: bytes) -> int:
    return sum(n.op_type == "DequantizeLinear" for n in onnx.load_from_string(data).graph.node)


def classic_loop(measure: Measure, n: int, seed: int = 0, commit: bool = True) -> QDQAutotuner:
    tuner = QDQAutotuner(branches())
    tuner.initialize(Config(seed=seed))
    tuner.submit(measure(tuner.export_onnx(insert_qdq=False)))
    for region in tuner.regions:
        tuner.set_profile_region(region, commit=commit)
        for _ in range(n):
            tuner.generate()
            tuner.submit(measure(tuner.export_onnx()))
    tuner.set_profile_region(None, commit=commit)
    return tuner


def noisy(effect: float, noise: float, seed: int) -> Measure:
    rng = np.random.default_rng(seed)
    return lambda data: (10.0 - effect * pairs(data)) * float(np.exp(noise * rng.standard_normal()))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 11, 12, 40])
def test_any_number_of_steps_finds_a_gain_that_is_there(n: int) -> None:
    """With one step for each region there are too few readings to tell a gain from noise."""
    tuner = classic_loop(noisy(0.25, 0.01, n), n)
    steps = n * len(tuner.regions)
    assert tuner.speedup is not None
    assert (pairs(tuner.export_onnx()) > 5 and tuner.speedup > 1.1) or steps < 11


@pytest.mark.parametrize("n", [2, 5, 12])
def test_any_number_of_steps_believes_no_gain_that_is_not_there(n: int) -> None:
    believed = sum(len(classic_loop(noisy(0.0, 0.02, seed), n, seed).best_placement) > 0 for seed in range(4))
    assert believed <= 1


def test_a_duel_that_the_region_ends_goes_on_in_the_next() -> None:
    tuner = QDQAutotuner(branches())
    tuner.initialize(Config(confirmations=2))
    tuner.submit(10.0)
    first, second = tuner.regions[:2]
    tuner.set_profile_region(first)
    assert tuner.generate() == 1
    tuner.submit(8.0)
    candidate = tuner.records[1]
    tuner.set_profile_region(second)
    assert tuner.profiled_patterns == {tuner.pattern_of(first).signature: 1}
    assert tuner.records[1].scheme == candidate.scheme
    assert tuner.records[1].signature == tuner.pattern_of(first).signature
    for _ in range(4):
        index = tuner.generate()
        tuner.submit({0: 10.0, 1: 8.0}[index or 0])
    assert tuner.records[1].accepted
    assert tuner.best_placement == candidate.placement
    assert tuner.latency_ms == pytest.approx(8.0)
    tuner.set_profile_region(None, commit=False)  # what was accepted of the first region is not the second one's
    assert tuner.best_placement == candidate.placement
    assert tuner.speedup == pytest.approx(1.25)


def test_without_commit_a_duel_is_forgotten() -> None:
    tuner = QDQAutotuner(branches())
    tuner.initialize(Config(confirmations=2))
    tuner.submit(10.0)
    tuner.set_profile_region(tuner.regions[0])
    tuner.generate()
    tuner.submit(5.0)
    tuner.set_profile_region(None, commit=False)
    assert len(tuner.best_placement) == 0
    tuner.set_profile_region(tuner.regions[1])
    assert len(tuner.records) == 1


def test_the_last_duel_is_decided_by_the_turns_that_there_were() -> None:
    tuner = QDQAutotuner(branches())
    tuner.initialize(Config(confirmations=5))
    tuner.submit(10.0)
    tuner.set_profile_region(tuner.regions[0])
    for latency in (8.0, 10.0, 8.0, 8.0, 10.0):  # the first reading, and two turns
        tuner.generate()
        tuner.submit(latency)
    tuner.set_profile_region(None)
    assert tuner.speedup == pytest.approx(1.25)


@pytest.mark.parametrize("latency", [float("inf"), float("nan"), 0.0, -1.0])
def test_a_latency_that_is_none_is_a_failed_scheme(latency: float) -> None:
    tuner = classic_loop(lambda data: 10.0 if not pairs(data) else latency, 2)
    assert len(tuner.best_placement) == 0
    tuner.initialize(Config())
    tuner.submit(10.0)
    tuner.set_profile_region(tuner.regions[0])
    tuner.generate()
    tuner.submit(latency)
    assert tuner.records[1].failed
    assert tuner.records[1].latency_ms is None
    assert tuner.records[1].reason
