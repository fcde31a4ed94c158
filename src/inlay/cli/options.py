"""Options of the command line, derived from what the functions in :mod:`inlay.api` take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from inlay.errors import UsageError, near
from inlay.files import refuse_overwriting
from inlay.prepare.declare import Option, declared, option_in
from inlay.prepare.options import EFFORTS
from inlay.run.inputs import OUTPUTS
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


Command = Callable[..., None]

_OUTPUTS = ("out", "to", "json_log")
"""Parameters that name what a command writes; where one of them is an input, as ``out`` of ``select``, none is lost."""


def options_of(
    function: Callable[..., Any] | None = None, defaults: Sequence[inspect.Parameter] = (CONFIG,)
) -> Callable[[Command], Command]:
    """Give a command the options of ``function``, those of its own keyword parameters, and ``defaults`` for all.

    The command gets the values by name, as ``function`` takes them. An option that was not given is left out where its
    default is None or no value, so that the default of ``function`` holds.
    """

    def derive(command: Command) -> Command:
        parameters = {} if function is None else _declared(function)
        groups = {
            name: option for name, p in parameters.items() if (option := option_in(p.annotation)) and option.fields
        }
        parameters = dict(_spread(parameters))
        for name, own in _declared(command).items():
            parameters = _inserted(parameters, name, own)
        shown = [*map(_shown, parameters.values()), *defaults]

        def run(config: Path | None = None, **given: Any) -> None:
            known = {p.name: option_in(p.annotation) for p in parameters.values()}
            given = {n: v for n, v in given.items() if n in known and v is not None}
            values = {n: not v if (o := known[n]) and o.negated else v for n, v in given.items()}
            going: list[str] = []
            for name, option in groups.items():
                parts = _parts_in(str(values.pop(name)), option) if name in values else {}
                for field, former in option.fields:
                    if (part := values.pop(_part(name, field), None)) is not None:
                        parts[field] = part
                        instead = f"use {option.flags[0]} '{field}={part}'"
                        going.append(f"inlay: {former.flags[0]} goes in {option.fields_go}: {instead}")
                if parts and option.type is not None:
                    values[name] = option.type(**parts)
            if config is not None:
                refuse_overwriting(_written(values), [config])
            try:
                command(**values)
            except typer.Exit:  # what is refused is told in one line, and nothing else
                _tell(going)
                raise
            _tell(going)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {p.name: p.annotation for p in shown}
        run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        return run

    return derive


def _tell(going: Iterable[str]) -> None:
    for notice in going:
        typer.echo(notice, err=True)


def _written(values: Mapping[str, Any]) -> Iterator[Path]:
    """Files that a command with these values may write: what its outputs name, and what lies in or beside them."""
    for path in (Path(values[name]) for name in _OUTPUTS if isinstance(values.get(name), str | Path)):
        yield from (path, Path(f"{path}.data"), *(path / name for name in OUTPUTS))


def _declared(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters that are options on the command line."""
    found = {name: (p, option_in(p.annotation)) for name, p in declared(function).items()}
    return {name: p for name, (p, option) in found.items() if option is not None and option.type is not None}


def _spread(parameters: Mapping[str, inspect.Parameter]) -> Iterator[tuple[str, inspect.Parameter]]:
    """Parameters by name; behind one of several parts follow the options that these once were."""
    for name, parameter in parameters.items():
        option = option_in(parameter.annotation)
        if option is None or not option.fields:
            yield name, parameter
            continue
        annotation: Any = Annotated[str, replace(option, type=str, fields=())]
        yield name, parameter.replace(default=None, annotation=annotation)
        for field, part in option.fields:
            annotation = Annotated[str, replace(part, show_default=False)]
            yield _part(name, field), parameter.replace(name=_part(name, field), default=None, annotation=annotation)


def _parts_in(text: str, option: Option) -> dict[str, Any]:
    """The parts of a value, out of a file or of ``name=value; name=value``. Raises UsageError, NoSuchFile."""
    flag, kinds = option.flags[0], {field: part.type for field, part in option.fields}
    if "=" in text and not Path(text).is_file():
        pairs = [each.partition("=") for each in text.split(";") if each.strip()]
        found: Any = {key.strip(): value.strip() for key, _, value in pairs}
    else:
        found = read_yaml(Path(text), prefix=f"{flag} ") or {}
    if not isinstance(found, dict):
        raise UsageError(f"{flag} {text}: expected names with values, as in 'size: 224'")
    parts = {}
    for key, value in found.items():
        if key not in kinds:
            raise UsageError(f"{flag} {text}: there is no {key}{near(key, kinds) or '; there are ' + ', '.join(kinds)}")
        several = isinstance(value, list) and all(isinstance(v, int | float) for v in value)
        if not several and (isinstance(value, bool) or not isinstance(value, str | int | float)):
            raise UsageError(f"{flag} {text}: {key} takes a number, a word, or a list of numbers")
        try:
            parts[str(key)] = float(value) if kinds[key] is float else value if several else str(value)
        except (TypeError, ValueError):
            raise UsageError(f"{flag} {text}: {key} takes a number, not {value}") from None
    return parts


def _part(name: str, field: str) -> str:
    return f"{name}_{field}"


def _inserted(
    parameters: Mapping[str, inspect.Parameter], name: str, own: inspect.Parameter
) -> dict[str, inspect.Parameter]:
    option = option_in(own.annotation)
    names = list(parameters)
    at = names.index(option.before) if option is not None and option.before else len(names)
    names.insert(at, name)
    return {n: own if n == name else parameters[n] for n in names}


def _shown(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter in typer's terms."""
    option = option_in(parameter.annotation)
    assert option is not None
    assert option.type is not None
    default = parameter.default
    if option.negated:
        default = not default
    if option.repeated:
        default = None if default == () else [default] if isinstance(default, str) else default
    kind: Any = list[option.type] if option.repeated else option.type  # type: ignore[name-defined]
    if default is None:
        kind |= None
    info = _option(option, parameter.name)
    if option.positional:
        info = typer.Argument(metavar=option.metavar, help=option.help, show_default=option.show_default)
    return inspect.Parameter(
        parameter.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def _option(option: Option, name: str) -> Any:
    flags = option.flags or (f"--{name.replace('_', '-')}",)
    return typer.Option(
        *flags,
        metavar=option.metavar or _placeholder(option, flags),
        help=option.help,
        min=option.least,
        max=option.most,
        show_default=option.show_default,
        hidden=not option.help,
    )


def _placeholder(option: Option, flags: tuple[str, ...]) -> str | None:
    """What stands for the value in the help: N for a whole number, X for another, else the name of the option."""
    if option.type is bool:
        return None
    return {int: "N", float: "X"}.get(option.type or str, flags[0].lstrip("-").upper().replace("-", "_"))
