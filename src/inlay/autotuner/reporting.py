"""What a step-by-step tuner says while it works."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

_LOGGER = logging.getLogger("inlay.autotuner")


def reporter(verbose: bool) -> Callable[[str], None]:
    """Reports to the logger ``inlay.autotuner``: at level INFO where ``verbose``, otherwise DEBUG.

    A verbose one is heard in any case: where the logger has no handler, on standard error.
    """
    if verbose:
        _LOGGER.setLevel(min(_LOGGER.level or logging.INFO, logging.INFO))
        if not _LOGGER.hasHandlers():
            _LOGGER.addHandler(logging.StreamHandler(sys.stderr))
    level = logging.INFO if verbose else logging.DEBUG
    return lambda text: _LOGGER.log(level, "%s", text)
