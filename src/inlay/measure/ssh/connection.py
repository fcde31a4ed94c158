"""A connection to a board: the system's ``ssh``, Python behind it, and the worker that it is sent.

What stands in the way is said in one line, with what to do about it: keys only are used, and nobody is asked anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inlay.errors import NoDevice, TargetError, TimedOut, UsageError
from inlay.measure.remote.held import DeviceLost
from inlay.measure.ssh.address import Address
from inlay.measure.ssh.archive import Archive
from inlay.measure.ssh.frames import packed, unpacked
from inlay.model.child import end_group
from inlay.model.heard import WAITING_S, doing

_OPTIONS = {
    "BatchMode": "yes",
    "PreferredAuthentications": "publickey",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "ControlMaster": "no",
    "ControlPath": "none",
    "EscapeChar": "none",
    "ConnectTimeout": "15",  # seconds
    "ServerAliveInterval": "5",  # seconds, and after three without an answer the connection is gone
    "ServerAliveCountMax": "3",
}
_GREETING = "inlay-board"
_HELLO = (
    "import sys;"
    f'sys.stdout.write("{_GREETING} %d.%d.%d\\n"%sys.version_info[:3]);sys.stdout.flush();'
    "sys.version_info<(3,9) and sys.exit(0);exec(sys.stdin.buffer.readline())"
)
"""What Python is started with there, whichever version it is; what follows comes as one line."""
_UNPACK = """
import json, os, shutil, sys, tempfile
given = json.loads(sys.stdin.buffer.readline())
data = sys.stdin.buffer.read(given["bytes"])
os.environ.update(given["environment"])
def say(**what):
    sys.stdout.write(json.dumps(what) + "\\n")
    sys.stdout.flush()
def give_up(**what):
    shutil.rmtree(folder, ignore_errors=True)
    say(**what)
