"""Second moments of what weighted operators read: ``sum x x'`` over samples and positions, for each kind of window.

A product reads rows, a convolution windows of its input. Moments are added up where the values are computed, in a
process that starts without heavy imports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_ROWS = 4096
"""Rows or windows of one sample that count at most, spread over all by a seeded draw."""


@dataclass(frozen=True)
class Window:
    """How an operator reads its input.

    Attributes:
        value: the input's name.
        kernel: sizes of a convolution's kernel; empty for a product, which reads the last axis.
        strides, dilations, pads: of the convolution.
        groups: of the convolution.
    """

    value: str
    kernel: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
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


Moments = Mapping[Window, np.ndarray]
"""``sum x x'`` by window, each of shape (groups, inputs, inputs)."""


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
