"""What a step-by-step search knows, as a frozen value, and the transitions between such values.

::

    float model ─ with_baseline ─▶ idle ─ start_region ─▶ profiling ─ generated ─▶ pending
                                    ▲                       │  ▲                     │
                                    └─ committed, reverted ─┘  └─ finished ◀─ submit ┘ (again while a duel goes on)

A region may be left while a duel goes on: it is *carried* to the next one, and decided there. After the last region,
the float model and the incumbent are compared once more (:mod:`inlay.autotune.duel`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from inlay.autotune.duel import MOST_FAILED, Duel, FinalComparison
from inlay.measure.paired import PooledVariance
from inlay.patterns.evolve import Incumbent
from inlay.patterns.schemes import InsertionScheme
from inlay.trial import Accuracy, Failed, Infeasible, Interval, Latency, Measured, Outcome, Proposal, Trial
from inlay.types import Placement

ATTEMPTS = 2  # how often a scheme without a reading is handed out where its failures may be those of the measurement
_REASONS = 50  # reasons of failed readings that are counted one by one

_UNJUDGED = Accuracy(feasible=True, sqnr_db=math.nan)  # what is outside the bound is never measured


@dataclass(frozen=True, kw_only=True)
class SchemeRecord:
    """What is known of one scheme that was generated for a region's pattern."""

    index: int  # as `QDQAutotuner.generate` returned it
    scheme: InsertionScheme  # the insertion points
    placement: Placement  # the placement that it gave when it was generated
    latency_ms: float | None = None  # its reading, of several the geometric mean; or None
    failed: bool = False  # whether it could not be measured
    accepted: bool = False  # whether it became the incumbent
    reason: str = ""  # why it failed or may not be delivered; empty otherwise
    # of its pattern; another one than the region's for a scheme that was carried from the region before
    signature: str = ""


@dataclass(frozen=True)
class Pending:
    """A generated scheme that waits for a latency."""

    index: int  # of its record
    proposal: Proposal  # its placement
    # the placement whose latency is to be submitted next: the scheme's, or in a duel the incumbent's; None until
    # `generate` says whose turn it is
    measured: Placement | None
    duel: Duel | None = None  # the turns against the incumbent, after a promising first reading
    failures: int = 0  # failed readings in a row


@dataclass(frozen=True)
class Profile:
    """The region that is being profiled."""

    signature: str  # of its pattern
    before: tuple[Incumbent, float | None]  # the incumbent and its latency in ms when the region was started
    records: tuple[SchemeRecord, ...]  # schemes generated so far; the first is the one that the region started from
    pending: Pending | None = None  # the scheme that waits for a latency

    @property
    def incumbent_index(self) -> int:
        """Index of the scheme accepted last; 0 where none was."""
        return max((r.index for r in self.records if r.accepted), default=0)


@dataclass(frozen=True)
class TunerState:
    """All that a step-by-step search knows besides what its strategy knows."""

    # baseline_ms, incumbent_ms: latencies of the float model and of the incumbent, as read last in turns with another;
    # None before the first
    baseline_ms: float | None = None
    incumbent_ms: float | None = None
    variance: PooledVariance = field(default_factory=PooledVariance)  # of the readings in duels
    # number of schemes measured, by signature of the finished patterns
    profiled: Mapping[str, int] = field(default_factory=dict)
    profile: Profile | None = None  # the region that is being profiled, or None
    # a promising scheme of the region before whose duel is not over, with its record; or None
    carried: tuple[SchemeRecord, Pending] | None = None
    # schemes of the finished patterns, by signature; their placements follow from the schemes
    finished: Mapping[str, tuple[SchemeRecord, ...]] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)  # number of failed readings, by reason
    final: FinalComparison | None = None  # the comparison after the last region, or None

    @property
    def pending(self) -> Pending | None:
        """The scheme that waits for a latency, or None."""
        return None if self.profile is None else self.profile.pending


def with_baseline(state: TunerState, latency_ms: float) -> TunerState:
    """The float model was measured: it is the first incumbent."""
    return replace(state, baseline_ms=latency_ms, incumbent_ms=latency_ms)


def start_region(state: TunerState, signature: str, incumbent: Incumbent, scheme: InsertionScheme) -> TunerState:
    """A region is started from ``incumbent``, whose scheme of its pattern is ``scheme``.

    What was carried from the region before comes first: it has index 1.
    """
    records = [
        SchemeRecord(
            index=0, scheme=scheme, placement=incumbent.placement, latency_ms=state.incumbent_ms, signature=signature
        )
    ]
    pending = None
    if state.carried is not None:
        record, pending = state.carried
        records.append(replace(record, index=1))
        pending = replace(pending, index=1)
    profile = Profile(signature, (incumbent, state.incumbent_ms), tuple(records), pending)
    return replace(state, profile=profile, carried=None, final=None)


