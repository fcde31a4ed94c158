"""What a step-by-step search knows, as a frozen value, and the transitions between such values.

::

    float model ─ with_baseline ─▶ idle ─ start_region ─▶ profiling ─ generated ─▶ pending
                                    ▲                       │  ▲                     │
                                    └─ committed, reverted ─┘  └─ finished ◀─ submit ┘ (again while a duel goes on)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from inlay.autotuner.duel import Duel, PooledVariance
from inlay.regions.evolve import Incumbent
from inlay.regions.schemes import InsertionScheme
from inlay.trial import Accuracy, Failed, Interval, Latency, Measured, Outcome, Proposal, Trial
from inlay.types import Placement

_UNJUDGED = Accuracy(feasible=True, sqnr_db=math.nan, reason="accuracy is not judged in the step-by-step API")


@dataclass(frozen=True)
class SchemeRecord:
    """What is known of one scheme that was generated for a region's pattern.

    Attributes:
        index: as :meth:`QDQAutotuner.generate` returned it.
        scheme: the insertion points.
        placement: the placement that it gave when it was generated.
        latency_ms: last reading, or None.
        failed: whether it was submitted as a failure.
        accepted: whether it became the incumbent.
    """

    index: int
    scheme: InsertionScheme
    placement: Placement
    latency_ms: float | None = None
    failed: bool = False
    accepted: bool = False


@dataclass(frozen=True)
class Pending:
    """A generated scheme that waits for a latency.

    Attributes:
        index: of its record.
        proposal: its placement.
        measured: the placement whose latency is to be submitted next: the scheme's, or in a duel the incumbent's; None
            until ``generate`` says whose turn it is.
        duel: the turns against the incumbent, after a promising first reading.
    """

    index: int
    proposal: Proposal
    measured: Placement | None
    duel: Duel | None = None


@dataclass(frozen=True)
class Profile:
    """The region that is being profiled.

    Attributes:
        signature: of its pattern.
        before: the incumbent and its latency in ms when the region was started.
        records: schemes generated so far; the first is the one that the region started from.
        pending: the scheme that waits for a latency.
    """

    signature: str
    before: tuple[Incumbent, float | None]
    records: tuple[SchemeRecord, ...]
    pending: Pending | None = None

    @property
    def incumbent_index(self) -> int:
        """Index of the scheme accepted last; 0 where none was."""
        return max((r.index for r in self.records if r.accepted), default=0)


@dataclass(frozen=True)
class TunerState:
    """All that a step-by-step search knows besides what its strategy knows.

    Attributes:
        baseline_ms, incumbent_ms: latencies of the float model and of the incumbent; None before the first.
        variance: of the readings in duels.
        profiled: number of schemes measured, by signature of the finished patterns.
        profile: the region that is being profiled, or None.
    """

    baseline_ms: float | None = None
    incumbent_ms: float | None = None
    variance: PooledVariance = field(default_factory=PooledVariance)
    profiled: Mapping[str, int] = field(default_factory=dict)
    profile: Profile | None = None

    @property
    def pending(self) -> Pending | None:
        """The scheme that waits for a latency, or None."""
        return None if self.profile is None else self.profile.pending


def with_baseline(state: TunerState, latency_ms: float) -> TunerState:
    """The float model was measured: it is the first incumbent."""
    return replace(state, baseline_ms=latency_ms, incumbent_ms=latency_ms)


def start_region(state: TunerState, signature: str, incumbent: Incumbent, scheme: InsertionScheme) -> TunerState:
    """A region is started from ``incumbent``, whose scheme of its pattern is ``scheme``."""
    first = SchemeRecord(0, scheme, incumbent.placement, state.incumbent_ms)
    return replace(state, profile=Profile(signature, (incumbent, state.incumbent_ms), (first,)))


def committed(state: TunerState) -> TunerState:
    """The region is finished, and what was accepted for it stays."""
    if state.profile is None:
        return state
    count = sum(not record.failed for record in state.profile.records[1:])
    return replace(state, profiled={**state.profiled, state.profile.signature: count}, profile=None)


def reverted(state: TunerState) -> TunerState:
    """The region is finished, and the incumbent before it is back."""
    if state.profile is None:
        return state
    return replace(state, incumbent_ms=state.profile.before[1], profile=None)


def generated(state: TunerState, scheme: InsertionScheme, proposal: Proposal) -> TunerState:
    """A new scheme waits for its latency."""
    profile = _profile(state)
    record = SchemeRecord(len(profile.records), scheme, proposal.placement)
    pending = Pending(record.index, proposal, proposal.placement)
    return replace(state, profile=replace(profile, records=(*profile.records, record), pending=pending))


def next_turn(state: TunerState, incumbent: Placement) -> tuple[TunerState, int]:
    """The next reading of a duel: the state that waits for it, and the index of the scheme to be measured."""
    profile, pending = _profile(state), _pending(state)
    assert pending.duel is not None, "there is no duel"
    mine = pending.duel.candidate_next
    waiting = replace(pending, measured=pending.proposal.placement if mine else incumbent)
    return _waiting(state, waiting), pending.index if mine else profile.incumbent_index


def submitted(
    state: TunerState, latency_ms: float | None, threshold: float, turns: int
) -> tuple[TunerState, Trial | None]:
    """A latency arrived for the pending scheme or for the incumbent in its duel.

    Args:
        state: with a pending scheme.
        latency_ms: None where the model failed.
        threshold: speedup over the incumbent that a scheme needs to be accepted.
        turns: of a duel after a promising first reading; 0 accepts that reading.

    Returns:
        The next state, and the scheme's trial where it is decided; None where a duel goes on.
    """
    pending = _pending(state)
    assert state.incumbent_ms is not None, "the float model was not measured"
    if latency_ms is None:
        return _finished(state, Failed("run", "submitted as a failure"), None, False)
    if pending.duel is None:
        ratio = state.incumbent_ms / latency_ms
        promising = ratio > 1 and ratio >= threshold
        if promising and turns:
            return _waiting(state, replace(pending, measured=None, duel=Duel(turns))), None
        return _finished(state, _measured(state, latency_ms), ratio, promising)
    duel = pending.duel.with_reading(latency_ms)
    if not duel.finished(threshold):
        return _waiting(state, replace(pending, measured=None, duel=duel)), None
    variance = state.variance.including(duel.ratios)
    outcome = _measured(state, state.incumbent_ms / duel.speedup)
    return _finished(replace(state, variance=variance), outcome, duel.speedup, duel.accepts(threshold, variance))


def _finished(state: TunerState, outcome: Outcome, ratio: float | None, accepted: bool) -> tuple[TunerState, Trial]:
    profile, pending = _profile(state), _pending(state)
    latency_ms = outcome.latency.ns / 1e6 if isinstance(outcome, Measured) else None
    failed = isinstance(outcome, Failed)
    records = list(profile.records)
    records[pending.index] = replace(records[pending.index], latency_ms=latency_ms, failed=failed, accepted=accepted)
    versus = None if ratio is None else Interval(ratio, ratio, ratio)
    after = replace(
        state,
        incumbent_ms=latency_ms if accepted else state.incumbent_ms,
        profile=replace(profile, records=tuple(records), pending=None),
    )
    return after, Trial(pending.proposal, outcome, accepted, versus)


def _measured(state: TunerState, latency_ms: float) -> Measured:
    assert state.baseline_ms is not None, "the float model was not measured"
    speedup = state.baseline_ms / latency_ms
    return Measured(Latency(latency_ms * 1e6, Interval(speedup, speedup, speedup), 1), _UNJUDGED)


def _waiting(state: TunerState, pending: Pending) -> TunerState:
    return replace(state, profile=replace(_profile(state), pending=pending))


def _profile(state: TunerState) -> Profile:
    assert state.profile is not None, "no region is being profiled"
    return state.profile


def _pending(state: TunerState) -> Pending:
    assert state.pending is not None, "no scheme waits for a latency"
    return state.pending
