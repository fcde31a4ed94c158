"""Outputs in parts that differ in size, each of which is judged by itself.

A detector's output may hold boxes of up to 640 pixels beside scores of up to 1. Over the whole of it the noise of the
scores is nothing, even where all of them are lost. So an output is compared part by part, in two cases:

- A Concat joins it of several values, or constants make some of its elements far larger than others
  (:mod:`inlay.model.joins`), and one of these values is ``JOINED_GAP`` times as large as the next smaller one, by root
  mean square. Each is a part then. Values of about one size are none: what a detector finds at three scales is one
  thing, of which the smallest may hold nothing in the samples.
- It cannot be seen how it is put together, and along one axis (not the first, which counts samples) some indices are 30
  times as large as the others, in every sample. Classes that never fire, channels of padding and dead features are no
  parts: numbers between 0 and 1 are all of one kind, the small ones must be at least an eighth of the indices, and what
  lies beneath the rounding of floats is none.

Both are read off the float model's outputs, and the axis has the same size in every sample.

Probabilities of few classes, behind a Sigmoid or a Softmax, are compared twice: as they are, and as log odds, what was
before it. Over (0.998, 0.002) the noise of the second one is nothing, and it is the one that ranks samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from inlay.data import Ends, Feed, Joins, Padding
from inlay.model.joins import groups_apart
from inlay.quant.metrics import Outputs, difference, power
from inlay.trial import plain

JOINED_GAP = 3.0  # 10 dB: where values are joined, with one scale for all, the smaller one has that much less
LEAST_ODDS = 1e-3
"""Probabilities below are taken for this, as are those as near to 1. By less, sure ones would decide: an orientation
classifier of text had 47.3 dB, and 11.1 dB as log odds down to 1e-4, all of it between one sure answer and another."""
_MOST_PROBABILITIES = 8  # of a sample. Of many classes, the largest decides.
_LEAST_SURE = 0.5
"""Root mean square of log odds, at least: whatever is all but a half everywhere, as of weights that nobody trained, has
no odds whose noise could be compared with them."""
_MOST_INDICES = 4096
_MOST_PARTS = 16
_LEAST_ELEMENTS = 16  # of fewer numbers it says nothing that they are equal
_PINNED_SHARE, _PINNED_ERROR = 0.1, 0.5


@dataclass(frozen=True, eq=False)
class Part:
    """A part of an output."""

    name: str  # for people, as numpy writes it: `output0[:, 4:84]`
    where: Mapping[int, slice | np.ndarray]  # indices by axis

    def of(self, array: np.ndarray) -> np.ndarray:
        """The part of ``array``."""
        for axis, index in self.where.items():
            array = array[(slice(None),) * axis + (index,)]
        return array


@dataclass(frozen=True, eq=False)
class Parts:
    """How outputs are divided."""

    # parts by output; an output that is compared as a whole is left out
    divided: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)
    # by output, the sizes of the axes that are divided
    sizes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    # outputs of few probabilities, which are compared as log odds as well
    odds: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        reference: Sequence[Outputs],
        joins: Joins,
        whole: frozenset[str] = frozenset(),
        ends: Ends = Ends(),  # noqa: B008 - frozen
    ) -> Parts:
        """The parts of the float model's outputs.

        Args:
            reference: these, one mapping for each sample.
            joins: what is joined into them.
            whole: outputs that are not divided.
            ends: what computes them.
        """
        divided, sizes, odds = dict[str, tuple[Part, ...]](), dict[str, dict[int, int]](), set[str]()
        for name, first in (reference[0] if reference else {}).items():
            each = [y[name] for y in reference if name in y]
            if name in whole or first.dtype.kind != "f" or len(each) < len(reference):
                continue
            if any(y.ndim != first.ndim for y in each):
                continue
            filled = [y for y in each if y.size]  # a sample in which nothing is found tells nothing of sizes
            axes = _groups(filled, joins[name]) if filled and name in joins else {}
            if axes:
                divided[name] = tuple(_cells(name, first.ndim, axes))
                sizes[name] = {axis: filled[0].shape[axis] for axis in axes}
            elif _are_few_probabilities(each, ends.computed.get(name, frozenset())):
                odds.add(name)
        return cls(divided, sizes, frozenset(odds))

    @property
    def names(self) -> frozenset[str]:
        """Of all parts."""
        return frozenset(part.name for parts in self.divided.values() for part in parts)

    def of_each(self, names: Sequence[str]) -> tuple[str, ...]:
        """The names of these outputs, with those of its parts in place of one that is divided, and of log odds."""
        whole = (n for name in names for n in ([p.name for p in self.divided.get(name, ())] or [name]))
        return *whole, *(_odds_of(name) for name in names if name in self.odds)

    def are_odds(self, name: str) -> bool:
        """Whether this names log odds: of single samples they say nothing, and none of them is ever lost."""
        return any(name == _odds_of(output) for output in self.odds)

    def split(self, outputs: Outputs) -> Outputs:
        """``outputs`` with their parts in place of those that are divided (views, as far as possible), and log odds.

        An array of another size than the parts are of stands for each of them, as one that fits none.
        """
        if not self.divided and not self.odds:
            return outputs
        found = dict[str, np.ndarray]()
        for name, array in outputs.items():
            sizes = self.sizes.get(name, {})
            fits = all(axis < array.ndim and array.shape[axis] == size for axis, size in sizes.items())
            parts = self.divided.get(name, ())
            found.update({part.name: part.of(array) if fits else array[None] for part in parts} or {name: array})
        found.update({_odds_of(name): log_odds(outputs[name]) for name in self.odds if name in outputs})
        return found


class Reference:
    """The float model's outputs for samples, as those of others are compared with them: part by part, without padding.

    Args:
        feeds: the samples.
        outputs: of the float model for each of them.
        mask: as of ``Samples``.
        parts: how outputs are divided.
        names: of the outputs and parts that are compared; by default all floats.
    """

    def __init__(
        self,
        feeds: Sequence[Feed],
        outputs: Sequence[Outputs],
        mask: str,
        parts: Parts,
        names: Sequence[str] | None = None,
    ) -> None:
        self._parts, self._padding = parts, Padding.of(feeds, outputs, mask)
        self._wanted = [parts.split(each) for each in self._padding.without_each(outputs)]
        first = self._wanted[0] if self._wanted else {}
        self.names = [n for n, a in first.items() if a.dtype.kind == "f"] if names is None else names
        # energy of each of them in each sample, where it is finite: shape (samples, names)
        self.signal = np.array([[power(want[n]) for n in self.names] for want in self._wanted])

    def noise(self, index: int, outputs: Outputs) -> np.ndarray:
        """Energy of the difference of another model's ``outputs`` for a sample: shape (names,), perhaps infinite."""
        got, want = self._parts.split(self._padding.without(index, outputs)), self._wanted[index]
        return np.array([difference(want[n], got[n]) for n in self.names])


