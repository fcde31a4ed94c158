"""The folder of a run: one run at a time, scratch files that go with it, and nothing left where nothing was written."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from inlay.errors import JournalError
from inlay.files import refuse_odd_name, writing_in


@contextlib.contextmanager
def work_in(folder: Path) -> Iterator[Path]:
    """Lock ``folder``, made where it does not exist, and give a folder for scratch files in it.

    Raises:
        JournalError: it is in use, or cannot be written.
    """
    with (
        _locked(folder),
        tempfile.TemporaryDirectory(prefix=".scratch-", dir=folder, ignore_cleanup_errors=True) as work,
        writing_in(folder),
    ):
        yield Path(work)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    refuse_odd_name(folder)
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (lock := FileLock(folder / ".lock", timeout=0)).acquire()
    except Timeout:
        raise JournalError(f"another run is using {folder}: wait for it, or give another output folder") from None
    except OSError as error:
        raise JournalError(f"{folder} cannot be written: {error.strerror or error}") from error
    try:
        for stale in folder.glob(".scratch-*"):  # of a run that was killed: the lock shows that nobody uses them
            shutil.rmtree(stale, ignore_errors=True)
        yield
    finally:
        # while it is held: afterwards it may be the next run's, and without its file a third run would not see that one
        with contextlib.suppress(OSError):
            (folder / ".lock").unlink()
        lock.release()
        with contextlib.suppress(OSError):
            if sys.platform == "win32":  # there, files that are open stay
                (folder / ".lock").unlink()
            for each in made:
                each.rmdir()  # only where nothing was written to it
