"""The optional package, imported when it is first needed."""

from __future__ import annotations

import importlib
import re
import sys
from functools import lru_cache
from typing import Any

from inlay.errors import UsageError

_REPORTING = "openvino_telemetry"
_PLACE = re.compile(r"(Exception from |Check '.*?' failed at )\S*:\d+:?|^.*?\.(?:cpp|hpp):\d+:?", re.MULTILINE)


@lru_cache(maxsize=1)
def openvino() -> Any:
    """The package. It is imported as if the one by which it reports its use to its makers were not installed.

    Raises:
        UsageError: it is not installed, or does not load; names what to install.
    """
    absent = _REPORTING not in sys.modules
    if absent:
        sys.modules[_REPORTING] = None  # type: ignore[assignment]  # what the language has for "not to be imported"
    try:
        return importlib.import_module("openvino")
    except ImportError as error:
        raise UsageError(f"target openvino-cpu needs OpenVINO: pip install 'inlay[openvino]' ({error})") from error
    finally:
        if absent:
            del sys.modules[_REPORTING]


@lru_cache(maxsize=1)
def core() -> Any:
    """What reads and compiles models: one for the process, since it loads the plugin. Raises UsageError."""
    return openvino().Core()


def message(error: BaseException) -> str:
    """The runtime's error in one line, without the places in its sources."""
    return " ".join(_PLACE.sub("", str(error)).split()) or type(error).__name__