def committed(state: TunerState) -> TunerState:
    """The region is finished, and what was accepted for it stays. A duel that is not over is carried."""
    profile = state.profile
    if profile is None:
        return state
    carried = None if profile.pending is None else (profile.records[profile.pending.index], profile.pending)
    own = [r for r in profile.records[1:] if r.signature == profile.signature]
    measured = sum(r.latency_ms is not None or (carried is not None and r is carried[0]) for r in own)
    profiled = {**state.profiled, profile.signature: measured}
    finished = _with_records(state.finished, profile.records)
    return replace(state, profiled=profiled, profile=None, carried=carried, finished=finished)


def _with_records(
    finished: Mapping[str, tuple[SchemeRecord, ...]], records: Iterable[SchemeRecord]
) -> Mapping[str, tuple[SchemeRecord, ...]]:
    """``finished`` with ``records``, each of which replaces what was known of its scheme."""
    found = {signature: {each.scheme: each for each in known} for signature, known in finished.items()}
    for record in records:
        found.setdefault(record.signature, {})[record.scheme] = record
    return {signature: tuple(each.values()) for signature, each in found.items()}


def settled(state: TunerState, threshold: float) -> tuple[TunerState, Trial | None]:
    """No further region follows: a duel that was carried is decided by the turns that there were.

    Returns:
        The next state, and the scheme's trial; None where nothing was carried.
    """
    if state.carried is None:
        return state, None
    record, pending = state.carried
    duel = pending.duel
    assert duel is not None, "only duels are carried"
    accepted, latency_ms, incumbent_ms = False, duel.first_ms, _incumbent_ms(state)
    if duel.ratios:
        state = replace(state, variance=state.variance.including(duel.ratios))
        accepted = duel.accepts(threshold, state.variance)
        incumbent_ms, latency_ms = duel.latencies_ms
    ratio = incumbent_ms / latency_ms
    finished = _with_records(state.finished, [replace(record, latency_ms=latency_ms, accepted=accepted)])
    incumbent_ms = latency_ms if accepted else incumbent_ms
    after = replace(state, carried=None, incumbent_ms=incumbent_ms, finished=finished)
    return after, Trial(pending.proposal, _measured(state, latency_ms), accepted, Interval.exactly(ratio))


def reverted(state: TunerState) -> TunerState:
    """The region is finished, and the incumbent before it is back; a duel that is not over is forgotten."""
    if state.profile is None:
        return state
    return replace(state, incumbent_ms=state.profile.before[1], profile=None)


def generated(state: TunerState, scheme: InsertionScheme, proposal: Proposal) -> TunerState:
    """A new scheme waits for its latency."""
    profile = _profile(state)
    record = SchemeRecord(
        index=len(profile.records), scheme=scheme, placement=proposal.placement, signature=profile.signature
    )
    pending = Pending(record.index, proposal, proposal.placement)
    return replace(state, profile=replace(profile, records=(*profile.records, record), pending=pending))


def next_turn(state: TunerState, incumbent: Placement) -> tuple[TunerState, int]:
    """The next reading of a scheme that needs more: the state that waits for it, and the index of what to measure."""
    profile, pending = _profile(state), _pending(state)
    mine = pending.duel is None or pending.duel.candidate_next
    waiting = replace(pending, measured=pending.proposal.placement if mine else incumbent)
    return _waiting(state, waiting), pending.index if mine else profile.incumbent_index


