"""Programs at work, each with an end to all that it started: asked by lines of text, or run to their own end."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import IO

from inlay.errors import RunFailed, TimedOut
from inlay.model.child import Keeper, end_group

_MOST_BYTES = 64 << 20  # of what a program prints: arrays travel as files
_POLL_S = 0.05
"""Seconds between looks whether a program has ended: something that it leaves behind may hold its output open."""
_LAST_BYTES = 4096  # from the end of what a program wrote to standard error: where its last words are
_WORDS = 300  # characters of those that are shown


class Process:
    """One run of a program, in a session of its own.

    Args:
        is_asked: by :meth:`ask`; otherwise it reads nothing, and all that it prints is kept for :meth:`finish`.
        apart: what it writes to standard error is kept apart, for :meth:`last_words`.

    Raises:
        RunFailed: it cannot be started.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] = MappingProxyType({}),
        is_asked: bool = True,
        apart: bool = False,
    ) -> None:
        self._name = os.path.basename(arguments[0])
        self._buffer, self._ended, self._words = b"", False, ""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the process)
        self._errors = tempfile.TemporaryFile() if apart else self._log  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                list(arguments),
                stdin=subprocess.PIPE if is_asked else subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_asked else self._log,
                stderr=self._errors,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # a null byte in an argument is a ValueError
            self._log.close()
            self._errors.close()
            raise RunFailed(f"{arguments[0]} cannot be started: {getattr(error, 'strerror', '') or error}") from error
        self._keeper = Keeper(self._process.pid)  # a worker may be killed at any moment

    def ask(self, request: str, limit_s: float, is_last: bool) -> str:
        """Send one line, and read the line that answers it: the first, or of the last request the last, with a ``{``.

        Raises:
            RunFailed: the program ended or failed without an answer.
            TimedOut: it took longer than ``limit_s``, and was ended with all that it started.
        """
        # a program need not read what it is asked, and a pipe holds 64 kB: the time limit must hold all the same
        threading.Thread(target=self._send, args=(f"{request}\n".encode(), is_last), daemon=True).start()
        try:
            answer = self._read(time.monotonic() + limit_s, is_last)
        except TimeoutError:
            self.end()
            raise TimedOut(f"{self._name} did not answer within {limit_s:g} s and was ended") from None
        if answer is not None:
            return answer
        raise RunFailed(self._last_words())

    def _send(self, data: bytes, is_last: bool) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended, or was ended
            self._process.stdin.write(data)
            self._process.stdin.flush()
            if is_last:
                self._process.stdin.close()

    def finish(self, limit_s: float) -> tuple[int, str]:
        """The exit code, and what it printed: no more than the last 64 MB.

        Raises:
            TimedOut: it took longer than ``limit_s``; it was ended with all that it started, as it is in any case.
        """
        try:
            code = self._process.wait(limit_s)
            self._words = _last_line(self._errors)
            self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _MOST_BYTES))
            return code, self._log.read().decode(errors="replace")
        except subprocess.TimeoutExpired:
            raise TimedOut(f"{self._name} did not end within {limit_s:g} s and was ended") from None
        finally:
            self.end()

    @property
    def last_words(self) -> str:
        """The last line that it wrote to standard error before it was finished; empty where there is none."""
        return self._words

    def end(self) -> None:
        """End it, with all that it started; twice is fine."""
        if self._ended:
            return
        self._ended = True
        end_group(self._process)
        self._keeper.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._log.close()
        self._errors.close()

    def _read(self, deadline: float, is_last: bool) -> str | None:
        """The answer; None where the program ended without one. Raises TimeoutError."""
        assert self._process.stdout is not None
        found: str | None = None
        file = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(file, selectors.EVENT_READ)
            while True:
                while b"\n" in self._buffer:
                    line, _, self._buffer = self._buffer.partition(b"\n")
                    found = _answer(line) or found
                    if found is not None and not is_last:
                        return found
                left = deadline - time.monotonic()
                if left <= 0.0:
                    raise TimeoutError
                if not selector.select(min(left, _POLL_S)):
                    if self._has_ended and not selector.select(0):
                        break
                    continue
                chunk = os.read(file, 1 << 16)
                if not chunk:
                    break
                self._buffer += chunk
                if len(self._buffer) > _MOST_BYTES:
                    raise RunFailed(f"{self._name} printed more than {_MOST_BYTES >> 20} MB in one line")
        return _answer(self._buffer) or found

    @property
    def _has_ended(self) -> bool:
        if self._process.returncode is not None:
            return True
        if not hasattr(os, "waitid"):  # on macOS before Python 3.13
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _last_words(self) -> str:
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return f"{self._name} closed its output without an answer"
        last = _last_line(self._errors)
        return f"{self._name} ended without an answer ({how_it_ended(code)})" + (f": {last}" if last else "")


def how_it_ended(code: int) -> str:
    """An exit code for people."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _last_line(log: IO[bytes]) -> str:
    """The last line of a file that is not empty, or its beginning."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_BYTES))
    lines = [t for t in log.read().decode(errors="replace").splitlines() if t.strip()]
    return lines[-1].strip()[:_WORDS] if lines else ""


def _answer(line: bytes) -> str | None:
    """A line as text, where it can be an answer: what runtimes print besides is none."""
    text = line.decode(errors="replace").strip()
    return text if text.startswith("{") else None
