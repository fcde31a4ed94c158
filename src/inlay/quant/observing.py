"""Observing some samples, wherever that is done: histograms of parts, added up, are those of the whole."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from inlay.data import Feed
from inlay.model.hands import Stored
from inlay.model.pieces import PiecewiseSession
from inlay.model.reference import in_batches
from inlay.quant.observers import Histogram, Range, count, widen
from inlay.quant.positions import Positions

Histograms = dict[str, Histogram]
"""By value name."""

FEEDS_BYTES = 64 << 20
"""Bytes of samples that are observed in one call: histograms travel with each."""


@dataclass(frozen=True, eq=False)
class Observing:
    """What is observed of a model.

    Attributes:
        model: the model.
        limits: of each value, by name.
        positions: what of them is padding.
    """

    model: Stored
    limits: Mapping[str, Range]
    positions: Positions

    def session(self) -> PiecewiseSession:
        """What computes the values."""
        return PiecewiseSession(self.model.proto, self.model.store, list(self.limits))

    def histograms(self) -> Histograms:
        """Of no sample."""
        return {value: Histogram(limits) for value, limits in self.limits.items()}

    def add(self, session: PiecewiseSession, feeds: Sequence[Feed], histograms: Histograms) -> Histograms:
        """``histograms`` with the values of ``feeds``, which ``session`` computes.

        Raises:
            CompileFailed, RunFailed, Crashed, TimedOut: as of :meth:`PiecewiseSession.gather`.
        """
        for part in self._parts(feeds):
            histograms = session.gather(part, self.positions.note(part[0], count), histograms)
        return histograms

    def _parts(self, feeds: Sequence[Feed]) -> Iterator[Sequence[Feed]]:
        """``feeds`` in turn, at most ``FEEDS_BYTES`` at once; alone where each may have padding of its own."""
        if self.positions.mask:
            yield from ([feed] for feed in feeds)
            return
        sizes = {str(i): sum(array.nbytes for array in feed.values()) for i, feed in enumerate(feeds)}
        for part in in_batches(list(sizes), sizes, FEEDS_BYTES):
            yield [feeds[int(i)] for i in part]

    def reach(self, session: PiecewiseSession, feed: Feed) -> Histograms:
        """How far a variation of a sample widens the reach of the values, in histograms of nothing else.

        Raises as :meth:`add` does.
        """
        return session.gather([feed], self.positions.note(feed, widen), self.histograms())


_sessions: weakref.WeakKeyDictionary[Stored, PiecewiseSession] = weakref.WeakKeyDictionary()


def observe_part(model: Stored, limits: Mapping[str, Range], positions: Positions, feeds: Sequence[Feed]) -> Histograms:
    """Histograms of some samples, for whoever helps; the session stays for the next ones of the same values.

    Raises as :meth:`Observing.add` does.
    """
    job = Observing(model, limits, positions)
    return job.add(_session(job), feeds, job.histograms())


def reach_of(model: Stored, limits: Mapping[str, Range], positions: Positions, feed: Feed) -> Histograms:
    """The same of :meth:`Observing.reach`."""
    job = Observing(model, limits, positions)
    return job.reach(_session(job), feed)


def _session(job: Observing) -> PiecewiseSession:
    session = _sessions.get(job.model)
    if session is None or session.values != [*job.limits]:
        session = _sessions[job.model] = job.session()
    return session
