""":func:`inlay.record` around code of one's own, and what ``inlay record`` does, as a function.

A program is run so that every Python in it, its own or one that it starts, loads the recorder's hook: by a
``sitecustomize`` in a folder in front of ``PYTHONPATH``, which goes on to the one that is there already. Python that
ignores the environment (``-E``, ``-I``), or starts without ``site`` (``-S``), is not recorded.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from inlay.errors import UsageError
from inlay.files import scratch
from inlay.prepare import options
from inlay.prepare.declare import Option, documented
from inlay.recording import gather, hook
from inlay.recording.hook.keep import Limits
from inlay.recording.hook.recorder import Recorder

_OUT = Option(
    "Folder for the samples of each model and pipeline.yaml.", flags=("--out", "-o"), metavar="OUT", type=Path
)
_MOST = Option("Most samples of each model: a fair choice of all that it was fed.", type=int, least=1)
_MOST_MB = Option("Most megabytes of samples of each model.", type=int, least=1)
_COMMAND = Option(
    "The program as you run it, with its arguments, behind --.",
    metavar="COMMAND...",
    positional=True,
    repeated=True,
    show_default=False,
)


@documented
def record_program(
    command: Annotated[Sequence[str], _COMMAND],
    *,
    out: Annotated[str | Path, _OUT] = "recorded",
    max_samples: Annotated[int, _MOST] = 256,
    max_mb: Annotated[int, _MOST_MB] = 256,
    seed: Annotated[int, options.SEED] = 0,
    quiet: Annotated[bool, Option("", "What the program prints goes to standard error.", type=None)] = False,
) -> gather.Recording:
    """Run a program, and keep what each session of ONNX Runtime in it was fed, however the program ends.

    Raises:
        UsageError: the program cannot be run, or ``out`` holds something else than a recording.
    """
    place, limits = Path(out), Limits(max_samples, max_mb << 20, seed)
    gather.prepare(place)
    with _empty_gone(place), scratch(place) as folder:
        (spool := folder / "spool").mkdir()
        code = run_program(command, folder, spool, limits, quiet)
        return gather.gather(spool, place, limits, shlex.join(command), code)


@contextlib.contextmanager
def record(out: str | Path = "recorded", *, max_samples: int = 256, max_mb: int = 256, seed: int = 0) -> Iterator[None]:
    """Keep what each session of ONNX Runtime is fed within the block, in this process and those that it forks.

    Sessions may have been made before. In ``out`` there are then the samples of each model, a ``.npz`` that
    :func:`inlay.tune` takes as ``data``, and ``pipeline.yaml``: how often each model ran, and for how long.

    Args:
        out: the folder.
        max_samples: most samples of each model: a fair choice of all that it was fed.
        max_mb: most megabytes of samples of each model.
        seed: of that choice.

    Raises:
        UsageError: ``out`` holds something else than a recording, or no session ran.
    """
    place, limits = Path(out), Limits(max_samples, max_mb << 20, seed)
    gather.prepare(place)
    with _empty_gone(place), scratch(place) as folder:
        recorder = Recorder(str(folder.resolve()), limits)
        recorder.start()
        try:
            yield
        finally:
            recorder.stop()
            found = gather.gather(folder, place, limits)
        if not found.models:
            raise UsageError("inlay.record: no session of ONNX Runtime ran in this process: nothing is written")


@contextlib.contextmanager
def _empty_gone(place: Path) -> Iterator[None]:
    """Remove the folder again where nothing was written into it."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            place.rmdir()


_SITE = '''"""Loads the recorder of Inlay, then what else customizes this Python."""

import importlib.util
import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _folder]
_own = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize
except ImportError as error:
    if error.name != "sitecustomize":
        raise
finally:
    sys.modules.setdefault("sitecustomize", _own)
try:
    _spec = importlib.util.spec_from_file_location(
        "_inlay_recording", os.path.join({hook!r}, "__init__.py"), submodule_search_locations=[{hook!r}]
    )
    sys.modules["_inlay_recording"] = importlib.util.module_from_spec(_spec)
    from _inlay_recording.recorder import Limits, Recorder

    Recorder({spool!r}, Limits(*{limits!r})).start()
except Exception as error:
    print(f"inlay: this Python is not recorded: {{type(error).__name__}}: {{error}}", file=sys.stderr)
'''


def run_program(command: Sequence[str], scratch: Path, spool: Path, limits: Limits, quiet: bool = False) -> int:
    """Run ``command`` with the hook, and return its exit code; 128 and its number where a signal ended it.

    Signals that ask this process to end go on to the program, which decides: what it was fed is kept either way.

    Args:
        quiet: what the program prints goes to standard error.

    Raises:
        UsageError: there is no such program, or it cannot be run.
    """
    site = scratch / "site"
    site.mkdir()
    text = _SITE.format(hook=str(Path(hook.__path__[0]).resolve()), spool=str(spool.resolve()), limits=tuple(limits))
    (site / "sitecustomize.py").write_text(text, encoding="utf8")
    paths = [str(site.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        process = subprocess.Popen(command, env=environment, stdout=sys.stderr if quiet else None)
    except OSError as error:
        python = ": give the Python that runs it, as in inlay record -- python " + command[0]
        hint = python if command[0].endswith(".py") else ""
        raise UsageError(f"{command[0]} cannot be run: {error.strerror or error}{hint}") from error
    with _passing_on(process):
        code = process.wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hand signals on to ``process``; an interruption from the keyboard has reached it already."""
    before = {}
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is None or signal.getsignal(number) == signal.SIG_IGN:
            continue
        heard = (lambda *_: None) if name == "SIGINT" else lambda number, _: process.send_signal(number)
        with contextlib.suppress(ValueError):  # in another thread than the first, signals are not ours
            before[number] = signal.signal(number, heard)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
