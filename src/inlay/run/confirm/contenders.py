"""Which candidates of a search are confirmed, in which order, and which of them a second look can still decide."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from inlay.measure.paired import Series, speedup
from inlay.run.evaluate import Candidate
from inlay.run.schedule import MOST_CONTENDERS
from inlay.search.policy import CLEAR_GAIN
from inlay.targets.base import Artifact
from inlay.trial import LEVEL, Interval, Measured
from inlay.types import Placement

FALSE_ACCEPT = 0.002
"""Chance that a finalist which is no faster is delivered all the same; there are at most two besides float."""
LOOK_LEVEL = 1.0 - 2.0 * FALSE_ACCEPT / 2
"""Level of the interval at each of at most two looks: an open case is measured on, and looked at once more."""
TIE = 0.005
"""Relative difference in speed that the first round cannot resolve and no user would notice: accuracy decides."""
_HOPELESS = 0.9  # speed-up: a contender this slow in the first round is not measured in the second
_MATTERS = 1.002  # speed-up: an open case whose estimate is below is not worth a second look


Known = Callable[[Candidate], bool | None]
"""Whether a candidate kept the bound of the user's own evaluation; None where it was not evaluated."""


@dataclass(frozen=True, eq=False)
class Entry:
    """One contender in its final form."""

    candidate: Candidate  # as it was searched
    file: Artifact  # the final form
    readings: Series = field(default_factory=lambda: Series(np.empty(0)))  # in blocks with the others; none at first

    @property
    def key(self) -> str:
        """Identifies the candidate."""
        return self.candidate.key

    @property
    def is_float(self) -> bool:
        """Whether it is the normalized float model."""
        return self.candidate.placement == Placement()

    @property
    def is_anchor(self) -> bool:
        """Whether it is an anchor."""
        return self.candidate.trial.proposal.anchor


def contenders_of(
    judged: Sequence[Candidate],
    incumbent: Candidate,
    least_db: float | None,
    most: int = MOST_CONTENDERS,
) -> list[Candidate]:
    """At most ``most``: incumbent, the fastest, best anchor, float, the fastest that samples show, the most accurate.

    Where there is room for two, a slow model may have no incumbent: races of few blocks prove nothing. Float is not one
    of the two then, as long as there is something faster; the given model is measured in any case.

    Args:
        least_db: SQNR on the selection samples below which quantized models are left out; None for no limit.
    """

    def accurate(candidate: Candidate) -> bool:
        return least_db is None or _sqnr_db(candidate) >= least_db

    feasible = [c for c in judged[1:] if c.trial.feasible and accurate(c)]
    # of models with one optimized graph the first stands for all
    fastest = sorted((c for c in feasible if not _equal(c)), key=lambda c: -c.speedup)
    anchors = [c for c in fastest if c.trial.proposal.anchor]
    floats = [c for c in judged[1:] if c.placement == Placement() and c.trial.feasible and not _equal(c)]
    tied = [c for c in fastest if c.speedup >= fastest[0].speedup * (1.0 - TIE)]
    safest = sorted(tied, key=lambda c: -_sqnr_db(c))[:1]
    kept = [incumbent] if accurate(incumbent) else []
    shown = [c for c in fastest if c.placement and _is_shown(c)][:1]
    wishes = [*kept, *fastest[:1], *anchors[:1], *floats, *shown, *safest, *fastest[1 : most - 2]]
    return list({c.key: c for c in wishes if c.key != judged[0].key}.values())[:most]


def shows_its_fastest(judged: Sequence[Candidate]) -> bool:
    """Whether samples are likely to show the bound of one that is as good as the fastest."""
    gaining = [c for c in judged[1:] if c.trial.feasible and c.placement and c.speedup > 1.0]
    least = max((c.speedup for c in gaining), default=0.0) / (1.0 + CLEAR_GAIN)
    return not gaining or any(_is_shown(c) for c in gaining if c.speedup >= least)


def fastest_of(
    judged: Sequence[Candidate], least_db: float, left_out: Collection[str], known: Known | None = None
) -> Candidate | None:
    """The fastest quantized candidate that is accurate enough, and gained in the search."""
    rest = [
        c
        for c in judged[1:]
        if c.trial.feasible
        and c.placement
        and c.key not in left_out
        and c.speedup > 1.0
        and is_enough(c, least_db, known)
    ]
    return max(rest, key=lambda c: c.speedup, default=None)


