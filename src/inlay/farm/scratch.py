"""Folders of actors, on the machines where they are: a killed one's is removed by the next there."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

_PREFIX = f"inlay-device-{os.uname().nodename}-"  # containers may share the folder, but not process numbers


def own_folder(root: str | None) -> Path:
    """A new folder of this process in ``root``, by default the system's place for temporary files."""
    place = Path(root or tempfile.gettempdir())
    _clear_up(place)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=place))


def write_at(path: Path, offset: int, data: np.ndarray) -> None:
    """Write a piece of a file, which only this user can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.seek(offset)
        file.write(data)


def _clear_up(place: Path) -> None:
    """Remove what killed actors of this user left behind."""
    for folder in place.glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if pid.isdecimal() and folder.lstat().st_uid == os.getuid() and not _lives(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
