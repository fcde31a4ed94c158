"""From a running search to its saved state, and back."""

from __future__ import annotations

from dataclasses import replace

from inlay.autotuner.state import Pending, Profile, SavedRecord, SchemeRecord, TunerState
from inlay.autotuner.state_file import SavedProfile, SavedState
from inlay.errors import UsageError
from inlay.patterns.evolve import Evolve
from inlay.types import Placement


def saved(sha256: str, state: TunerState, core: Evolve) -> SavedState:
    """All that ``state`` and ``core`` know, of the model with that digest."""
    return SavedState(
        model_sha256=sha256,
        baseline_ms=state.baseline_ms,
        incumbent_ms=state.incumbent_ms,
        profiled=state.profiled,
        placement=core.incumbent,
        cache=core.learned(),
        variance=state.variance,
        searches={signature: search.to_data() for signature, search in core.searches.items()},
        proposed=tuple(core.proposed),
        profile=_saved_profile(state),
        finished=state.finished,
        failures=state.failures,
        final=state.final,
    )


def resumed(state: SavedState, core: Evolve) -> TunerState:
    """The state of a search that goes on; ``core`` is a new one, and takes over what was tried.

    Raises:
        UsageError: the parts of the file contradict each other.
    """
    speedup = None
    if state.baseline_ms is not None and state.incumbent_ms is not None:
        speedup = state.baseline_ms / state.incumbent_ms
    core.best = core.incumbent_of(state.placement, speedup)
    try:
        core.restore(state.searches, state.proposed)
        profile, carried = _profile(state.profile, core) if state.profile is not None else (None, None)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UsageError(f"the saved state is damaged: {type(error).__name__}: {error}") from error
    known = (state.baseline_ms, state.incumbent_ms, state.variance, state.profiled)
    return TunerState(*known, profile, carried, state.finished, state.failures, state.final)


def _saved_profile(state: TunerState) -> SavedProfile | None:
    if state.carried is not None:
        record, pending = state.carried
        return SavedProfile("", (Placement(), None, None), (SavedRecord.of(record),), 0, pending.duel, record.placement)
    if state.profile is None:
        return None
    incumbent, latency_ms = state.profile.before
    waiting = state.profile.pending
    return SavedProfile(
        state.profile.signature,
        (incumbent.placement, incumbent.speedup, latency_ms),
        tuple(map(SavedRecord.of, state.profile.records)),
        None if waiting is None else waiting.index,
        None if waiting is None else waiting.duel,
        None if waiting is None else waiting.proposal.placement,
    )


def _profile(given: SavedProfile, core: Evolve) -> tuple[Profile | None, tuple[SchemeRecord, Pending] | None]:
    """The region at hand, or the scheme that is carried."""
    placement, speedup, latency_ms = given.before
    records = []
    for index, held in enumerate(given.records):
        pattern = core.space.patterns[held.signature]
        search = core.search_of(pattern)
        first = index == 0 and bool(given.signature)
        found = placement if first else core.again(search, held.scheme).placement
        records.append(held.with_placement(index, found))
    pending = None
    if given.pending is not None:
        record = records[given.pending]
        search = core.searches[record.signature]
        if given.duel is None:  # it was generated, but never measured
            core.withdraw(search, record.scheme, given.placement or record.placement)
            del records[given.pending :]
        else:
            candidate = core.again(search, record.scheme, given.placement)
            records[given.pending] = record = replace(record, placement=candidate.placement)
            proposal = core.propose(candidate, f"step by step: {record.signature[:8]}, again")
            pending = Pending(record.index, proposal, None, given.duel)
    if not given.signature:
        return None, None if pending is None else (records[0], pending)
    return Profile(given.signature, (core.incumbent_of(placement, speedup), latency_ms), tuple(records), pending), None
