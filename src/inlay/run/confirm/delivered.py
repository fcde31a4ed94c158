"""What is delivered, as a value: its figures, what the file holds, and whether a later search found better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from inlay.calibrate.policy import STRESS_ALLOWANCE_DB
from inlay.data import Workload
from inlay.measure.paired import speedup
from inlay.model.load import file_sha256
from inlay.model.store import model_bytes
from inlay.run.confirm.contenders import Entry
from inlay.run.confirm.evidence import LEAST_STURDY, STURDY_PRICE, Evidence, is_worth
from inlay.run.confirm.verification import OnOthers, Rejected, Verifier, least_db
from inlay.run.outputs import install
from inlay.run.result import Best, ShapeFigures
from inlay.run.schedule import Effort
from inlay.targets.base import Artifact
from inlay.trial import Accuracy, Interval, Measured, shown_ratio
from inlay.types import Placement

WAS_BUSY = (
    "the machine was busy: other processes ran during many readings; the time that they certainly took is subtracted "
    "and the intervals cover what they may have taken, but not their effect on caches and clock rates: measure again "
    "on a quiet machine"
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Rounds:
    """What was found out of contenders in fresh processes."""

    effort: Effort  # how thoroughly they were measured
    # speed-ups by key, where readings were enough for intervals
    measured: Mapping[str, Interval] = field(default_factory=dict)
    given_up: frozenset[str] = frozenset()  # keys of those that failed
    finalists: Mapping[str, Artifact] = field(default_factory=dict)  # what was measured last, by key, in its final form
    anchor_speedup: float = 1.0  # of the best anchor among these, at least the given model's own


@dataclass(frozen=True, eq=False, kw_only=True)
class Confirmed:
    """The decision."""

    best: Best  # what is delivered
    baseline_ms: float  # median of the given model in the same blocks
    file: Path  # the delivered model, still in the scratch folder (or the given file)
    placement: Placement | None  # what it quantizes; None for a given file with Q/DQ of its own
    key: str = ""  # of the delivered model
    on_others: OnOthers = field(default_factory=OnOthers)  # what it does on samples that the search did not go by
    rounds: Rounds  # what decided
    rejected: tuple[Rejected, ...]  # contenders that were faster but are outside the bound on unseen samples
    troubles: tuple[str, ...] = ()  # what failed on the way, for people
    fell_back: bool = False  # what is delivered was no contender: all of those failed on unseen samples
    # which models may be faster than the one that is delivered, and what it would take to know; empty where the
    # readings say
    undecided: str = ""

    def least_db(self, bound_db: float | None) -> float | None:
        """SQNR on the selection samples that another search must ask for; None where none is needed or would help."""
        if self.best.is_float or self.fell_back:
            return least_db(self.rejected, bound_db)
        if self.is_unproven and self.best.speedup.value > LEAST_STURDY:
            assert self.on_others.evidence is not None, "it is unproven by that"
            more_db = max(self.on_others.lacks_db, self.on_others.evidence.lacks_db)
            return self.best.selection.sqnr_db + more_db if more_db > 0.0 else None
        return self.best.selection.sqnr_db + self.on_others.lacks_db if self.could_be_sturdier else None

    @property
    def is_unproven(self) -> bool:
        """Whether the samples do not show its bound on new ones."""
        found = self.on_others.evidence
        return found is not None and not found.shows

    def may_replace(self, other: Confirmed) -> bool:
        """Whether it gains enough to take the place of another one that is less sure."""
        return self.best.speedup.shows_gain() and is_worth(self.best.speedup.value, other.best.speedup.value)

    @property
    def _below_usual_db(self) -> float:
        found = self.on_others.evidence
        return 0.0 if found is None else found.below_usual_db

    @property
    def could_be_sturdier(self) -> bool:
        """Whether it loses too much on variations, and something slower would still gain, and beat every anchor."""
        return self.on_others.lacks_db > 0.0 and max(self.rounds.anchor_speedup, LEAST_STURDY) < self.best.speedup.value

    def or_better(self, later: Confirmed) -> Confirmed:
        """A later decision in place of this one, where this one is float, or the later model is proven and faster.

        A later search asks for more accuracy, and may find something slower than what is in hand. That is taken only
        where the samples show its bound alone, where it alone is as accurate as is usual and nothing is shown of
        either (in both cases as far as :func:`~inlay.run.confirm.evidence.is_worth`), or where it alone is sturdy,
        hardly slower, and no slower than the best anchor.
        """
        if self.best.is_float:
            return later
        if later.best.is_float or not later.best.confirmed:
            return self
        shown = not self.is_unproven, not later.is_unproven
        usual = not self._below_usual_db, not later._below_usual_db
        for mine, its in (shown, usual):
            if mine != its:
                surer, other = (self, later) if mine else (later, self)
                return surer.in_place_of(other) if surer is self or surer.may_replace(other) else self
        least = self.best.speedup.value
        if later.on_others.lacks_db == 0.0 and self.could_be_sturdier:
            least = max(self.rounds.anchor_speedup, least_of_sturdy(least))
        if later.best.speedup.value <= least:
            return self
        if self.on_others.lacks_db == 0.0 or self.best.speedup.value <= later.best.speedup.value:
            return later
        passed_over = f"{self.best.origin} had {shown_ratio(self.best.speedup)}, but {lacking(self.on_others.lacks_db)}"
        return replace(later, troubles=(*later.troubles, passed_over))

    def in_place_of(self, other: Confirmed) -> Confirmed:
        """This one, with what a faster one whose bound is not shown would have gained."""
        faster, found = other.best, other.on_others.evidence
        if found is None or faster.is_float or faster.speedup.value <= self.best.speedup.value:
            return self
        return replace(self, troubles=(*self.troubles, unshown(faster.origin, shown_ratio(faster.speedup), found)))

    def install(self, path: Path) -> None:
        """Copy the measured bytes to ``path`` atomically, external data beside it."""
        install(self.file, path)


def ratio_of(gained: Interval, reference: Interval) -> Interval:
    """One speed-up over another of the same model, with all that both intervals leave open.

    Few readings leave everything open: an interval from 0 to infinity.
    """
    high = gained.high / reference.low if reference.low > 0.0 else math.inf
    return Interval(gained.value / reference.value, gained.low / reference.high, high)


def latency_ms(baseline_ns: float, gained: Interval) -> float:
    """Milliseconds of a model that is so much faster than one of ``baseline_ns``.

    Medians of two models have another ratio than their readings have in pairs, and readings of different moments may
    say the opposite: a latency that stands beside a speed-up follows from it.
    """
    return baseline_ns / gained.value / 1e6


def by_shape(base: Entry, champion: Entry, workload: Workload) -> tuple[ShapeFigures, ...]:
    """The figures of what is delivered on each feed of a workload; none where there is one, or no readings of each."""
    before, after = base.readings.on_each_feed(), champion.readings.on_each_feed()
    if not (before and after):
        return ()
    figures = [(was.median_ns / 1e6, speedup(was, now).value) for was, now in zip(before, after, strict=True)]
    return tuple(
        ShapeFigures({n: list(s) for n, s in shapes}, weight, was, was / ratio, ratio)
        for shapes, weight, (was, ratio) in zip(workload.shapes, workload.weights, figures, strict=True)
    )


def best_of(
    base: Entry,
    champion: Entry,
    over_given: Interval,
    over_float: Interval,
    verified: Accuracy | None,
    shapes: tuple[ShapeFigures, ...] = (),
) -> Best:
    """What is delivered, with its speed-ups, its accuracy on unseen samples, and its figures by shape."""
    outcome = champion.candidate.trial.outcome
    assert isinstance(outcome, Measured)
    proto = onnx.load(str(champion.file.path), load_external_data=False)
    types = [n.op_type for n in proto.graph.node]
    return Best(
        origin=champion.candidate.origin,
        placement_digest=champion.candidate.trial.proposal.placement.digest,
        latency_ms=latency_ms(base.readings.median_ns, over_given),
        speedup=over_given,
        over_float=over_float,
        selection=outcome.accuracy,
        verification=verified,
        qdq_pairs=types.count("QuantizeLinear"),
        is_float=not champion.candidate.placement and not {"QuantizeLinear", "DequantizeLinear"} & set(types),
        output_sha256=file_sha256(champion.file.path),
        size_bytes=model_bytes(champion.file.path),
        shapes=shapes,
    )


def unshown(origin: str, gain: str, found: Evidence) -> str:
    """That a faster model was passed over, for people."""
    lacks = "it is below the bound" if found.breaks else "its bound is not shown"
    return f"{origin} was faster ({gain}), but {lacks}: {found} (inlay select can still write it)"


def passed_over(champion: Entry, contenders: Sequence[Entry], verifier: Verifier) -> list[str]:
    """That the fastest contender was passed over as the samples do not show its bound; empty where none was."""
    gained = champion.candidate.speedup if champion.candidate.placement else 1.0
    known = [(e, verifier.weighed(e)) for e in contenders if e is not champion and e.candidate.speedup > gained]
    passed = [(e, f) for e, f in known if f and not f.shows and not f.breaks and e.candidate.shown_speedup]
    if not passed or (verifier.weighed(champion) or passed[0][1]).rank < passed[0][1].rank:
        return []
    fastest, found = max(passed, key=lambda pair: pair[0].candidate.speedup)
    return [unshown(fastest.candidate.origin, f"{fastest.candidate.shown_speedup} in the search", found)]


def least_of_sturdy(speedup: float) -> float:
    """Speed-up that a sturdy model needs to be preferred to one with this."""
    return max(speedup * (1.0 - STURDY_PRICE), LEAST_STURDY)


def lacking(db: float) -> str:
    """What a model lacks on variations of the samples, for people."""
    return (
        f"on varied samples it falls {STRESS_ALLOWANCE_DB + db:.1f} dB short of the bound (--augment none allows that)"
    )
