"""One block of interleaved timing: every model twice, in a random order and its mirror image (A B C C B A).

The mirror image cancels a linear drift of the machine's speed within a block, and pairing models by block cancels drift
between blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from inlay.measure import policy
from inlay.targets.base import Executable, Feed


@dataclass(frozen=True)
class Block:
    """Readings of one block.

    Attributes:
        ns: nanoseconds per inference of each model, in the order given.
        drift: absolute log-ratio of the two passes through the block, the mean over all models. The baseline's own
            would select blocks in which the baseline was fast, and so bias every speedup.
        taken: share of each model's reading that other processes took.
    """

    ns: list[float]
    drift: float
    taken: list[float]


class Clocked(Executable, Protocol):
    """An executable that tells how long it waited for a processor.

    Attributes:
        preempted_ns: nanoseconds of the last call of ``time`` in which other processes ran in its place.
        warms_up: ``time`` runs the model before its first reading.
    """

    preempted_ns: float
    warms_up: bool


def slot_repeats(executable: Clocked, feed: Feed, slot_ns: int) -> int:
    """How many inferences fill a slot of ``slot_ns``, at least one; it also warms the model up."""
    if not executable.warms_up:
        executable.time(feed, 2)
    once = float(executable.time(feed, 3).min())
    least = 1 if once > policy.LONG_INFERENCE_SLOTS * slot_ns else 2
    return int(np.clip(round(slot_ns / once), least, policy.MAX_REPEATS))


def reading(ns: np.ndarray) -> float:
    """The reading of one slot: the mean of the faster half of its inferences.

    Interruptions only ever add time, so they are in the slower half. The median of two inferences is their mean, so it
    includes each interruption: with one inference in ten taking 1.5 times as long, the standard deviation of its ratios
    is three times as large at two inferences and 1.5 times at four; without interruptions it is 3 % smaller.

    Args:
        ns: nanoseconds of each inference, shape (inferences,).
    """
    return float(np.sort(ns)[: (len(ns) + 1) // 2].mean())


def preempted_share(ns: np.ndarray, preempted_ns: float) -> float:
    """Share of a slot's reading that other processes took.

    The inferences took ``sum(ns) - preempted_ns`` by themselves. As long as that mean is no less than the reading, all
    that was taken is in the slower half, which the reading leaves out.

    Args:
        ns: nanoseconds of each inference, shape (inferences,).
        preempted_ns: how long they all waited for a processor.
    """
    alone = (float(ns.sum()) - preempted_ns) / len(ns)
    return min(policy.MOST_TAKEN, max(0.0, 1.0 - alone / reading(ns))) if preempted_ns > 0.0 else 0.0


def run_block(executables: Sequence[Clocked], repeats: Sequence[int], feed: Feed, rng: np.random.Generator) -> Block:
    """Time every model twice.

    The first inference of each slot refills the caches and does not count. A model with a single repeat runs so long
    that caches do not matter, and is spared that inference.
    """
    order = rng.permutation(len(executables))
    readings: list[list[float]] = [[] for _ in executables]
    left: list[list[float]] = [[] for _ in executables]
    for i in (*order, *order[::-1]):
        if repeats[i] > 1 and not executables[i].warms_up:
            executables[i].time(feed, 1)
        found = executables[i].time(feed, repeats[i])
        readings[i].append(reading(found))
        left[i].append(1.0 - preempted_share(found, executables[i].preempted_ns))
    ns = [float(np.exp(np.mean(np.log(r)))) for r in readings]
    taken = [1.0 - float(np.exp(np.mean(np.log(each)))) for each in left]
    drift = abs(float(np.mean([np.log(first / second) for first, second in readings])))
    return Block(ns, drift, taken)
