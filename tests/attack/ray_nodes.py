"""A cluster of real Ray on this machine: a head without devices, and nodes that announce one, to be killed.

Every node has an address of its own on the loopback device, so that a command joins the head and not a node that is
about to die. What belongs to a node has its name in the environment, or a parent that has: its raylet, its agents, its
actors, and what those start.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from inlay.ray.lab import resource_of
from inlay.targets.base import TargetSpec

NODE = "INLAY_KILLED_NODE"
"""In the environment of all processes of a node: its name, behind the cluster's folder."""
HEAD = "head"
_ADDRESSES = {HEAD: "127.0.0.2", "a": "127.0.0.3", "b": "127.0.0.4"}  # Ray replaces 127.0.0.1 by another
_SOON_S = 20.0  # that a command takes at most before it holds a device
_START_S = 120.0  # for a node on a busy machine
_IDLE_S = 20.0  # in which Ray ends the actors of a command that is gone
_LOOK_S = 0.1
_ASK = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False); print(*ray.cluster_resources())"


@dataclass
class RayCluster:
    """A head, and two nodes with one device of the same name.

    Args:
        folder: for what Ray and the devices write; its path must be short, as sockets lie in it.
    """

    folder: Path
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Where the head answers."""
        return f"{_ADDRESSES[HEAD]}:{self._port}"

    def __enter__(self) -> RayCluster:
        (self.folder / "temp").mkdir(parents=True)
        os.environ["RAY_AUTH_MODE"] = "disabled"  # none of it can be reached from elsewhere
        self._device = resource_of(TargetSpec("null", {}))
        with socket.socket() as free:
            free.bind((_ADDRESSES[HEAD], 0))
            self._port = free.getsockname()[1]
        for count, name in enumerate(_ADDRESSES, 1):
            self.start(name)
            self._await(count)  # nodes of one machine that start at once take the same sockets
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.nodes:
            self._end(name)

    def start(self, name: str) -> None:
        """Start a node; a command waits for its device until it is there."""
        words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        words += ["--num-cpus=1", "--object-store-memory=100000000", f"--node-ip-address={_ADDRESSES[name]}"]
        if name == HEAD:
            words += ["--head", f"--port={self._port}", "--include-dashboard=false", f"--temp-dir={self.folder / 'r'}"]
        else:
            words += [f"--address={self.address}", f'--resources={{"{self._device}": 1}}']
        own = {NODE: f"{self.folder}:{name}", "TMPDIR": str(self.folder / "temp"), "RAY_BACKEND_LOG_LEVEL": "fatal"}
        log = (self.folder / f"{name}.log").open("ab")
        self.nodes[name] = subprocess.Popen(words, env={**os.environ, **own}, stdout=log, stderr=log)
        log.close()

    def kill(self, victim: str) -> str:
        """Kill the device that measures, or its node; which node that was, or nothing where none is about to."""
        end = time.monotonic() + _SOON_S
        while not (found := next(self._actors(), None)) and time.monotonic() < end:
            time.sleep(_LOOK_S)
        if found is None:
            return ""
        name, pid = found
        if victim == "node":
            self._end(name)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return name

    def idle(self) -> bool:
        """Whether no device is held any more, a while after a command ended."""
        end = time.monotonic() + _IDLE_S
        while any(True for _ in self._actors()):
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK_S)
        return True

    def _await(self, count: int) -> None:
        end = time.monotonic() + _START_S
        while True:
            asked = subprocess.run(
                [sys.executable, "-c", _ASK, self.address], capture_output=True, text=True, check=False
            )
            there = sum(f"node:{a}" in asked.stdout.split() for a in _ADDRESSES.values())
            if asked.returncode == 0 and there >= count:
                return
            assert time.monotonic() < end, f"the cluster does not start: {asked.stderr[-500:]}"

    def _actors(self) -> Iterator[tuple[str, int]]:
        """The processes that hold a device now, with their nodes."""
        for name in ("a", "b"):
            yield from ((name, pid) for pid, title in self._processes(name) if title.startswith(b"ray::Device"))

    def _end(self, name: str) -> None:
        """Kill all that belongs to a node."""
        while found := [pid for pid, _ in self._processes(name)]:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.nodes[name].wait()
            time.sleep(_LOOK_S)

    def _processes(self, name: str) -> Iterator[tuple[int, bytes]]:
        """Those of a node with their command lines. Ray writes titles over the environment of its actors."""
        mark, found = f"{NODE}={self.folder}:{name}".encode(), dict[int, bytes]()
        every = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        marked = [pid for pid in every if mark in _read(pid, "environ").split(b"\0")]
        while marked:
            pid = marked.pop()
            title = _read(pid, "cmdline")  # a zombie has none
            if pid not in found and title:
                found[pid] = title
                marked += [int(child) for child in _read(pid, f"task/{pid}/children").split()]
        yield from found.items()


def _read(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
