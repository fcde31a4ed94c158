"""A worker on a device elsewhere: it forwards its messages there, and does a call again where the device is lost."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from inlay.errors import NoDevice, RunFailed, TargetError
from inlay.measure import policy
from inlay.measure.client import Limit, Worker
from inlay.measure.process import checked
from inlay.measure.remote.device import Answer
from inlay.measure.remote.held import DeviceLost, RemoteDevice
from inlay.measure.remote.transfer import ranges_of_feed, ranges_of_model
from inlay.targets.base import Artifact, Fingerprint, TargetSpec

T = TypeVar("T")


class RemoteWorker(Worker):
    """A worker on a device elsewhere. Where the device is lost, the call is done again as soon as it is back.

    Args:
        limit: seconds that one message may take; the device enforces it.
        expected: digest of the device's fingerprint; None where only its first answer tells.
    """

    def __init__(
        self, spec: TargetSpec, folder: Path, limit: Limit, *, device: RemoteDevice, expected: str | None
    ) -> None:
        self._device, self._expected = device, expected
        self._key = uuid.uuid4().hex
        self._started_at = -1  # generation of the device that the process runs on
        self._at_work: str | None = None  # on which model the device is, by its key; on several where that is empty
        self._turn = threading.RLock()  # one message at a time
        self._closed = False
        super().__init__(spec, folder, limit)

    @property
    def _alive(self) -> bool:
        return self._started_at == self._device.generation

    def _insist(self, call: Callable[[], T]) -> T:
        """What ``call`` returns. A model is to blame where each loss was in work on it, which the device had ended."""
        how, losses = "", list[str | None]()
        for _ in range(policy.LOSSES_OF_A_CALL):
            self._at_work = None
            try:
                with self._turn:
                    return super()._insist(call)
            except DeviceLost as error:
                if losses and self._device.outlived:
                    losses[-1] = None
                losses.append(self._at_work)
                how = str(error)
                self._device.lost()
        told = f"device {self._device.resource} was lost {policy.LOSSES_OF_A_CALL} times in one call: {how}"
        if None in losses:
            raise NoDevice(f"{told}; no model was at work each time: {self._device.goes_on}")
        failed = RunFailed(told)
        failed.culprit = str(losses[0]) if len(set(losses)) == 1 else ""
        raise failed

    def running(self, artifact: Artifact, feeds: Sequence[Path]) -> Future[list[dict[str, np.ndarray]]]:
        """As of any worker, in a thread, for which whatever else is asked meanwhile waits."""
        pool = ThreadPoolExecutor(1, "running")
        outputs = pool.submit(self.run, artifact, feeds)
        pool.shutdown(wait=False)
        return outputs

    def close(self) -> None:
        """End the process; what is asked of it meanwhile fails."""
        self._closed = True
        super().close()

    def drop(self, artifact: Artifact) -> None:
        """Free a model; a device that is lost meanwhile has none, and the loss counts."""
        try:
            with self._turn:
                super().drop(artifact)
        except DeviceLost:
            with contextlib.suppress(NoDevice):  # the next call says so
                self._device.lost()

    def memory(self, artifact: Artifact, feed: Path) -> int | None:
        """As of any worker; after a loss in another process, which is as fresh."""
        return self._insist(lambda: super(RemoteWorker, self).memory(artifact, feed))

    def _start(self) -> None:
        if self._closed:
            raise NoDevice(f"device {self._device.resource} was let go")
        self._resident.clear()
        limit_s = self._limit()
        answer = self._call("start", self.spec.name, self._options(), limit_s, limit_s=limit_s)
        if "error" in answer:
            raise _error_of(answer)
        found = Fingerprint(answer["target"], answer["facts"])
        if found.digest != (self._expected or found.digest):
            self._kill()
            raise NoDevice(self._device.is_another(found))
        self._expected = found.digest
        self.fingerprint, self.deterministic = found, bool(answer["deterministic"])
        self.lacks = frozenset(answer["lacks"])
        self.machine = answer.get("machine", {})
        self._started_at = self._device.generation

    def _options(self) -> dict[str, Any]:
        """Those of the target; of a file with rules, which is here, where it is there."""
        return {
            name: {"file": self._device.send_file(Path(str(value)), ranges_of_feed)} if _is_of_rules(value) else value
            for name, value in self.spec.options.items()
        }

    def _kill(self) -> None:
        self._resident.clear()
        if self._alive:
            self._started_at = -1
            with contextlib.suppress(DeviceLost, NoDevice, TargetError):
                self._call("end", limit_s=policy.END_LIMIT_S)

    def _exchange(self, do: str, arguments: dict[str, Any]) -> dict[str, Any]:
        limit_s = self._limit()
        sent, self._at_work = self._sent(arguments), str(arguments.get("key", ""))
        answer, out = self._call("ask", do, sent, limit_s, limit_s=limit_s)
        self._at_work = None
        if not answer.pop("alive"):
            self._started_at = -1
            self._resident.clear()
        if "error" in answer:
            raise _error_of(answer)
        if "out" in arguments:
            Path(arguments["out"]).write_bytes(out)
        return dict(answer)

    def _sent(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The message with paths in the device's folder, to which all files have travelled."""
        sent = dict(arguments)
        if "path" in sent:
            sent["path"] = self._device.send_file(Path(sent["path"]), ranges_of_model)
        if "feed" in sent:
            sent["feed"] = self._device.send_file(Path(sent["feed"]), ranges_of_feed)
        if "feeds" in sent:
            sent["feeds"] = [self._device.send_file(Path(each), ranges_of_feed) for each in sent["feeds"]]
        return sent

    def _call(self, method: str, *arguments: Any, limit_s: float) -> Any:
        return self._device.call(method, self._key, *arguments, limit_s=limit_s)


def _is_of_rules(value: object) -> bool:
    return isinstance(value, str) and value.endswith((".yaml", ".yml")) and Path(value).is_file()


def _error_of(answer: Answer) -> TargetError:
    """The device's error, with its type and culprit."""
    try:
        checked(answer)
    except TargetError as error:
        error.culprit = answer["culprit"]
        return error
    raise AssertionError("no error")
