"""What a confirmation leaves open, and what it would take to close it: that nothing is faster, readings must say."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from inlay.measure.paired import MIN_PAIRS, Series
from inlay.run.confirm.contenders import LOOK_LEVEL, Entry, gain
from inlay.run.confirm.delivered import ratio_of
from inlay.run.confirm.verification import Rejected, least_db
from inlay.run.evaluate import Candidate
from inlay.run.schedule import Effort, Schedule
from inlay.trial import Interval, Latency, Measured, shown_ratio

NOTABLE = 1.1
"""Speed-up that readings must exclude before a run may say that nothing is faster. Smaller gains cannot be excluded on
a machine that others use, and few would miss them."""
_MORE = 4  # times the blocks that left it open: the interval shrinks to half
_NAMED = 3  # models that are named for being open


def too_few(base: Entry) -> bool:
    """Whether there are no intervals at all, so that the readings of the search say more."""
    return not base.readings.exact and len(base.readings) < MIN_PAIRS


def left_open(base: Entry, finalists: Iterable[Entry]) -> dict[str, Interval]:
    """Finalists in low precision that may be notably faster than the given model without a shown gain, by origin."""
    found: dict[str, Interval] = {}
    for entry in finalists:
        if base.readings.exact or entry.is_float:
            continue
        ratio = gain(base, entry, LOOK_LEVEL)
        if ratio.low <= 1.0 and ratio.high >= NOTABLE:
            found[entry.candidate.origin] = ratio
    return found


def likely_faster(base: Entry, finalists: Sequence[Entry], champion: Entry) -> list[Entry]:
    """Finalists in low precision that are notably faster by both the search's readings and the deciding ones.

    The former show it, the latter leave it open. They are of other processes, so that both err alike by chance alone,
    which is rare: on a busy machine a few deciding blocks may leave a model open that halves the time. Empty where
    ``champion`` is in low precision: it is shown.
    """
    if champion.candidate.placement or base.readings.exact:
        return []
    least = NOTABLE * max([1.0, *(gain(base, e).value for e in finalists if e.is_float)])
    searched = _latencies([e for e in finalists if e.candidate.placement])
    shown = [e for e in finalists if e.key in searched and searched[e.key].speedup.low >= least]
    return [e for e in shown if gain(base, e).value >= least]


def contradicted(
    judged: Sequence[Candidate],
    measured: Mapping[str, Interval],
    given_up: Collection[str],
    rejected: Sequence[Rejected],
    bound_db: float | None,
    asked_db: float | None,
) -> dict[str, Interval]:
    """Models that keep the bound and may be notably faster by the only readings that there are, by origin.

    They show it, or are too few to show anything, and the model was not notably slower in them.

    Args:
        measured: speed-ups in fresh processes, by key, which say more than those of the search.
        rejected: by the unseen samples, where what is no more accurate most likely fails, too.
        bound_db: bound on the SQNR; None where a metric decides.
        asked_db: SQNR on the selection samples that an earlier look at the unseen samples asked for, or None.
    """
    known = {*given_up, *measured, *(r.candidate.key for r in rejected)}
    wanted = least_db(rejected, bound_db) if rejected else -math.inf
    least = max(math.inf if wanted is None else wanted, -math.inf if asked_db is None else asked_db)
    given = judged[0].trial.outcome
    slowest_ns = NOTABLE * given.latency.ns if isinstance(given, Measured) else math.inf
    return {
        c.origin: c.trial.outcome.latency.speedup
        for c in judged[1:]
        if isinstance(c.trial.outcome, Measured)
        and c.trial.feasible
        and c.key not in known
        and c.trial.outcome.accuracy.sqnr_db >= least
        and _may_gain(c.trial.outcome.latency, slowest_ns if c.placement else 0.0)
    }


def faster_than(found: Mapping[str, Interval], delivered: Interval) -> dict[str, Interval]:
    """Those of ``found`` that may be notably faster than what is delivered, be it float that rewrites changed."""
    least = NOTABLE * delivered.low if delivered.is_told and delivered.low > 1.0 else 0.0
    return {name: ratio for name, ratio in found.items() if not ratio.is_told or ratio.high >= least}


def _may_gain(latency: Latency, slowest_ns: float) -> bool:
    return latency.speedup.shows_gain(NOTABLE) or (not latency.speedup.is_told and latency.ns < slowest_ns)


def told(base: Entry, others: Iterable[Entry], level: float) -> dict[str, Interval]:
    """Speed-ups of models in fresh processes by key, as far as there are readings enough for intervals."""
    blocks = len(base.readings)
    found = {e.key: gain(base, e, level) for e in others if blocks and len(e.readings) == blocks}
    return {key: ratio for key, ratio in found.items() if ratio.is_told}


def by_search(
    given: Entry, contenders: Sequence[Entry], prefer: Callable[[Sequence[Entry]], Entry]
) -> tuple[Entry, Entry, Interval]:
    """What the search's readings alone say: the given model and the best contender that gains, and its speed-up.

    Args:
        prefer: which of those that gain, the best first, is delivered.

    Returns:
        Both with one reading, and the speed-up over the given model.
    """
    latency = _latencies([given, *contenders])
    proven = [e for e in contenders if e.key in latency and latency[e.key].speedup.shows_gain()]
    ranked = sorted(proven, key=lambda e: -latency[e.key].speedup.low)
    champion = prefer(ranked)
    gained = latency[champion.key].speedup
    base, champion = (replace(e, readings=Series(np.array([latency[e.key].ns]))) for e in (given, champion))
    return base, champion, gained


def over_float(gained: Interval, judged: Iterable[Candidate]) -> Interval:
    """A speed-up over the given model as one over the float model, by the search's readings of that.

    It is left open where these are too few: normalizing alone may be most of what was gained, as of old exports whose
    weights are inputs as well, for which no kernel packs them.

    Args:
        gained: over the given model; returned where nothing was gained.
    """
    floats = [c.trial for c in judged if not c.placement and c.source is None]
    known = next((t.outcome.latency.speedup for t in floats if isinstance(t.outcome, Measured)), None)
    if gained.value == 1.0:
        return gained
    if known is None or not known.is_told:
        return replace(gained, low=0.0, high=math.inf)
    return ratio_of(gained, known)


def unrefuted(contenders: Sequence[Entry], lost: Collection[str]) -> dict[str, Interval]:
    """Contenders in low precision that may be notably faster by the search's readings, by origin."""
    latency = _latencies([e for e in contenders if e.key not in lost and not e.is_float])
    found = {e.key: e.candidate.origin for e in contenders}
    return {found[key]: each.speedup for key, each in latency.items() if each.speedup.high >= NOTABLE}


