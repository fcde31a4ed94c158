"""Where a run measures: on this machine without Ray, or on the devices of a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from inlay.errors import TargetError, UsageError
from inlay.files import scratch
from inlay.measure.client import Limit, Worker
from inlay.measure.lab import Ahead, Lab, Search, StartWorker
from inlay.measure.remote.held import Tell
from inlay.measure.remote.worker import RemoteWorker
from inlay.model.pool import WorkerPool
from inlay.ray import policy
from inlay.ray.ahead import building_ahead
from inlay.ray.cluster import LOCAL, cluster, ray_library
from inlay.ray.pool import helper_pool
from inlay.ray.remote import RayDevice
from inlay.targets.base import TargetSpec
from inlay.targets.registry import in_float32

_PREFIX, _BUILDER = "inlay", "inlay-builder"


def resource_of(spec: TargetSpec) -> str:
    """The name of the resource by which a node announces this machine as a device for a target.

    Raises:
        TargetError: the target cannot be created here.
    """
    with scratch() as folder, Worker(spec, folder) as worker:
        return f"{_PREFIX}:{spec.name}:{worker.fingerprint.digest}"


def builder_of(device: str) -> str:
    """The name of the resource by which a node offers to build what such a device may measure next."""
    return _BUILDER + device.removeprefix(_PREFIX)


@contextlib.contextmanager
def measuring(address: str, specs: Iterable[TargetSpec], tell: Tell) -> Iterator[Lab]:
    """The lab of a run (:class:`~inlay.measure.lab.OpenLab`); its devices are let go at the end.

    Args:
        address: :data:`~inlay.ray.cluster.LOCAL` for this machine through Ray; ``auto`` or an address for a cluster,
            with ``#`` and the digest of a fingerprint where one of several is meant.

    Raises:
        UsageError: Ray is not installed.
        TargetError: no cluster answers, or a target cannot be created.
    """
    given = address
    address, _, wanted = given.partition("#")
    if not address:
        raise UsageError(f"--ray {given}: give local, auto, or the address of a cluster such as 10.0.0.1:6379")
    ray_library()  # before anything takes time
    own = {resource_of(spec): 1.0 for spec in specs} if address == LOCAL else {}
    with scratch() as folder, cluster(address, own) as library:
        devices = _Devices(library, wanted, str(folder) if own else None, tell)
        try:
            yield Lab(devices.start, equal=devices.equal, ahead=devices.ahead, open_pool=devices.open_pool)
        finally:
            devices.close()


class _Devices:
    """The devices that a run holds.

    Args:
        wanted: digest of a fingerprint, or its first digits.
    """

    def __init__(self, ray: Any, wanted: str, root: str | None, tell: Tell) -> None:
        self._ray, self._wanted, self._root, self._tell = ray, wanted, root, tell
        self._devices: dict[str, RayDevice] = {}
        self._asked: dict[str, TargetSpec] = {}
        self._in_float32: dict[str, str] = {}

    def start(self, spec: TargetSpec, folder: Path, limit: Limit) -> Worker:
        """A worker on the device for a target; further ones for it are on the same device."""
        name = self._held(spec) or chosen(spec.name, self._wanted, self._ray.cluster_resources())
        device = self._devices.setdefault(name, RayDevice(self._ray, name, self._root, self._tell))
        self._asked.setdefault(name, spec)
        expected = self._expected(name, spec)
        worker = _worker(device, expected, spec, folder, limit)
        if expected is None:
            self._in_float32[name] = worker.fingerprint.digest
        return worker

    @contextlib.contextmanager
    def equal(self, spec: TargetSpec, most: int) -> Iterator[Sequence[StartWorker]]:
        """Further devices with the name of the target's, as far as they are free now; let go at the end."""
        name = self._held(spec)
        free = int(self._ray.available_resources().get(name, 0)) if most else 0
        devices = [RayDevice(self._ray, name, self._root, wait_s=policy.EQUAL_WAIT_S) for _ in range(min(most, free))]
        try:
            yield [partial(_worker, device, self._expected(name, spec)) for device in devices]
        finally:
            for device in devices:
                device.close()

    def ahead(self, search: Search) -> AbstractContextManager[Ahead]:
        """Builders with the fingerprint of the target's device, as far as they are free now; let go at the end."""
        name = self._held(search.spec)
        expected = self._expected(name, search.spec)
        return building_ahead(self._ray, builder_of(name), self._root, expected, search, self._tell)

    def open_pool(self) -> AbstractContextManager[WorkerPool | None]:
        """Helpers, wherever a processor is free."""
        return helper_pool(self._ray, self._root, self._tell)

    def close(self) -> None:
        """Let all devices go."""
        for device in self._devices.values():
            device.close()

    def _expected(self, name: str, spec: TargetSpec) -> str | None:
        """Digest of the fingerprint that the target has on a device: that in its name, where that is how it is asked.

        The same target as it computes in float32 has another one there, which the device tells; None until then.
        """
        asked = self._asked.get(name, spec)
        if spec != asked and in_float32(asked) == spec:
            return self._in_float32.get(name)
        return name.rpartition(":")[2]

    def _held(self, spec: TargetSpec) -> str:
        """The device that was chosen for the target first: a node that is away now may come back."""
        return next((name for name in self._devices if name.startswith(f"{_PREFIX}:{spec.name}:")), "")


def _worker(device: RayDevice, expected: str | None, spec: TargetSpec, folder: Path, limit: Limit) -> Worker:
    return RemoteWorker(spec, folder, limit, device=device, expected=expected)


def chosen(target: str, wanted: str, resources: Mapping[str, float]) -> str:
    """The one device for ``target`` among what nodes announce, whose digest begins with ``wanted``.

    Raises:
        TargetError: there is none, or there are several.
    """
    announced = sorted(name for name in resources if name.startswith(f"{_PREFIX}:{target}:"))
    found = [name for name in announced if name.rpartition(":")[2].startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        raise TargetError(f"--ray: the cluster has {_listed(found)}: choose one with #FINGERPRINT behind the address")
    others = f"; it has {_listed(announced)}" if announced else ""
    raise TargetError(f"--ray: no node of the cluster announces a device for {target} {wanted}".rstrip() + others)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
