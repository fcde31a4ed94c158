"""Products of numpy in one thread: what is multiplied here is small.

With a thread for each core, every product waits for the slowest of them, and each of them spins for tens of
milliseconds behind it, in case of another. Beside two busy processes on two cores, evening out a BERT's outliers took
6 s, and 2 with one thread; on an idle machine a noise probe took 69 ms while they spun, and 33 without.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

THREADS = "OPENBLAS_NUM_THREADS"
"""The variable by which people choose a number themselves, and by which processes that are started get one."""


@contextmanager
def in_one_thread() -> Iterator[None]:
    """Within this, unless a number was chosen."""
    if THREADS in os.environ:
        yield
        return
    with threadpool_limits(1, "blas"):
        yield
