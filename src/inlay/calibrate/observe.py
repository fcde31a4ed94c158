"""Observe every value that may be quantized, over all calibration samples, in bounded memory.

Some samples are observed here, others by whoever helps: histograms of parts, added up, are those of the whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from inlay.data import AUTO_MASK, Feed, Samples, StressSet
from inlay.deadline import NEVER, Deadline
from inlay.errors import RunFailed
from inlay.model.heard import doing
from inlay.model.pieces import PiecewiseSession
from inlay.model.pool import Stored, WorkerPool, each, may_have_pool, pool_for, width
from inlay.model.reference import in_batches
from inlay.prepare.model import PreparedModel
from inlay.quant.limits import limits_of
from inlay.quant.observers import UNLIMITED, Histogram, Range, count, widen
from inlay.quant.padding_propagation import Positions, find_positions
from inlay.types import Placement

Histograms = dict[str, Histogram]
"""By value name."""

BATCH_BYTES = 1 << 30
"""Bytes of intermediate values of one sample that are held at a time: a laptop's memory, with room for the model."""

FEEDS_BYTES = 64 << 20
"""Bytes of samples that are observed in one call: histograms travel with each."""
LEAST_SAMPLES = 2
"""Samples that are observed however short the time is: one of each half."""
OBSERVING_S = 2.0
"""Seconds of observing after which the time is looked at again: histograms travel with each call."""

HELPER_S = 4.0
"""Seconds that a helper observes at a time, at most."""
TURNS = 2
"""Times that each helper could come yet if all were as large as the next one, so that they get smaller, and the last
ones end nearly together (guided self-scheduling, Polychronopoulos and Kuck 1987)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Observed:
    """Histograms of the calibration samples."""

    histograms: Mapping[str, Histogram]  # by value name
    digest: str  # identifies all of them
    samples: int  # that were observed
    # the histograms that ranges are taken from: all of them, or those of one half of the samples
    ranged: Mapping[str, Histogram]
    # histograms of the first and of the second half of the samples
    halves: tuple[Mapping[str, Histogram], Mapping[str, Histogram]]
    positions: Positions = field(default_factory=Positions)  # what of them is padding, which is not counted
    mask: str = AUTO_MASK  # the input that was asked to tell; as of `Samples`

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


def observe(
    prepared: PreparedModel,
    samples: Samples,
    imported: Sequence[Placement] = (),
    most: int | None = None,
    deadline: Deadline = NEVER,
) -> Observed:
    """Histograms of every activation that some placement may quantize.

    The model runs once for each sample, with the observed values as extra outputs: in one session, or where they
    exceed ``BATCH_BYTES`` in as many as needed. WorkerPool observe samples where that takes long
    (:func:`~inlay.model.pool.pooled`); what is found does not depend on them.

    Args:
        prepared: the model.
        samples: what it is run on.
        imported: placements whose values are observed as well.
        most: samples to observe, in the order of :func:`spread`; None for all.
        deadline: when observing must end, with two samples or more.

    Raises:
        UsageError: there is no such input as the samples' mask, or it is no mask.
        CompileFailed, RunFailed: the float model does not run.
    """
    graph, feeds = prepared.graph, list(samples.feeds)
    values = _observed(prepared, imported)
    order = spread(len(feeds))[:most]
    model, limits = Stored(prepared.emitter.base, prepared.store), limits_of(graph)
    positions = find_positions(model.proto, model.store, graph, feeds, samples.mask, prepared.request.padded_by)
    halved = tuple({v: Histogram(limits.get(v, UNLIMITED)) for v in values} for _ in range(2))
    given, batches = _batched(prepared, values)
    for number, batch in enumerate(batches):  # the first one finds out how many samples there is time for
        until = deadline
        if math.isfinite(deadline.at):
            until = NEVER if number else deadline.within(deadline.left / len(batches))
        some = _Some((model, {v: limits.get(v, UNLIMITED) for v in batch}, positions), feeds, halved)
        order = order[: some.observe(order, until)]
    for half, indices in _by_half(order, len(feeds)):
        for value in given:
            for i in indices:
                halved[half][value].update(positions.only(feeds[i], value, feeds[i][value]))
    return _of_halves(halved, count=len(order), single=len(feeds) == 1, positions=positions, mask=samples.mask)


def stretched(observed: Observed, prepared: PreparedModel, stress: StressSet) -> Observed:
    """The same where ranges by the method ``stress`` also cover variations of the samples, which are not counted.

    They are asked one by one: what the model refuses is left out.

    Args:
        prepared: the model.
        stress: variations of the samples.

    Raises:
        CompileFailed: the float model does not run.
    """
    given, batches = _batched(prepared, sorted(observed.histograms))
    model, positions = Stored(prepared.emitter.base, prepared.store), observed.positions
    single = observed.halves[0] is observed.halves[1]  # a single sample is in both
    first = {v: Histogram(h.limits) for v, h in observed.histograms.items()} if single else dict(observed.halves[0])
    halved = first, dict(observed.halves[1])

    def add(half: int, found: Histograms) -> None:
        halved[half].update({v: halved[half][v] | h for v, h in found.items()})

    for batch in batches:
        job = model, {v: observed.histograms[v].limits for v in batch}, positions
        outcomes = each(reach_of, ((*job, v.feed) for v in stress.variations))
        for variation, outcome in zip(stress.variations, outcomes, strict=True):
            with contextlib.suppress(RunFailed):
                add(variation.half, outcome.result())
    for variation in stress.variations:
        reach = {v: Histogram(observed.histograms[v].limits) for v in given}
        positions.note(variation.feed, widen)(reach, {v: variation.feed[v] for v in given})
        add(variation.half, reach)
    return _of_halves(halved, count=observed.samples, single=single, positions=positions, mask=observed.mask)


def _of_halves(halved: Sequence[Histograms], *, count: int, single: bool, positions: Positions, mask: str) -> Observed:
    first, second = halved
    histograms = {v: first[v] | second[v] for v in first}
    digest = hashlib.sha256("".join(f"{v}{histograms[v].digest}" for v in sorted(histograms)).encode()).hexdigest()[:16]
    return Observed(
        histograms=histograms,
        digest=digest,
        samples=count,
        ranged=histograms,
        halves=(second if single else first, second),
        positions=positions,
        mask=mask,
    )


def _batched(prepared: PreparedModel, values: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Those of ``values`` that are inputs, and batches of the others, each to be held at a time."""
    graph = prepared.graph
    given, computed = ([v for v in values if (v in graph.inputs) == is_given] for is_given in (True, False))
    sizes = {v: 4 * (graph.size(v) or 0) * graph.turns.get(v, 1) for v in computed}
    return given, [*in_batches(computed, sizes, BATCH_BYTES)]


