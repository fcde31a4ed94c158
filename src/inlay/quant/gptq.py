"""GPTQ: weights rounded up or down as the operator's output asks for, not each to its nearest integer.

What an operator computes changes by ``x (Wq - W)``. Its mean square over the samples is ``D H D'`` for ``D = Wq - W``
and ``H = E[x x']``: errors of elements that read alike values can make up for one another. :func:`nearest_output` goes
through the inputs in the order of their power, rounds the element of each output channel, and moves the elements that
are left so that they take up the error (Frantar et al., "GPTQ: accurate post-training quantization for generative
pre-trained transformers", 2023; the step is that of optimal brain surgery, Hassibi and Stork, 1993).

The moments ``H`` are added up where the values are computed, in a process that starts without heavy imports: a product
reads rows, a convolution windows of its input.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from inlay.types import QParams, QType

DAMPING = 0.05
"""Share of the mean power that is added to each input: what few samples say of alike values is not believed fully."""
_BLOCK = 64  # inputs after which all the others are moved, in one product
MOST_ROWS = 4096  # rows or windows of one sample that count at most, spread over all by a seeded draw


@dataclass(frozen=True)
class Window:
    """How an operator reads its input."""

    value: str  # the input's name
    kernel: tuple[int, ...] = ()  # sizes of a convolution's kernel; empty for a product, which reads the last axis
    strides: tuple[int, ...] = ()  # of the convolution, as all that follows
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    groups: int = 1

    @property
    def name(self) -> str:
        """Its key among moments."""
        return repr(self)

    def rows(self, array: np.ndarray) -> np.ndarray:
        """Some of what is read, shape (groups, rows, inputs)."""
        if not self.kernel:
            flat = array.reshape(1, -1, array.shape[-1])
            return np.asarray(flat[:, _some(flat.shape[1])], np.float32)
        spatial = len(self.kernel)
        before, after = self.pads[:spatial], self.pads[spatial:]
        padded = np.pad(array, [(0, 0), (0, 0), *zip(before, after, strict=True)])
        reach = [d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        axes: Any = tuple(range(2, 2 + spatial))
        windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axes)
        places: Any = tuple(slice(None, None, step) for step in (1, 1, *self.strides, *self.dilations))
        windows = windows[places]
        batch, channels, *sizes = windows.shape[: 2 + spatial]
        chosen = np.unravel_index(_some(batch * int(np.prod(sizes))), (batch, *sizes))
        found = np.asarray(windows[(chosen[0], slice(None), *chosen[1:])], np.float32)  # (rows, channels, *kernel)
        found = found.reshape(len(found), self.groups, -1)
        assert found.shape[2] * self.groups == channels * int(np.prod(self.kernel))
        return found.transpose(1, 0, 2)


def _some(count: int) -> np.ndarray:
    if count <= MOST_ROWS:
        return np.arange(count)
    return np.sort(np.random.default_rng(count).choice(count, MOST_ROWS, replace=False))


Moments = Mapping[Window, np.ndarray]  # `sum x x'` by window, each of shape (groups, inputs, inputs)


@dataclass(frozen=True)
class AddMoments:
    """Adds what one sample's values say to the :data:`Moments` of each value, by its name; can be pickled.

    Values that no window reads, or that are not had where it is called, are passed over.
    """

    windows: Sequence[Window]

    def __call__(self, found: dict[str, Moments], values: Mapping[str, np.ndarray]) -> None:
        """Add them; a sample of which some are not finite does not count for those."""
        for window in self.windows:
            if window.value not in values:
                continue
            rows = window.rows(values[window.value])
            moment = rows.transpose(0, 2, 1) @ rows
            if np.isfinite(moment).all():
                known = found.get(window.value, {})
                found[window.value] = {**known, window: known.get(window, 0.0) + moment}


@dataclass(frozen=True, eq=False)
class Reads:
    """What the samples say of an operator's inputs, in the form that :func:`nearest_output` works with."""

    moment: np.ndarray  # `E[x x']` of each group's inputs in any unit, shape (groups, inputs, inputs)
    order: np.ndarray  # of the inputs by their power, the largest first, shape (groups, inputs)
    factor: np.ndarray  # upper triangular, in that order: `U` of `H^-1 = U' U`, where `H` is the damped moment

    @classmethod
    def of(cls, moment: np.ndarray, damping: float = DAMPING) -> Reads:
        """Of a moment.

        Raises:
            numpy.linalg.LinAlgError: it is not positive, or not finite.
        """
        from scipy.linalg import solve_triangular  # commands that only look at a model start without it

        if not np.isfinite(moment).all():
            raise np.linalg.LinAlgError("the moment is not finite")
        damped = moment.astype(np.float64)
        power = np.einsum("gkk->gk", damped).copy()
        mean = power.mean(axis=1, keepdims=True)
        least = np.where(mean > 0.0, mean, 1.0)  # of inputs that are never anything but 0
        np.einsum("gkk->gk", damped)[:] = np.where(power > 0.0, power, least) + damping * mean
        order = np.argsort(-power, axis=1, kind="stable")
        across = np.arange(len(moment))[:, None]
        damped = damped[across[:, :, None], order[:, :, None], order[:, None, :]]
        # H = A A' with A upper: the inverse of A is U
        lower = np.linalg.cholesky(damped[:, ::-1, ::-1])
        inverses = [solve_triangular(each, np.eye(len(each)), lower=True, check_finite=False) for each in lower]
        return cls(np.asarray(moment, np.float32), order, np.stack(inverses)[:, ::-1, ::-1].astype(np.float32))