def open_words(
    found: Mapping[str, Interval], plan: Schedule, effort: Effort, full: Effort, blocks: int, block_s: float
) -> str:
    """What is open, and what would close it, for people; the fastest three are named."""
    most = full.second * full.blocks
    wanted = most if blocks < most else _MORE * blocks
    if not plan.is_limited or blocks >= most:
        price = f"it takes about {wanted} blocks on a machine as busy as this one, or a quiet machine"
    else:
        price = f"give --budget {plan.longer_s((wanted - blocks) * block_s, effort, full)}s or more"
    ranked = sorted(found.items(), key=lambda each: -each[1].value)[:_NAMED]
    # how little is known of a wide one is what the sentence says anyway
    told = {name: f" ({shown_ratio(ratio).partition(' (')[0]})" if ratio.is_told else "" for name, ratio in ranked}
    listed = ", ".join(f"{name}{ratio}" for name, ratio in told.items())
    are = "is" if len(ranked) == 1 else "are"
    return f"{said_blocks(blocks, full)} leave open whether {listed} {are} faster: {price}"


def said_blocks(blocks: int, full: Effort) -> str:
    """How many blocks decided, for people, and of how many where a full confirmation has more."""
    most = full.second * full.blocks
    return f"{blocks} deciding blocks" if blocks >= most else f"{blocks} of {most} deciding blocks"


def _latencies(entries: Iterable[Entry]) -> dict[str, Latency]:
    outcomes = {e.key: e.candidate.trial.outcome for e in entries}
    return {key: found.latency for key, found in outcomes.items() if isinstance(found, Measured)}