def _observed(prepared: PreparedModel, imported: Sequence[Placement]) -> list[str]:
    """The activations that some placement may quantize."""
    graph = prepared.graph
    found = {graph.value_of(p) for u in prepared.selectable for p in u.activations}
    found |= {v for u in prepared.selectable for v in u.outputs}
    found |= {graph.value_of(p) for placement in imported for p, _ in placement}
    return sorted(v for v in found if not graph.is_constant(v))


_sessions: weakref.WeakKeyDictionary[Stored, PiecewiseSession] = weakref.WeakKeyDictionary()


def _session(model: Stored, limits: Mapping[str, Range]) -> PiecewiseSession:
    """What computes the values; it stays for the next samples of the same ones."""
    session = _sessions.get(model)
    if session is None or session.values != [*limits]:
        session = _sessions[model] = PiecewiseSession(model.proto, model.store, list(limits))
    return session


def observe_part(
    model: Stored,
    limits: Mapping[str, Range],
    positions: Positions,
    feeds: Sequence[Feed],
    known: Histograms | None = None,
) -> Histograms:
    """Histograms of some samples, added to ``known`` ones, wherever that is done; ``limits`` name the values.

    Raises:
        CompileFailed, RunFailed, Crashed, TimedOut: as of :meth:`PiecewiseSession.gather`.
    """
    session = _session(model, limits)
    found = {value: Histogram(limit) for value, limit in limits.items()} if known is None else known
    sizes = {str(i): sum(array.nbytes for array in feed.values()) for i, feed in enumerate(feeds)}
    # one by one where each may have padding of its own
    parts = [[name] for name in sizes] if positions.mask else in_batches(list(sizes), sizes, FEEDS_BYTES)
    for part in parts:
        some = [feeds[int(i)] for i in part]
        found = session.gather(some, positions.note(some[0], count), found)
    return found