def nearest_output(weight: np.ndarray, scale: np.ndarray, reads: Reads, low: int, high: int) -> np.ndarray:
    """Integers whose multiples of ``scale`` change the output least, by greedy steps.

    Args:
        weight: float, shape (groups, channels, inputs).
        scale: of each element, of a shape that broadcasts to it.

    Returns:
        float32 of the weight's shape, whole numbers; 0 where the weight is. Where that is no better than the nearest
        integers, these.
    """
    weight = np.asarray(weight, np.float32)
    scale = np.broadcast_to(np.asarray(scale, np.float32), weight.shape)
    across, factor = np.arange(len(weight))[:, None], reads.factor
    left = np.ascontiguousarray(weight[across, :, reads.order])  # what is to be represented: (groups, inputs, channels)
    steps = np.ascontiguousarray(scale[across, :, reads.order])
    kept = left != 0.0  # a weight without an input has none afterwards
    found = np.empty_like(left)
    inputs = left.shape[1]
    for begin in range(0, inputs, _BLOCK):
        end = min(begin + _BLOCK, inputs)
        errors = np.empty_like(left[:, begin:end])
        for k in range(begin, end):
            found[:, k] = np.clip(np.rint(left[:, k] / steps[:, k]), low, high) * kept[:, k]
            errors[:, k - begin] = (left[:, k] - found[:, k] * steps[:, k]) / factor[:, k, k, None]
            left[:, k + 1 : end] -= factor[:, k, k + 1 : end, None] * errors[:, k - begin, None]
        left[:, end:] -= factor[:, begin:end, end:].transpose(0, 2, 1) @ errors
    rounded = np.empty_like(weight)
    rounded[across, :, reads.order] = found
    nearest = np.clip(np.rint(weight / scale), low, high)
    worse = _changes(weight, scale, rounded, reads.moment) >= _changes(weight, scale, nearest, reads.moment)
    return np.where(worse[:, :, None], nearest, rounded)


def _changes(weight: np.ndarray, scale: np.ndarray, integers: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """Mean square by which each output channel changes, shape (groups, channels)."""
    difference = weight - integers * scale
    return np.asarray(np.einsum("gnk,gnk->gn", difference @ moment, difference, dtype=np.float64))


@dataclass(frozen=True, eq=False)
class Steps:
    """How far the integers of one weight are from the nearest ones."""

    scale: str  # digest of the scales that they hold for
    delta: np.ndarray  # int8, of the weight's shape

    @cached_property
    def digest(self) -> str:
        """Identifies them."""
        return hashlib.sha256(self.scale.encode() + self.delta.tobytes()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Rounding:
    """Which weights are not rounded to nearest, and how."""

    steps: Mapping[tuple[str, QType], Steps] = field(default_factory=dict)  # by the weight's name and its type

    def of(self, value: str, params: QParams) -> Steps | None:
        """The steps of a weight with these qparams; None where it has other scales than those they were found for."""
        found = self.steps.get((value, params.qtype))
        return found if found is not None and found.scale == scale_digest(params) else None

    @cached_property
    def digest(self) -> str:
        """Identifies all of them; empty where there are none."""
        if not self.steps:
            return ""
        each = sorted(f"{value} {qtype.value} {steps.digest}" for (value, qtype), steps in self.steps.items())
        return hashlib.sha256("\n".join(each).encode()).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rounding) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def as_arrays(self) -> dict[str, np.ndarray]:
        """As named arrays; see :meth:`from_arrays`."""
        return {f"{qtype.value}|{steps.scale}|{value}": steps.delta for (value, qtype), steps in self.steps.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Rounding:
        """The one that gave ``arrays``. Raises ValueError where none did."""
        found = {}
        for name, delta in arrays.items():
            qtype, scale, value = name.split("|", 2)
            found[value, QType(qtype)] = Steps(scale, np.asarray(delta, np.int8))
        return cls(found)


NEAREST = Rounding()  # every weight to its nearest integers


def scale_digest(params: QParams) -> str:
    """Identifies the scales of a weight."""
    return hashlib.sha256(np.asarray(params.scale, np.float32).tobytes()).hexdigest()[:16]
