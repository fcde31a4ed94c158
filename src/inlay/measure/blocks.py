"""One block of interleaved timing: every model twice, in a random order and its mirror image (A B C C B A).

The mirror image cancels a linear drift of the machine's speed within a block, and pairing models by block cancels drift
between blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from inlay.measure import policy
from inlay.measure.preemption import Preempted
from inlay.targets.base import Feed


@dataclass(frozen=True)
class Block:
    """Readings of one block."""

    # nanoseconds per inference of each model, in the order given, less what other processes took for certain
    ns: list[float]
    # absolute log-ratio of the two passes through the block, the mean over all models. The baseline's own would select
    # blocks in which the baseline was fast, and so bias every speedup.
    drift: float
    taken: list[float]  # share of each model's reading that other processes may have taken besides, at most
    hit: list[float]  # share of each model's reading on the clock that they took, at most
    # nanoseconds per inference of each model on each feed, where there are several
    by_feed: list[list[float]] = field(default_factory=list)


class Clocked(Protocol):
    """What is timed, and tells how long it waited for a processor."""

    preempted: Preempted  # what other processes took of the last call of `time`
    warms_up: bool  # `time` runs the model before its first reading
    # its inferences may be timed one by one: they run in this process, and a call costs nothing besides
    one_by_one: bool

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """Nanoseconds of each of ``repeats`` inferences, shape (repeats,)."""
        ...


def slot_repeats(executable: Clocked, feed: Feed, slot_ns: int) -> int:
    """How many inferences fill a slot of ``slot_ns``, at least one; it also warms the model up.

    One that fills many slots, however cold the model is, is not repeated to know that.
    """
    if not executable.warms_up:
        if float(executable.time(feed, 1)[0]) > policy.LONG_WHEN_COLD * policy.LONG_INFERENCE_SLOTS * slot_ns:
            return 1
        executable.time(feed, 1)
    once = float(executable.time(feed, 3).min())
    least = 1 if once > policy.LONG_INFERENCE_SLOTS * slot_ns else 2
    return int(np.clip(round(slot_ns / once), least, policy.MAX_REPEATS))


def reading(ns: np.ndarray) -> float:
    """The reading of one slot: the mean of the faster half of its inferences.

    Interruptions only ever add time, so they are in the slower half. The median of two inferences is their mean, so it
    includes each interruption: with one inference in ten taking 1.5 times as long, the standard deviation of its ratios
    is three times as large at two inferences and 1.5 times at four; without interruptions it is 3 % smaller. ``ns`` are
    the nanoseconds of each inference, shape (inferences,).
    """
    return float(np.sort(ns)[: (len(ns) + 1) // 2].mean())


def slot(executable: Clocked, feed: Feed, repeats: int) -> tuple[float, float, float]:
    """The reading of one slot: on the clock, less what other processes took for certain, and at most.

    Few inferences are timed one by one, so that it is known which of them others held up. Among many it is not, but
    those are short against the turns that others take: what was held up is in the slower half, which a reading leaves
    out. As long as the mean of all, less what was taken, is no less than the reading, all that was taken is in there.
    What was taken while the system was asked is none of an inference's: it took what its own thread ran, at least.
    """
    if executable.one_by_one and repeats <= policy.ONE_BY_ONE:
        rows = [(float(executable.time(feed, 1)[0]), executable.preempted) for _ in range(repeats)]
        ns = np.array([each for each, _ in rows])
        least, most, ran = (np.array([getattr(p, bound) for _, p in rows]) for bound in ("least", "most", "ran"))
        floor = np.clip(ran, (1.0 - policy.MOST_TAKEN) * ns, ns)
        return reading(ns), reading(np.maximum(ns - least, floor)), reading(np.maximum(ns - most, floor))
    ns = executable.time(feed, repeats)
    on_clock, alone = reading(ns), max(float(ns.sum()) - executable.preempted.most, executable.preempted.ran) / len(ns)
    own = min(on_clock, max(alone, (1.0 - policy.MOST_TAKEN) * on_clock)) if executable.preempted.most else on_clock
    return on_clock, on_clock, own


def run_block(executables: Sequence[Clocked], repeats: Sequence[int], feed: Feed, rng: np.random.Generator) -> Block:
    """Time every model twice.

    The first inference of each slot refills the caches and does not count. A model with a single repeat runs so long
    that caches do not matter, and is spared that inference.
    """
    order = rng.permutation(len(executables))
    slots: list[list[tuple[float, float, float]]] = [[] for _ in executables]
    for i in (*order, *order[::-1]):
        if repeats[i] > 1 and not executables[i].warms_up:
            executables[i].time(feed, 1)
        slots[i].append(slot(executables[i], feed, repeats[i]))
    logs = np.log(slots)  # shape (models, passes, 3)
    on_clock, ns, own = np.exp(logs.mean(axis=1)).T
    drift = abs(float(np.mean(logs[:, 0, 1] - logs[:, 1, 1])))
    return Block(ns.tolist(), drift, (1.0 - own / ns).tolist(), (1.0 - own / on_clock).tolist())


def weighted(blocks: Sequence[Block], weights: Sequence[float]) -> Block:
    """One block out of one for each feed: the mean inference, where each feed has its share of them.

    ``blocks`` are of the same models, on one feed each; ``weights`` add up to one.
    """
    if len(blocks) == 1:
        return blocks[0]
    ns, taken, hit = (np.array([getattr(b, name) for b in blocks]) for name in ("ns", "taken", "hit"))
    shares = np.array(weights)[:, None]
    own = ns * (1.0 - taken)  # shape (feeds, models)
    mean, mean_own, on_clock = ((shares * each).sum(axis=0) for each in (ns, own, own / (1.0 - hit)))
    spent = (shares * ns).sum(axis=1) / mean.sum()
    drift = float(spent @ np.array([b.drift for b in blocks]))
    return Block(
        mean.tolist(), drift, (1.0 - mean_own / mean).tolist(), (1.0 - mean_own / on_clock).tolist(), ns.T.tolist()
    )
