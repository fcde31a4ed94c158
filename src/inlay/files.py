"""Files are written whole or not at all, and are as readable as the user's umask says.

What a killed process leaves behind (a file half written, a folder for scratch files) bears its number, and is removed
by the next process that works in the same place.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import re
import shutil
import stat
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from inlay.errors import DataError, InlayError, JournalError, UsageError


@contextlib.contextmanager
def replacing(path: Path, error: type[InlayError] = JournalError) -> Iterator[Path]:
    """A file beside ``path`` that replaces it when the block succeeds, and is removed when it does not.

    Args:
        path: the file to write.
        error: raised, as one line, where the folder cannot be written or the disk is full.
    """
    try:
        clear_up(path.parent)
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise error(f"{path} is not a regular file: name another output")  # a device would be replaced by a file
        fresh = path.with_name(f".{path.name}.{own_mark()}{os.urandom(6).hex()}")
        # the system applies the umask: to ask for it would change it for all threads of this process
        os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))
    except OSError as failure:
        raise error(f"{path.parent} cannot be written: {failure.strerror or failure}") from failure
    try:
        yield fresh
        with fresh.open("rb+") as file:
            os.fsync(file.fileno())  # else a power cut may leave an empty file under the new name
        fresh.replace(path)
    except OSError as failure:
        raise error(f"{path} cannot be written: {failure.strerror or failure}") from failure
    finally:
        fresh.unlink(missing_ok=True)


def write_text(path: Path, text: str, error: type[InlayError] = JournalError) -> None:
    """Write ``text`` in UTF-8; arguments and errors as of :func:`replacing`."""
    with replacing(path, error) as fresh:
        fresh.write_text(text, encoding="utf8")


@contextlib.contextmanager
def opened(path: Path, error: type[InlayError] = DataError, prefix: str = "") -> Iterator[BinaryIO]:
    """A regular file, open for reading. A device may have no end, and a pipe may never have a beginning.

    Args:
        path: the file.
        error: raised where it is no regular file, or cannot be read.
        prefix: begins the message, such as the option that named the file.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # to open a device may do something
            raise error(f"{prefix}{path} cannot be read: it is not a regular file")
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(number, "rb") as file:
            if not stat.S_ISREG(os.fstat(number).st_mode):  # meanwhile it is another
                raise error(f"{prefix}{path} cannot be read: it is not a regular file")
            yield file
    except OSError as failure:
        if failure.errno is None:  # not the system's: what a library says of the content
            raise
        raise error(f"{prefix}{path} cannot be read: {failure.strerror or failure}") from failure


def read_bytes(path: Path, most: int, error: type[InlayError] = DataError, prefix: str = "") -> bytes:
    """The content of a regular file of at most ``most`` bytes; other arguments and errors as of :func:`opened`."""
    with opened(path, error, prefix) as file:
        content = file.read(most + 1)  # what the system says of a file's size need not be so
    if len(content) > most:
        raise error(f"{prefix}{path} is larger than {most >> 20} MB: it is not a file of Inlay")
    return content


def read_json(path: Path, most: int = 256 << 20) -> Any:
    """Plain data of a JSON file.

    Raises:
        DataError: it is no regular file, or cannot be read, or is too large.
        ValueError, RecursionError: it is not JSON.
    """
    return json.loads(read_bytes(path, most).decode("utf8"))


_FULL = frozenset({errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC)})


@contextlib.contextmanager
def writing_in(folder: Path) -> Iterator[None]:
    """Name the folder where the system refuses to write more, and does not say which file.

    Raises:
        JournalError: it did.
    """
    try:
        yield
    except OSError as failure:
        if failure.filename is not None or failure.errno not in _FULL:
            raise
        raise JournalError(f"a file in {folder} cannot be written: {failure.strerror or failure}") from failure


def own_mark() -> str:
    """What names of this process's temporary files and folders hold: :func:`clear_up` knows them by it."""
    return f"{_MARK}{os.getpid()}-{started(os.getpid()) or 0}-"


