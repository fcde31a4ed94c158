"""Readings of models in interleaved blocks, and how quiet the machine was in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from inlay.measure import policy


@dataclass(frozen=True, eq=False)
class Timing:
    """Readings of interleaved blocks.

    Attributes:
        ns: nanoseconds per inference, less what other processes took for certain, shape (blocks, models).
        drift: absolute log-ratio of the two passes through each block, the mean over models, shape (blocks,).
        taken: share of each reading that other processes may have taken besides, at most, shape (blocks, models).
        hit: share of each reading on the clock that they took, at most, shape (blocks, models).
        by_feed: nanoseconds per inference on each feed of a workload, shape (blocks, models, feeds); none for one.
    """

    ns: np.ndarray
    drift: np.ndarray
    taken: np.ndarray
    hit: np.ndarray
    by_feed: np.ndarray | None = None

    @classmethod
    def of(cls, blocks: Sequence[Mapping[str, Any]]) -> Timing:
        """From the fields of each :class:`~inlay.measure.blocks.Block`."""
        ns, drift, taken, hit, by_feed = (np.array([b[f.name] for b in blocks], float) for f in fields(cls))
        return cls(ns, drift, taken, hit, by_feed if by_feed.size else None)

    @property
    def own_ns(self) -> np.ndarray:
        """Nanoseconds per inference without what other processes took, shape (blocks, models)."""
        return np.asarray(self.ns * (1.0 - self.taken))

    @property
    def preempted(self) -> np.ndarray:
        """In which blocks other processes took more of a reading than may be, shape (blocks,)."""
        return np.asarray(self.hit.max(axis=1) > policy.MAX_PREEMPTED)

    @property
    def is_quiet(self) -> np.ndarray:
        """Which blocks neither drifted nor were preempted: all models of a block count, or none, shape (blocks,)."""
        return np.asarray((self.drift <= policy.MAX_DRIFT) & ~self.preempted)

    def without(self, model: int) -> Timing:
        """The same without one of the models."""
        ns, taken, hit = (np.delete(each, model, axis=1) for each in (self.ns, self.taken, self.hit))
        return Timing(ns, self.drift, taken, hit, None if self.by_feed is None else np.delete(self.by_feed, model, 1))

    def least_preempted(self, blocks: int) -> Timing:
        """So many blocks, of which other processes took the least, whatever the readings say."""
        hit = np.maximum(self.hit.max(axis=1), policy.MAX_PREEMPTED)  # what may be is no reason to choose
        kept = np.sort(np.argsort(hit, kind="stable")[:blocks])
        by_feed = None if self.by_feed is None else self.by_feed[kept]
        return Timing(self.ns[kept], self.drift[kept], self.taken[kept], self.hit[kept], by_feed)


def joined(parts: Sequence[Timing]) -> Timing:
    """The blocks of all parts, in turn."""
    ns, drift, taken, hit = (
        np.concatenate([getattr(p, name) for p in parts]) for name in ("ns", "drift", "taken", "hit")
    )
    by_feed = [p.by_feed for p in parts if p.by_feed is not None]
    return Timing(ns, drift, taken, hit, np.concatenate(by_feed) if len(by_feed) == len(parts) else None)
