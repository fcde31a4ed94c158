"""What users of Inlay may rely on, as one list: names, signatures, fields, commands, options, targets.

``make surface`` writes it to ``docs/surface.txt``; ``docs/stability.md`` says what may change in it, and when.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from inlay.cli.commands import app
from inlay.installed import EXECUTORS, STRATEGIES, TARGETS, joined

PAGE = Path(__file__).resolve().parents[2] / "docs" / "surface.txt"
STABLE = ("inlay", "inlay.api", "inlay.errors", "inlay.types", "inlay.trial")
PROVISIONAL = (
    "inlay.autotune",
    "inlay.explanation",
    "inlay.portfolio",
    "inlay.search",
    "inlay.targets",
    "inlay.testing",
)
"""Modules with public names; those of a package are the names in its ``__all__`` that are no modules."""


def names_of(module: Any) -> list[str]:
    """The public names that ``module`` offers, sorted: of a package ``__all__``, of a file what it defines."""
    listed = getattr(module, "__all__", None)
    if listed is None:
        own = vars(module).items()
        listed = [n for n, v in own if n[0] != "_" and getattr(v, "__module__", "") == module.__name__]
    return sorted(n for n in listed if n == "__version__" or not inspect.ismodule(getattr(module, n, module)))


def lines() -> list[str]:
    """The whole surface, a line for each thing."""
    found = []
    for kind, modules in (("stable", STABLE), ("provisional", PROVISIONAL)):
        for name in modules:
            module = importlib.import_module(name)
            found += [f"# {name} ({kind})"]
            for each in names_of(module):
                found += _of_value(f"{name}.{each}", getattr(module, each))
    found += ["# the command line (stable)", *commands()]
    for group, kind in ((TARGETS, "target"), (STRATEGIES, "joined strategy"), (EXECUTORS, "executor")):
        found += [f"{kind} {name}" for name, entry in joined(group).items() if entry.value.startswith("inlay.")]
    return found


def commands() -> Iterator[str]:
    """Each command, its arguments and its options; hidden ones are no part of the surface."""

    def walk(name: str, command: Any) -> Iterator[str]:
        if getattr(command, "hidden", False):
            return
        words = [
            ", ".join(p.opts + p.secondary_opts) if p.param_type_name == "option" else p.name
            for p in command.params
            if not getattr(p, "hidden", False)
        ]
        yield name
        yield from (f"{name} {word}" for word in sorted(words))
        if hasattr(command, "list_commands"):  # wings join as they are asked for
            for inner in sorted(command.list_commands(None)):
                yield from walk(f"{name} {inner}", command.get_command(None, inner))

    yield from walk("inlay", get_command(app))


def _of_value(name: str, value: Any) -> Iterator[str]:
    if typing.get_origin(value) is not None:  # to some Pythons it is a class, to others it has a signature
        yield f"{name}: type"
    elif inspect.isclass(value):
        bases = [b.__name__ for b in value.__mro__[1:] if b.__module__.startswith("inlay")]
        yield f"{name}: class{'(' + ', '.join(bases) + ')' if bases else ''}"
        if issubclass(value, enum.Enum):
            yield from (f"{name}.{member.name}" for member in value)
            return
        fields = {f.name for f in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
        if fields:
            yield from _signature(name, value)
        for base in reversed(value.__mro__):
            if base.__module__.startswith("inlay"):
                for each, member in sorted(vars(base).items()):
                    if each[0] != "_" and each not in fields and each in dir(value) and _holder(value, each) is base:
                        yield from _of_member(f"{name}.{each}", member)
    elif callable(value):
        yield from _signature(name, value)
    else:
        yield f"{name}: {type(value).__name__}"


def _holder(value: type, name: str) -> type | None:
    return next((base for base in value.__mro__ if name in vars(base)), None)


def _of_member(name: str, member: Any) -> Iterator[str]:
    if isinstance(member, (classmethod, staticmethod)):
        member = member.__func__
    if inspect.isfunction(member):
        yield from _signature(name, member)
    elif not inspect.isclass(member):
        yield name


def _signature(name: str, value: Any) -> Iterator[str]:
    """What is given by place, then a line for each that is given by name.

    Neither annotations nor defaults: the ones differ between Pythons, the others between machines.
    """
    try:
        given = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        given = []
    named = [each for each in given if each.kind is each.KEYWORD_ONLY]
    sign: dict[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    words = [f"{sign.get(p.kind, '')}{_shown(p)}" for p in given if p not in named]
    yield f"{name}({', '.join(words)})"
    yield from (f"{name}(…, {_shown(each)})" for each in named)


def _shown(parameter: inspect.Parameter) -> str:
    return parameter.name if parameter.default is parameter.empty else f"{parameter.name}=…"


def main() -> None:
    """Write the list."""
    PAGE.write_text("\n".join(lines()) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
