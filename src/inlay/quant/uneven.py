"""Values whose parts differ so much in size that one scale would lose the small ones: boxes joined with scores, say.

On the way to an output nothing makes up for that: what is lost in a joined value is lost in the output. So such a value
has no scale. Whatever writes or reads it stays in float, and what it is joined of keeps ranges of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from inlay.data import Joins
from inlay.quant.accuracy import sqnr_db
from inlay.quant.observers import Range
from inlay.quant.parts import Part, Parts
from inlay.quant.qparams import activation_params, dequantize, quantize
from inlay.types import QType

_ENOUGH_DB = 20.0  # as much as is asked for by default
_LEAST_GAIN_DB = 6.0
"""A scale of its own must give a part that much more: what is small everywhere has little accuracy anyway."""


def find_uneven(arrays: Mapping[str, np.ndarray], joins: Joins, qtype: QType) -> Mapping[str, str]:
    """Why one scale does not do, for each value for which it does not.

    Args:
        joins: by value, what is joined into it along each axis (:mod:`inlay.model.joins`).

    Returns:
        Reasons by value, for people: a part (:mod:`inlay.quant.parts`) would have less than the accuracy that is asked
        for by default, and has more by a scale of its own.
    """
    found = dict[str, str]()
    for name, array in arrays.items():
        if name in joins and array.dtype == np.float32 and array.size and np.isfinite(array).all():
            parts = Parts.of([{name: array}], joins).divided.get(name, ())
            reason = _reason(name, array, parts, qtype)
            if reason:
                found[name] = reason
    return found


def _reason(name: str, array: np.ndarray, parts: tuple[Part, ...], qtype: QType) -> str:
    if not parts:
        return ""
    rounded = _rounded(array, qtype)
    sizes = [float(np.sqrt(np.square(part.of(array), dtype=np.float64).mean())) for part in parts]
    left = [_db(part.of(array), part.of(rounded)) for part in parts]
    lost = min(range(len(parts)), key=left.__getitem__)
    own = _db(parts[lost].of(array), _rounded(parts[lost].of(array), qtype))
    if left[lost] >= _ENOUGH_DB or own < left[lost] + _LEAST_GAIN_DB:
        return ""
    return (
        f"{name} holds values that differ in size by {max(sizes) / sizes[lost]:.0f}x: one {qtype.value} scale would "
        f"leave the smaller ones with {left[lost]:.0f} dB"
    )


def _rounded(array: np.ndarray, qtype: QType) -> np.ndarray:
    params = activation_params(Range(float(array.min()), float(array.max())), qtype)
    return dequantize(quantize(array, params), params)


def _db(want: np.ndarray, got: np.ndarray) -> float:
    return sqnr_db(float(np.square(want, dtype=np.float64).sum()), float(np.square(want - got).sum()))
