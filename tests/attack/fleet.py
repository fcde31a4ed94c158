"""Nodes, devices and the command killed again and again while a fleet is tuned: nothing is lost, and it ends the same.

A fleet of several models is tuned for ``null`` on a cluster of two nodes, as in :mod:`tests.attack.cluster`. While it
goes on, a node, the device's actor or the command is killed at moments that a seed names; a node comes back, a
command is given again. Every record of every run must be kept, and each run's result must equal that of a fleet
without Ray that nobody disturbed, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from benchmarks import subjects

from inlay.errors import UNPROVEN
from inlay.portfolio import policy
from inlay.testing import random_feed, small_model
from tests.attack.cluster import VICTIMS, Cluster, cluster_kind
from tests.attack.kills import Command, Ended, outputs, trials, wait_for_none
from tests.attack.ray_nodes import RayCluster

Model = tuple[Path, Path]
"""A file, and its samples."""
_AWAY_S = 1.0  # that a killed node is away
_MOST_COMMANDS = 5  # after the last attack, until one succeeds
_SLICE_S = 7200.0
"""Seconds of a first slice: what is cut short for want of time depends on the machine, and fleets would not agree."""
_DEFAULTS = {"min-sqnr": 10, "max-measurements": 6, "no-cost-db": True}


class FleetGround:
    """Models with samples, an undisturbed fleet of them without Ray, and a cluster.

    Args:
        folder: for everything.
        cluster: where disturbed fleets measure.
        models: that are tuned.
    """

    def __init__(self, folder: Path, cluster: Cluster | RayCluster, models: Sequence[Model]) -> None:
        self.folder, self.cluster, self.plan = folder, cluster, folder / "fleet.yaml"
        found = [{"model": str(model), "data": str(data)} for model, data in models]
        self.plan.write_text(json.dumps({"defaults": _DEFAULTS, "models": found, "targets": ["null"]}))
        begun = time.monotonic()
        ended = self._run(folder / "whole", [])
        self.seconds = time.monotonic() - begun
        assert ended.code in (0, UNPROVEN), ended
        self.outputs = self._outputs(folder / "whole")
        assert len(self.outputs) == len(models), ended

    def attacked(self, out: Path, rng: np.random.Generator, victims: Sequence[str]) -> tuple[Counter[str], list[str]]:
        """What was hit while a fleet went on, and what broke."""
        left, hits = [*victims], Counter[str]()
        before, ended = dict[str, list[Any]](), Ended(1, ())
        while left and ended.code not in (0, UNPROVEN):
            with self._command(out, ["--ray", self.cluster.address]) as command:
                while left and command.alive:
                    time.sleep(float(rng.uniform(0.0, 2.0 * self.seconds / len(victims))))
                    victim = left.pop(0)
                    hits[self._hit(command, victim)] += 1
                    before.update(trials(out))
                    if victim == "command":
                        break
                ended = command.ended()
        again = 0
        while ended.code not in (0, UNPROVEN) and again < _MOST_COMMANDS:
            ended, again = self._run(out, ["--ray", self.cluster.address]), again + 1
        found = [] if ended.code in (0, UNPROVEN) else [f"it does not end well: {ended.code}, {ended.said[-1:]}"]
        now = trials(out)
        found += [f"records of {n} are lost or changed" for n, rows in before.items() if now[n][: len(rows)] != rows]
        made = self._outputs(out)
        for name, wanted in self.outputs.items():
            found += [f"{name}: {n} differs" for n, v in wanted.items() if made.get(name, {}).get(n) != v]
        found += [] if wait_for_none(self.folder) else ["a process outlived the command"]
        found += [] if self.cluster.idle() else ["a process outlived its device"]
        return hits, found

    def _hit(self, command: Command, victim: str) -> str:
        """Kill, and have a node come back; whom."""
        if victim == "command":
            command.send(signal.SIGKILL, "command")
            return victim
        node = self.cluster.kill(victim)
        if node and victim == "node":
            time.sleep(_AWAY_S)
            self.cluster.start(node)
        return victim if node else "nobody, as none measured then"

    def _command(self, out: Path, more: Sequence[str]) -> Command:
        return Command(self.folder, ["fleet", str(self.plan), "-o", str(out), *more])

    def _run(self, out: Path, more: Sequence[str]) -> Ended:
        with self._command(out, more) as command:
            return command.ended()

    def _outputs(self, out: Path) -> dict[str, dict[str, Any]]:
        found = {p.parent.name: outputs(p.parent) for p in sorted(out.glob("*/model.onnx"))}
        for each in found.values():
            del each["result.json: data"]["sources"]  # they lie in the fleet's folder
        return found


def small_models(folder: Path) -> list[Model]:
    """Two small networks, each with samples."""
    found = []
    for number in range(2):
        proto = small_model(seed=number)
        model, data = folder / f"small-{number}.onnx", folder / f"small-{number}.npz"
        onnx.save(proto, model)
        feeds = [random_feed(proto, seed) for seed in range(8)]
        np.savez(data, **{name: np.concatenate([f[name] for f in feeds]) for name in feeds[0]})
        found.append((model, data))
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--count", type=int, default=20, help="kills in all (default 20)")
    parser.add_argument("--fleets", type=int, default=2, help="that they are spread over (default 2)")
    parser.add_argument("--names", nargs="*", default=[], help="models of the benchmarks; two small ones by default")
    parser.add_argument("--real", action="store_true", help="on Ray, where it is installed, instead of a stand-in")
    parser.add_argument("--seed", type=int, default=0, help="every attack follows from it (default 0)")


def run(given: argparse.Namespace) -> int:
    """Attack, and print what broke. Returns 1 where something did."""
    kind = cluster_kind(given.real)
    if kind is None:
        return 2
    policy.FIRST_SLICE_S = _SLICE_S
    hits, broken = Counter[str](), list[str]()
    with tempfile.TemporaryDirectory(prefix="cluster-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        made = [subjects.make(each, subjects.default_models(), folder / each) for each in given.names]
        models = [(each.model, each.samples) for each in made] or small_models(folder)
        with kind(folder / "cluster") as cluster:
            ground = FleetGround(folder, cluster, models)
            print(f"{len(models)} models, undisturbed without Ray: {ground.seconds:.0f} s", flush=True)
            for number in range(given.fleets):
                victims = [VICTIMS[k % len(VICTIMS)] for k in range(number, given.count, given.fleets)]
                begun = time.monotonic()
                rng = np.random.default_rng([given.seed, number])
                hit, faults = ground.attacked(folder / f"fleet-{number}", rng, victims)
                hits += hit
                broken += faults
                took = f"{time.monotonic() - begun:.0f} s"
                print(f"fleet {number}, {sum(hit.values())} kills, {took}: {'; '.join(faults) or 'fine'}", flush=True)
    said = ", ".join(f"{count} {who}" for who, count in sorted(hits.items()))
    print(f"{given.fleets} fleets, {sum(hits.values())} attacks ({said}), {len(broken)} faults")
    return int(bool(broken))
