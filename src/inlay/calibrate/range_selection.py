"""Which range each value gets: chosen by the error at the outputs of the network, not by that of the value alone.

Values that share numbers move together. From one method for all, groups of classes try the other methods. The group
whose numbers were found to matter most, for better or worse, is divided next, in the order of the model, until single
classes are left: in most networks a handful of values decide, and whatever time there is goes to them. A change stays
where it lessens the error of the worst output, by more than the samples disagree about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from inlay.calibrate.range_probe import RangeProbe
from inlay.data import Feed
from inlay.quant.accuracy import EXACT_DB
from inlay.quant.group_split import Group, GroupQueue
from inlay.quant.observers import Method
from inlay.trial import decibels
from inlay.types import QParams

Outputs = Mapping[str, np.ndarray]

_SAMPLES = (4, 8)  # that choices rest on: fewer of models that take long
_HELD_BACK = 4  # further samples that must agree with the whole of the choice
_MOVES = 100  # that should be possible in the time given, before more samples are taken
_LEAST_GAIN_DB = 0.02
_LEAST_EFFECT_DB = 0.02  # of a group of classes on one sample, below which none of them is looked at alone
_SINGLE_GAIN_DB = 0.2  # where one sample alone decides
_STANDARD_ERRORS = 1.5
_WORST_NOISE = 1e6
_NORM = 4.0  # of the outputs' errors: close to the worst, yet every output counts


@dataclass(frozen=True)
class Ranges:
    """What was chosen.

    Attributes:
        methods: by class; all classes with open numbers.
        before_db, after_db: SQNR of the worst output on the samples that chose, at the start and at the end.
        runs: of the probe model.
        complete: nothing was left to try; else time ran out before.
    """

    methods: Mapping[str, Method]
    before_db: float
    after_db: float
    runs: int
    complete: bool


def choose_ranges(
    probe: RangeProbe,
    options: Sequence[Mapping[str, Mapping[Method, QParams]]],
    local: Mapping[str, Mapping[Method, float]],
    method: Method,
    feeds: Sequence[Feed],
    references: Sequence[Outputs],
    seconds: float,
    clock: Callable[[], float],
    spread: Mapping[str, float] | None = None,
) -> Ranges:
    """Choose a method for each class of values.

    With ``spread``, every sample counts twice: as it is, and made larger throughout. Numbers larger by a factor are
    rounded, and cut off, like those at hand in ranges that are narrower by it; that is how it is done, and how a range
    that other samples would overrun, to the harm of the outputs, is told from one where that does not matter.

    Args:
        probe: the placement under which they are judged.
        options: for each of ``feeds``, by class: the numbers that each method gives. They had better come from other
            samples than that one.
        local: by class: the error that each method makes at the values themselves, relative to their power. Of groups
            with equal effects, those that could gain most are tried first.
        method: where to start.
        feeds: samples; the first ones choose, some of the rest must agree.
        references: the float outputs for each of ``feeds``. Those that are not floating point do not count.
        seconds: rough limit.
        clock: tells seconds.
        spread: by class, the share by which numbers of other samples may exceed those of the calibration samples.

    Returns:
        The choice; its ``after_db`` is never below ``before_db``, that of ``method`` for all.

    Raises:
        RunFailed: the probe model does not run.
    """
    search = _Search(probe, options, feeds, references, clock, clock() + seconds, spread or {})
    state = dict.fromkeys(probe.classes, method)
    if not search.names or not feeds:
        return Ranges(state, EXACT_DB, EXACT_DB, 0, True)
    begun = clock()
    search.first(state)
    once = max(clock() - begun, 1e-6)
    count = int(np.clip(seconds / (once * _MOVES * search.per_sample), *_SAMPLES))
    start = search.errors(state, count)
    found, errors, complete = _descend(search, state, start, count, local)
    before, after = _worst_db(start), _worst_db(errors)
    if not search.agrees(state, found, count):
        return Ranges(state, before, before, search.runs, complete)
    return Ranges(found, before, after, search.runs, complete)


def _descend(
    search: _Search,
    state: dict[str, Method],
    errors: np.ndarray,
    count: int,
    local: Mapping[str, Mapping[Method, float]],
) -> tuple[dict[str, Method], np.ndarray, bool]:
    """Rounds of best-first division, until one changes nothing or time is over."""
    while True:
        begun = errors
        queue = GroupQueue([Group((-math.inf,), tuple(state))])
        while queue:
            group = queue.pop()
            effect = 0.0
            for method in search.methods:
                if search.over():
                    return state, errors, False
                changed = search.changed(state, group.members, method)
                if changed is None:
                    continue
                tried = search.errors(changed, count, errors)
                once = search.per_sample
                effect = max(effect, float(np.abs(_gain_db(tried[:once], errors[:once])).max()))
                if _better(tried, errors):
                    state, errors = changed, tried
            if effect >= _LEAST_EFFECT_DB:
                for part in group.split():
                    promise = sum(_promise(local[c], state[c]) for c in part)
                    queue.push(Group((-effect, -promise, len(queue), part), part))
        if errors is begun:
            return state, errors, True


class _Search:
    """The probe with its samples, and how long it may still be asked."""

    def __init__(
        self,
        probe: RangeProbe,
        options: Sequence[Mapping[str, Mapping[Method, QParams]]],
        feeds: Sequence[Feed],
        references: Sequence[Outputs],
        clock: Callable[[], float],
        deadline: float,
        spread: Mapping[str, float],
    ) -> None:
        self._larger = {c: 1.0 + by for c, by in spread.items() if by}
        self._probe, self._options = probe, options
        self._feeds, self._references = feeds, references
        self._clock, self._deadline = clock, deadline
        self.runs = 0
        self.methods = list(dict.fromkeys(m for known in options[0].values() for m in known)) if options else []
        first = references[0] if references else {}
        self.names = [n for n, a in first.items() if np.asarray(a).dtype.kind == "f"]
        self._signal = {n: max(float(np.mean([_power(r[n]) for r in references])), 1e-300) for n in self.names}

    def over(self) -> bool:
        """Whether the time is spent."""
        return self._clock() >= self._deadline

    def first(self, state: Mapping[str, Method]) -> None:
        """One run, to see how long it takes."""
        self._run({c: self._options[0][c][m] for c, m in state.items()}, 0)

    def changed(self, state: dict[str, Method], group: Sequence[str], method: Method) -> dict[str, Method] | None:
        """``state`` with ``group`` by ``method``; None where that gives almost the same numbers."""
        moved = [c for c in group if method in self._options[0][c] and not self._same(c, state[c], method)]
        return {**state, **dict.fromkeys(moved, method)} if moved else None

    def _same(self, name: str, one: Method, other: Method) -> bool:
        kinds = {id(options): options for options in self._options}.values()
        return all(_near(options[name][one], options[name][other]) for options in kinds)

    def errors(self, state: Mapping[str, Method], count: int, best: np.ndarray | None = None) -> np.ndarray:
        """Relative noise of each output for the first samples, as they are and made larger, shape (runs, outputs).

        It ends as soon as the samples seen so far are, on average, no better than in ``best``.
        """
        rows: list[np.ndarray] = []
        for i in range(min(count, len(self._feeds))):
            rows += self._runs(state, i)
            if best is not None and _soft(np.array(rows)).mean() >= _soft(best[: len(rows)]).mean():
                break
        return np.array(rows)

    def agrees(self, before: Mapping[str, Method], after: Mapping[str, Method], used: int) -> bool:
        """Whether samples that were not used, if there are some, are better off ``after``."""
        further = range(used, min(len(self._feeds), used + _HELD_BACK))
        if before == after or len(further) < 2:
            return True
        rows = ([row for i in further for row in self._runs(state, i)] for state in (before, after))
        old, new = (_soft(np.array(each)).mean() for each in rows)
        return bool(new < old)

    @property
    def per_sample(self) -> int:
        """Runs for each sample."""
        return 2 if self._larger else 1

    def _runs(self, state: Mapping[str, Method], index: int) -> list[np.ndarray]:
        """Errors on one sample, as it is and made larger."""
        numbers = {c: self._options[index][c][m] for c, m in state.items()}
        rows = [self._run(numbers, index)]
        if self._larger:
            narrowed = {c: _narrowed(q, self._larger[c]) if c in self._larger else q for c, q in numbers.items()}
            rows.append(self._run(narrowed, index))
        return rows

    def _run(self, numbers: Mapping[str, QParams], index: int) -> np.ndarray:
        self.runs += 1
        got = self._probe.run(self._feeds[index], numbers)
        want = self._references[index]
        return np.array([_noise(want[n], got[n]) / self._signal[n] for n in self.names])


def _near(one: QParams, other: QParams) -> bool:
    return one.zero_point == other.zero_point and abs(one.scale[0] / other.scale[0] - 1.0) < 0.01


def _narrowed(numbers: QParams, factor: float) -> QParams:
    return replace(numbers, scale=tuple(s / factor for s in numbers.scale))


def _promise(error: Mapping[Method, float], current: Method) -> float:
    """How much of the value's own relative error another method could take away."""
    return max(0.0, error[current] - min(error.values()))