def submitted(
    state: TunerState, latency_ms: float | None, threshold: float, turns: int, reason: str = "", retry: bool = False
) -> tuple[TunerState, Trial | None]:
    """A latency arrived for the pending scheme or for the incumbent in its duel.

    Args:
        latency_ms: None where the model failed.
        threshold: speedup over the incumbent that a scheme needs to be accepted.
        turns: of a duel after a promising first reading; 0 accepts that reading.
        retry: whether a failure may be the measurement's; in a duel it always may, since the models ran before.

    Returns:
        The next state, and the scheme's trial where it is decided; None where a duel goes on.
    """
    pending = _pending(state)
    if latency_ms is None:
        return _failed_reading(state, reason, retry)
    pending = replace(pending, failures=0)
    if pending.duel is None:
        ratio = _incumbent_ms(state) / latency_ms
        promising = ratio > 1 and ratio >= threshold
        if promising and turns:
            return _waiting(state, replace(pending, measured=None, duel=Duel(turns, latency_ms))), None
        return _finished(state, _measured(state, latency_ms), ratio, promising)
    duel = pending.duel.with_reading(latency_ms)
    if not duel.finished(threshold, state.variance):
        return _waiting(state, replace(pending, measured=None, duel=duel)), None
    variance = state.variance.including(duel.ratios)
    incumbent_ms, latency_ms = duel.latencies_ms
    state = replace(state, variance=variance, incumbent_ms=incumbent_ms)
    return _finished(state, _measured(state, latency_ms), duel.speedup, duel.accepts(threshold, variance))


def _failed_reading(state: TunerState, reason: str, retry: bool) -> tuple[TunerState, Trial | None]:
    """A reading failed: it is taken again, unless the scheme never ran, or too many in a row failed."""
    pending, state = _pending(state), counted(state, reason)
    failures = pending.failures + 1
    if failures < (MOST_FAILED if pending.duel is not None else ATTEMPTS if retry else 1):
        return _waiting(state, replace(pending, measured=None, failures=failures)), None
    if pending.duel is not None:
        whose = "its" if pending.duel.candidate_next else "the incumbent's"
        reason = f"{failures} of {whose} readings failed in a row, in its turns against the incumbent: {reason}"
    return _finished(state, Failed("run", reason), None, False)


def counted(state: TunerState, reason: str) -> TunerState:
    """The state with one more failed reading."""
    if reason not in state.failures and len(state.failures) >= _REASONS:  # each may tell of a file of its own
        reason = "other reasons"
    return replace(state, failures={**state.failures, reason: state.failures.get(reason, 0) + 1})


def compared(state: TunerState, pairs: int) -> TunerState:
    """After the last region: the state that waits for the next reading of the final comparison, or has it finished."""
    final = state.final or FinalComparison(Duel(pairs))
    return replace(state, final=replace(final, waiting=not final.finished))


def compared_with(state: TunerState, latency_ms: float | None, reason: str) -> TunerState:
    """A latency arrived in the final comparison; None with a reason where the reading failed."""
    assert state.final is not None, "there is no final comparison"
    final = state.final.with_reading(latency_ms)
    return replace(counted(state, reason) if latency_ms is None else state, final=final)


def refused(state: TunerState, accuracy: Accuracy) -> tuple[TunerState, Trial]:
    """The pending scheme is outside the accuracy bound: it is not measured."""
    return _finished(state, Infeasible(accuracy), None, False)


def _finished(state: TunerState, outcome: Outcome, ratio: float | None, accepted: bool) -> tuple[TunerState, Trial]:
    profile, pending = _profile(state), _pending(state)
    latency_ms = outcome.latency.ns / 1e6 if isinstance(outcome, Measured) else None
    records, record = list(profile.records), profile.records[pending.index]
    records[pending.index] = replace(
        record, latency_ms=latency_ms, failed=isinstance(outcome, Failed), accepted=accepted, reason=_reason(outcome)
    )
    versus = None if ratio is None else Interval.exactly(ratio)
    after = replace(
        state,
        incumbent_ms=latency_ms if accepted else state.incumbent_ms,
        profile=replace(profile, records=tuple(records), pending=None),
    )
    return after, Trial(pending.proposal, outcome, accepted, versus)


def _reason(outcome: Outcome) -> str:
    if isinstance(outcome, Failed):
        return outcome.message
    return outcome.accuracy.reason if isinstance(outcome, Infeasible) else ""


def _measured(state: TunerState, latency_ms: float) -> Measured:
    assert state.baseline_ms is not None, "the float model was not measured"
    speedup = state.baseline_ms / latency_ms
    return Measured(Latency(latency_ms * 1e6, Interval.exactly(speedup), 1), _UNJUDGED)


def _incumbent_ms(state: TunerState) -> float:
    assert state.incumbent_ms is not None, "the float model was not measured"
    return state.incumbent_ms


def _waiting(state: TunerState, pending: Pending) -> TunerState:
    return replace(state, profile=replace(_profile(state), pending=pending))


def _profile(state: TunerState) -> Profile:
    assert state.profile is not None, "no region is being profiled"
    return state.profile


def _pending(state: TunerState) -> Pending:
    assert state.pending is not None, "no scheme waits for a latency"
    return state.pending
