"""Ways in which inputs vary, by what they hold: pure functions of arrays, and the order of ids.

Results stay inside the domain that the samples show: 0 to 1, 0 to 255 or -1 to 1 where they keep to one of these,
otherwise between their own extremes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from inlay.data.samples import Feed, InputSpec

Kind = Literal["image", "field", "signal", "tokens", "mask", ""]
"""``field``: four dimensions of which none is known to hold colors; empty where it cannot be told."""

LEAST_TOKENS = 4
_DOMAINS = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))
_TOLERANCE, _SPREAD = 0.01, 0.5  # shares of a domain: beyond its ends by rounding, and least that values must span
_SHORTER = 0.75  # share of the positions that a shorter sequence keeps


@dataclass(frozen=True, eq=False)
class Domain:
    """What elements of an input may be, by channel: arrays that broadcast over the input."""

    low: np.ndarray
    high: np.ndarray

    @property
    def span(self) -> np.ndarray:
        """From one end to the other."""
        return np.asarray(self.high - self.low)


@dataclass(frozen=True, eq=False)
class Given:
    """What a change is given."""

    x: np.ndarray  # one array, in float32
    domain: Domain  # of the input
    other: np.ndarray | None  # the same input of another sample, where it has the same shape
    axes: tuple[int, ...]  # of rows and columns (image), or of time (signal)
    rng: np.random.Generator  # source of noise


Change = Callable[[Given], np.ndarray]


def domain_of(arrays: Sequence[np.ndarray], channel: int | None) -> Domain:
    """What the elements of an input may be, from it in all samples; by channel where it has an axis of colors."""
    finite = [np.where(np.isfinite(a), a, 0.0).astype(np.float32) for a in arrays]
    low, high = (float(pick([pick(a) for a in finite])) for pick in (np.min, np.max))
    known = _DOMAINS[2:] if arrays[0].dtype == np.uint8 else _DOMAINS
    for start, end in known:
        slack = _TOLERANCE * (end - start)
        if arrays[0].dtype == np.uint8 or (
            start - slack <= low and high <= end + slack and high - low >= _SPREAD * (end - start)
        ):
            return Domain(np.array(min(start, low), np.float32), np.array(max(end, high), np.float32))
    if channel is None:
        return Domain(np.array(low, np.float32), np.array(high, np.float32))
    axes = tuple(i for i in range(finite[0].ndim) if i != channel)
    lows = np.min([a.min(axis=axes, keepdims=True) for a in finite], axis=0)
    highs = np.max([a.max(axis=axes, keepdims=True) for a in finite], axis=0)
    return Domain(lows, highs)


def stored(x: np.ndarray, domain: Domain, dtype: np.dtype[Any]) -> np.ndarray:
    """``x`` inside its domain, in the type of the input."""
    inside = np.clip(x, domain.low, domain.high)
    return (np.rint(inside) if dtype.kind in "iu" else inside).astype(dtype)


# --- images, fields and signals


def _brightness(factor: float) -> Change:
    """Black is the low end of the domain, whatever the offset that a normalization gave it."""
    return lambda g: g.domain.low + factor * (g.x - g.domain.low)


def _gain(factor: float) -> Change:
    return lambda g: factor * g.x


def _contrast(factor: float) -> Change:
    return lambda g: g.x.mean() + factor * (g.x - g.x.mean())


def _offset(share: float) -> Change:
    return lambda g: g.x + share * g.domain.span


def _noise(share: float) -> Change:
    return lambda g: g.x + share * g.domain.span * g.rng.standard_normal(g.x.shape, np.float32)


def _hiss(share: float) -> Change:
    return lambda g: g.x + share * g.x.std() * g.rng.standard_normal(g.x.shape, np.float32)


def mixture(g: Given) -> np.ndarray:
    """Half of each of two samples; the one itself where there is no other."""
    return g.x if g.other is None else 0.5 * (g.x + g.other)


def _mirror(g: Given) -> np.ndarray:
    return np.flip(g.x, g.axes[-1])


def _shift(share: float) -> Change:
    """An image's edge is repeated; a series goes on with its beginning."""

    def change(g: Given) -> np.ndarray:
        axis = g.axes[-1]
        steps = max(1, round(share * g.x.shape[axis]))
        if len(g.axes) == 1:
            return np.roll(g.x, steps, axis)
        return np.asarray(np.take(g.x, np.clip(np.arange(g.x.shape[axis]) - steps, 0, None), axis))

    return change


def _frame(share: float) -> Change:
    """The middle of an image, with a frame of its mean around it."""

    def change(g: Given) -> np.ndarray:
        inside = np.zeros(g.x.shape, bool)
        cut = [slice(None)] * g.x.ndim
        for axis in g.axes:
            rim = round(share * g.x.shape[axis] / 2)
            cut[axis] = slice(rim, g.x.shape[axis] - rim)
        inside[tuple(cut)] = True
        return np.where(inside, g.x, g.x.mean(axis=g.axes, keepdims=True))

    return change


