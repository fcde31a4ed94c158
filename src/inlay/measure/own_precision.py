"""Whether a model is faster in float32 on a target that computes float32 operators in fewer bits by itself.

Fewer bits are usually faster, though not always: a small model may spend more on conversions than its products gain.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from inlay.deadline import Deadline
from inlay.errors import TargetError
from inlay.measure.client import Worker
from inlay.measure.panel import time_in_turn
from inlay.targets.base import Artifact, TargetSpec
from inlay.trial import Interval

FASTER = 1.03  # of the two, float32 has to be: on many processors they are the same
BLOCKS = 8  # of each look. Six are the fewest that give an interval of 95 %.
_MODEL, _OWN, _EXACT = "given", "own", "exact"


def is_faster(gain: Interval) -> bool:
    """Whether float32 is measurably faster, by enough to be worth another result than usual."""
    return gain.shows_gain() and gain.value >= FASTER


def gain_in_float32(
    own: Worker,
    exact: TargetSpec,
    start: Callable[[TargetSpec], Worker],
    *,
    model: Artifact,
    feed: Path,
    slot_ns: int,
    rng: np.random.Generator,
    until: Callable[[], Deadline],
) -> tuple[Interval | None, Worker | None]:
    """How much faster a model is in float32, by paired readings, and the worker for it where it :func:`is_faster`.

    A gain is looked at twice, the second time in fresh processes: equal models differ by a few percent between two. The
    second look, which had no part in the question, is what is returned.

    Args:
        start: starts a worker; all but the one that is returned are ended here.
        until: when a look that begins now ends: no further block of it is begun behind that.

    Returns:
        No gain where there was no time for it, or the model does not run in one of them.

    Raises:
        TargetError: a worker cannot be started.
    """

    def look(first: Worker, second: Worker) -> Interval | None:
        workers, files = {_OWN: first, _EXACT: second}, {_MODEL: model}
        try:
            for worker in workers.values():  # a model's first inferences take longer, those of any shapes by far
                worker.time([model], feed, 1, slot_ns, int(rng.integers(2**31)))
            end, rows = until(), dict.fromkeys(workers, files)
            found = time_in_turn(workers, rows, feed, BLOCKS, slot_ns, rng, lambda: end.left, end.clock)
        except TargetError:
            return None
        return None if found.failed else found.ratio((_MODEL, _OWN), (_MODEL, _EXACT))

    with start(exact) as once:
        gain = look(own, once)
    if gain is None or not is_faster(gain):
        return gain, None
    with start(own.spec) as again:
        fresh = start(exact)
        try:
            gain = look(again, fresh)
        except BaseException:  # also where it is interrupted: nobody else could end it
            fresh.close()
            raise
    if gain is not None and is_faster(gain):
        return gain, fresh
    fresh.close()
    return gain, None
