"""Everything that can go wrong, as one tree of errors: each is a clear line with an exit code.

::

    InlayError                 what, where (node, file, option), what to do: one line
    ├── UsageError             the call itself is off                        (exit code 2)
    ├── NoSuchFile             a recipe, cache or state that is not there; models and samples have their own errors
    ├── ModelError             the model file or graph cannot be worked on
    ├── DataError              samples or labels do not fit the model
    ├── TargetError            the runtime refused or failed; carries the stage
    │   ├── CompileFailed
    │   ├── RunFailed
    │   ├── Crashed
    │   ├── BadReading
    │   └── TimedOut
    ├── NoDevice               there is no device to measure on; no model is to blame
    └── JournalError           the output folder belongs to another run, is locked, or cannot be written
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import ParamSpec, TypeVar

UNPROVEN, LIMIT_BROKEN, INTERRUPTED = 3, 4, 130
"""Exit codes that are no errors: a model is not shown to keep its bound; it breaks a limit; the user stopped it."""


class InlayError(Exception):
    """Base of all errors that Inlay raises on purpose; ``str(error)`` is one clear line."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(str(message).split()))


class UsageError(InlayError):
    """An option or argument is wrong."""

    exit_code = 2


class TooShort(UsageError):
    """The budget is too short for anything.

    Attributes:
        least_s: seconds that would do; 0 where nobody said.
    """

    def __init__(self, message: str, least_s: float = 0.0) -> None:
        super().__init__(message)
        self.least_s = least_s


class NoSuchFile(InlayError):
    """A file that the call names does not exist."""


class ModelError(InlayError):
    """The model cannot be read, or is not a valid ONNX model."""


class DataError(InlayError):
    """Samples, labels or a metric do not fit the model."""


class TargetError(InlayError):
    """The target runtime failed.

    Attributes:
        stage: the step (compile, run, measure, timeout, worker).
        culprit: digest of the model that the runtime was at work on; empty where it was none.
    """

    stage = "target"
    culprit = ""


class CompileFailed(TargetError):
    """The runtime refused to build the model."""

    stage = "compile"


class RunFailed(TargetError):
    """The runtime built the model but could not run it."""

    stage = "run"


class Ended(RunFailed):
    """The runtime's process died while it was at work on the model."""


class Crashed(TargetError):
    """Native code ended its process, or ran out of memory."""

    stage = "run"


class BadReading(TargetError):
    """The runtime gave a time that no inference can take, or something else than times."""

    stage = "measure"


class TimedOut(TargetError):
    """The runtime did not answer within its time limit, and was killed."""

    stage = "timeout"


class Late(TimedOut):
    """There was no time left for it: not the model is to blame, but the budget."""


class NoDevice(InlayError):
    """The device of the run is away, taken out, or another one than it was: the run ends, and can be continued."""


class JournalError(InlayError):
    """The output folder cannot be used for this run."""


def near(name: object, known: Iterable[str]) -> str:
    """What of ``known`` may have been meant, as the end of a message; empty where nothing is near."""
    close = get_close_matches(str(name), list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""


class InlayDeprecationWarning(FutureWarning):
    """Something goes in a later version; shown by default, since it is for whoever calls Inlay."""


def warn_deprecated(what: str, *, since: str, until: str, instead: str, stacklevel: int = 3) -> None:
    """Warn whoever called the caller of this, once for each of their lines."""
    message = f"{what} is deprecated since {since} and goes in {until}: use {instead}"
    warnings.warn(message, InlayDeprecationWarning, stacklevel=stacklevel)


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def deprecated(
    *, since: str, until: str, instead: str
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Mark a function, method or class method as going in version ``until``: it warns, and its documentation says so.

    Args:
        since: The version that deprecates it.
        until: The version that will lack it, at least two minor versions later (``docs/stability.md``).
        instead: What to use, in words.
    """

    def mark(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(function)
        def warned(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            warn_deprecated(f"{function.__qualname__}()", since=since, until=until, instead=instead)
            return function(*args, **kwargs)

        told = f"Deprecated since {since}, goes in {until}: use {instead}."
        warned.__doc__ = "\n\n".join(part for part in (function.__doc__, told) if part)
        return warned

    return mark
