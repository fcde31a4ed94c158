"""Large structures built without the garbage collector: to scan long-lived objects again and again costs a third."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused(lives_on: bool = False) -> Iterator[None]:
    """Within this, dead objects that refer to each other are not freed. It may be nested, and used as a decorator.

    Args:
        lives_on: nearly all that is built within is kept: the next collection need not look through it at once.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if lives_on and not gc.get_freeze_count():  # what the caller froze stays frozen
            gc.freeze()
            gc.unfreeze()
        if was:
            gc.enable()