def log_odds(probabilities: np.ndarray) -> np.ndarray:
    """``log(p / (1 - p))``: what a Sigmoid, or a Softmax of two classes, was computed from, as far as that matters."""
    p = np.clip(probabilities.astype(np.float64), LEAST_ODDS, 1.0 - LEAST_ODDS)
    return np.asarray(np.log(p / (1.0 - p)))


def _odds_of(name: str) -> str:
    return f"{name} (log odds)"


def _are_few_probabilities(each: Sequence[np.ndarray], computed: frozenset[str]) -> bool:
    """Whether an output holds the probabilities of few classes: by what computes it, or since they add up to 1."""
    for y in each:
        numbers = 0 if not y.size else y.size // y.shape[0] if y.ndim > 1 else y.size
        if not 0 < numbers <= _MOST_PROBABILITIES or not (y.min() >= 0.0 and y.max() <= 1.0 + 1e-3):
            return False
    exclusive = all(y.ndim > 1 and y.shape[-1] > 1 and np.abs(y.sum(axis=-1) - 1.0).max() < 1e-2 for y in each)
    if not exclusive and not (computed and computed <= {"Sigmoid", "Softmax"}):
        return False
    return float(np.mean([np.square(log_odds(y)).mean() for y in each])) >= _LEAST_SURE**2


def _groups(each: Sequence[np.ndarray], joined: Sequence[tuple[int, ...] | None]) -> dict[int, list[list[int]]]:
    """Groups of indices by axis, for the axes that are divided."""
    found = dict[int, list[list[int]]]()
    shape = each[0].shape
    squares = [np.square(np.where(np.isfinite(y), y, 0.0) if not np.isfinite(y).all() else y) for y in each]
    unit = all(float(y.min()) >= 0.0 and float(y.max()) <= 1.0 for y in each)
    for axis, size in enumerate(shape):
        if any(y.shape[axis] != size for y in each):
            continue
        numbers = joined[axis] if len(joined) == len(shape) else None
        if numbers is not None and len(numbers) == size:
            most = _MOST_PARTS // math.prod(map(len, found.values()))
            groups = _of_joined(_means(squares, axis).mean(axis=0), np.array(numbers), most)
        elif axis and not joined and not unit and size <= _MOST_INDICES:
            groups = sorted(sorted(group.tolist()) for group in groups_apart(np.sqrt(_means(squares, axis))))
        else:
            continue
        if len(groups) > 1 and len(groups) * math.prod(map(len, found.values())) <= _MOST_PARTS:
            found[axis] = groups
    return found


