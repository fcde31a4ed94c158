"""``--config FILE`` and ``--effort``: defaults for the options of one command, which the command line overrides."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from inlay.errors import UsageError
from inlay.prepare.declare import near
from inlay.prepare.options import EFFORTS
from inlay.yaml_file import read_yaml


def _from_file(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options of ``context``'s command from a file. Raises UsageError, NoSuchFile."""
    if path is None:
        return None
    found = read_yaml(path, prefix="--config ") or {}
    if not isinstance(found, dict):
        raise UsageError(f"--config {path}: expected options with their values, as in 'budget: 60s'")
    names = {flag.lstrip("-"): p for p in context.command.params for flag in p.opts if p.name != "config"}
    values = {}
    for key, value in found.items():
        parameter = names.get(str(key))
        if parameter is None or parameter.name is None:
            raise UsageError(f"--config {path}: {context.info_name} has no option {key}{near(key, names)}")
        several = isinstance(value, list)
        if isinstance(value, dict) or (several and not parameter.multiple and parameter.nargs == 1):
            raise UsageError(f"--config {path}: {key} takes one value")
        if isinstance(value, bool) is not bool(getattr(parameter, "is_flag", False)):
            raise UsageError(
                f"--config {path}: {key} takes {'a value' if isinstance(value, bool) else 'true or false'}"
            )
        values[parameter.name] = [value] if parameter.multiple and not several else value
    context.default_map = {**(context.default_map or {}), **values}
    return path


def _by_effort(context: typer.Context, name: str | None) -> str | None:
    """Take the options that an effort stands for. Raises UsageError."""
    if name is None:
        return None
    if name not in EFFORTS:
        raise UsageError(f"--effort {name}: choose from {', '.join(EFFORTS)}")
    context.default_map = {**EFFORTS[name], **(context.default_map or {})}
    return name


def _parameter(name: str, kind: Any, info: Any) -> inspect.Parameter:
    annotation = Annotated[kind | None, info]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


CONFIG = _parameter(
    "config",
    Path,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Read options from a YAML file, by their names here; the command line takes precedence. Trust such a "
        "file as you trust a command line: it may name programs and functions to run.",
        callback=_from_file,
        is_eager=True,
        show_default=False,
    ),
)
EFFORT = _parameter(
    "effort",
    str,
    typer.Option(
        "--effort",
        metavar="|".join(EFFORTS),
        help="A named budget: " + ", ".join(f"{name} {each['budget']}" for name, each in EFFORTS.items()) + ".",
        callback=_by_effort,
        is_eager=True,
        show_default=False,
    ),
)
