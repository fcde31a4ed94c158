"""The board's side of a connection: a device that answers what comes over standard input, until the connection ends.

It runs on the board, out of the archive, with the Python that is there. Its folder outlives a connection that is lost:
what was sent need not be sent again. It goes when a run ends in order, or after a day.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from inlay.errors import InlayError
from inlay.files import started
from inlay.measure.remote.device import Answer, Device
from inlay.measure.ssh.frames import packed, unpacked
from inlay.model.child import Python

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_KEPT, _PID = "kept", "pid"
_STALE_S = 86_400.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Board(Device):
    """A device whose folder stays where the connection is lost."""

    def __init__(self, folder: Path, python: Python) -> None:
        super().__init__(python=python, folder=folder)
        self._log = folder / _KEPT
        self._lock: Any = None
        self._outlived = self._end_earlier()
        self._own = f"{os.getpid()} {started(os.getpid())}"
        (folder / _PID).write_text(self._own, encoding="ascii")
        self._clear_up()

    def hello(self) -> Answer:
        """Who answers here, with what it holds; or that another run has the board, which can be asked again."""
        if not self._is_ours():
            return {"busy": True}
        boot = _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else ""
        lines = self._log.read_text(encoding="utf8").splitlines() if self._log.exists() else []
        if lines[:1] != [boot]:  # what was written before the board stopped may be lost
            self._log.write_text(f"{boot}\n", encoding="utf8")
        kept = [json.loads(line) for line in lines[1:] if line.endswith("]")] if lines[:1] == [boot] else []
        return {**super().hello(), "kept": kept, "outlived": self._outlived and lines[:1] == [boot]}

    def put(self, name: str, offset: int, data: Any, digest: str) -> bool:
        """As of any device; what arrived is noted."""
        arrived = super().put(name, offset, data, digest)
        if arrived:
            with self._log.open("a", encoding="utf8") as log:
                log.write(json.dumps([name, offset, digest]) + "\n")
        return arrived

    def cut_off(self) -> None:
        """The connection has ended before this process: the next one finds no number of one that ended by itself."""
        with contextlib.suppress(OSError):
            if (self._folder / _PID).read_text(encoding="ascii") == self._own:
                (self._folder / _PID).unlink()

    def _is_ours(self) -> bool:
        """Whether no other run of this user measures here now; that is so until this process ends."""
        if fcntl is None or self._lock is not None:
            return True
        lock = (self._folder.parent / f"inlay-{os.getuid()}.lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return False
        self._lock = lock
        return True

    def _end_earlier(self) -> bool:
        """End the process of an earlier connection that was lost without notice: it would measure beside this one.

        Returns:
            Whether it outlived its connection; else it died, or the board started anew.
        """
        try:
            pid, start = map(int, (self._folder / _PID).read_text(encoding="ascii").split())
        except FileNotFoundError:
            return True
        except (OSError, ValueError):
            return False
        alive = bool(start) and started(pid) == start
        if alive:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return alive

    def _clear_up(self) -> None:
        """Remove what runs left that never came back."""
        os.utime(self._folder)
        for each in self._folder.parent.glob("inlay-run-*"):
            with contextlib.suppress(OSError):
                if each.stat().st_uid == os.getuid() and each.stat().st_mtime < time.time() - _STALE_S:
                    shutil.rmtree(each, ignore_errors=True)


def _listen(source: BinaryIO, asked: queue.SimpleQueue[Any], board: Board) -> None:
    """Take requests as they come; the end of the connection is the end of this process, with all that it started."""
    try:
        while True:
            line = source.readline()
            if not line:
                break
            asked.put(unpacked(line, lambda count: _exactly(source, count)))
    except (OSError, ValueError, EOFError):
        pass
    board.cut_off()
    os._exit(0)


def _exactly(source: BinaryIO, count: int) -> bytes:
    data = source.read(count)
    if len(data) < count:
        raise EOFError
    return data


def main(folder: str, words: Sequence[str], archive: str) -> None:
    """Answer until the run lets the board go, or the connection ends.

    Args:
        archive: where this module is from.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
    board = Board(Path(folder), Python(words, archive))
    threading.Thread(target=_listen, args=(sys.stdin.buffer, asked, board), daemon=True).start()
    while True:
        method, arguments = asked.get()
        try:
            answer = {"value": getattr(board, method)(*arguments)}
        except OSError as error:  # a full disk, for one
            answer = {"system": error.strerror or str(error), "errno": error.errno, "folder": folder}
        except InlayError as error:
            answer = {"refused": str(error)}
        for part in packed(answer):
            answers.write(part)
        answers.flush()
        if method == "close":
            os._exit(0)
