"""Observing some samples, wherever that is done: histograms of parts, added up, are those of the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import onnx

from inlay.data import Feed
from inlay.model.pieces import PiecewiseSession
from inlay.model.reference import in_batches
from inlay.model.store import WeightStore
from inlay.quant.observers import Histogram, Range, count
from inlay.quant.positions import Positions

Histograms = dict[str, Histogram]
"""By value name."""

FEEDS_BYTES = 64 << 20
"""Bytes of samples that are observed in one call: histograms travel with each."""


@dataclass(frozen=True, eq=False)
class Observing:
    """What is observed of a model.

    Attributes:
        proto: the model; its weights may be in ``store``.
        store: where external weights are read from.
        limits: of each value, by name.
        positions: what of them is padding.
    """

    proto: onnx.ModelProto
    store: WeightStore
    limits: Mapping[str, Range]
    positions: Positions

    def session(self, threads: int | None = None) -> PiecewiseSession:
        """What computes the values, in as many ``threads``."""
        return PiecewiseSession(self.proto, self.store, list(self.limits), threads=threads)

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


class HelperLost(Exception):
    """Whoever observed some samples is gone, or does not answer: they are to be observed again."""


class Helpers(Protocol):
    """Processes elsewhere that observe samples.

    Attributes:
        width: how many samples they observe at a time.
    """

    width: int

    def observe(self, feeds: Sequence[Feed]) -> Future[Histograms]:
        """Histograms of these, some time.

        The future raises :class:`HelperLost`, or what observing them here would raise.
        """
        ...


Recruit = Callable[[Observing], AbstractContextManager[Helpers | None]]
"""Finds helpers, as many as are free, and lets them go at the end; None where there are none."""
