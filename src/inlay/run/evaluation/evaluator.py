"""The user's own evaluation of a whole model: a function or a program that gets a path, and what comes back as a value.

It is given a copy, so that nothing it does to the file changes the run, and is ended where it takes too long. A
function named by its module runs in a process of its own, as metrics do; one from a Python program runs there.
"""

from __future__ import annotations

import re
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from inlay.data.reading import blame
from inlay.errors import DataError, InlayError, Late, TimedOut, UsageError
from inlay.files import scratch
from inlay.model.guard import limited
from inlay.model.load import files_sha256
from inlay.model.user_code import user_function
from inlay.quant.evaluation import Evaluation, Score, printed_scores, read_scores
from inlay.run.outputs import install
from inlay.targets.process import Process, how_it_ended
from inlay.trial import Failed, shown_seconds

MODEL = "{model}"  # stands for the path in a program's words
_FUNCTION = re.compile(r"[\w.]+:\w+")
_LONGEST_S = 7 * 86_400.0  # seconds of an evaluation without a budget: as long as it takes
_UNNAMED = "score"  # name of a program's number that comes without one


@dataclass(frozen=True, eq=False)
class ModelEvaluator:
    """The user's evaluation."""

    name: str  # as the user gave it
    # the scores of the model at a path: a file, or a folder of several; within so many seconds. Raises InlayError.
    ask: Callable[[Path, float], dict[str, Score]]

    def run(self, model: Path, limit_s: float, place: Path | None = None) -> Evaluation | Failed:
        """Evaluate a copy of a model; whatever goes wrong is a value.

        Args:
            model: a file, with its external data beside it, or a folder.
            place: folder for the copy; by default the system's for temporary files.
        """
        limit_s, begun = min(limit_s, _LONGEST_S), time.monotonic()
        try:
            with scratch(place) as folder:
                copied = _copied(model, folder)
                files = sorted(path for path in folder.rglob("*") if path.is_file())
                before = files_sha256(files)
                scores = self.ask(copied, limit_s)
                seconds, there = time.monotonic() - begun, all(path.is_file() for path in files)
                if there and files_sha256(files) != before:
                    raise DataError("it changed the model that it was to judge")
        except Late:
            return self._failed(f"it took more than {shown_seconds(limit_s)} and was ended")
        except InlayError as error:
            return self._failed(str(error))
        except OSError as error:
            return self._failed(f"{model} cannot be copied for it: {error.strerror or error}")
        return Evaluation(scores, seconds, "" if there else f"{self.name} deleted its copy of the model")

    def _failed(self, why: str) -> Failed:
        """With its name once."""
        return Failed("evaluate", why if self.name in why else f"--evaluate {self.name}: {why}")


def evaluator_of(given: str | Callable[..., Any] | None) -> ModelEvaluator | None:
    """The evaluation that ``--evaluate`` names: ``module:function``, a program with ``{model}``, or a function itself.

    Raises:
        UsageError: there is no such function or program, or the program's words do not say where the path goes.
    """
    if given is None:
        return None
    if not isinstance(given, str):
        name = str(getattr(given, "__name__", type(given).__name__))
        return ModelEvaluator(name, partial(_of_function, given, name))
    if _FUNCTION.fullmatch(given):
        name = given.partition(":")[2]
        function = user_function(given, "--evaluate", partial(read_scores, who=f"--evaluate {given}", name=name))
        return ModelEvaluator(given, partial(_of_named, function))
    return ModelEvaluator(given, partial(_of_program, _words(given), given))


def _words(command: str) -> tuple[str, ...]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--evaluate {command!r} cannot be split into words: {error}") from error
    if not any(MODEL in word for word in words):
        raise UsageError(
            f"--evaluate {command}: give module:function, or a program with {MODEL} where the path of a model goes"
        )
    if shutil.which(words[0]) is None:
        raise UsageError(f"--evaluate {command}: there is no program {words[0]}")
    return tuple(words)


def _of_program(words: Sequence[str], command: str, model: Path, limit_s: float) -> dict[str, Score]:
    who = f"--evaluate {command}"
    process = Process([word.replace(MODEL, str(model)) for word in words], is_asked=False, apart=True)
    try:
        code, printed = process.finish(limit_s)
    except TimedOut:
        raise DataError(f"{who} took more than {shown_seconds(limit_s)} and was ended") from None
    if code:
        last = process.last_words
        raise DataError(f"{who} failed with {how_it_ended(code)}" + (f": {last}" if last else ""))
    return printed_scores(printed, who, _UNNAMED)


def _of_named(function: Callable[[str], dict[str, Score]], model: Path, limit_s: float) -> dict[str, Score]:
    with limited(lambda: limit_s):
        return function(str(model))


def _of_function(function: Callable[..., Any], name: str, model: Path, limit_s: float) -> dict[str, Score]:
    try:
        found = function(str(model))
    except InlayError:
        raise
    except (Exception, SystemExit) as error:  # the user's own code
        raise DataError(f"--evaluate {name} failed: {blame(error)}") from error
    return read_scores(found, f"--evaluate {name}", name)


def _copied(model: Path, folder: Path) -> Path:
    """A copy that is read-only, as far as the user's rights go."""
    copy = folder / model.name
    if model.is_dir():
        shutil.copytree(model, copy)
    else:
        install(model, copy)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o444)
    return copy
