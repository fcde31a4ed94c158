"""The run's side of a device elsewhere: held, lost, waited for, and sent each byte once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from inlay.errors import NoDevice, TargetError
from inlay.installed import __version__
from inlay.measure import policy
from inlay.measure.remote.device import Answer, digest_of
from inlay.measure.remote.transfer import FileRange, readable
from inlay.measure.worker import PROTOCOL
from inlay.targets.base import Fingerprint

Tell = Callable[[str], None]  # hears, in one line, what a command waits for


class DeviceLost(Exception):
    """The device's side ended before it answered: its process, its machine, or the connection to it."""


class RemoteDevice(ABC):
    """A device elsewhere, held for as long as its side lives: nobody else measures on it.

    Args:
        tell: hears that the device is waited for, and that it answers.
        wait_s: seconds that it is waited for at first.

    Attributes:
        goes_on: what to do where it is taken out.
        generation: number of device's sides so far; what one knew, the next one need not.
        outlived: the side before outlived what it was lost by: the connection to it ended, and no model is to blame.
    """

    goes_on = "give the same command when it is back: a tune goes on with what was measured"

    def __init__(self, resource: str, tell: Tell, wait_s: float = policy.DEVICE_WAIT_S) -> None:
        self.resource, self._tell, self._wait_s = resource, tell, wait_s
        self._closed = False
        self._known: set[tuple[str, int, int]] = set()
        self._kept: set[tuple[str, int, str]] = set()
        self._files: dict[tuple[Path, int, int], tuple[str, list[FileRange]]] = {}
        self._losses = 0
        self._was_held = False
        self.generation = 0
        self.outlived = False

    @property
    @abstractmethod
    def _is_held(self) -> bool:
        """Whether its side lives, as far as is known."""

    @abstractmethod
    def _open(self, wait_s: float) -> Answer:
        """Start its side; what that says first. Raises NoDevice where there is none in time; DeviceLost."""

    @abstractmethod
    def _request(self, method: str, arguments: Sequence[Any], limit_s: float) -> Any:
        """What a method of the device's side returns. Raises DeviceLost, TargetError, NoDevice."""

    @abstractmethod
    def _let_go(self) -> None:
        """End its side, with all that runs on it, if there is one."""

    def is_another(self, found: Fingerprint) -> str:
        """What to say where its fingerprint is not the one expected."""
        return f"device {self.resource} is another one than it was: its fingerprint is {found.digest} now"

    def call(self, method: str, *arguments: Any, limit_s: float) -> Any:
        """What a method of the :class:`~inlay.measure.remote.device.Device` returns.

        Raises:
            DeviceLost: its side ended.
            TargetError: there is no answer in time.
            NoDevice: it is not to be had, or was taken out.
        """
        self._hold(limit_s)
        answer = self._request(method, arguments, limit_s + policy.ANSWER_GRACE_S)
        if method == "ask":  # a device that is lost at its first work each time is no use, however well it starts
            self._losses = 0
        return answer

    def lost(self) -> None:
        """Count a loss. Raises NoDevice where the device is taken out for it."""
        self._losses += 1
        self._check_in()

    def send(self, ranges: Sequence[FileRange]) -> None:
        """Have the device hold these; what it has already does not travel. Raises as :meth:`call` does."""
        for each in ranges:
            if each.key not in self._known:
                for offset, data in each.chunks():
                    digest = digest_of(data)
                    if (each.name, offset, digest) in self._kept:
                        continue
                    if not self.call("put", each.name, offset, data, digest, limit_s=policy.DEVICE_WAIT_S):
                        raise TargetError(f"device {self.resource}: {each.source.name} did not arrive as it was sent")
                self._known.add(each.key)

    def send_file(self, path: Path, ranges_of: Callable[[Path], tuple[str, list[FileRange]]]) -> str:
        """Send a file with all that it refers to, as ``ranges_of`` finds out; its path in the device's folder."""
        with readable(path):
            found = path.stat()
        key = (path, found.st_size, found.st_mtime_ns)
        if key not in self._files:
            self._files[key] = ranges_of(path)
        name, ranges = self._files[key]
        self.send(ranges)
        return name

    def drop(self) -> None:
        """End its side, and forget what it held."""
        self._known.clear()
        self._kept.clear()
        self.generation += 1
        self._let_go()

    def close(self) -> None:
        """Let it go in order, so that nothing stays on its machine; it will not be held again."""
        self._closed = True
        if self._is_held:
            self._end()
            self.drop()

    @abstractmethod
    def _end(self) -> None:
        """Have its side end in order, and remove what it holds."""

    def _check_in(self) -> None:
        if self._closed:
            raise NoDevice(f"device {self.resource} was let go")
        if self._losses >= policy.LOSSES_IN_A_ROW:
            times = f"{self._losses} times in a row"
            raise NoDevice(f"device {self.resource} was lost {times} and is taken out; {self.goes_on}")

    def _hold(self, limit_s: float) -> None:
        """Start its side where there is none.

        One that was held before is waited for longer, yet not beyond the budget: a message's limit is at most half of
        what is left of that.
        """
        self._check_in()
        if self._is_held:
            return
        self.generation += 1
        hello = self._open(max(self._wait_s, policy.RETURN_LIMITS * limit_s) if self._was_held else self._wait_s)
        if (hello["version"], hello["protocol"]) != (__version__, PROTOCOL):
            self.drop()
            raise NoDevice(f"device {self.resource} has Inlay {hello['version']}: install {__version__} on its node")
        self.outlived = self._was_held and bool(hello.get("outlived"))
        self._kept.update((name, offset, digest) for name, offset, digest in hello.get("kept", ()))
        self._was_held = True
