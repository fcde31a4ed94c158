"""What an earlier confirmation of the same run found, for one that cannot decide: more time never costs a result.

A run that goes on confirms anew, and on a busy machine its readings may leave everything open. The winner of before is
kept then, with its own figures, unless this confirmation refutes it: it excludes a gain, the model fails, or it is
outside the bound on unseen samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from inlay.measure.journal import Fact
from inlay.measure.paired import Series
from inlay.run.confirm.contenders import Entry
from inlay.run.confirm.decision import Confirmation
from inlay.run.confirm.delivered import Confirmed, best_of
from inlay.trial import Interval, shown_ratio

_UNCONFIRMED = "NOT CONFIRMED: "


@dataclass(frozen=True)
class Winner:
    """A confirmed model: its key, its speed-ups over the given and the float model, and the given model's time."""

    key: str
    speedup: Interval
    over_float: Interval
    baseline_ns: float

    def as_json(self) -> dict[str, Any]:
        """As plain data; see :meth:`from_json`."""
        known = {"speedup": list(astuple(self.speedup)), "over_float": list(astuple(self.over_float))}
        return {"key": self.key, **known, "baseline_ns": self.baseline_ns}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Winner:
        """The winner that gave ``data``."""
        speedup, over_float = (Interval(*map(float, data[key])) for key in ("speedup", "over_float"))
        return cls(str(data["key"]), speedup, over_float, float(data["baseline_ns"]))


WINNER: Fact[Winner | None] = Fact(
    "winner",
    lambda data: Winner.from_json(data) if data else None,
    lambda winner: {} if winner is None else winner.as_json(),
)
"""What was confirmed last; None where it was refuted since."""


def kept_or(confirmed: Confirmed, confirmation: Confirmation) -> Confirmed:
    """The decision, or the winner of before where this one confirms no gain and does not refute that; recorded."""
    best, journal = confirmed.best, confirmation.session.journal
    if best.confirmed and confirmed.placement and best.speedup.shows_gain():
        journal.record_fact(WINNER, Winner(confirmed.key, best.speedup, best.over_float, confirmed.baseline_ms * 1e6))
        return confirmed
    winner = journal.fact(WINNER)
    if winner is None:
        return confirmed
    if is_refuted(winner, confirmed):
        journal.record_fact(WINNER, None)
        return confirmed
    return _kept(winner, confirmed, confirmation)


def is_refuted(winner: Winner, later: Confirmed) -> bool:
    """Whether a later decision speaks against a winner: by its readings, or by its outputs on unseen samples."""
    if winner.key in later.rounds.given_up or winner.key in {r.candidate.key for r in later.rejected}:
        return True
    ratio = later.rounds.measured.get(winner.key)
    return ratio is not None and (ratio.excludes_gain() or (later.best.confirmed and not later.undecided))


def _kept(winner: Winner, later: Confirmed, confirmation: Confirmation) -> Confirmed:
    """The winner with its figures in place of a later decision; that one where the search does not know it any more."""
    candidate = next((c for c in confirmation.judged[1:] if c.key == winner.key and c.placement), None)
    if candidate is None:
        return later
    entry, verifier = Entry(candidate, confirmation.final(candidate)), confirmation.verifier()
    if not verifier.keeps(entry):
        return later
    base = replace(confirmation.original, readings=Series(np.array([winner.baseline_ns])))
    best = best_of(base, entry, winner.speedup, winner.over_float, verifier.accuracy(entry))
    unsure = [t for t in later.troubles if t.startswith(_UNCONFIRMED)]
    why = later.undecided or "; ".join(t.removeprefix(_UNCONFIRMED).partition(";")[0] for t in unsure)
    told = f"an earlier confirmation of this run is kept: {best.origin}, {shown_ratio(winner.speedup)}"
    told += f"; the latest one decided nothing: {why}" if why else ""
    rounds = replace(
        later.rounds,
        measured={**later.rounds.measured, winner.key: winner.speedup},
        finalists={**later.rounds.finalists, winner.key: entry.file},
    )
    return replace(
        later,
        best=best,
        baseline_ms=winner.baseline_ns / 1e6,
        file=entry.file.path,
        placement=candidate.placement,
        troubles=(told, *(t for t in later.troubles if t not in unsure), *verifier.troubles),
        key=winner.key,
        rounds=rounds,
        fell_back=False,
        undecided="",
        on_others=verifier.on_others(entry, confirmation.plan.before_writing),
    )
