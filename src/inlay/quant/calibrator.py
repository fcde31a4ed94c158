"""Observe every value that may be quantized, over all calibration samples, in bounded memory."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx

from inlay.data import AUTO_MASK, Feed
from inlay.deadline import NEVER, Deadline
from inlay.errors import RunFailed
from inlay.model.graph import Graph
from inlay.model.pieces import PiecewiseSession
from inlay.model.reference import in_batches
from inlay.model.store import WeightStore
from inlay.quant.limits import limits_of
from inlay.quant.observers import UNLIMITED, Histogram, count, widen
from inlay.quant.positions import Positions, find_positions

BATCH_BYTES = 1 << 30
"""Bytes of intermediate values of one sample that are held at a time: a laptop's memory, with room for the model."""

LEAST_SAMPLES = 2
"""Samples that are observed however short the time is: one of each half."""
OBSERVING_S = 2.0
"""Seconds of observing after which the time is looked at again: histograms travel with each call."""

FEEDS_BYTES = 64 << 20
"""Bytes of samples that are observed in one call: histograms travel with each."""


@dataclass(frozen=True, eq=False)
class Observed:
    """Histograms of the calibration samples.

    Attributes:
        histograms: by value name.
        digest: identifies all of them.
        samples: that were observed.
        ranged: the histograms that ranges are taken from: all of them, or those of one half of the samples.
        halves: histograms of the first and of the second half of the samples.
        stressed: they know how far variations of the samples reach.
        positions: what of them is padding, which is not counted.
        mask: the input that was asked to tell; as of :class:`~inlay.data.Samples`.
    """

    histograms: Mapping[str, Histogram]
    digest: str
    samples: int
    ranged: Mapping[str, Histogram]
    halves: tuple[Mapping[str, Histogram], Mapping[str, Histogram]]
    stressed: bool = False
    positions: Positions = field(default_factory=Positions)
    mask: str = AUTO_MASK

    def half(self, index: int) -> Observed:
        """The same with ranges of one half of the samples (0 or 1), which the other half can validate.

        On samples that a range was made from, one that just covers them looks best, but it clips others.
        """
        return replace(self, ranged=self.halves[index])


def halves(count: int) -> tuple[range, range]:
    """Indices of the first and of the second half of ``count`` samples; a single one is in both.

    Neighbours are often views of one scene, so the halves are less alike than every other sample would be.
    """
    half = count // 2
    return range(max(half, 1)), range(half, count)


def spread(count: int) -> list[int]:
    """The numbers below ``count`` in an order of which any beginning is spread over them all, both halves in turn."""
    if count <= 2:
        return [*range(count)]
    first, second = spread(count // 2), spread(count - count // 2)
    pairs = itertools.zip_longest(first, (count // 2 + i for i in second))
    return [i for pair in pairs for i in pair if i is not None]


def calibrate(
    proto: onnx.ModelProto,
    store: WeightStore,
    graph: Graph,
    values: Sequence[str],
    feeds: Iterable[Feed],
    most: int | None = None,
    deadline: Deadline = NEVER,
    varied: Sequence[tuple[int, Feed]] = (),
    mask: str = AUTO_MASK,
) -> Observed:
    """Histograms of ``values`` over ``feeds``.

    The model runs once for each sample, with the observed values as extra outputs: in one session, or where they
    exceed ``BATCH_BYTES`` in as many as needed.

    Args:
        proto: the model; its weights may be in ``store``.
        store: where external weights are read from.
        graph: of the model.
        values: to observe.
        feeds: the samples.
        most: samples to observe, in the order of :func:`spread`; None for all.
        deadline: when observing must end, with two samples or more.
        varied: variations, each with the half that its sample is in: they widen the reach of values and are not
            counted.
        mask: the input that says which positions are padding and have no share, as of ``Samples``.

    Raises:
        UsageError: there is no such input, or it is no mask.
        CompileFailed, RunFailed: the float model does not run.
    """
    feeds = list(feeds)
    order = spread(len(feeds))[:most]
    limits = limits_of(graph)
    first, second = ({v: Histogram(limits.get(v, UNLIMITED)) for v in values} for _ in range(2))
    positions = find_positions(proto, store, graph, feeds, mask)
    given = set(graph.inputs)
    computed = [v for v in values if v not in given]
    sizes = {v: 4 * (graph.size(v) or 0) for v in computed}
    batches = list(in_batches(computed, sizes, BATCH_BYTES))
    for number, batch in enumerate(batches):  # the first one finds out how many samples there is time for
        session = PiecewiseSession(proto, store, batch)
        until = NEVER if number or math.isinf(deadline.at) else deadline.within(deadline.left / len(batches))
        done, size = 0, 1 if math.isfinite(until.at) else len(order)
        while done < len(order):
            begun = until.clock()
            some = order[done : done + size]
            for half, indices in _by_half(some, len(feeds), first, second):
                for part in _parts([feeds[i] for i in indices], positions):
                    half.update(session.gather(part, positions.note(part[0], count), {v: half[v] for v in batch}))
            done += len(some)
            each_s = (until.clock() - begun) / len(some)
            size = min(2 * size, int(min(until.left, OBSERVING_S) / max(each_s, 1e-9)))
            if not size:
                if done >= LEAST_SAMPLES and not until.fits(each_s):
                    order = order[:done]
                size = 1
        for half_of, feed in varied:  # one by one: the model may refuse some
            reached = (first, second)[half_of]
            with contextlib.suppress(RunFailed):
                reached.update(session.gather([feed], positions.note(feed, widen), {v: reached[v] for v in batch}))
    for half_of, feed in varied:
        positions.note(feed, widen)((first, second)[half_of], {v: feed[v] for v in given.intersection(values)})
    for half, indices in _by_half(order, len(feeds), first, second):
        for value in given.intersection(values):
            for i in indices:
                half[value].update(positions.only(feeds[i], value, feeds[i][value]))
    histograms = {v: first[v] | second[v] for v in values}
    digest = hashlib.sha256("".join(f"{v}{histograms[v].digest}" for v in sorted(histograms)).encode()).hexdigest()[:16]
    both = first if len(feeds) > 1 else second, second
    return Observed(histograms, digest, len(order), histograms, both, bool(varied), positions, mask)


def _by_half(
    indices: Sequence[int], count: int, first: dict[str, Histogram], second: dict[str, Histogram]
) -> Iterator[tuple[dict[str, Histogram], list[int]]]:
    """The histograms of the first and of the second half of ``count`` samples, each with those of ``indices``."""
    yield first, [i for i in indices if i < count // 2]
    yield second, [i for i in indices if i >= count // 2]


def _parts(feeds: Sequence[Feed], positions: Positions) -> Iterator[Sequence[Feed]]:
    """``feeds`` in turn, in lists of at most ``FEEDS_BYTES``; alone where each may have padding of its own."""
    if positions.mask:
        yield from ([feed] for feed in feeds)
        return
    sizes = {str(i): sum(array.nbytes for array in feed.values()) for i, feed in enumerate(feeds)}
    for part in in_batches(list(sizes), sizes, FEEDS_BYTES):
        yield [feeds[int(i)] for i in part]
