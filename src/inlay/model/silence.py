"""Keep what compiled libraries print off standard output."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Nothing reaches standard output, from compiled code either: the descriptor itself is turned away meanwhile."""
    try:
        sys.stdout.flush()
        kept = os.dup(1)
    except (OSError, ValueError):  # there is no standard output to keep clean
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).fflush(None)  # what C has buffered goes the same way
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
