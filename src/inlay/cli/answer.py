"""What a command answers: lines for people, or with ``--json`` one JSON object on standard output and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import typer

from inlay.cli.terminal import Table, say
from inlay.prepare.declare import Option

JSON = Option("Print one JSON object with stable keys instead of text.", flags=("--json",), type=bool)


def answer(as_json: bool, found: object, lines: Callable[[], Iterable[str | Table]]) -> None:
    """Print ``found`` as JSON, or else the ``lines`` on it."""
    if as_json:
        typer.echo(json.dumps(as_data(found), indent=2, allow_nan=False))
    else:
        say(lines())


def as_data(found: object) -> Any:
    """``found`` as JSON has it: results by their ``as_json()`` or by their fields, numbers that are none as null."""
    if hasattr(found, "as_json"):
        return as_data(found.as_json())
    if is_dataclass(found) and not isinstance(found, type):
        return {f.name: as_data(getattr(found, f.name)) for f in fields(found)}
    if isinstance(found, Mapping):
        return {str(key): as_data(value) for key, value in found.items()}
    if isinstance(found, np.generic):
        return as_data(found.item())
    if found is None or isinstance(found, bool | int | str):
        return found
    if isinstance(found, float):
        return found if math.isfinite(found) else None
    return [as_data(each) for each in found] if isinstance(found, Iterable) else str(found)
