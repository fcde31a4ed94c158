"""Race a candidate against the incumbent, with the baseline in every block.

Few blocks first; a candidate is dropped as soon as its interval excludes a gain over the incumbent, or as more blocks
would most likely not show one either, and gets twice the blocks as long as the matter is open and the time that one
race may take is not spent. Each of the (at most) three looks spends a third of the error that the decision is allowed,
as the readings decide when to stop. Blocks in which the machine's speed drifted are thrown away and measured again
after a pause.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import norm

from inlay.measure.client import Worker
from inlay.measure.journal import Journal
from inlay.measure.stats import LEVEL, speedup
from inlay.targets.base import Artifact
from inlay.trial import Interval

REPORTED = 0.96
"""Level of the interval that a race reports as one of 95 %: stopping when the readings look decided costs about one
percent of coverage. Over simulated races of every length it covers the truth in 94 to 97 % of cases; the level of the
single looks, which decides, would cover it in up to 99 %."""

DRIFT = 0.02
"""Log-ratio of the two passes through a block beyond which it is discarded."""

_LOST_FIRST, _LOST = 0.93, 0.97  # estimates of a first and a later look below which the matter is not pursued
_HOPE = 0.2  # chance that all blocks together show a gain, below which they are not measured


@dataclass(frozen=True)
class Protocol:
    """How to measure.

    Attributes:
        first_blocks: blocks of a race before the first decision.
        most_blocks: blocks after which a race ends undecided.
        slot_ns: nanoseconds that one reading should take at least.
        least_gain: ratio by which a candidate must be faster than the incumbent (its lower bound) to replace it.
        worth: ratio; once the upper bound is below it, the rest of the blocks are spared.
        discards: share of blocks that may be discarded for drift before all are kept: a machine that never is quiet.
        race_s: seconds after which a race asks for no further look.
    """

    first_blocks: int = 7
    most_blocks: int = 28
    slot_ns: int = 4_000_000
    least_gain: float = 1.0
    worth: float = 1.005
    discards: float = 0.5
    race_s: float = math.inf

    @property
    def level(self) -> float:
        """Confidence level of each look at candidate against incumbent, such that all looks together keep 95 %."""
        looks = 1 + max(0, math.ceil(math.log2(self.most_blocks / self.first_blocks)))
        return 1.0 - (1.0 - LEVEL) / looks


class Meter:
    """Measures interleaved blocks of artifacts, through a worker, with every block in the journal.

    Args:
        worker: where models run.
        journal: takes each block, and gives back those of an interrupted run.
        feed: the inputs that latency is measured on.
        protocol: how.
        rng: seeds the order of models within blocks.
        sleep: waits a number of seconds.
        clock: seconds.

    Attributes:
        waited_s: seconds waited for the machine to be quiet.
    """

    def __init__(
        self,
        worker: Worker,
        journal: Journal,
        feed: Path,
        protocol: Protocol,
        rng: np.random.Generator,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._journal = journal
        self._feed = feed
        self._protocol = protocol
        self._rng = rng
        self._sleep = sleep
        self._clock = clock
        self.waited_s = 0.0

    def measure(self, kind: str, artifacts: Sequence[Artifact], blocks: int) -> np.ndarray:
        """Readings of at least ``blocks`` kept blocks, recorded ones first; shape (blocks, models), ns.

        Raises:
            TargetError: a model failed; no reading of the failed block is kept.
        """
        names = [a.digest for a in artifacts]
        kept = self._journal.blocks(kind, names)
        if self._worker.deterministic:
            blocks = 1
        spare = int(np.ceil(blocks * self._protocol.discards))
        while len(kept) < blocks:
            wanted = blocks - len(kept)
            seed = int(self._rng.integers(2**31))
            timing = self._worker.time(artifacts, self._feed, wanted, self._protocol.slot_ns, seed)
            quiet = timing.drift <= DRIFT
            if spare <= 0:
                quiet[:] = True
            lost = int((~quiet).sum())
            spare -= lost
            self._journal.record_blocks(kind, names, timing.ns[quiet], timing.drift[quiet])
            kept = np.concatenate([kept, timing.ns[quiet]])
            if lost:
                pause = min(0.2 * lost, 1.0)
                self._sleep(pause)
                self.waited_s += pause
        return kept

    def race(self, kind: str, baseline: Artifact, incumbent: Artifact, candidate: Artifact) -> Race:
        """Measure until it is clear whether ``candidate`` beats ``incumbent``, or ``most_blocks`` are spent.

        Raises:
            TargetError: a model failed.
        """
        artifacts = list(dict.fromkeys([baseline, incumbent, candidate]))
        at = {a.digest: i for i, a in enumerate(artifacts)}
        blocks, begun = self._protocol.first_blocks, self._clock()
        while True:
            ns = self.measure(kind, artifacts, blocks)
            base, best, new = (ns[:, at[a.digest]] for a in (baseline, incumbent, candidate))
            versus = self._interval(best, new, self._protocol.level)
            over_base = self._interval(base, new, REPORTED)
            decided = versus.excludes_gain(self._protocol.worth) or versus.shows_gain(self._protocol.least_gain)
            decided |= versus.value < (_LOST_FIRST if len(ns) < 2 * self._protocol.first_blocks else _LOST)
            most = self._protocol.most_blocks
            decided |= len(ns) >= most or hope(versus, self._protocol.level, len(ns), most) < _HOPE
            spent = self._clock() - begun  # the next look would take as long again
            if decided or self._worker.deterministic or 2.0 * spent > self._protocol.race_s:
                return Race(float(np.median(new)), over_base, versus, len(ns))
            blocks = min(2 * len(ns), most)

    def _interval(self, base: np.ndarray, new: np.ndarray, level: float) -> Interval:
        if self._worker.deterministic:
            ratio = float(base[0] / new[0])
            return Interval(ratio, ratio, ratio)
        return speedup(base, new, level)


def hope(found: Interval, level: float, blocks: int, most: int) -> float:
    """Chance that an interval from ``most`` blocks will lie above 1, given that from the first ``blocks`` of them.

    The predictive power of group-sequential trials (Jennison and Turnbull, *Group Sequential Methods*, 10.3) with a
    flat prior: with the standard error ``s`` now and ``f = s sqrt(blocks / most)`` in the end, the final estimate is
    normal about the present one with variance ``s^2 - f^2``, and must exceed ``z f``. 1 where there is no interval yet.

    Args:
        found: ratio, with its interval.
        level: of the interval.
        blocks: that it rests on.
        most: blocks in the end.
    """
    if not 0.0 < found.low <= found.high < math.inf or blocks >= most:
        return 1.0
    z = float(norm.ppf(0.5 + level / 2.0))
    now = max(math.log(found.high / found.low) / (2.0 * z), 1e-12)
    final = now * math.sqrt(blocks / most)
    return float(norm.cdf((math.log(found.value) - z * final) / math.sqrt(now**2 - final**2)))


@dataclass(frozen=True)
class Race:
    """What a race showed.

    Attributes:
        ns: the candidate's median nanoseconds per inference.
        speedup: baseline over candidate, with an interval that covers the truth in about 95 % of races.
        versus: incumbent over candidate, at the level of one look.
        blocks: blocks measured.
    """

    ns: float
    speedup: Interval
    versus: Interval
    blocks: int
