"""The run's side of a device: its actor, and workers that forward their messages to it."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from inlay.errors import NoDevice, RunFailed, TargetError, TimedOut
from inlay.installed import __version__
from inlay.measure.client import Limit, Worker, checked
from inlay.measure.worker import PROTOCOL
from inlay.ray import policy
from inlay.ray.device import Answer, Device
from inlay.ray.transfer import FileRange, digest_of, ranges_of_feed, ranges_of_model, readable
from inlay.targets.base import Artifact, Fingerprint, TargetSpec

T = TypeVar("T")
Tell = Callable[[str], None]
"""Hears, in one line, what a command waits for."""


_GOES_ON = "give the same command when a node announces it: a tune goes on with what was measured"


def losses(ray: Any) -> tuple[type[BaseException], ...]:
    """What Ray raises where an actor, its node or the connection is gone."""
    return (ray.exceptions.RayError, ConnectionError, RuntimeError)


class DeviceLost(Exception):
    """The actor ended before it answered: its process, its node, or the connection to it."""


class RemoteDevice:
    """A device of a cluster, held for as long as its actor lives: nobody else measures on it.

    Args:
        ray: the connected module.
        resource: the name under which a node announces the device (:func:`~inlay.ray.lab.resource_of`), exactly once.
        root: where the actor makes its folder, if not in its system's usual place.
        tell: hears that the device is waited for, and that it answers.
        wait_s: seconds that it is waited for at first.

    Attributes:
        resource: as above.
        generation: number of actors so far; what one knew, the next one does not.
    """

    def __init__(
        self,
        ray: Any,
        resource: str,
        root: str | None = None,
        tell: Tell = lambda line: None,
        wait_s: float = policy.DEVICE_WAIT_S,
    ) -> None:
        self._ray, self.resource, self._root, self._tell, self._wait_s = ray, resource, root, tell, wait_s
        self._closed = False
        self._actor: Any = None
        self._known: set[tuple[str, int, int]] = set()
        self._files: dict[tuple[Path, int, int], tuple[str, list[FileRange]]] = {}
        self._losses = 0
        self._was_held = False
        self.generation = 0

    def call(self, method: str, *arguments: Any, limit_s: float) -> Any:
        """What a method of the :class:`~inlay.ray.device.Device` returns.

        Raises:
            DeviceLost: its actor ended.
            TargetError: there is no answer in time.
            NoDevice: no node has the device free, or it was taken out.
        """
        self._hold(limit_s)
        with self._losses_named(limit_s + policy.ANSWER_GRACE_S) as left_s:
            answer = self._ray.get(getattr(self._actor, method).remote(*arguments), timeout=left_s())
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
                    if not self.call("put", each.name, offset, data, digest_of(data), limit_s=policy.DEVICE_WAIT_S):
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

    def drop_actor(self) -> None:
        """End the actor, with all that runs on it, and forget what it held."""
        actor, self._actor = self._actor, None
        self._known.clear()
        self.generation += 1
        if actor is not None:
            with contextlib.suppress(*losses(self._ray)):
                self._ray.kill(actor)

    def close(self) -> None:
        """End the actor in order, so that nothing of it stays on its machine; there will be no other."""
        self._closed = True
        if self._actor is not None:
            try:
                self._ray.get(self._actor.close.remote(), timeout=policy.END_LIMIT_S)
            except self._ray.exceptions.RayTaskError as error:
                self._tell(f"device {self.resource} did not end in order: {error.cause!r}")
            except losses(self._ray):  # it has ended
                pass
            self.drop_actor()

    def _check_in(self) -> None:
        if self._closed:
            raise NoDevice(f"device {self.resource} was let go")
        if self._losses >= policy.LOSSES_IN_A_ROW:
            times = f"{self._losses} times in a row"
            raise NoDevice(f"device {self.resource} was lost {times} and is taken out; {_GOES_ON}")

    def _hold(self, limit_s: float) -> None:
        """Start the actor where there is none, on whichever node announces the device.

        One that was held before is waited for longer, yet not beyond the budget: a message's limit is at most half of
        what is left of that.
        """
        self._check_in()
        if self._actor is not None:
            return
        kind = self._ray.remote(Device).options(num_cpus=0, resources={self.resource: 1.0}, max_restarts=0)
        self._actor = kind.remote(self._root)
        self.generation += 1
        wait_s = self._wait_s
        if self._was_held:
            wait_s = max(wait_s, policy.RETURN_LIMITS * limit_s)
        try:
            hello = self._hello(wait_s)
        except TimedOut:
            raise NoDevice(
                f"device {self.resource} was not free within {wait_s:.0f} s: another run holds it, or no node "
                f"announces it; {_GOES_ON}"
            ) from None
        if (hello["version"], hello["protocol"]) != (__version__, PROTOCOL):
            self.drop_actor()
            raise NoDevice(f"device {self.resource} has Inlay {hello['version']}: install {__version__} on its node")
        self._was_held = True

    def _hello(self, wait_s: float) -> Answer:
        """The actor's first answer. A wait that people would notice is told, with its end on the clock on the wall."""
        with self._losses_named(wait_s) as left_s:
            hello = self._actor.hello.remote()
            soon, _ = self._ray.wait([hello], timeout=min(policy.UNSEEN_S, wait_s))
            if not soon:
                until = time.strftime("%H:%M:%S", time.localtime(time.time() + left_s()))
                why = "its node is away, or another run holds it" if self._was_held else "another run may hold it"
                self._tell(f"wait for device {self.resource} until {until} at most: {why}")
            answer: Answer = self._ray.get(hello, timeout=left_s())
        if not soon:
            self._tell(f"device {self.resource} answers after {wait_s - left_s():.0f} s")
        return answer

    @contextlib.contextmanager
    def _losses_named(self, limit_s: float) -> Iterator[Callable[[], float]]:
        """Ray's errors as this module's, with the actor dropped where it can give no other answer.

        Yields:
            How many of the ``limit_s`` seconds are left.
        """
        errors, until = self._ray.exceptions, time.monotonic() + limit_s
        try:
            yield lambda: max(0.0, until - time.monotonic())
        except errors.GetTimeoutError:
            self.drop_actor()
            raise TimedOut(
                f"device {self.resource} did not answer within {limit_s:.0f} s; its actor was ended"
            ) from None
        except errors.RayTaskError as error:  # raised by the device's own code: a full disk, for one
            raise TargetError(f"device {self.resource}: {error.cause!r}") from None
        except errors.RayError as error:
            self.drop_actor()
            raise DeviceLost(" ".join(str(error).split()[:12])) from None
        except BaseException:  # an interruption: nobody waits for the answer
            self.drop_actor()
            raise


