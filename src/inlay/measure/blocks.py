"""One block of interleaved timing: every model twice, in a random order and its mirror image (A B C C B A).

The mirror image cancels a linear drift of the machine's speed within the block, and the pairing of models by block
cancels drift between blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inlay.targets.base import Executable, Feed

MOST_REPEATS = 2000
_LONG_SLOTS = 4  # an inference of so many slots


@dataclass(frozen=True)
class Block:
    """Readings of one block.

    Attributes:
        ns: nanoseconds per inference of each model, in the order given.
        drift: absolute log-ratio of the two passes through the block, the mean over its models. A baseline that alone
            had to be steady would be measured at its best, and every candidate at its average.
    """

    ns: list[float]
    drift: float


def slot_repeats(executable: Executable, feed: Feed, slot_ns: int) -> int:
    """How many inferences fill a slot of ``slot_ns``, at least one; warms the model up on the way."""
    executable.time(feed, 2)
    once = float(executable.time(feed, 3).min())
    least = 1 if once > _LONG_SLOTS * slot_ns else 2
    return int(np.clip(round(slot_ns / max(once, 1.0)), least, MOST_REPEATS))


def reading(ns: np.ndarray) -> float:
    """What one slot says: the mean of the faster half of its inferences.

    Interruptions only ever add time, so they are in the slower half. The median, which is the mean of both for the two
    inferences of a slow model, lets each of them through: with one inference in ten half as slow again, its ratios
    scatter three times as much at two inferences, half as much again at four, and 3 % less without interruptions.
    """
    return float(np.sort(ns)[: (len(ns) + 1) // 2].mean())


def run_block(executables: Sequence[Executable], repeats: Sequence[int], feed: Feed, rng: np.random.Generator) -> Block:
    """Time every model twice. The first inference of each slot refills the caches, and does not count.

    A model that runs so long that this is nothing to it (it gets a single repeat) is spared the extra inference.
    """
    order = rng.permutation(len(executables))
    readings: list[list[float]] = [[] for _ in executables]
    for i in (*order, *order[::-1]):
        if repeats[i] > 1:
            executables[i].time(feed, 1)
        readings[i].append(reading(executables[i].time(feed, repeats[i])))
    ns = [float(np.exp(np.mean(np.log(np.maximum(r, 1.0))))) for r in readings]
    drift = abs(float(np.mean([np.log(max(first, 1.0) / max(second, 1.0)) for first, second in readings])))
    return Block(ns, drift)
