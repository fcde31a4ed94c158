"""Keep the prints of compiled libraries off standard output."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Redirect standard output to the null device, for compiled code too: the file descriptor itself is replaced."""
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
            ctypes.CDLL(None).fflush(None)  # what C has buffered is discarded too
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
