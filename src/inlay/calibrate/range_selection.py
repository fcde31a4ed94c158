"""Which range each domain of values gets: chosen by the error at the outputs of the network, not at the value itself.

Values of one domain change together. Starting from one method for all, groups of domains try the other methods. The
group that had the largest effect on the outputs, for better or worse, is split next, in the order of the model, until
single domains are left: in most networks a handful of values decide, and they get whatever time there is. A change is
kept where it lessens the error of the worst output by more than the standard error over the samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from inlay.calibrate import policy
from inlay.calibrate.range_probe import RangeProbe
from inlay.data import AUTO_MASK, Feed, Padding
from inlay.deadline import NEVER, Deadline
from inlay.model.hands import width
from inlay.quant.accuracy import EXACT_DB, Outputs
from inlay.quant.group_split import Group, GroupQueue
from inlay.quant.observers import Method
from inlay.quant.parts import Parts
from inlay.trial import decibels
from inlay.types import QParams

Options = Mapping[str, Mapping[Method, QParams]]
"""By domain, the qparams that each method gives."""


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """The outcome.

    Attributes:
        methods: by domain; all domains of the probe.
        before_db, after_db: SQNR of the worst output on the samples that chose, at the start and at the end.
        runs: of probe models.
        complete: nothing was left to try; otherwise time ran out before.
        cut: the deadline came before that time, so that a faster or less busy machine would have tried more.
        probe: number of the one that they were chosen for.
    """

    methods: Mapping[str, Method]
    before_db: float
    after_db: float
    runs: int
    complete: bool
    cut: bool = False
    probe: int = 0


def choose_ranges(
    probes: Sequence[RangeProbe],
    options: Sequence[Options],
    own_noise: Mapping[str, Mapping[Method, float]],
    method: Method,
    feeds: Sequence[Feed],
    references: Sequence[Outputs],
    *,
    seconds: float,
    clock: Callable[[], float],
    headroom: Mapping[str, float] | None = None,
    until: Deadline = NEVER,
    mask: str = AUTO_MASK,
    parts: Parts | None = None,
) -> Ranges:
    """Choose a method for each domain of values.

    With ``headroom``, every sample is run twice: as it is, and scaled up. Values scaled up by a factor are rounded and
    clipped like the given ones in ranges that are narrower by this factor, and that is how it is simulated. It tells a
    range that other samples would exceed, at the expense of the outputs, from one where that does not matter.

    Args:
        probes: the quantized model, in ways with the same domains: ranges are chosen for the best at the start.
        options: for each of ``feeds``; preferably from other samples than that one.
        own_noise: by domain, the error that each method causes at the values themselves, relative to their power. Of
            groups with equal effects, those that could gain most are tried first.
        method: where to start.
        feeds: samples; the first ones choose, some of the others must agree.
        references: the float model's outputs for each of ``feeds``. Those that are not floating point do not count.
        seconds: rough limit.
        clock: returns seconds; read once for each run, so that it may count them.
        headroom: by domain, the share by which other samples may exceed the calibration samples.
        until: when it must end in any case.
        mask: the input that says which positions are padding and have no share in the errors, as of ``Samples``.
        parts: how outputs are divided.

    Returns:
        The choice; its ``after_db`` is never below ``before_db``, that of ``method`` for all.

    Raises:
        RunFailed: the probe model does not run.
    """
    start, begun = dict.fromkeys(probes[0].domains, method), clock()
    given = options, feeds, references, clock, begun + seconds, headroom or {}, until, mask, parts or Parts()
    searches = [_Search(probe, *given) for probe in probes]
    if not searches[0].outputs or not feeds:
        return Ranges(methods=start, before_db=EXACT_DB, after_db=EXACT_DB, runs=0, complete=True)
    least, most = policy.CHOOSING_SAMPLES
    starts = [search.errors(start, range(least)) for search in searches]
    number = max(range(len(probes)), key=lambda i: _worst_db(starts[i]))
    search = searches[number]
    once = max(clock() - begun, 1e-6) / sum(each.runs for each in searches)
    count = int(np.clip(seconds / (once * policy.TRIALS_IN_TIME * search.runs_per_sample), least, most))
    before = np.concatenate([starts[number], search.errors(start, range(least, count))])
    found, errors, complete = _descend(search, start, before, count, own_noise)
    before_db, after_db = _worst_db(before), _worst_db(errors)
    if not search.agrees(start, found, count):
        found, after_db = start, before_db
    runs = sum(each.runs for each in searches)
    return Ranges(
        methods=found,
        before_db=before_db,
        after_db=after_db,
        runs=runs,
        complete=complete,
        cut=search.cut,
        probe=number,
    )


def _descend(
    search: _Search,
    methods: dict[str, Method],
    errors: np.ndarray,
    count: int,
    own_noise: Mapping[str, Mapping[Method, float]],
) -> tuple[dict[str, Method], np.ndarray, bool]:
    """Rounds of best-first splitting, until one of them changes nothing or time runs out."""
    while True:
        begun = errors
        queue = GroupQueue([Group((-math.inf,), tuple(methods))])
        while queue:
            group = queue.pop()
            effect = 0.0
            for method in search.methods:
                if search.over():
                    return methods, errors, False
                changed = search.changed(methods, group.members, method)
                if changed is None:
                    continue
                tried = search.errors(changed, range(count), errors)
                once = search.runs_per_sample
                effect = max(effect, float(np.abs(_gain_db(tried[:once], errors[:once])).max()))
                if _better(tried, errors):
                    methods, errors = changed, tried
            if effect >= policy.MIN_EFFECT_DB:
                for part in group.split():
                    promise = sum(_promise(own_noise[d], methods[d]) for d in part)
                    queue.push(Group((-effect, -promise, len(queue), part), part))
        if errors is begun:
            return methods, errors, True


class _Search:
    """The probe with its samples, and its deadline."""

    def __init__(
        self,
        probe: RangeProbe,
        options: Sequence[Options],
        feeds: Sequence[Feed],
        references: Sequence[Outputs],
        clock: Callable[[], float],
        deadline: float,
        headroom: Mapping[str, float],
        until: Deadline = NEVER,
        mask: str = AUTO_MASK,
        parts: Parts | None = None,
    ) -> None:
        self._until, self.cut = until, False
        self._factor = {d: 1.0 + share for d, share in headroom.items() if share}
        self._probe, self._options = probe, options
        self._padding = Padding.of(feeds, references, mask)
        self._parts = parts or Parts()
        references = [self._parts.split(each) for each in self._padding.without_each(references)]
        self._feeds, self._references = feeds, references
        self._clock, self._deadline = clock, deadline
        self.runs = 0
        self.methods = list(dict.fromkeys(m for known in options[0].values() for m in known)) if options else []
        first = references[0] if references else {}
        self.outputs = [n for n, a in first.items() if np.asarray(a).dtype.kind == "f"]
        self._signal = {n: max(float(np.mean([_power(r[n]) for r in references])), 1e-300) for n in self.outputs}

    def over(self) -> bool:
        """Whether the time is spent."""
        spent = self._clock() >= self._deadline
        self.cut = not spent and not self._until.left
        return spent or self.cut

    def changed(self, methods: dict[str, Method], group: Sequence[str], method: Method) -> dict[str, Method] | None:
        """``methods`` with ``method`` for ``group``; None where that gives almost the same qparams."""
        affected = [d for d in group if method in self._options[0][d] and not self._same(d, methods[d], method)]
        return {**methods, **dict.fromkeys(affected, method)} if affected else None

    def _same(self, domain: str, one: Method, other: Method) -> bool:
        kinds = {id(options): options for options in self._options}.values()
        return all(_near(options[domain][one], options[domain][other]) for options in kinds)

    def errors(self, methods: Mapping[str, Method], samples: range, best: np.ndarray | None = None) -> np.ndarray:
        """Relative noise of each output for samples, as they are and scaled up, shape (runs, outputs).

        It stops as soon as the samples seen so far are, on average, no better than in ``best``.
        """
        rows: list[np.ndarray] = []
        samples = samples[: max(0, len(self._feeds) - samples.start)]
        at_once = max(1, len(samples) if best is None else width() // self.runs_per_sample)
        for i in range(0, len(samples), at_once):
            runs = self._runs(methods, samples[i : i + at_once])
            while pair := [*islice(runs, self.runs_per_sample)]:
                rows += pair
                if best is not None and _norm(np.array(rows)).mean() >= _norm(best[: len(rows)]).mean():
                    return np.array(rows)
        return np.array(rows).reshape(-1, len(self.outputs))

    def agrees(self, before: Mapping[str, Method], after: Mapping[str, Method], used: int) -> bool:
        """Whether the held back samples, if there are any, are better off with ``after``."""
        held_back = range(used, min(len(self._feeds), used + policy.HELD_BACK_SAMPLES))
        if before == after or len(held_back) < 2:
            return True
        old, new = (_norm(np.array([*self._runs(methods, held_back)])).mean() for methods in (before, after))
        return bool(new < old)

    @property
    def runs_per_sample(self) -> int:
        """Two where samples are scaled up as well."""
        return 2 if self._factor else 1

    def _runs(self, methods: Mapping[str, Method], samples: Iterable[int]) -> Iterator[np.ndarray]:
        """Errors on samples in turn, on each as it is and scaled up."""
        runs: list[tuple[int, Mapping[str, QParams]]] = []
        for index in samples:
            qparams = {d: self._options[index][d][m] for d, m in methods.items()}
            runs.append((index, qparams))
            if self._factor:
                factor = self._factor
                runs.append((index, {d: _narrowed(q, factor[d]) if d in factor else q for d, q in qparams.items()}))
        return self._noises(runs)

    def _noises(self, runs: Sequence[tuple[int, Mapping[str, QParams]]]) -> Iterator[np.ndarray]:
        outputs = self._probe.each((self._feeds[index], qparams) for index, qparams in runs)
        for (index, _), output in zip(runs, outputs, strict=True):
            self.runs += 1  # of what is looked at: what was run ahead of it is nobody's
            self._clock()
            got, want = self._parts.split(self._padding.without(index, output)), self._references[index]
            yield np.array([_noise(want[n], got[n]) / self._signal[n] for n in self.outputs])


def _near(one: QParams, other: QParams) -> bool:
    return one.zero_point == other.zero_point and abs(one.scale[0] / other.scale[0] - 1.0) < policy.SAME_SCALE


def _narrowed(qparams: QParams, factor: float) -> QParams:
    return replace(qparams, scale=tuple(s / factor for s in qparams.scale))


def _promise(error: Mapping[Method, float], current: Method) -> float:
    """How much of the value's own relative error another method could remove."""
    return max(0.0, error[current] - min(error.values()))


