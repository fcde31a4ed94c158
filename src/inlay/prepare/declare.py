"""Options that are declared once: what makes command lines, docstrings and checks of declarations.

An :class:`Option` says what one means, and how it looks on the command line. It stands in the annotation of a
function's parameter, or of a field of an :class:`Options` value that the function takes. The command line derives its
options from these (:mod:`inlay.cli.options`), and :func:`documented` their docstrings. Calls from Python are checked as
the command line checks its options. Without that, a wrong type would fail somewhere inside, or mean another thing: a
lone string is a sequence of letters.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np

from inlay.errors import UsageError
from inlay.model.libraries import in_one_thread

T = TypeVar("T", bound=Callable[..., Any])
_NUMBERS = {int: (int, np.integer), float: (int, float, np.integer, np.floating), bool: (bool, np.bool_)}
"""What passes for a number of a type; of these, only bool takes True and False."""


@dataclass(frozen=True)
class Option:
    """One option or argument of a command."""

    help: str  # what it means, as `--help` prints it
    # what else Python callers should know, for docstrings only; all that they should know where `negated`
    python: str = ""
    flags: tuple[str, ...] = ()  # on the command line; `--parameter-name` by default
    metavar: str | None = None  # placeholder for the value; by default the name of its type
    type: type[Any] | None = str  # of the value on the command line; None where the option exists in Python only
    # least, most: the smallest and the largest whole number that is accepted
    least: int | None = None
    most: int | None = None
    positional: bool = False  # it is an argument, not an option
    repeated: bool = False  # it may be given several times
    negated: bool = False  # the flag stands for False
    show_default: bool = True  # whether `--help` prints the default
    # parts of a value that is told on the command line as a file, or as `name=value; name=value`
    fields: tuple[tuple[str, Option], ...] = ()
    fields_go: str = ""  # the version that lacks the options that these parts once were; they are not in the help
    before: str = ""  # name of the parameter that it precedes in `--help`, for options that only the command line has

    @property
    def documentation(self) -> str:
        """What it means, for docstrings."""
        return " ".join(text for text in ("" if self.negated else self.help, self.python) if text)


def option_in(annotation: Any) -> Option | None:
    """The declaration in an ``Annotated`` type, or None."""
    if get_origin(annotation) is not Annotated:
        return None
    return next((a for a in get_args(annotation)[1:] if isinstance(a, Option)), None)


OptionsT = TypeVar("OptionsT", bound="Options")


@dataclass(frozen=True, kw_only=True, eq=False)
class Options:
    """What a call of a function asks for besides its subject: one field for each option, each with a default.

    Raises:
        UsageError: a value is not of the type, or not within the limits, that its field declares.
    """

    def __post_init__(self) -> None:
        """Check every field."""
        _check(self.caller(), self.by_name(), declared(type(self)))

    @classmethod
    def caller(cls) -> str:
        """The function that takes them, for people."""
        return f"inlay.{cls.__name__.removesuffix('Options').lower()}"

    @classmethod
    def of(cls: type[OptionsT], given: OptionsT | None, changes: Mapping[str, Any]) -> OptionsT:
        """``given``, or else all defaults, with ``changes``. Raises UsageError, also where there is no such option."""
        for name in changes:
            _refuse_unknown(cls.caller(), name, [f.name for f in fields(cls)])
        if given is None:
            return cls(**changes)
        if not isinstance(given, cls):
            raise UsageError(f"{cls.caller()}: options takes {cls.__name__} or None, not {shown(given)}")
        return replace(given, **changes)

    def by_name(self) -> dict[str, Any]:
        """The value of each option."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def declared(item: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Parameters of a function or class, their annotations evaluated; in place of an options value, its fields."""
    found = dict[str, inspect.Parameter]()
    hints = dict[str, Any]()
    for each in reversed(item.__mro__) if isinstance(item, type) else (item,):
        hints |= inspect.get_annotations(each, eval_str=True)
    for name, parameter in inspect.signature(item).parameters.items():
        hint = hints.get(name, parameter.annotation)
        taken = [part for part in (hint, *get_args(hint)) if isinstance(part, type) and issubclass(part, Options)]
        if taken:
            found.update(declared(taken[0]))
        elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            found[name] = parameter.replace(annotation=hint)
    return found


def documented(item: T) -> T:
    """Add the annotated parameters of a function, or fields of a class, to the last section of its docstring.

    Calls of the function are checked.
    """
    found = {name: option for name, p in declared(item).items() if (option := option_in(p.annotation)) is not None}
    lines = [f"    {name}: {option.documentation}" for name, option in found.items()]
    title = "Attributes:" if isinstance(item, type) else "Args:"
    head, has_title, body = inspect.cleandoc(item.__doc__ or "").partition(f"{title}\n")
    if not has_title:
        head, _, rest = head.partition("\nRaises:\n")
        body = f"\nRaises:\n{rest}" if rest else ""
        head += "\n"
    item.__doc__ = f"{head.rstrip()}\n\n{title}\n" + "\n".join(lines) + f"\n{body}"
    return item if isinstance(item, type) else _checking(item)


