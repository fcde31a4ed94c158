"""Calls from Python, checked as the command line checks its options: a wrong type or name is one clear line.

A function's signature says what it takes. Without this, a wrong type would fail somewhere inside, or mean another
thing: a lone string is a sequence of letters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np

from inlay.errors import UsageError
from inlay.model.products import in_one_thread

T = TypeVar("T")
Limits = Mapping[str, tuple[int | None, int | None]]
_NUMBERS = {int: (int, np.integer), float: (int, float, np.integer, np.floating), bool: (bool, np.bool_)}
"""What passes for a number of a type; of these, only bool takes True and False."""


def checking(function: T, limits: Limits) -> T:
    """``function``, with one thread for products of numpy; raises UsageError where arguments do not fit its signature.

    Args:
        function: its parameters are annotated.
        limits: the least and the largest value of whole numbers, by parameter.
    """
    assert callable(function)

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        arguments(function, limits, given, named)
        with in_one_thread():
            return function(*given, **named)

    call.limits = limits  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def arguments(
    function: Callable[..., Any], limits: Limits, given: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by name, defaults included.

    Raises:
        UsageError: they do not fit the signature.
    """
    signature, called = inspect.signature(function), f"inlay.{getattr(function, '__name__', function)}"
    for name in named:
        if name not in signature.parameters:
            close = get_close_matches(name, signature.parameters, 1)
            raise UsageError(f"{called} has no argument {name}" + (f": did you mean {close[0]}?" if close else ""))
    try:
        call = signature.bind(*given, **named)
    except TypeError as error:
        raise UsageError(f"{called}: {error}") from None
    hints = inspect.get_annotations(function, eval_str=True)
    for name, value in call.arguments.items():
        if not _fits(value, hints.get(name, Any)):
            raise UsageError(f"{called}: {name} takes {_named(hints[name])}, not {_shown(value)}")
        least, most = limits.get(name, (None, None))
        if least is not None and isinstance(value, int) and value < least:
            raise UsageError(f"{called}: {name} is {value}; the least is {least}")
        if most is not None and isinstance(value, int) and value > most:
            raise UsageError(f"{called}: {name} is {value}; the most is {most}")
    call.apply_defaults()
    return dict(call.arguments)


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


def _shown(value: Any) -> str:
    plain = isinstance(value, (str, int, float, bool, NoneType))
    return f"{value!r:.60}" if plain else type(value).__name__
