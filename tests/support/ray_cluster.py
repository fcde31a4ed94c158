"""A cluster of one process with the few names of Ray that a run uses. It loses actors on demand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from inlay.measure.remote.device import Device
from inlay.ray import lab


class Lost(Exception):
    """What Ray raises for a dead actor here."""


class Cluster:
    """The few names of Ray that a device uses.

    Args:
        fails: whether the actor dies before it answers, by the method that is called.
        resources: what the nodes announce.
    """

    def __init__(
        self, fails: Callable[[str], bool] = lambda method: False, resources: Mapping[str, float] | None = None
    ) -> None:
        task = type("Task", (Exception,), {})
        self.exceptions = SimpleNamespace(GetTimeoutError=TimeoutError, RayTaskError=task, RayError=Lost)
        self.fails, self.actors, self.asked = fails, list[Device](), list[str]()
        self.sound = 1_000_000  # actors, after which each dies at its first work
        self.away, self.late = False, False
        self.looked, self.waited = list[float](), list[float]()
        self.resources, self.held = dict(resources or {}), list[str]()

    def remote(self, kind: type[Device]) -> Any:
        """As Ray's."""

        def options(num_cpus: int, resources: Mapping[str, float], max_restarts: int) -> Any:
            (name,) = resources

            def make(root: str | None) -> Any:
                self.actors.append(kind(root))
                self.held.append(name)
                return _Actor(self, self.actors[-1], name)

            return SimpleNamespace(remote=make)

        return SimpleNamespace(options=options)

    def get(self, call: Callable[[], Any], timeout: float) -> Any:
        """As Ray's; nobody answers while the cluster's nodes are ``away``."""
        self.waited.append(timeout)
        if self.away:
            raise TimeoutError
        return call()

    def wait(self, calls: Sequence[Callable[[], Any]], timeout: float) -> tuple[list[Any], list[Any]]:
        """As Ray's: those that answer soon, and the others. Nobody does while the nodes are ``late`` or ``away``."""
        self.looked.append(timeout)
        return ([], [*calls]) if self.late or self.away else ([*calls], [])

    def kill(self, actor: Any) -> None:
        """As Ray's."""
        self.held.remove(actor.resource)
        actor.device.close()

    def cluster_resources(self) -> Mapping[str, float]:
        """As Ray's."""
        return self.resources

    def available_resources(self) -> Mapping[str, float]:
        """As Ray's: what no living actor holds."""
        return {name: count - self.held.count(name) for name, count in self.resources.items()}

    def join(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have this cluster answer at every address from now on."""

        @contextlib.contextmanager
        def joined(address: str, resources: Mapping[str, float]) -> Iterator[Cluster]:
            yield self

        monkeypatch.setattr(lab, "cluster", joined)
        monkeypatch.setattr(lab, "ray_library", lambda: self)


class _Actor:
    def __init__(self, cluster: Cluster, device: Device, resource: str) -> None:
        self.cluster, self.device, self.resource = cluster, device, resource

    def __getattr__(self, method: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.cluster.asked.append(method)
            frail = method == "ask" and self.device not in self.cluster.actors[: self.cluster.sound]
            if frail or self.cluster.fails(method):
                raise Lost("the actor died")
            return getattr(self.device, method)(*arguments)

        return SimpleNamespace(remote=lambda *arguments: lambda: call(*arguments))