def command_line(function: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """The command that does what a call of ``function`` did; ``given`` are its options, and arguments, by name.

    What no command line can say (arrays, functions) stands there in angle brackets; defaults are left out.
    """
    words, places = ["inlay", function.__name__], list[str]()
    for name, parameter in declared(function).items():
        option, value = option_in(parameter.annotation), given[name]
        if option is None or option.type is None or value is None or _same(value, parameter.default):
            continue
        flag = option.flags[0] if option.flags else f"--{name.replace('_', '-')}"
        if option.fields:
            words += [flag, shlex.quote(written(value, option))]
            continue
        if option.positional:
            places += _words(value, option)
        elif option.type is bool:
            words.append(flag)
        else:
            words += [part for word in _words(value, option) for part in (flag, word)]
    return " ".join([*words[:2], *places, *words[2:]])


def written(value: Any, option: Option) -> str:
    """A value of several parts as one text: ``size=224; mean=0.5,0.4,0.3``."""
    told = ((field, getattr(value, field)) for field, _ in option.fields)
    return "; ".join(
        f"{field}={said if isinstance(said, (str, int, float)) else ','.join(map(str, said))}"
        for field, said in told
        if said is not None
    )


def _same(value: Any, default: Any) -> bool:
    plain = (str, int, float, bool, Path, tuple)
    return isinstance(value, plain) and (str(value) == str(default) or value == default)


def _words(value: Any, option: Option) -> list[str]:
    if option.repeated and isinstance(value, Mapping):
        return [shlex.quote(f"{key}={setting}") for key, setting in value.items()]
    if option.repeated and isinstance(value, Sequence) and not isinstance(value, str):
        return [shlex.quote(str(v)) for v in value]
    said = str(value) if isinstance(value, (str, int, float, Path)) else getattr(value, "name", None)
    return [shlex.quote(said) if isinstance(said, str) else f"<{type(value).__name__}>"]


def _checking(function: T) -> T:
    """``function``, with numpy's products in one thread. Raises UsageError where arguments do not fit its signature."""
    signature, called = inspect.signature(function), f"inlay.{getattr(function, '__name__', function)}"
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        for name in () if open_ended else named:
            _refuse_unknown(called, name, [*signature.parameters])
        try:
            bound = signature.bind(*given, **named)
        except TypeError as error:
            raise UsageError(f"{called}: {error}") from None
        _check(called, bound.arguments, declared(function))
        with in_one_thread():
            return function(*given, **named)

    return call  # type: ignore[return-value]


def _refuse_unknown(called: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        close = get_close_matches(name, known, 1)
        raise UsageError(f"{called} has no argument {name}" + (f": did you mean {close[0]}?" if close else ""))


def _check(called: str, values: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> None:
    for name, value in values.items():
        if name not in parameters:  # changes of an options value, which checks them
            continue
        hint = parameters[name].annotation
        if not _fits(value, hint):
            raise UsageError(f"{called}: {name} takes {_named(hint)}, not {shown(value)}")
        option = option_in(hint)
        if option is None or not isinstance(value, int):
            continue
        if option.least is not None and value < option.least:
            raise UsageError(f"{called}: {name} is {value}; the least is {option.least}")
        if option.most is not None and value > option.most:
            raise UsageError(f"{called}: {name} is {value}; the most is {option.most}")


def _fits(value: Any, hint: Any) -> bool:
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind is Annotated:
        return _fits(value, parts[0])
    if kind in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if kind is Literal:
        return value in parts
    if kind in (None, NoneType):
        return value is None
    if kind in _NUMBERS:
        return isinstance(value, _NUMBERS[kind]) and (kind is bool or not isinstance(value, _NUMBERS[bool]))
    if kind in (Sequence, Iterable):
        if isinstance(value, (str, bytes)) or not isinstance(value, kind):
            return False
        return kind is Iterable or all(_fits(v, parts[0]) for v in value)
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    return isinstance(value, kind)


def _named(hint: Any) -> str:
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind is Annotated:
        return _named(parts[0])
    if kind in (Union, UnionType):
        return " or ".join(_named(part) for part in parts)
    if kind in (Sequence, Iterable):
        return f"a list of {_named(parts[0])}" if parts else "a list"
    return "None" if kind is NoneType else str(getattr(kind, "__name__", kind))


def shown(value: Any) -> str:
    """A value in a message: itself, or of what type it is."""
    plain = isinstance(value, (str, int, float, bool, NoneType))
    return f"{value!r:.60}" if plain else type(value).__name__
