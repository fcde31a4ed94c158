"""The optional package, imported when it is first needed."""

from __future__ import annotations

import importlib
import re
from functools import lru_cache
from typing import Any

from inlay.errors import UsageError

_PLACE = re.compile(r"(Exception from |Check '.*?' failed at )\S*:\d+:?|^.*?\.(?:cpp|hpp):\d+:?", re.MULTILINE)


@lru_cache(maxsize=1)
def openvino() -> Any:
    """The package.

    Raises:
        UsageError: it is not installed, or does not load; names what to install.
    """
    try:
        return importlib.import_module("openvino")
    except ImportError as error:
        raise UsageError(f"target openvino-cpu needs OpenVINO: pip install 'inlay[openvino]' ({error})") from error


@lru_cache(maxsize=1)
def core() -> Any:
    """What reads and compiles models: one for the process, since it loads the plugin. Raises UsageError."""
    return openvino().Core()


def message(error: BaseException) -> str:
    """The runtime's error in one line, without the places in its sources."""
    return " ".join(_PLACE.sub("", str(error)).split()) or type(error).__name__
