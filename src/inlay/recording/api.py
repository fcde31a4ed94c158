""":func:`inlay.record` around code of one's own, and what ``inlay record`` does, as a function."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from inlay.errors import UsageError
from inlay.files import scratch
from inlay.prepare import options
from inlay.prepare.declare import Option, documented
from inlay.recording import gather
from inlay.recording.hook.keep import Limits
from inlay.recording.hook.recorder import Recorder
from inlay.recording.program import run_program

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