folder = os.path.join(given["folder"] or tempfile.gettempdir(), given["run"])
path = os.path.join(folder, "worker.zip")
try:
    os.makedirs(folder, 0o700, exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    sys.path.insert(0, path)
    from inlay.measure.ssh.board import main
except OSError as error:
    give_up(system=error.strerror or str(error), errno=error.errno, folder=folder)
except ImportError as error:
    give_up(missing=error.name or "", words=str(error))
else:
    say(ready=True)
    main(folder, given["python"], path)
"""
_MOST_TALK = 1 << 16  # bytes of what a login prints before Python answers
_WORDS = 300  # characters of what a package says of its failure
_FULL = (28, 122)  # of errno: no space, quota exceeded; numbers that Linux and BSD share as far as matters


class Connection:
    """One connection, from the moment that Python answers.

    Args:
        run: the name of the run's folder there.
        limit_s: seconds until it answers.

    Attributes:
        python: the version there.

    Raises:
        UsageError: this machine has no ``ssh``.
        NoDevice: it will never answer as things are: the line says what to do.
        DeviceLost: it does not answer now.
    """

    def __init__(self, address: Address, archive: Archive, run: str, limit_s: float) -> None:
        self._address, self._buffer = address, bytearray()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the connection)
        self._process = subprocess.Popen(
            _command(address),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl+C goes to the run alone, which then lets the board go
        )
        try:
            self._end = time.monotonic() + limit_s
            self.python = self._greeting()
            quiet = {name: value for name, value in os.environ.items() if name.endswith("DISABLE_TELEMETRY")}
            head: dict[str, Any] = {"folder": address.folder, "run": run, "python": address.words, "environment": quiet}
            head["bytes"] = len(archive.data)
            code = f"exec({_UNPACK!r})\n".encode()
            self._write([code, f"{json.dumps(head)}\n".encode(), archive.data])
            self._check(json.loads(self._line()))
        except BaseException:
            self.close()
            raise

    def ask(self, method: str, arguments: Sequence[Any], limit_s: float) -> Any:
        """What a method of the board returns.

        Raises:
            DeviceLost: the connection ended.
            TimedOut: there is no answer in time; the connection is closed.
            NoDevice: the board cannot go on: its disk is full, for one.
            TargetError: it refuses.
        """
        self._end = time.monotonic() + limit_s
        try:
            self._write(packed([method, [*arguments]]))
            answer = unpacked(self._line(), self._read)
        except (TimedOut, DeviceLost):
            raise
        except (ValueError, RecursionError) as error:
            raise DeviceLost(f"its answer cannot be read: {error}") from None
        self._check(answer)
        return answer.get("value")

    def close(self) -> None:
        """End it, and with it what runs there; twice is fine."""
        if self._errors.closed:
            return
        end_group(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._errors.close()

    def _greeting(self) -> str:
        """The version of Python there, behind whatever a login prints."""
        talk = 0
        while talk < _MOST_TALK:
            try:
                line = self._line()
            except DeviceLost:
                raise _refusal(self._address, *self._last_words()) from None
            talk += len(line)
            found = re.search(rf"{_GREETING} (\d+)\.(\d+)\.(\d+)", line.decode("ascii", "replace"))
            if found is not None:
                version = ".".join(found.groups())
                if (int(found[1]), int(found[2])) < (3, 9):
                    raise NoDevice(
                        f"device {self._address}: its {self._address.python} is Python {version}, and 3.9 or later is "
                        "needed: name another one with ?python="
                    )
                return version
        raise NoDevice(f"device {self._address}: its login prints without end: it must be quiet where no terminal is")

    def _check(self, answer: dict[str, Any]) -> None:
        """Raise what the board says of itself where it cannot go on."""
        name, python = self._address, self._address.python
        if answer.get("missing"):
            what = answer["missing"]
            raise NoDevice(f"device {name}: its Python has no {what}: {to_install(python, what)}")
        if "words" in answer:  # of another architecture, for one
            words = " ".join(answer["words"].split())[:_WORDS]
            raise NoDevice(f"device {name}: its Python cannot load numpy: {to_install(python, 'numpy.')}: {words}")
        if "system" in answer:
            full = answer["errno"] in _FULL
            hint = "free some there, or name another folder with ?folder=" if full else "name another with ?folder="
            raise NoDevice(f"device {name}: {answer['folder']} cannot be written: {answer['system']}: {hint}")
        if "refused" in answer:
            raise TargetError(f"device {name}: {answer['refused']}")

    def _last_words(self) -> tuple[int, str]:
        """How the program ended, and the last line that it wrote, or the one that says why."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = 0
        self._errors.seek(0)
        lines = [t.strip() for t in self._errors.read().decode(errors="replace").splitlines() if t.strip()]
        telling = [line for line in lines if "IDENTIFICATION HAS CHANGED" in line]
        return code, (telling or lines[-1:] or [""])[0]

    # --- bytes within the limit ---------------------------------------------------------------------------------------

    def _write(self, parts: Sequence[bytes]) -> None:
        assert self._process.stdin is not None
        file = self._process.stdin.fileno()
        os.set_blocking(file, False)
        for part in parts:
            view = memoryview(part)
            while len(view):
                self._wait(file, selectors.EVENT_WRITE)
                try:
                    view = view[os.write(file, view[: 1 << 20]) :]
                except BlockingIOError:
                    continue
                except OSError:
                    raise DeviceLost("the connection was lost") from None

    def _line(self) -> bytes:
        while b"\n" not in self._buffer:
            self._more()
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        return line

    def _read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._more()
        data, self._buffer = bytes(self._buffer[:count]), self._buffer[count:]
        return data

    def _more(self) -> None:
        assert self._process.stdout is not None
        file = self._process.stdout.fileno()
        self._wait(file, selectors.EVENT_READ)
        chunk = os.read(file, 1 << 20)
        if not chunk:
            words = self._last_words()[1]
            raise DeviceLost("the connection was lost" + (f": {words}" if words else ""))
        self._buffer += chunk

    def _wait(self, file: int, event: int) -> None:
        """Wait until a file is ready; meanwhile whoever listens is told that the work goes on."""
        with selectors.DefaultSelector() as selector:
            selector.register(file, event)
            while not selector.select(min(WAITING_S, max(0.0, self._end - time.monotonic()))):
                if time.monotonic() >= self._end:
                    raise TimedOut(f"device {self._address} did not answer in time; the connection was closed")
                doing()


def to_install(python: str, module: str) -> str:
    """What to do about a module that is not there; where one in a package is not, the package is of another machine."""
    package, inner, _ = module.partition(".")
    return f"there, run: {python} -m pip install {'--force-reinstall ' * bool(inner)}{package}"


def _command(address: Address) -> list[str]:
    program = shutil.which("ssh")
    if program is None:
        raise UsageError("--device needs the program ssh, which this machine does not have: install OpenSSH")
    options = [word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}")]
    config = ["-F", str(Path(address.config).expanduser())] if address.config else []
    port = ["-p", str(address.port)] if address.port else []
    user = ["-l", address.user] if address.user else []
    there = shlex.join([*address.words, "-u", "-c", _HELLO])
    return [program, "-T", *config, *options, *port, *user, "--", address.host, there]


def _refusal(address: Address, code: int, words: str) -> Exception:
    """What a connection says that ended before Python answered: to be given up, or (DeviceLost) tried again."""
    host, python = address.host, address.python
    known_as = f"[{host}]:{address.port}" if address.port else host
    login = " ".join([*(["-p", str(address.port)] if address.port else []), f"{address.user}@{host}".lstrip("@")])
    if code != 255:
        if code in (126, 127) or "not found" in words or "No such file" in words:
            hint = f"install Python 3.9 or later there, or name it with ?python=; it says: {words}"
            return NoDevice(f"device {address}: {python} cannot be started there: {hint}")
        return NoDevice(f"device {address}: {python} ended there without an answer (exit code {code}): {words}")
    known = {
        "IDENTIFICATION HAS CHANGED": f"its host key has changed: if it was set up anew, run: ssh-keygen -R {known_as}",
        "Host key verification failed": f"its host key is not known here: run once: ssh {login}, and compare the key",
        "Permission denied": f"it takes none of your keys, and nobody types a password: run: ssh-copy-id {login}",
        "Could not resolve": f"there is no host {host}: give its address",
        "Bad configuration option": words,
        "Can't open user config": words,
    }
    for said, what in known.items():
        if said in words:
            return NoDevice(f"device {address}: {what}")
    return DeviceLost(words or "the connection was lost")
