"""One inference after another by this machine's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np


def timed(infer: Callable[[], object], repeats: int) -> np.ndarray:
    """Nanoseconds of each call, shape (repeats,), int64."""
    times = np.empty(repeats, np.int64)
    for i in range(repeats):
        start = time.perf_counter_ns()
        infer()
        times[i] = time.perf_counter_ns() - start
    return times