def _means(squares: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """Means over all other axes, shape (samples, size)."""
    return np.array([y.mean(axis=tuple(a for a in range(y.ndim) if a != axis), dtype=np.float64) for y in squares])


def _of_joined(energy: np.ndarray, numbers: np.ndarray, most: int) -> list[list[int]]:
    """The indices of each joined value where they differ in size; ``energy`` is a mean square for each index.

    Where these are more than ``most``, values of about one size are one group.
    """
    values = [np.flatnonzero(numbers == n) for n in range(int(numbers.max()) + 1)]
    sizes = np.array([float(np.sqrt(energy[v].mean())) for v in values])
    order = np.argsort(sizes, kind="stable")
    apart = [k for k in range(1, len(order)) if 0.0 < sizes[order[k]] >= JOINED_GAP * sizes[order[k - 1]]]
    if apart and len(values) > most:
        values = [np.concatenate([values[i] for i in group]) for group in np.split(order, apart)]
    return sorted(sorted(v.tolist()) for v in values) if apart else []


def _cells(name: str, ndim: int, axes: Mapping[int, list[list[int]]]) -> list[Part]:
    found = []
    for groups in product(*axes.values()):
        where = {axis: _index(group) for axis, group in zip(axes, groups, strict=True)}
        shown = [_shown(where[axis]) if axis in where else ":" for axis in range(max(where) + 1)]
        found.append(Part(f"{name}[{', '.join(shown)}]", where))
    return found


def _index(group: list[int]) -> slice | np.ndarray:
    whole = group == [*range(group[0], group[-1] + 1)]
    return slice(group[0], group[-1] + 1) if whole else np.array(group)


def _shown(index: slice | np.ndarray) -> str:
    if isinstance(index, slice):
        return f"{index.start}:{index.stop}"
    runs = np.split(index, np.flatnonzero(np.diff(index) > 1) + 1)
    shown = [f"{run[0]}:{run[-1] + 1}" for run in runs[:4]]
    return "(" + ", ".join(shown) + (", ..." if len(runs) > 4 else "") + ")"


def lost(want: Sequence[np.ndarray], got: Sequence[np.ndarray]) -> str:
    """How a part is lost, whatever its SQNR, where it is: what is there in place of it. Else the empty text.

    Either one and the same number stands for numbers that differ, by a tenth of their root mean square at least, so
    that it has less than 20 dB; or an end of the range stands for a tenth of the numbers or more, which differ as well,
    and is as far from them as half of what all numbers differ by.

    Args:
        want: the part in the float model's outputs, for each sample.
        got: the same in another model's.
    """
    if all(np.isfinite(y).all() for y in want) and _share_of_ends(got) < _PINNED_SHARE:
        return ""  # which is sooner known than how much these numbers differ
    a, b = (np.concatenate([y.ravel() for y in each]).astype(np.float64) for each in (want, got))
    if a.size != b.size:
        return ""
    finite = np.isfinite(a)  # where it is not, another model has no number to keep
    a, b = a[finite], b[finite]
    if a.size < _LEAST_ELEMENTS or not np.isfinite(b).all():
        return ""
    low, high = float(b.min()), float(b.max())
    if low == high:
        return f"is {plain(low, 4)} everywhere" if _varies(a) else ""
    for end in (low, high):
        there = a[b == end]
        error = float(np.square(there - end).sum())
        if there.size >= _PINNED_SHARE * a.size and _varies(there) and error >= _PINNED_ERROR * a.var() * a.size:
            return f"is {plain(end, 4)} in {there.size / a.size:.0%} of its elements"
    return ""


def _share_of_ends(arrays: Sequence[np.ndarray]) -> float:
    """The larger share of all numbers that one end of their range has."""
    filled = [y for y in arrays if y.size]
    if not filled:
        return 1.0
    ends = min(float(y.min()) for y in filled), max(float(y.max()) for y in filled)
    return max(sum(np.count_nonzero(y == end) for y in filled) for end in ends) / sum(y.size for y in filled)


def _varies(numbers: np.ndarray) -> bool:
    return bool(numbers.var() >= 0.01 * np.square(numbers).mean() > 0.0)