def _better(new: np.ndarray, old: np.ndarray) -> bool:
    """Whether ``new`` is better for the worst output, and the samples agree on it beyond their spread."""
    if len(new) < len(old) or _worst_db(new) <= _worst_db(old):
        return False
    gains = _gain_db(new, old)
    if gains.size == 1:
        return bool(gains[0] > _SINGLE_GAIN_DB)
    doubt = _STANDARD_ERRORS * gains.std(ddof=1) / math.sqrt(gains.size)
    return bool(gains.mean() > max(_LEAST_GAIN_DB, doubt))


def _gain_db(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """How much less noise each sample has in ``new``."""
    return np.asarray(10.0 * np.log10(np.maximum(_soft(old), 1e-30) / np.maximum(_soft(new), 1e-30)))


def _soft(errors: np.ndarray) -> np.ndarray:
    """One number for each sample, close to its worst output's error."""
    return np.asarray((errors**_NORM).sum(axis=1) ** (1.0 / _NORM))


def _worst_db(errors: np.ndarray) -> float:
    return decibels(errors.mean(axis=0).max())


def _power(array: np.ndarray) -> float:
    finite = array[np.isfinite(array)].astype(np.float64)
    return float(finite @ finite)


def _noise(want: np.ndarray, got: np.ndarray) -> float:
    if want.shape != got.shape:
        return _WORST_NOISE
    finite = np.isfinite(want)
    difference = want[finite].astype(np.float64) - got[finite].astype(np.float64)
    noise = float(difference @ difference)
    return noise if np.isfinite(noise) else _WORST_NOISE