def _better(new: np.ndarray, old: np.ndarray) -> bool:
    """Whether ``new`` is better for the worst output, and by more than the standard error over the samples."""
    if len(new) < len(old) or _worst_db(new) <= _worst_db(old):
        return False
    gains = _gain_db(new, old)
    if gains.size == 1:
        return bool(gains[0] > policy.MIN_SINGLE_GAIN_DB)
    doubt = policy.STANDARD_ERRORS * gains.std(ddof=1) / math.sqrt(gains.size)
    return bool(gains.mean() > max(policy.MIN_GAIN_DB, doubt))


def _gain_db(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """How much less noise each sample has in ``new``."""
    return np.asarray(10.0 * np.log10(np.maximum(_norm(old), 1e-30) / np.maximum(_norm(new), 1e-30)))


def _norm(errors: np.ndarray) -> np.ndarray:
    """For each sample the norm over its outputs, which is close to the error of the worst one."""
    return np.asarray((errors**policy.OUTPUT_NORM).sum(axis=1) ** (1.0 / policy.OUTPUT_NORM))


def _worst_db(errors: np.ndarray) -> float:
    return decibels(errors.mean(axis=0).max())


def _power(array: np.ndarray) -> float:
    finite = array[np.isfinite(array)].astype(np.float64)
    return float(finite @ finite)


def _noise(want: np.ndarray, got: np.ndarray) -> float:
    if want.shape != got.shape:
        return policy.WORST_NOISE
    difference = np.subtract(want, got, dtype=np.float64).ravel()
    noise = float(difference @ difference)
    if not np.isfinite(noise):  # rarely: where the reference is not finite, nothing counts
        difference = difference[np.isfinite(want).ravel()]
        noise = float(difference @ difference)
    return noise if np.isfinite(noise) else policy.WORST_NOISE
