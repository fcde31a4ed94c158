"""Run a program so that every Python in it, its own or one that it starts, loads the recorder's hook.

The hook comes by a ``sitecustomize`` in a folder in front of ``PYTHONPATH``, which goes on to the one that is there
already. Python that ignores the environment (``-E``, ``-I``), or starts without ``site`` (``-S``), is not recorded.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from inlay.errors import UsageError
from inlay.recording import hook
from inlay.recording.hook.keep import Limits

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
