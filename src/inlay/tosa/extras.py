"""The optional packages of the extra ``arm``, imported when they are first needed."""

from __future__ import annotations

import importlib
from types import ModuleType

from inlay.errors import UsageError


def require(module: str) -> ModuleType:
    """Import ``module``, which the extra ``arm`` brings.

    Raises:
        UsageError: it is not installed, or does not load; names what to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"lowering to TOSA and Ethos-U needs the package with {module.split('.')[0]!r}: "
            f"pip install 'inlay[arm]' ({error})"
        ) from error