def is_enough(candidate: Candidate, least_db: float, known: Known | None = None) -> bool:
    """Whether a candidate is an anchor or accurate enough to take the place of one that failed.

    Anchors need only the bound: they were not chosen among many by those samples, and quantize in other ways. Where the
    user's own evaluation decides, that says nothing: there, only those that kept its bound need no more.

    Args:
        least_db: SQNR of the worst output on the selection samples that is enough.
        known: what that evaluation says; None where there is none.
    """
    kept = (candidate.trial.proposal.anchor or None) if known is None else known(candidate)
    return _sqnr_db(candidate) >= least_db if kept is None else kept


def most_promising(entries: Sequence[Entry], promises: Mapping[str, float], tie: float = TIE) -> list[Entry]:
    """The best first: those within ``tie`` of the fastest by accuracy, then the others by speed.

    Args:
        promises: logarithm of the expected speed-up, by key.
        tie: difference of promises that counts as none.
    """
    by_speed = sorted(entries, key=lambda e: -promises[e.key])
    tied = [e for e in by_speed if promises[e.key] >= promises[by_speed[0].key] - tie]
    return [*sorted(tied, key=lambda e: -_sqnr_db(e.candidate)), *by_speed[len(tied) :]]


def gain(base: Entry, other: Entry, level: float = LEVEL) -> Interval:
    """Speed-up of ``other`` over ``base`` in the same blocks."""
    return speedup(base.readings, other.readings, level)


def promise(base: Entry, other: Entry) -> float:
    """Logarithm of the speed-up before the deciding blocks: from the fresh ones, and from the race of the search.

    A few fresh blocks alone tell gains of a few percent apart hardly better than chance. Those of the search belong to
    another process, so they count for at most twice the fresh ones.
    """
    outcome = other.candidate.trial.outcome
    if not len(base.readings):  # there was no time for a first round
        return float(np.log(other.candidate.speedup))
    fresh = gain(base, other).value
    if base.readings.exact or not isinstance(outcome, Measured):
        return float(np.log(fresh))
    weights = [len(base.readings), min(outcome.latency.blocks, 2 * len(base.readings))]
    return float(np.average(np.log([fresh, outcome.latency.speedup.value]), weights=weights))


def champion_of(base: Entry, others: Sequence[Entry]) -> Entry:
    """What is delivered: a gain over the given model, and over float, must be shown.

    Between what the search found and the best anchor the estimate decides. The former was chosen as the fastest of many
    noisy readings, so that an anchor that looks faster in these fresh ones most likely is.
    """
    champion = base
    for entry in others:
        plain = entry.is_float or entry.is_anchor
        found = gain(champion, entry, LEVEL if plain and champion is not base else LOOK_LEVEL)
        is_rival = entry.is_anchor and champion is not base and not champion.is_float
        if found.value > 1.0 if is_rival else found.shows_gain():
            champion = entry
    return champion


def is_hopeless(base: Entry, other: Entry) -> bool:
    """Whether a contender is so slow that it is not worth the deciding blocks."""
    found = gain(base, other).value if len(base.readings) else other.candidate.speedup
    return found <= _HOPELESS


def is_open(base: Series, other: Series) -> bool:
    """Whether readings leave open if the other model is faster, by an amount that matters."""
    found = speedup(base, other, LOOK_LEVEL)
    return found.low <= 1.0 < found.high and found.value >= _MATTERS


def open_cases(base: Series, others: Sequence[Series]) -> list[int]:
    """Which of the others are open, and not clearly slower than the fastest: what cannot win needs no second look."""
    leader = max(others, key=lambda model: speedup(base, model).value, default=base)
    return [
        i for i, model in enumerate(others) if is_open(base, model) and speedup(leader, model, LOOK_LEVEL).high >= 1.0
    ]


def _equal(candidate: Candidate) -> bool:
    outcome = candidate.trial.outcome
    return isinstance(outcome, Measured) and bool(outcome.equal_to)


def _is_shown(candidate: Candidate) -> bool:
    accuracy = candidate.trial.accuracy
    return accuracy is not None and accuracy.short_db == 0.0


def _sqnr_db(candidate: Candidate) -> float:
    accuracy = candidate.trial.accuracy
    assert accuracy is not None, "what failed is no contender"
    return accuracy.sqnr_db
