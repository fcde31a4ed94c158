"""A device of a Ray cluster: its actor, which is held for as long as it lives."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from inlay.errors import NoDevice, TargetError, TimedOut
from inlay.measure import policy
from inlay.measure.remote.device import Answer, Device
from inlay.measure.remote.held import DeviceLost, RemoteDevice, Tell
from inlay.targets.base import Fingerprint


def losses(ray: Any) -> tuple[type[BaseException], ...]:
    """What Ray raises where an actor, its node or the connection is gone."""
    return (ray.exceptions.RayError, ConnectionError, RuntimeError)


class RayDevice(RemoteDevice):
    """A device of a cluster.

    Args:
        resource: the name under which a node announces the device (:func:`~inlay.ray.lab.resource_of`), exactly once.
    """

    goes_on = "give the same command when a node announces it: a tune goes on with what was measured"

    def __init__(
        self,
        ray: Any,
        resource: str,
        root: str | None = None,
        tell: Tell = lambda line: None,
        wait_s: float = policy.DEVICE_WAIT_S,
    ) -> None:
        super().__init__(resource, tell, wait_s)
        self._ray, self._root = ray, root
        self._actor: Any = None

    @property
    def _is_held(self) -> bool:
        return self._actor is not None

    def is_another(self, found: Fingerprint) -> str:
        """What to say where its fingerprint is not the one that its node announces."""
        return (
            f"{self.resource} is announced, but the device's fingerprint is {found.digest} with this run's options: "
            "announce it again on its node"
        )

    def _request(self, method: str, arguments: Sequence[Any], limit_s: float) -> Any:
        with self._losses_named(limit_s) as left_s:
            return self._ray.get(getattr(self._actor, method).remote(*arguments), timeout=left_s())

    def _let_go(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            with contextlib.suppress(*losses(self._ray)):
                self._ray.kill(actor)

    def _end(self) -> None:
        try:
            self._ray.get(self._actor.close.remote(), timeout=policy.END_LIMIT_S)
        except self._ray.exceptions.RayTaskError as error:
            self._tell(f"device {self.resource} did not end in order: {error.cause!r}")
        except losses(self._ray):  # it has ended
            pass

    def _open(self, wait_s: float) -> Answer:
        """Start the actor, on whichever node announces the device."""
        kind = self._ray.remote(Device).options(num_cpus=0, resources={self.resource: 1.0}, max_restarts=0)
        self._actor = kind.remote(self._root)
        try:
            return self._hello(wait_s)
        except TimedOut:
            raise NoDevice(
                f"device {self.resource} was not free within {wait_s:.0f} s: another run holds it, or no node "
                f"announces it; {self.goes_on}"
            ) from None

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
            self.drop()
            raise TimedOut(
                f"device {self.resource} did not answer within {limit_s:.0f} s; its actor was ended"
            ) from None
        except errors.RayTaskError as error:  # raised by the device's own code: a full disk, for one
            raise TargetError(f"device {self.resource}: {error.cause!r}") from None
        except errors.RayError as error:
            self.drop()
            raise DeviceLost(" ".join(str(error).split()[:12])) from None
        except BaseException:  # an interruption: nobody waits for the answer
            self.drop()
            raise
