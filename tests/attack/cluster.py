"""Nodes, devices and commands of a cluster killed at random moments: nothing is lost, and every run ends the same.

Two nodes on this machine announce the same device for ``null``. Each attack starts ``inlay tune --ray``, and after a
time that its seed names sends SIGKILL to the node that measures, to its device's actor, or to the command. A killed
node comes back a second later. A command that ended is given again, until it succeeds. Every record must be kept, and
the result must equal that of an undisturbed run without Ray bit for bit.

The cluster is :mod:`tests.attack.stand_in`, whose processes are real, and which is not Ray; with ``--real`` it is
:mod:`tests.attack.ray_nodes`, which is, and is slower by far.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from inlay.errors import UNPROVEN
from inlay.ray.lab import resource_of
from inlay.targets.base import TargetSpec
from tests.attack import stand_in
from tests.attack.kills import MARK, Command, Ground, outputs, trials, wait_for_none
from tests.attack.ray_nodes import RayCluster

VICTIMS = ("node", "device", "command")
NODES = ("a", "b")
_AWAY_S = 1.0  # that a killed node is away
_MOST_COMMANDS = 5  # until one succeeds
_SOON_S = 10.0  # that a command takes at most before a device is held
_START_S = 60.0  # for a node on a busy machine
_EARLIEST_S = 0.1  # after the start of a command; earlier attacks are not tried where one came too late


@dataclass
class Cluster:
    """Two nodes, each with one device of the same name, as processes."""

    folder: Path
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> Cluster:
        (self.folder / "temp").mkdir(parents=True)
        self.announced = {resource_of(TargetSpec("null", {})): 1}
        for name in NODES:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.kill()
            node.wait()

    def start(self, name: str) -> None:
        """Start a node, and wait until it answers."""
        path = self.folder / f"{name}.socket"
        path.unlink(missing_ok=True)
        own = {MARK: str(self.folder), "TMPDIR": str(self.folder / "temp")}
        words = [sys.executable, "-m", "tests.attack.stand_in", str(path), json.dumps(self.announced)]
        self.nodes[name] = subprocess.Popen(words, env={**os.environ, **own})
        end = time.monotonic() + _START_S
        while not path.exists():
            assert time.monotonic() < end, f"node {name} does not start"
            time.sleep(0.02)

    def actors(self) -> Iterator[tuple[str, int]]:
        """The processes that hold a device now, with their nodes."""
        for name, node in self.nodes.items():
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
                living = (pid for pid in children if Path(f"/proc/{pid}/cmdline").read_bytes())  # no zombies
                yield from ((name, int(pid)) for pid in living)

    def kill(self, victim: str) -> str:
        """Kill the device that measures, or its node; which node that was, or nothing where none is about to."""
        end = time.monotonic() + _SOON_S
        while not (name_and_pid := next(self.actors(), ("", 0)))[1] and time.monotonic() < end:
            time.sleep(0.01)
        name, pid = name_and_pid
        if name and victim == "node":
            self.nodes[name].kill()
            self.nodes[name].wait()
        elif name:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return name

    @property
    def address(self) -> str:
        """By which a command joins."""
        return str(self.folder)

    def idle(self) -> bool:
        """Whether only the nodes are left a moment after a command ended."""
        return wait_for_none(self.folder, {node.pid for node in self.nodes.values()})


class ClusterGround(Ground):
    """A model with samples, an undisturbed run of it without Ray, and a cluster.

    Args:
        folder: for everything.
        cluster: where the disturbed runs measure.
    """

    def __init__(self, folder: Path, cluster: Cluster | RayCluster) -> None:
        super().__init__(folder)
        self.cluster = cluster
        self.options += ["--ray", cluster.address]
        begun = time.monotonic()
        faults = self.attacked(folder / "calm", "", 0.0)[1]
        assert not faults, faults
        self.seconds = time.monotonic() - begun

    def attacked(self, out: Path, victim: str, after_s: float) -> tuple[str, list[str]]:
        """What was hit, and what broke; ``victim`` is empty for no attack."""
        with Command(self.folder, ["tune", *self.options, "-o", str(out)]) as command:
            time.sleep(after_s)
            hit = self._hit(command, victim)
            if hit in NODES and victim == "node":
                time.sleep(_AWAY_S)
                self.cluster.start(hit)
            ended = command.ended()
        before, found, again, first = trials(out), list[str](), 0, ended
        while ended.code not in (0, UNPROVEN) and again < _MOST_COMMANDS:
            ended, again = self.run(out), again + 1
        if ended.code not in (0, UNPROVEN):
            found.append(f"it does not end well: {ended.code}, {ended.said[-1:]}")
        if again and victim != "command":
            found.append(f"the command had to be given again {again} times: {first.said[-1:]}")
        if any(trials(out).get(name, [])[: len(rows)] != rows for name, rows in before.items()):
            found.append("records are lost or changed")
        if ended.code in (0, UNPROVEN):
            found += [f"{n} differs" for n, v in outputs(out).items() if self.outputs[n] != v]
        found += [] if wait_for_none(self.folder) else ["a process outlived the command"]
        found += [] if self.cluster.idle() else ["a process outlived its device"]
        return hit, found

    def left(self) -> list[str]:
        """What killed devices left behind, once others followed them."""
        return [p.name for p in (self.cluster.folder / "temp").iterdir()]

    def _hit(self, command: Command, victim: str) -> str:
        if victim == "command":
            command.send(signal.SIGKILL, "command")
            return "command"
        return self.cluster.kill(victim) if victim else ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--count", type=int, default=20, help="attacks (default 20)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one, to go on or to repeat one")
    parser.add_argument("--real", action="store_true", help="on Ray, where it is installed, instead of a stand-in")
    parser.add_argument("--seed", type=int, default=0, help="every attack follows from it and its number (default 0)")


def cluster_kind(real: bool) -> type[Cluster] | type[RayCluster] | None:
    """The cluster that commands join from now on: Ray's, or the stand-in's; None, and a line, where neither can be."""
    if sys.platform != "linux":
        print("processes are found through /proc: this needs Linux")
        return None
    if not real:
        modules: dict[str, Any] = sys.modules
        modules["ray"] = stand_in  # commands are forks of this process
    return RayCluster if real else Cluster


def run(given: argparse.Namespace) -> int:
    """Attack, and print what broke. Returns 1 where something did."""
    kind = cluster_kind(given.real)
    if kind is None:
        return 2
    broken: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="cluster-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with kind(folder / "cluster") as cluster:
            ground = ClusterGround(folder, cluster)
            for number in range(given.first, given.first + given.count):
                victim = VICTIMS[number % len(VICTIMS)]
                after_s = float(np.random.default_rng([given.seed, number]).uniform(0.0, ground.seconds))
                out = folder / f"attack-{number}"
                hit, faults = ground.attacked(out, victim, after_s)
                while not hit and not faults and after_s > _EARLIEST_S:  # the run was over before: it is faster today
                    shutil.rmtree(out)
                    after_s /= 2
                    hit, faults = ground.attacked(out, victim, after_s)
                hits[victim if hit else "nobody, as none measured then"] += 1
                print(f"#{number} {victim} after {after_s:.2f} s: {'; '.join(faults) or 'fine'}", flush=True)
                broken.update(faults)
                shutil.rmtree(out, ignore_errors=True)
            for each in NODES:  # the next device on a machine removes what a killed one left
                ground.attacked(folder / f"last-{each}", "", 0.0)
            broken.update(f"left behind: {each}" for each in ground.left())
    said = ", ".join(f"{count} {who}" for who, count in sorted(hits.items()))
    print(f"{given.count} attacks ({said}), {sum(broken.values())} faults")
    return int(bool(broken))
