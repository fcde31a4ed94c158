"""Large structures built without the garbage collector: to scan long-lived objects again and again costs a third."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Within this, dead objects that refer to each other are not freed. It may be nested, and used as a decorator."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
