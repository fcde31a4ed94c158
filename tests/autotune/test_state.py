"""The transitions of a step-by-step search: pure functions between frozen states."""

from __future__ import annotations

import pytest

from inlay.autotune.duel import MOST_FAILED
from inlay.autotune.state import (
    TunerState,
    committed,
    generated,
    next_turn,
    reverted,
    start_region,
    submitted,
    with_baseline,
)
from inlay.patterns.evolve import Incumbent
from inlay.patterns.schemes import InsertionScheme
from inlay.trial import Failed, Measured, Proposal, Trial
from inlay.types import Placement, Port, QType

FLOAT = Incumbent(Placement(), frozenset(), 1.0)
CANDIDATE = Placement([(Port("n", 0), QType.UINT8)])


def pending() -> TunerState:
    """A scheme is generated for a region that was started from float, which takes 10 ms."""
    state = start_region(with_baseline(TunerState(), 10.0), "pattern", FLOAT, InsertionScheme())
    return generated(state, InsertionScheme(), Proposal(CANDIDATE, "test"))


def decided(
    state: TunerState, latency_ms: float | None, threshold: float = 1.0, turns: int = 0
) -> tuple[TunerState, Trial]:
    after, trial = submitted(state, latency_ms, threshold, turns)
    assert trial is not None
    assert after.pending is None
    return after, trial


def test_a_generated_scheme_is_what_is_measured() -> None:
    state = pending()
    assert state.pending is not None
    assert (state.pending.index, state.pending.measured) == (1, CANDIDATE)
    assert state.profile is not None
    assert [r.latency_ms for r in state.profile.records] == [10.0, None]


def test_a_faster_scheme_becomes_the_incumbent() -> None:
    before = pending()
    after, trial = decided(before, 8.0)
    assert trial.accepted
    assert isinstance(trial.outcome, Measured)
    assert trial.outcome.latency.speedup.value == pytest.approx(1.25)
    assert after.incumbent_ms == pytest.approx(8.0)
    assert after.profile is not None
    assert after.profile.incumbent_index == 1
    assert before == pending(), "the state before is untouched"
    assert committed(after).profiled == {"pattern": 1}
    assert committed(after).incumbent_ms == pytest.approx(8.0)
    assert reverted(after) == with_baseline(TunerState(), 10.0)


@pytest.mark.parametrize(("latency_ms", "threshold"), [(10.0, 1.0), (12.0, 1.0), (8.0, 1.5)])
def test_a_scheme_below_the_threshold_is_rejected(latency_ms: float, threshold: float) -> None:
    after, trial = decided(pending(), latency_ms, threshold, turns=5)
    assert not trial.accepted
    assert after.incumbent_ms == 10.0
    assert after.profile is not None
    assert after.profile.records[1].latency_ms == pytest.approx(latency_ms)


def test_a_failure_is_recorded_and_not_counted() -> None:
    after, trial = decided(pending(), None)
    assert isinstance(trial.outcome, Failed)
    assert after.profile is not None
    assert after.profile.records[1].failed
    assert committed(after).profiled == {"pattern": 0}


@pytest.mark.parametrize(("candidate_ms", "accepted"), [(8.0, True), (10.5, False)])
def test_a_promising_reading_leads_to_a_duel(candidate_ms: float, accepted: bool) -> None:
    state, trial = submitted(pending(), 5.0, 1.0, 3)
    readings = 0
    while trial is None:
        assert state.pending is not None
        assert state.pending.measured is None
        state, index = next_turn(state, FLOAT.placement)
        assert state.pending is not None
        assert state.pending.measured == (CANDIDATE if index == 1 else FLOAT.placement)
        state, trial = submitted(state, candidate_ms if index == 1 else 10.0, 1.0, 3)
        readings += 1
    assert trial.accepted is accepted
    assert readings == (6 if accepted else 4)
    assert state.variance.freedom == readings // 2 - 1
    assert state.incumbent_ms == pytest.approx(candidate_ms if accepted else 10.0)


def test_failures_in_a_row_end_a_duel_and_single_ones_do_not() -> None:
    state, _ = submitted(pending(), 5.0, 1.0, 3)
    for number in range(MOST_FAILED - 1):
        state, turn = next_turn(state, FLOAT.placement)
        state, trial = submitted(state, None, 1.0, 3, f"fault {number}")
        assert (turn, trial) == (0, None), "the same reading is asked for again"
    after, trial = decided(next_turn(state, FLOAT.placement)[0], None, turns=3)
    assert isinstance(trial.outcome, Failed)
    assert "the incumbent's readings failed in a row" in trial.outcome.message
    assert sum(after.failures.values()) == MOST_FAILED
    assert after.variance.freedom == 0
    state, trial = submitted(next_turn(state, FLOAT.placement)[0], 10.0, 1.0, 3)
    assert trial is None
    assert state.pending is not None
    assert state.pending.failures == 0, "a reading that succeeds begins a new row"


def test_a_first_reading_is_taken_again_where_the_measurement_may_be_at_fault() -> None:
    state, trial = submitted(pending(), None, 1.0, 3, "the line was cut", retry=True)
    assert trial is None
    state, index = next_turn(state, FLOAT.placement)
    assert index == 1
    assert state.pending is not None
    assert state.pending.measured == CANDIDATE
    _, trial = submitted(state, None, 1.0, 3, "the line was cut", retry=True)
    assert trial is not None
    assert isinstance(trial.outcome, Failed)
    assert trial.outcome.message == "the line was cut"


def test_finishing_without_a_region_changes_nothing() -> None:
    state = with_baseline(TunerState(), 10.0)
    assert committed(state) is state
    assert reverted(state) is state
