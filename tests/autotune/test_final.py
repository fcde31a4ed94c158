"""What is reported of a search was measured again, in turns; without that, it is called an estimate."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from inlay.autotune import Config, QDQAutotuner, region_pattern_autotuning_workflow
from inlay.autotune.duel import MOST_FAILED, Duel, FinalComparison
from inlay.errors import UsageError
from tests.autotune.test_classic_loop import Measure, pairs
from tests.support.branches import branches

TRUE = 20.0
SMALL = Config(schemes_per_region=6, confirmations=2)


def twenty(seed: int, noise: float = 0.1) -> Measure:
    """Any Q/DQ pair makes the model 20 times as fast; readings have lognormal noise."""
    rng = np.random.default_rng(seed)
    return lambda data: (10.0 / TRUE if pairs(data) else 10.0) * float(np.exp(noise * rng.standard_normal()))


def searched(measure: Measure, config: Config = SMALL) -> QDQAutotuner:
    """The classic loop, without a final comparison."""
    tuner = QDQAutotuner(branches())
    tuner.initialize(config)
    tuner.submit(measure(tuner.export_onnx(insert_qdq=False)))
    for region in tuner.regions:
        tuner.set_profile_region(region)
        while tuner.generate() is not None:
            tuner.submit(measure(tuner.export_onnx()))
    tuner.set_profile_region(None)
    return tuner


def compared(tuner: QDQAutotuner, measure: Measure) -> list[int]:
    """The loop of a region once more; whose turns there were."""
    turns = []
    while (index := tuner.generate()) is not None:
        turns.append(index)
        tuner.submit(measure(tuner.export_onnx()))
    return turns


@pytest.mark.exhaustive
def test_the_interval_holds_the_truth_and_the_point_is_not_biased() -> None:
    held, logs = 0, []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        final = FinalComparison(Duel(20))
        while not final.finished:
            true = 10.0 / TRUE if final.tuned_next else 10.0
            final = final.with_reading(true * float(np.exp(0.1 * rng.standard_normal())))
        found = final.speedup
        assert found is not None
        held += found.low <= TRUE <= found.high
        logs.append(math.log(found.value / TRUE))
    assert held >= 180, "of 200 at 95 %, fewer than 181 have a probability below 0.1 %"
    assert abs(float(np.mean(logs))) < 3 * float(np.std(logs)) / math.sqrt(len(logs))


@pytest.mark.exhaustive
def test_a_search_ends_with_readings_that_decided_nothing() -> None:
    held, values, estimates = 0, [], []
    for seed in range(6):
        measure = twenty(seed)
        tuner = searched(measure)
        assert tuner.speedup is not None
        assert (tuner.speedup_low, tuner.speedup_high, tuner.latency_interval_ms) == (None, None, None)
        assert "estimate" in tuner.summary
        estimates.append(tuner.speedup)
        compared(tuner, measure)
        assert tuner.speedup_low is not None
        assert tuner.speedup_high is not None
        held += tuner.speedup_low <= TRUE <= tuner.speedup_high
        values.append(tuner.speedup)
        assert tuner.baseline_latency_ms is not None
        assert tuner.latency_ms is not None
        assert tuner.baseline_latency_ms / tuner.latency_ms == pytest.approx(tuner.speedup), "one story"
        assert f"{tuner.speedup:.2f}x [{tuner.speedup_low:.2f}, {tuner.speedup_high:.2f}]" in tuner.summary
    assert held >= 5
    assert abs(np.mean(np.log(values)) - math.log(TRUE)) < 0.05
    assert np.std(np.log(values)) < np.std(np.log(estimates)), "an estimate rests on one reading of the float model"


def test_turns_alternate_and_end_early_without_noise() -> None:
    tuner = searched(twenty(0, noise=0.0))
    turns = compared(tuner, twenty(0, noise=0.0))
    assert turns == [0, 1, 1, 0] * 3
    assert (tuner.speedup, tuner.speedup_low, tuner.speedup_high) == pytest.approx((TRUE, TRUE, TRUE))
    assert tuner.generate() is None
    tuner.submit(1.0)  # of a loop with a fixed number of steps
    assert tuner.speedup == pytest.approx(TRUE)


def test_what_is_handed_out_is_the_float_model_and_the_incumbent() -> None:
    tuner = searched(twenty(0, noise=0.0))
    best = tuner.export_best()
    for _ in range(4):
        index = tuner.generate()
        assert tuner.export_onnx() == (best if index else tuner.export_onnx(insert_qdq=False))
        with pytest.raises(UsageError, match="submit the latency"):
            tuner.generate()
        tuner.submit(1.0)


def test_of_float_alone_there_is_nothing_to_compare() -> None:
    tuner = searched(lambda data: 10.0 + pairs(data))
    assert tuner.generate() is None
    assert (tuner.speedup, tuner.speedup_low, tuner.speedup_high) == (1.0, 1.0, 1.0)
    assert "no scheme was faster" in tuner.summary


def test_of_float_alone_there_is_one_figure() -> None:
    """The first reading was of a machine that was cold, and later turns of the float model were faster."""
    readings = itertools.count()
    tuner = searched(lambda data: (14.97 if next(readings) == 0 else 10.29) + pairs(data))
    assert not len(tuner.best_placement)
    assert tuner.latency_ms == tuner.baseline_latency_ms == pytest.approx(10.29)
    assert tuner.speedup == 1.0
    assert tuner.summary.startswith("10.29 ms")


def test_without_pairs_the_speedup_stays_an_estimate() -> None:
    tuner = searched(twenty(0), Config(schemes_per_region=6, confirmations=2, final_pairs=0))
    assert tuner.generate() is None
    assert tuner.speedup_low is None
    with pytest.raises(UsageError, match="final_pairs is 0, or 6 or more"):
        Config(final_pairs=3)


def test_a_region_after_the_comparison_makes_it_void() -> None:
    measure = twenty(0, noise=0.0)
    tuner = searched(measure)
    compared(tuner, measure)
    tuner.set_profile_region(tuner.regions[0])
    assert tuner.speedup_low is None


def test_failed_readings_are_taken_again_and_too_many_end_the_comparison() -> None:
    measure = twenty(0, noise=0.0)
    tuner = searched(measure)
    for number in range(24):
        tuner.generate()
        tuner.submit(float("inf") if number % 2 else measure(tuner.export_onnx()))
    assert tuner.generate() is None
    assert tuner.speedup_low == pytest.approx(TRUE)
    assert sum(tuner.failed_readings.values()) == 11
    broken = searched(measure)
    for _ in range(MOST_FAILED):
        assert broken.generate() is not None
        broken.submit(float("nan"), success=False, reason="the board is off")
    assert broken.generate() is None
    assert broken.speedup_low is None
    assert broken.failed_readings == {"the board is off": MOST_FAILED}


@pytest.mark.exhaustive
def test_the_workflow_compares_by_itself_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    seen = 0

    class Killed(BaseException):
        pass

    def measure(path: Path) -> float:
        nonlocal seen
        seen += 1
        if seen == kill_at:
            raise Killed
        return twenty(0, noise=0.0)(path.read_bytes())

    kill_at = 0
    whole = region_pattern_autotuning_workflow(branches(), tmp_path / "whole", measure, config=SMALL)
    assert (whole.speedup_low, whole.speedup_high) == pytest.approx((TRUE, TRUE))
    readings, seen, kill_at = seen, 0, seen - 5
    with pytest.raises(Killed):
        region_pattern_autotuning_workflow(branches(), tmp_path / "killed", measure, config=SMALL)
    again = region_pattern_autotuning_workflow(branches(), tmp_path / "killed", measure, config=SMALL)
    assert seen == readings + 1, "only the reading that was under way is lost"
    assert again.summary == whole.summary


def test_schemes_of_finished_patterns_are_there_also_after_a_resume(tmp_path: Path) -> None:
    tuner = searched(twenty(0, noise=0.0))
    found = {region.id: tuner.records_of(region) for region in tuner.regions}
    assert all(len(records) > 1 for records in found.values())
    for region in tuner.regions:
        signature = tuner.pattern_of(region).signature
        measured = [r for r in found[region.id][1:] if r.latency_ms is not None]
        assert len(measured) >= tuner.profiled_patterns[signature] > 0
        assert {r.signature for r in found[region.id]} == {signature}
    assert any(r.accepted for records in found.values() for r in records)
    tuner.save_state(tmp_path / "state.yaml")
    other = QDQAutotuner(branches())
    other.initialize(SMALL)
    other.load_state(tmp_path / "state.yaml")
    assert {region.id: other.records_of(region) for region in other.regions} == found
