"""The process that makes all runtime calls: it can crash, hang or run out of memory without ending the run.

It answers each message, a piece of JSON, with another. Messages are plain data, with models and feeds by path, so that
a worker could run on another machine with the same files. The client (:mod:`inlay.measure.client`) starts it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from inlay.data.archives import load_feed, load_workload, save_feed
from inlay.errors import InlayError, TargetError
from inlay.measure import policy
from inlay.measure.blocks import Block, run_block, slot_repeats, weighted
from inlay.measure.checked import Checked
from inlay.measure.memory import Growth
from inlay.measure.readings import COLD_RUNS, READINGS, Reading, read_as
from inlay.measure.serving import Load, answer_all
from inlay.measure.throttling import Thermometer
from inlay.model.child import serve
from inlay.model.late_imports import defer_imports
from inlay.targets.base import Artifact, Feed, Identifies, KernelTime, Target, TargetSpec, lacks_of
from inlay.targets.machine import refuse_idle_threads
from inlay.targets.registry import create

PROTOCOL = 1  # version of the messages, which `docs/targets.md` describes: client and worker must agree


class Service:
    """Holds the target, the resident executables and the feeds of one worker.

    Args:
        target: used in place of the target that is named in messages: a simulation in the caller's process.
        announce: hears the key of each model before the runtime works on it: if it never returns, that one is to blame.
    """

    def __init__(self, target: Target | None = None, announce: Callable[[str], None] = lambda key: None) -> None:
        self._given = target
        self._announce = announce
        self._target: Target | None = None
        self._resident: dict[str, Checked] = {}
        self._feeds: dict[Path, Feed] = {}
        self._repeats: dict[tuple[str, Reading], dict[Path, int]] = {}
        self._reading: Reading = "latency"
        self._thermometer = Thermometer()

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer to one message; InlayErrors become ``{"error", "stage"}``."""
        try:
            answer: dict[str, Any] = getattr(self, f"on_{message['do']}")(**message.get("with", {}))
        except TargetError as error:
            return {"error": str(error), "stage": error.stage}
        except InlayError as error:
            return {"error": str(error), "stage": "worker"}
        except Exception as error:  # a runtime may raise anything: it is an answer, not the end of the worker
            return {"error": f"{type(error).__name__}: {error}"[: policy.MESSAGE_LENGTH], "stage": "worker"}
        return answer

    def on_target(
        self, name: str, options: dict[str, Any], protocol: int = PROTOCOL, reading: Reading = "latency"
    ) -> dict[str, Any]:
        """Choose the target, and what its readings are where a message does not say."""
        if protocol != PROTOCOL:
            raise TargetError(
                f"the worker speaks version {PROTOCOL} of the messages, and was asked by version {protocol}"
            )
        self._target, self._reading = self._given or create(TargetSpec(name, options)), reading
        found = self._target.fingerprint()
        threads = found.facts.get("threads", "")
        refuse_idle_threads(int(threads) if threads.isdecimal() else 0)  # the machine of a command that asks may differ
        return {
            "protocol": PROTOCOL,
            "target": found.target,
            "facts": dict(found.facts),
            "deterministic": self._target.deterministic,
            "lacks": sorted(lacks_of(self._target)),
            "machine": self._thermometer.state(),
        }

    def on_load(self, key: str, path: str, digest: str, identify: bool = False) -> dict[str, Any]:
        """Build a model and keep it. The answer holds the digest of its optimized graph, where that is known."""
        assert self._target is not None
        graph = ""
        if key not in self._resident:
            artifact = Artifact(Path(path), digest)
            self._announce(key)
            if identify and isinstance(self._target, Identifies):
                executable, graph = self._target.compile_identified(artifact)
            else:
                executable = self._target.compile(artifact)
            self._resident[key] = Checked(executable, partial(self._announce, key), self._target.deterministic)
        return {"graph": graph}

    def on_unload(self, key: str) -> dict[str, Any]:
        """Free a model."""
        executable = self._resident.pop(key, None)
        for reading in READINGS:
            self._repeats.pop((key, reading), None)
        if executable is not None:
            executable.close()
        return {}

    def on_run(self, key: str, feeds: list[str], out: str) -> dict[str, Any]:
        """Run a model on every feed; outputs go to ``out`` (.npz) as ``<index of the feed>/<output>``."""
        arrays = {}
        for number, path in enumerate(feeds):
            for name, array in self._resident[key].run(self._feed(Path(path))).items():
                arrays[f"{number}/{name}"] = array
        save_feed(Path(out), arrays)
        return {}

    def on_time(
        self, keys: list[str], feed: str, slot_ns: int, seed: int, reading: Reading | None = None
    ) -> dict[str, Any]:
        """Time models in one interleaved block: every model's nanoseconds, and the drift.

        On a feed, or on each of a workload in a random order: the figures are then those of the mean inference. Where
        heat held the processor back meanwhile, nothing of them is certain; ``throttled`` is what the machine said.
        """
        feeds = load_workload(Path(feed))
        reading = reading or self._reading
        models = [self._resident[k] for k in keys]
        executables = read_as(models, reading)
        for path, weight in feeds:
            for key, executable in zip(keys, executables, strict=True):
                known = self._repeats.setdefault((key, reading), {})
                if path not in known:
                    fitting = slot_repeats(executable, self._feed(path), round(weight * slot_ns))
                    known[path] = min(fitting, COLD_RUNS) if reading == "cold" else fitting
        rng = np.random.default_rng(seed)
        for model in models:
            model.reseed(seed)
        order = rng.permutation(len(feeds)) if len(feeds) > 1 else np.zeros(1, int)
        blocks: dict[int, Block] = {}
        before = self._thermometer.heat()
        for i in map(int, order):
            path = feeds[i][0]
            blocks[i] = run_block(executables, [self._repeats[k, reading][path] for k in keys], self._feed(path), rng)
        found = asdict(weighted([blocks[i] for i in range(len(feeds))], [weight for _, weight in feeds]))
        if any(m.is_real for m in models) and self._thermometer.heat().since(before):
            found.update(hit=[1.0] * len(keys), throttled=", ".join(self._thermometer.state().values()) or "it says so")
        return found

    def on_serve(self, key: str, feed: str, load: dict[str, Any]) -> dict[str, Any]:
        """Response times of a model that serves requests, all with the first feed."""
        path, _ = load_workload(Path(feed))[0]
        return asdict(answer_all(self._resident[key].answering(self._feed(path)), Load(**load)))

    def on_memory(self, key: str, path: str, digest: str, feed: str) -> dict[str, Any]:
        """How much memory building a model and its first inferences take at most; it is not kept.

        None where they take it elsewhere and nobody states how much. What the process has taken before for other models
        does not count, but is used again: only in a fresh process it is the whole.
        """
        assert self._target is not None
        feeds = [self._feed(path) for path, _ in load_workload(Path(feed))]
        self._announce(key)
        growth = Growth()
        executable = Checked(
            self._target.compile(Artifact(Path(path), digest)), partial(self._announce, key), self._target.deterministic
        )
        found = executable.stated_memory(feeds)
        for each in feeds * policy.MEMORY_RUNS if executable.is_of_this_process else ():
            executable.run(each)
            found = growth.bytes()
        executable.close()
        return {"bytes": found}

    def on_profile(self, key: str, feed: str, repeats: int) -> dict[str, Any]:
        """Kernel times of a model, the means over a workload."""
        feeds = load_workload(Path(feed))
        each = max(1, repeats // len(feeds))
        found = [(self._resident[key].profile(self._feed(path), each), weight) for path, weight in feeds]
        built = not self._resident[key].is_profiled
        return {"kernels": [list(astuple(k)) for k in mean_kernels(found)], "built": built}

    def _feed(self, path: Path) -> Feed:
        if path not in self._feeds:
            feed = load_feed(path)
            if len(self._feeds) >= policy.RESIDENT_FEEDS:
                return feed
            self._feeds[path] = feed
        return self._feeds[path]


def mean_kernels(found: Sequence[tuple[Sequence[KernelTime], float]]) -> Sequence[KernelTime]:
    """The kernels of a mean inference, from those on each feed of a workload with its weight.

    A kernel that runs for some feeds only counts there.
    """
    if len(found) == 1:
        return found[0][0]
    ns: dict[KernelTime, float] = {}
    for kernels, weight in found:
        for kernel in kernels:
            what = replace(kernel, ns=0.0)
            ns[what] = ns.get(what, 0.0) + weight * kernel.ns
    return [replace(kernel, ns=each) for kernel, each in ns.items()]


def write_marker(file: int, key: str) -> None:
    """Replace what the file holds by ``key``."""
    os.pwrite(file, key.encode()[: policy.MARKER_BYTES].ljust(policy.MARKER_BYTES), 0)


def main() -> None:
    """Answer messages until the parent is done.

    The argument behind those of :func:`~inlay.model.child.serve` is a file descriptor to which the key of the model at
    work is written.
    """
    defer_imports()
    marker = int(sys.argv[3])
    service = Service(announce=lambda key: write_marker(marker, key))
    serve(lambda parts: [json.dumps(service.handle(json.loads(bytes(parts[0])))).encode()])