def scratch_folder(place: Path | None = None) -> Path:
    """A new folder for scratch files of this process, which only this user can read.

    It is removed by whoever asked for it; where that process is killed, by the next one that asks here.

    Args:
        place: where it is made; None for the system's place for temporary files.
    """
    root = Path(tempfile.gettempdir()) if place is None else place
    clear_up(root)
    return Path(tempfile.mkdtemp(prefix=f"inlay-{own_mark()}", dir=root))


@contextlib.contextmanager
def scratch(place: Path | None = None) -> Iterator[Path]:
    """A :func:`scratch_folder` that is removed after the block."""
    folder = scratch_folder(place)
    try:
        with writing_in(folder.parent):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear_up(place: Path) -> None:
    """Remove what processes of this user on this machine that were killed left in ``place``: once per process."""
    if sys.platform == "win32":  # there, asking whether a process lives would interrupt it
        return
    with _CLEARING:
        if (where := place.resolve()) in _CLEARED:
            return
        _CLEARED.add(where)
        with contextlib.suppress(OSError), os.scandir(where) as entries:
            for entry in entries:
                pid, start, *_ = [*entry.name.partition(_MARK)[2].split("-"), ""]
                if not (pid.isdecimal() and start.isdecimal()) or lives(int(pid), int(start)):
                    continue
                if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    _remove(entry)


def _remove(entry: os.DirEntry[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path, ignore_errors=True)
    else:
        os.unlink(entry.path)


def lives(pid: int, start: int) -> bool:
    """Whether the process of that number that started then lives; where no start is known, one of that number."""
    now = started(pid)
    if start and now:  # a container's first process has the same number every time
        return start == now
    if pid == os.getpid():  # one that had our number
        return False
    if os.name != "posix":  # there, 0 is a signal like any other: it would interrupt the process
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's; a number that no process has
        return True
    return True


def started(pid: int) -> int:
    """When a process of this namespace started, in ticks since the system did; 0 where nobody says."""
    try:
        words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()  # names may hold anything
        return int(words[_START_WORD])
    except (OSError, ValueError, IndexError):
        return 0


_START_WORD = 19  # behind the name of the program, the second of all


def _numbers_of() -> str:
    """Among whose processes a number names one: machines and containers may share a folder, but not those."""
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        space = 0
    return f"{platform.node()} {space}"


_MARK = f"tmp-{zlib.crc32(_numbers_of().encode()):08x}-"
_CLEARED: set[Path] = set()
_CLEARING = threading.Lock()


def refuse_overwriting(outputs: Iterable[Path], inputs: Iterable[str | Path]) -> None:
    """Refuse to write where an input lies, also through symbolic or hard links.

    Args:
        outputs: files that will be written.
        inputs: files that the user gave; what does not exist is passed over.

    Raises:
        UsageError: an output is an input.
    """
    given = [Path(p) for p in inputs if os.path.exists(p)]
    for output in outputs:
        for path in given:
            if output.resolve() == path.resolve() or (output.exists() and output.samefile(path)):
                raise UsageError(f"{output} would overwrite {path}, which is an input: choose another output")


def refuse_odd_name(path: Path, error: type[InlayError] = UsageError) -> None:
    """Refuse a path that is not UTF-8 text: runtimes and ONNX open files by such names only."""
    try:
        str(path.resolve()).encode("utf8")
    except UnicodeEncodeError:
        shown = str(path).encode("utf8", "surrogateescape").decode("utf8", "backslashreplace")
        raise error(f"{shown}: a name in this path is not UTF-8, which runtimes cannot open: rename it") from None


def as_file_name(text: str) -> str:
    """``text`` as the name of a file or folder: a hyphen for each run of characters that may mean something else."""
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", text).lstrip(".")


def cache_folder() -> Path:
    """Where the platform wants caches of the user: ``INLAY_CACHE_DIR`` goes before."""
    chosen = os.environ.get("INLAY_CACHE_DIR")
    if chosen:
        return Path(chosen)
    home = Path.home()
    usual = {"win32": home / "AppData" / "Local", "darwin": home / "Library" / "Caches"}.get(
        sys.platform, home / ".cache"
    )
    return Path(os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or usual) / "inlay"