CHANGES: Mapping[Kind, Mapping[str, tuple[Change, bool]]] = {
    "image": {
        "0.8x brightness": (_brightness(0.8), False),
        "1.2x brightness": (_brightness(1.2), False),
        "0.7x contrast": (_contrast(0.7), False),
        "1.3x contrast": (_contrast(1.3), False),
        "an offset of 5 %": (_offset(0.05), False),
        "noise of 2 %": (_noise(0.02), False),
        "a mirror image": (_mirror, True),
        "a shift by 10 %": (_shift(0.1), True),
        "a frame of 20 %": (_frame(0.2), True),
        "a mixture of two samples": (mixture, False),
    },
    "field": {
        "0.8x gain": (_gain(0.8), False),
        "1.2x gain": (_gain(1.2), False),
        "noise of 2 %": (_noise(0.02), False),
        "a mixture of two samples": (mixture, False),
    },
    "signal": {
        "0.5x gain": (_gain(0.5), False),
        "1.5x gain": (_gain(1.5), False),
        "noise of 1 %": (_noise(0.01), False),
        "a shift by 10 %": (_shift(0.1), True),
        "a mixture of two samples": (mixture, False),
    },
}
"""By kind and name: the change, and whether it moves elements.

Shares are of the domain's span, or of a side's length.
"""

UNNOTICED: Mapping[Kind, Change] = {"image": _noise(0.01), "field": _hiss(0.01), "signal": _hiss(0.01)}
"""Noise of 1 % that hardly anybody would notice, by kind: of the span in images, which is a PSNR of 40 dB, as usual
JPEG files have it; of the standard deviation in others."""


# --- tokens


def shuffled(feed: Feed, names: Sequence[str], masks: Sequence[str], rng: np.random.Generator) -> Feed | None:
    """The ids between the first and the last one in another order, the same for all inputs ``names``.

    What one of ``masks`` hides, and an id that is repeated at the end (padding), stays where it is.

    Returns:
        The feed; None where there is nothing to move.
    """
    width = feed[names[0]].shape[-1]
    rows, hidden = ({n: feed[n].reshape(-1, width) for n in part} for part in (names, masks))
    done = {n: r.copy() for n, r in rows.items()}
    for i in range(len(rows[names[0]])):
        shown = np.ones(width, bool)
        for r in rows.values():
            shown[_unpadded(r[i]) :] = False
        for mask in hidden.values():
            shown &= mask[i] != 0
        inner = np.flatnonzero(shown)[1:-1]
        order = rng.permutation(inner)
        for n, r in rows.items():
            done[n][i, inner] = r[i, order]
    if all(np.array_equal(done[n], rows[n]) for n in names):
        return None
    return {**feed, **{n: d.reshape(feed[n].shape) for n, d in done.items()}}


def _unpadded(row: np.ndarray) -> int:
    """Positions before the ids that are repeated at the end."""
    differing = np.flatnonzero(row != row[-1:])
    before = int(differing[-1]) + 1 if differing.size else 0
    return before if row.size - before > 1 else row.size


def shortened(feed: Feed, names: Sequence[str], specs: Sequence[InputSpec]) -> Feed | None:
    """The beginning of a sequence of any length; all inputs with that dynamic dimension are cut alike.

    Returns:
        The feed; None where the model fixes the length.
    """
    cut = _along(feed, names, specs)
    (size, *others) = set(cut.values()) or {0}
    kept = max(LEAST_TOKENS, round(_SHORTER * size))
    if others or kept >= size:
        return None
    varied = dict(feed)
    for name, axis in cut:
        varied[name] = np.take(varied[name], np.arange(kept), axis)
    return varied


def lengthened(
    feed: Feed, other: Feed, names: Sequence[str], masks: Sequence[str], specs: Sequence[InputSpec], longest: int
) -> Feed | None:
    """A sequence continued by another, without the id that this begins with, up to ``longest`` positions.

    Longer than the samples are would ask for positions that the model may not have.

    Returns:
        The feed; None where the model fixes the length, it is as long already, or ends in padding, or where another
        input than ``names`` and ``masks`` goes along with it.
    """
    along = _along(feed, names, specs)
    rows = [row for n in names for row in feed[n].reshape(-1, feed[n].shape[-1])]
    padded = any(_unpadded(row) < row.size for row in rows) or not all(feed[n].all() for n in masks)
    if padded or not {n for n, _ in along} <= {*names, *masks} or any(size >= longest for size in along.values()):
        return None
    varied = dict(feed)
    for name, axis in along:
        more = np.take(other[name], np.arange(1, other[name].shape[axis]), axis)
        if more.shape[:axis] != feed[name].shape[:axis]:
            return None
        joined = np.concatenate([feed[name], more], axis)
        varied[name] = np.take(joined, np.arange(min(longest, joined.shape[axis])), axis)
    return varied if along else None


def _along(feed: Feed, names: Sequence[str], specs: Sequence[InputSpec]) -> dict[tuple[str, int], int]:
    """Sizes of the dynamic dimension that the ids end in, by input and axis; empty where that is fixed."""
    symbol = ({s.name: s.dims for s in specs}[names[0]] or (0,))[-1]
    return {
        (s.name, axis): feed[s.name].shape[axis]
        for s in specs
        for axis, d in enumerate(s.dims or ())
        if d == symbol and isinstance(symbol, str) and axis < feed[s.name].ndim
    }