def reach_of(model: Stored, limits: Mapping[str, Range], positions: Positions, feed: Feed) -> Histograms:
    """How far a variation of a sample widens the reach of the values, in histograms of nothing else.

    Raises as :func:`observe_part` does.
    """
    histograms = {value: Histogram(limit) for value, limit in limits.items()}
    return _session(model, limits).gather([feed], positions.note(feed, widen), histograms)


@dataclass(frozen=True, eq=False)
class _Some:
    """Some of a model's values over the samples."""

    # what `observe_part` takes: the model, limits of each of these values, and what of them is padding
    job: tuple[Stored, Mapping[str, Range], Positions]
    feeds: Sequence[Feed]  # all samples
    halved: Sequence[Histograms]  # histograms of the first and of the second half of them, of these values and others

    def observe(self, order: Sequence[int], until: Deadline) -> int:
        """Observe samples in this order; how many there was time for."""
        alone = not may_have_pool()
        done, size = 0, len(order) if alone and math.isinf(until.at) else 1
        if width() > 1 and (helpers := pool_for(math.inf)):  # they are here: how long it takes, they find out
            done, alone = self._helped(helpers, order, until), True
            if done >= LEAST_SAMPLES and not until.left:
                return done
        while done < len(order):
            doing(f"observe values on sample {done + 1} of {len(order)}")
            begun = until.clock()
            some = order[done : done + size]
            for half, indices in _by_half(some, len(self.feeds)):
                self._here(half, [self.feeds[i] for i in indices])
            done += len(some)
            each_s = (until.clock() - begun) / len(some)
            timed = done > len(some)  # the first takes longer: there the model is built
            ahead_s = min((len(order) - done) * each_s, until.left)
            found = pool_for(ahead_s) if timed and not alone else None
            if found is not None:
                done += self._helped(found, order[done:], until, each_s)
                alone = True
            size = min(2 * size if timed or alone else 1, int(min(until.left, OBSERVING_S) / max(each_s, 1e-9)))
            if not size:
                if done >= LEAST_SAMPLES and not until.fits(each_s):
                    return done
                size = 1
        return done

    def _add(self, half: int, found: Histograms) -> None:
        self.halved[half].update({v: self.halved[half][v] | h for v, h in found.items()})

    def _here(self, half: int, feeds: Sequence[Feed]) -> None:
        known = {value: self.halved[half][value] for value in self.job[1]}
        self.halved[half].update(observe_part(*self.job, feeds, known))

    def _helped(self, helpers: WorkerPool, order: Sequence[int], until: Deadline, each_s: float = 0.0) -> int:
        """The same by helpers, where a sample takes ``each_s``.

        With 0, nobody knows: that is found out, but for the first answers, one of each, which begin with building the
        model.
        """
        given = answered = 0
        since, is_known = 0.0, bool(each_s)
        asked = deque[tuple[int, int]]()  # half and number of the samples of each call

        def calls() -> Iterator[tuple[Any, ...]]:
            nonlocal given
            while given < len(order):
                most = max(1, int(HELPER_S / each_s)) if each_s else 1
                some = order[given : given + min(most, math.ceil((len(order) - given) / (TURNS * helpers.width)))]
                if not until.fits(2 * len(some) * each_s):
                    return
                given += len(some)
                for half, indices in _by_half(some, len(self.feeds)):
                    if indices:
                        asked.append((half, len(indices)))
                        yield (*self.job, [self.feeds[i] for i in indices])

        for outcome in helpers.map(observe_part, calls(), observe_part):
            half, count = asked.popleft()
            answered += count
            if not is_known and answered == helpers.width:
                since = until.clock()
            elif not is_known and answered > helpers.width:
                each_s = max(helpers.width * (until.clock() - since) / (answered - helpers.width), 1e-9)
            self._add(half, outcome.result())
        return given


def _by_half(indices: Sequence[int], count: int) -> Iterator[tuple[int, list[int]]]:
    """0 and 1, each with those indices that are in the first and in the second half of ``count`` samples."""
    yield 0, [i for i in indices if i < count // 2]
    yield 1, [i for i in indices if i >= count // 2]
