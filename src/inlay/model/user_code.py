"""The user's own functions, in a process of their own: they may hang, end it, or change what they are given.

What they get are copies, and no call takes longer than :func:`~inlay.model.guard.limited` allows. What a function keeps
between calls stays, as all calls of a command go to one process; what it prints is shown where it ends that process.
"""

from __future__ import annotations

import atexit
import copy
import hashlib
import inspect
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from inlay.data import load_function
from inlay.data.reading import blame
from inlay.errors import Crashed, DataError, InlayError
from inlay.model.guard import Guard, Limits, answer_calls

T = TypeVar("T")
TRAVELS = "arguments_travel"
"""Attribute of functions whose arguments go to another process: they cannot be changed here."""
_MOST_SOURCE = 1 << 20  # bytes of a file of source, at most: what is larger is data
_LONGEST_S = 7 * 86_400.0
"""Seconds of a call without a budget: as long as it takes; a socket has no longer limit for certain."""


def main() -> None:
    """The program of that process."""
    answer_calls()


def user_function(text: str, option: str, finish: Callable[[Any], T]) -> Callable[..., T]:
    """The function that ``module:function`` names.

    Args:
        text: ``module:function``; modules in the working directory are found too.
        option: the command-line option, for messages.
        finish: one of Inlay's own, which turns its result into what can travel, or raises DataError.

    Raises:
        UsageError: there is no such module or function, or importing it fails.
        DataError: importing it hangs, or ends the process.
    """
    if text.partition(":")[0] == "__main__":  # of the program that called Inlay: there is no other process with it
        function = load_function(text, option)
        return lambda *arguments: finish(function(*arguments))
    _call(text, option, _find)

    def ask(*arguments: Any) -> T:
        found: T = _call(text, option, _run, finish, arguments)
        return found

    setattr(ask, TRAVELS, True)
    return ask


def source_sha256(given: str | Callable[..., Any]) -> str:
    """Digest of the source of what the user names; empty where there is none, as of a compiled module.

    Args:
        given: ``module:function``, whose whole module counts; the words of a program, of which files of text count; or
            a function itself, which counts alone.
    """
    if not isinstance(given, str):
        if not inspect.isfunction(given) and not inspect.ismethod(given):
            return ""
        try:
            return hashlib.sha256(inspect.getsource(given).encode()).hexdigest()
        except OSError:  # it was typed in, or its file is gone
            return ""
    if "{" in given:
        return _digest_of(map(Path, shlex.split(given)))
    module, _, function = given.partition(":")
    named = [Path(place, *module.split(".")) for place in (os.getcwd(), *sys.path)] if function else []
    return _digest_of([p for each in named for p in (each.with_suffix(".py"), each / "__init__.py") if p.is_file()][:1])


def _digest_of(files: Iterable[Path]) -> str:
    """Of those of the files that are text of a size that somebody writes."""
    digest, found = hashlib.sha256(), False
    for path in files:
        try:
            data = path.read_bytes() if path.is_file() and path.stat().st_size <= _MOST_SOURCE else b"\0"
        except (OSError, ValueError):  # a word that names no file
            continue
        if b"\0" not in data:
            digest.update(data)
            found = True
    return digest.hexdigest() if found else ""


def _call(text: str, option: str, function: Callable[..., Any], *arguments: Any) -> Any:
    places = [os.getcwd(), *(p for p in sys.path if p)]
    with _lock:
        try:
            return _guard.call(f"{option} {text}", function, (text, option, places, *arguments), Limits(_LONGEST_S, 0))
        except Crashed as error:
            raise DataError(str(error)) from None


_guard = Guard("inlay.model.user_code:main", starts_others=True)
_lock = threading.RLock()
atexit.register(_guard.close)


# --- that process -----------------------------------------------------------------------------------------------------


def _find(text: str, option: str, places: Sequence[str]) -> None:
    os.chdir(places[0])
    sys.path.extend(p for p in places if p not in sys.path)
    load_function(text, option)


def _run(text: str, option: str, places: Sequence[str], finish: Callable[[Any], T], arguments: Sequence[Any]) -> T:
    _find(text, option, places)  # the process may be a new one
    function = load_function(text, option)
    try:
        # copies, as messages come in memory that the next one takes; in ``finish``, generators and numbers of the
        # user's are at work, too
        return finish(function(*copy.deepcopy(arguments)))
    except InlayError:
        raise
    except BaseException as error:  # the user's own code: nobody interrupts this process
        raise DataError(f"{option} {text} failed: {blame(error)}") from error