class RemoteWorker(Worker):
    """A worker on a device of a cluster. Where the device is lost, its next actor does the call again.

    Args:
        spec: the target.
        folder: for outputs, here.
        limit: seconds that one message may take; the device enforces it.
        device: where the process is.
        expected: digest of the device's fingerprint; None where only its first answer tells.
    """

    def __init__(
        self, spec: TargetSpec, folder: Path, limit: Limit, *, device: RemoteDevice, expected: str | None
    ) -> None:
        self._device, self._expected = device, expected
        self._key = uuid.uuid4().hex
        self._started_at = -1  # generation of the device's actor that the process runs on
        self._asked_for = ""  # key of the model that the last message was about; none where it was about several
        self._turn = threading.RLock()  # one message at a time
        self._closed = False
        super().__init__(spec, folder, limit)

    @property
    def _alive(self) -> bool:
        return self._started_at == self._device.generation

    def _insist(self, call: Callable[[], T]) -> T:
        how = ""
        for _ in range(policy.LOSSES_OF_A_CALL):
            try:
                with self._turn:
                    return super()._insist(call)
            except DeviceLost as error:
                how = str(error)
                self._device.lost()
        failed = RunFailed(
            f"device {self._device.resource} was lost {policy.LOSSES_OF_A_CALL} times in one call: {how}"
        )
        failed.culprit = self._asked_for
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
        answer = self._call("start", self.spec.name, dict(self.spec.options), limit_s, limit_s=limit_s)
        if "error" in answer:
            raise _error_of(answer)
        found = Fingerprint(answer["target"], answer["facts"])
        if found.digest != (self._expected or found.digest):
            self._kill()
            raise NoDevice(
                f"{self._device.resource} is announced, but the device's fingerprint is {found.digest} with this run's "
                "options: announce it again on its node"
            )
        self._expected = found.digest
        self.fingerprint, self.deterministic = found, bool(answer["deterministic"])
        self.lacks = frozenset(answer["lacks"])
        self._started_at = self._device.generation

    def _kill(self) -> None:
        self._resident.clear()
        if self._alive:
            self._started_at = -1
            with contextlib.suppress(DeviceLost, NoDevice, TargetError):
                self._call("end", limit_s=policy.END_LIMIT_S)

    def _ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        if not self._alive:
            self._start()
        begun = time.monotonic()
        self._asked_for = str(arguments.get("key", ""))
        try:
            return self._exchange(do, arguments)
        finally:
            self._record(do, arguments, time.monotonic() - begun)

    def _exchange(self, do: str, arguments: dict[str, Any]) -> dict[str, Any]:
        limit_s = self._limit()
        answer, out = self._call("ask", do, self._sent(arguments), limit_s, limit_s=limit_s)
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


def _error_of(answer: Answer) -> TargetError:
    """The device's error, with its type and culprit."""
    try:
        checked(answer)
    except TargetError as error:
        error.culprit = answer["culprit"]
        return error
    raise AssertionError("no error")
