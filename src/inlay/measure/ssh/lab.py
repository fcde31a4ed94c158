"""Where a run measures that was given ``--device``: on one board over SSH."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from inlay.measure.client import Limit, Worker
from inlay.measure.lab import Lab
from inlay.measure.remote.held import Tell
from inlay.measure.remote.worker import RemoteWorker
from inlay.measure.ssh.address import address_of
from inlay.measure.ssh.archive import archive_for, is_light
from inlay.measure.ssh.held import SshDevice
from inlay.targets.base import TargetSpec
from inlay.targets.registry import available


@contextlib.contextmanager
def measuring(address: str, specs: Iterable[TargetSpec], tell: Tell) -> Iterator[Lab]:
    """The lab of a run (:class:`~inlay.measure.lab.OpenLab`); the board is let go at the end.

    Args:
        specs: the targets that will be asked for; none for all whose workers need no more than their runtime.

    Raises:
        UsageError: there is no such address.
    """
    place = address_of(address)
    names = tuple(sorted({s.name for s in specs})) or tuple(
        name for name, each in available().items() if is_light(each)
    )
    device = SshDevice(place, archive_for(names), tell)
    expected: dict[str, str] = {}

    def start(spec: TargetSpec, folder: Path, limit: Limit) -> Worker:
        key = repr((spec.name, sorted(spec.options.items())))
        worker = RemoteWorker(spec, folder, limit, device=device, expected=expected.get(key))
        expected.setdefault(key, worker.fingerprint.digest)
        return worker

    try:
        yield Lab(start, targets=names)
    finally:
        device.close()
