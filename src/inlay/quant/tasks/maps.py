"""Masks, and sound: how much of a mask is the same (mean IoU), how far spectra are apart (log-spectral distance)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from inlay.quant.metrics import Agreement, Outputs, is_longer, on_common_part

THRESHOLD = 0.5  # of a probability, from which a pixel belongs to the mask
_LEAST_SHARE = 0.01
"""Of all pixels, that a class has to count: a few pixels of a class are noise of the float model as well."""
_WINDOW, _HOP = 1024, 256
_FLOOR = 1e-5  # 50 dB below the loudest: what is more silent is not heard beside it


def mask_iou(classes: Callable[[np.ndarray], np.ndarray], outputs: Sequence[str], count: int) -> Agreement:
    """Mean over classes of the intersection over union of their pixels in all samples.

    Classes count that the float model sees in 1 % of the pixels or more.

    Args:
        classes: the class of each pixel of an output.
        outputs: of masks; the worst one counts.
        count: of classes: 2 where pixels belong to a mask or not, of which only the mask counts.
    """

    def of(others: Sequence[Outputs], reference: Sequence[Outputs]) -> float:
        return min((_mean_iou(name, others, reference) for name in outputs), default=1.0)

    def _mean_iou(name: str, others: Sequence[Outputs], reference: Sequence[Outputs]) -> float:
        both, union, wanted = (np.zeros(count) for _ in range(3))
        for got, want in zip(others, reference, strict=True):
            ours, theirs = want[name], got.get(name)
            sizes = np.bincount(classes(ours).ravel(), minlength=count)[:count]
            if theirs is not None and is_longer(ours, theirs):
                ours, theirs = on_common_part(ours, theirs)
            wanted += sizes
            union += sizes
            if theirs is None or theirs.shape != ours.shape:
                continue
            a, b = classes(ours).ravel(), classes(theirs).ravel()
            same = np.bincount(a[a == b], minlength=count)[:count]
            both += same
            union += np.bincount(b, minlength=count)[:count] - same
        there = wanted >= max(1.0, _LEAST_SHARE * wanted.sum())
        if count == 2:  # where there is nothing but the mask, only the mask counts
            there = np.array([False, wanted[1] > 0.0])
        return float((both[there] / union[there]).mean()) if there.any() else 1.0

    return Agreement(of)


def log_spectral_distance(outputs: Sequence[str]) -> Agreement:
    """Minus the mean distance of log spectra in dB (Gray and Markel 1976), on what sounds have in common; the worst."""

    def of(others: Sequence[Outputs], reference: Sequence[Outputs]) -> float:
        found = []
        for name in outputs:
            each = [_distance(want[name], got.get(name)) for got, want in zip(others, reference, strict=True)]
            found.append(float(np.mean(each)) if each else 0.0)
        return -max(found, default=0.0)

    return Agreement(of)


def _distance(want: np.ndarray, got: np.ndarray | None) -> float:
    silence = -10.0 * float(np.log10(_FLOOR))  # as far as anything can be
    if got is None or not want.size:
        return silence if want.size else 0.0
    ours, theirs = want.ravel().astype(np.float64), got.ravel().astype(np.float64)
    length = min(len(ours), len(theirs))
    if not length or not np.isfinite(theirs).all():
        return silence
    a, b = (_spectra(x[:length]) for x in (ours, theirs))
    floor = _FLOOR * max(float(a.max()), 1e-30)
    apart = 10.0 * np.log10(np.maximum(a, floor) / np.maximum(b, floor))
    return float(np.sqrt(np.square(apart).mean(axis=1)).mean())


def _spectra(sound: np.ndarray) -> np.ndarray:
    """Power by frame and frequency."""
    window = min(_WINDOW, len(sound))
    frames = np.lib.stride_tricks.sliding_window_view(sound, window)[::_HOP]
    return np.asarray(np.square(np.abs(np.fft.rfft(frames * np.hanning(window + 2)[1:-1], axis=1))))
