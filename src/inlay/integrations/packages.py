"""Packages of other tools, imported when they are first needed, with an error that names the extra to install."""

from __future__ import annotations

import importlib
from typing import Any

from inlay.errors import UsageError


def required(module: str, extra: str, what: str) -> Any:
    """Import ``module``, which the extra ``extra`` brings, for ``what``.

    Raises:
        UsageError: it is not installed, or does not load; names what to install.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:  # a library that lacks another one is an OSError
        package = module.partition(".")[0]
        raise UsageError(f"{what} needs {package}: pip install 'inlay[{extra}]' ({error})") from error
