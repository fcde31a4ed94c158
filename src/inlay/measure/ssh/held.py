"""The run's side of a board: connected, found again after a loss, and let go."""

from __future__ import annotations

import contextlib
import re
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

from inlay.errors import InlayError, NoDevice, TargetError, TimedOut
from inlay.measure import policy
from inlay.measure.remote.device import Answer
from inlay.measure.remote.held import DeviceLost, RemoteDevice, Tell
from inlay.measure.ssh.address import Address
from inlay.measure.ssh.archive import Archive
from inlay.measure.ssh.connection import Connection, to_install

_REACH_S = 20.0
"""Seconds in which a board is reached once more, to leave nothing there: to start its Python alone takes some."""
_PAUSE_S = 1.0  # seconds between tries to reach a board that is away
_MISSING = re.compile(r"No module named '([\w.]+)'")


class SshDevice(RemoteDevice):
    """A board over SSH."""

    def __init__(self, address: Address, archive: Archive, tell: Tell, wait_s: float = policy.DEVICE_WAIT_S) -> None:
        super().__init__(str(address), tell, wait_s)
        self._address, self._archive = address, archive
        self._run = f"inlay-run-{uuid.uuid4().hex}"
        self._connection: Connection | None = None
        self._has_files = False  # on the board
        self._turn = threading.RLock()

    @property
    def _is_held(self) -> bool:
        return self._connection is not None

    def call(self, method: str, *arguments: Any, limit_s: float) -> Any:
        """As of any device; what its Python lacks for a target is no error of a model."""
        with self._turn:
            answer = super().call(method, *arguments, limit_s=limit_s)
        if method == "start" and "error" in answer:
            said = " ".join(answer["error"].split())
            found = _MISSING.search(said)
            if found or "cannot be loaded" in said:
                runtime = " ".join(sorted(self._archive.foreign - {"numpy", "onnx"}))
                what = found[1] if found else f"{runtime}." * bool(runtime)
                hint = f": {to_install(self._address.python, what)}" if what else ""
                raise NoDevice(f"device {self.resource}: {said}{hint}")
        return answer

    def close(self) -> None:
        """Let it go in order; where the connection was lost, before or meanwhile, reach it again to leave nothing."""
        super().close()
        end = time.monotonic() + _REACH_S
        while self._has_files and (left_s := end - time.monotonic()) > 0.0:
            try:
                self._connection = Connection(self._address, self._archive, self._run, left_s)
            except (DeviceLost, TimedOut):
                time.sleep(min(_PAUSE_S, left_s))
                continue
            except InlayError:  # it will not answer as things are
                break
            super().close()
        self._has_files = False  # or nothing more can be done about them

    def _open(self, wait_s: float) -> Answer:
        """Connect, as soon as the board is there and no other run has it."""
        begun, why, is_told = time.monotonic(), "", False
        while (left_s := begun + wait_s - time.monotonic()) > 0.0:
            try:
                if self._connection is None:
                    self._connection = Connection(self._address, self._archive, self._run, left_s)
                    self._has_files = True
                hello: Answer = self._connection.ask("hello", (), left_s)
                if not hello.get("busy"):
                    if is_told:
                        self._tell(f"device {self.resource} answers after {time.monotonic() - begun:.0f} s")
                    return hello
                why = "another run has it"
            except (DeviceLost, TimedOut) as error:
                self._let_go()
                why = str(error)
            except InlayError:
                self._let_go()
                raise
            if not is_told and time.monotonic() - begun > policy.UNSEEN_S:
                until = time.strftime("%H:%M:%S", time.localtime(time.time() + left_s))
                self._tell(f"wait for device {self.resource} until {until} at most: {why}")
                is_told = True
            time.sleep(_PAUSE_S)
        self._let_go()
        raise NoDevice(f"device {self.resource} did not answer within {wait_s:.0f} s: {why}; {self.goes_on}")

    def _request(self, method: str, arguments: Sequence[Any], limit_s: float) -> Any:
        assert self._connection is not None
        try:
            return self._connection.ask(method, arguments, limit_s)
        except TargetError as error:
            if isinstance(error, TimedOut):
                self.drop()
            raise
        except BaseException:  # also an interruption: nobody waits for the answer
            self.drop()
            raise

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _end(self) -> None:
        with contextlib.suppress(DeviceLost, InlayError):
            self._request("close", (), policy.END_LIMIT_S)
            self._has_files = False
