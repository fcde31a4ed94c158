"""A real ``sshd`` on the loopback address as a board, with keys of its own, which can be cut at any moment."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
MISSING = "there is no sshd: make services installs it"
_CARRIED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "COVERAGE_PROCESS_START")


def bare_packages(folder: Path, names: Sequence[str] = ("numpy", "numpy.libs", "onnxruntime")) -> Path:
    """A folder to import these packages from, and no others."""
    folder.mkdir()
    for name in names:
        for place in map(Path, sys.path):
            if (place / name).is_dir():
                (folder / name).symlink_to(place / name)
                break
    return folder


class Board:
    """The server, and what a client needs to reach it.

    Args:
        folder: for its keys, its log, and the files of runs.
        packages: what Python there imports besides its own library; None for all that it has.
        python: the line that starts it, in place of the Python here.
    """

    def __init__(self, folder: Path, packages: Path | None = None, python: str = "") -> None:
        assert SSHD is not None
        self.folder, self.files = folder, folder / "board"
        self.files.mkdir(parents=True)
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self.known = folder / "known"
        self.known.write_text(f"[127.0.0.1]:{self.port} {(folder / 'host.pub').read_text()}")
        shutil.copy(folder / "user.pub", folder / "authorized")
        environment = {name: os.environ[name] for name in _CARRIED if name in os.environ}
        if packages is not None:
            environment["PYTHONPATH"] = str(packages)
        given = " ".join(f'"{name}={value}"' for name, value in environment.items())
        lines = [
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host'}\nPidFile none\nUsePAM no",
            f"AuthorizedKeysFile {folder / 'authorized'}\nStrictModes no\nPasswordAuthentication no",
            "KbdInteractiveAuthentication no\nMaxStartups 100\nPerSourcePenalties no" if _is_new() else "",
            *([f"SetEnv {given}"] if environment else []),
        ]
        (folder / "sshd_config").write_text("\n".join(lines) + "\n")
        self.config = folder / "ssh_config"
        self.config.write_text(
            f"Host *\n  IdentityFile {folder / 'user'}\n  IdentitiesOnly yes\n  StrictHostKeyChecking yes\n"
            f"  UserKnownHostsFile {self.known}\n  GlobalKnownHostsFile /dev/null\n"
        )
        here = [sys.executable] if packages is None else [os.path.realpath(sys.executable), "-S"]
        self.python = python or " ".join(here)
        self._daemon: subprocess.Popen[bytes] | None = None
        self.start()

    def url(self, **changes: str) -> str:
        """Its address, with other entries where they are given."""
        given = {"python": self.python, "config": str(self.config), "folder": str(self.files), **changes}
        query = "&".join(f"{name}={quote(value)}" for name, value in given.items())
        return f"ssh://{self.user}@127.0.0.1:{self.port}?{query}"

    def runs(self) -> list[Path]:
        """The folders that runs have there now."""
        return [each for each in self.files.iterdir() if each.is_dir()]

    def start(self) -> None:
        """Listen."""
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where it gives up its rights
        log = (self.folder / "log").open("ab")
        command = [str(SSHD), "-D", "-e", "-f", str(self.folder / "sshd_config")]
        self._daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True)
        log.close()
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                return
            time.sleep(0.05)
        raise AssertionError((self.folder / "log").read_text())

    def sessions(self) -> list[int]:
        """The server's processes for connections."""
        assert self._daemon is not None
        return [pid for pid in _descendants(self._daemon.pid) if _command(pid).startswith("sshd")]

    def workers(self) -> list[int]:
        """All other processes behind connections: Python, and what measures."""
        assert self._daemon is not None
        return [pid for pid in _descendants(self._daemon.pid) if not _command(pid).startswith("sshd")]

    def cut_connections(self) -> None:
        """End the connections; what was started through them is not asked."""
        _kill(self.sessions())

    def cut_workers(self) -> None:
        """End what runs there."""
        _kill(self.workers())

    def reboot(self) -> None:
        """End all of it, and come back."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """End all of it."""
        assert self._daemon is not None
        found = [*self.sessions(), *self.workers()]
        self._daemon.kill()
        self._daemon.wait()
        _kill(found)


@contextlib.contextmanager
def board(folder: Path, packages: Path | None = None, python: str = "") -> Iterator[Board]:
    """A board that is there within this."""
    made = Board(folder, packages, python)
    try:
        yield made
    finally:
        made.stop()


def _kill(processes: Sequence[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _descendants(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, waiting = list[int](), [root]
    while waiting:
        parent = waiting.pop()
        children = [pid for pid, p in parents.items() if p == parent]
        found += children
        waiting += children
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _is_new() -> bool:
    """Whether it knows of penalties for clients that are cut off (OpenSSH 9.8)."""
    told = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False).stderr
    version = told.partition("OpenSSH_")[2].partition("p")[0]
    return version[:1].isdecimal() and tuple(map(int, version.split(".")[:2])) >= (9, 8)
