"""Race a candidate against the incumbent, with the baseline in every block.

A race begins with few blocks and doubles them at each look, until the time for one race is spent. It ends early when
the interval shows a gain over the incumbent or excludes one, or when more blocks would most likely not show one either.
As the readings decide when to stop, each of the (at most) three looks spends a third of the allowed error (Bonferroni).
Blocks in which the machine's speed drifted, or other processes took a part of a reading, are discarded and measured
again after a pause.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from inlay.measure import policy
from inlay.measure.client import Worker
from inlay.measure.journal import Journal
from inlay.measure.paired import Series, speedup
from inlay.prepare.protocol import Protocol
from inlay.targets.base import Artifact
from inlay.trial import Interval, Latency


class Meter:
    """Measures interleaved blocks of artifacts, through a worker, with every block in the journal.

    Args:
        journal: keeps each block, and returns those of an interrupted run.
        seed: of the order of models within blocks.
        left_s: seconds that races may still take: no further look is begun that would not be over by then.
    """

    def __init__(
        self,
        worker: Worker,
        journal: Journal,
        feed: Path,
        protocol: Protocol,
        seed: int,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        left_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._worker = worker
        self._journal = journal
        self._feed = feed
        self.protocol = protocol  # how to measure
        self._seed = seed
        self._sleep = sleep
        self._clock = clock
        self._left_s = left_s
        self.waited_s = 0.0  # seconds waited for the machine to be quiet

    def measure(self, kind: str, artifacts: Sequence[Artifact], blocks: int) -> np.ndarray:
        """Readings of at least ``blocks`` blocks without drift, recorded ones first; shape (blocks, models), ns.

        Raises:
            TargetError: a model failed; no reading of the failed block is kept.
        """
        names = [a.digest for a in artifacts]
        kept = self._journal.blocks(kind, names)
        if self._worker.deterministic:
            blocks = 1
        spare, tries = int(np.ceil(blocks * self.protocol.discards)), 0
        while len(kept) < blocks:
            wanted = blocks - len(kept)
            tries += 1
            seed = self._seed_of(kind, names, len(kept), tries)
            timing = self._worker.time(artifacts, self._feed, wanted, self.protocol.slot_ns, seed)
            quiet, ns = timing.is_quiet, timing.ns
            if spare <= 0 or self._worker.deterministic:  # never quiet: less what is known to be others'
                ns = np.where(quiet[:, None], ns, ns * (1.0 - timing.taken))
                quiet[:] = True
            lost = int((~quiet).sum())
            spare -= lost
            self._journal.record_blocks(kind, names, ns[quiet], timing.drift[quiet])
            kept = np.concatenate([kept, ns[quiet]])
            if lost:
                pause = min(policy.PAUSE_S * lost, policy.MAX_PAUSE_S)
                self._sleep(pause)
                self.waited_s += pause
        return kept

    def _seed_of(self, kind: str, names: Sequence[str], known: int, tries: int) -> int:
        """A seed by what is measured and how much of it is recorded: a resumed run reads what one in one go does."""
        text = json.dumps([self._seed, kind, *names, known, tries])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1

    def race(
        self, kind: str, baseline: Artifact, incumbent: Artifact, candidate: Artifact, brief: bool = False
    ) -> Race:
        """Measure until it is clear whether ``candidate`` beats ``incumbent``, or ``most_blocks`` are spent.

        Args:
            brief: a first look is enough, since nothing is decided by it.

        Raises:
            TargetError: a model failed.
        """
        artifacts = list(dict.fromkeys([baseline, incumbent, candidate]))
        at = {a.digest: i for i, a in enumerate(artifacts)}
        blocks, begun = self.protocol.first_blocks, self._clock()
        while True:
            ns = self.measure(kind, artifacts, blocks)
            models = [Series(each, exact=self._worker.deterministic) for each in ns.T]
            base, best, new = (models[at[a.digest]] for a in (baseline, incumbent, candidate))
            versus, over_base = speedup(best, new, self.protocol.level), speedup(base, new, policy.REPORTED_LEVEL)
            spent = self._clock() - begun  # the next look would take as long again
            late = spent > min(self.protocol.race_s - spent, self._left_s())
            if self._worker.deterministic or brief or late or self._decided(versus, len(ns)):
                return Race(Latency(new.median_ns, over_base, len(ns)), versus)
            blocks = min(2 * len(ns), self.protocol.most_blocks)

    def _decided(self, versus: Interval, blocks: int) -> bool:
        """Whether more blocks could not change much about the comparison with the incumbent."""
        protocol = self.protocol
        if versus.excludes_gain(protocol.worth) or versus.shows_gain(protocol.least_gain):
            return True
        is_first = blocks < 2 * protocol.first_blocks
        if versus.value < (policy.LOST_FIRST if is_first else policy.LOST_LATER) or blocks >= protocol.most_blocks:
            return True
        return predictive_power(versus, protocol.level, blocks, protocol.most_blocks) < policy.MIN_PREDICTIVE_POWER


def predictive_power(found: Interval, level: float, blocks: int, most: int) -> float:
    """Probability that the interval from ``most`` blocks will lie above 1, given that from the first ``blocks``.

    The predictive power of group-sequential trials (Jennison and Turnbull, *Group Sequential Methods*, 10.3) with a
    flat prior: with the standard error ``s`` now and ``f = s sqrt(blocks / most)`` in the end, the final estimate is
    normal around the current one with variance ``s^2 - f^2``, and must exceed ``z f``. 1 where there is no interval
    yet.
    """
    if not 0.0 < found.low <= found.high < math.inf or blocks >= most:
        return 1.0
    z = NormalDist().inv_cdf(0.5 + level / 2.0)
    now = max(math.log(found.high / found.low) / (2.0 * z), 1e-12)
    final = now * math.sqrt(blocks / most)
    return NormalDist().cdf((math.log(found.value) - z * final) / math.sqrt(now**2 - final**2))


@dataclass(frozen=True)
class Race:
    """What a race showed."""

    latency: Latency  # the candidate's; the interval of its speed-up covers the truth in about 95 % of races
    versus: Interval  # incumbent over candidate, with the interval of one look
