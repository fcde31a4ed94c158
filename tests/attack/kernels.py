"""Random models, some of their operators in 8 bits: a runtime computes what the same file says node by node."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx

from inlay.space.units import STATIC
from inlay.targets.base import Artifact, Capabilities, Feed, Target, TargetSpec
from inlay.targets.registry import create
from inlay.testing import sqnr
from tests.support.random_models import random_model
from tests.support.runtime import run_plain
from tests.support.workspace import Workspace

_WORSE_DB, _GOOD_DB = 6.0, 25.0  # than the file node by node; above the latter, by rounding alone
_SIGNAL = 1e-6  # mean square of an output that is compared: below, it is a difference of equal values

Run = Callable[[Path, Feed], Mapping[str, np.ndarray]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="ort-cpu")
    parser.add_argument("--target-option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> int:
    """Print what differs, with the seed that makes it. Returns 1 where anything did."""
    options = dict(option.split("=", 1) for option in arguments.target_option)
    target, found = create(TargetSpec(arguments.target, options)), 0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        with tempfile.TemporaryDirectory() as folder:
            wrong = difference(seed, Path(folder), Capabilities.of(target), runs_on(target))
        if wrong:
            found += 1
            print(f"{seed}: {wrong}", flush=True)
    print(f"{arguments.count} models, {found} of them wrong on {arguments.target}")
    return int(found > 0)


def runs_on(target: Target) -> Run:
    """What a target makes of a file."""

    def outputs(path: Path, feed: Feed) -> Mapping[str, np.ndarray]:
        executable = target.compile(Artifact(path, path.name))
        try:
            return executable.run(feed)
        finally:
            executable.close()

    return outputs


def difference(seed: int, folder: Path, capabilities: Capabilities, outputs: Run) -> str:
    """How the file of one random model differs from itself node by node; empty where it does not."""
    rng = np.random.default_rng(seed)
    model = random_model(rng)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    feeds = [{n: rng.normal(0, 1, s).astype(np.float32) for n, s in shapes.items()} for _ in range(3)]
    space = Workspace(model, folder, capabilities, feeds=tuple(feeds))
    names = [u.name for u in space.prepared.selectable]
    low = [n for n in names if rng.random() < 0.6] if rng.random() < 0.6 else names
    written = space.emit(space.prepared.label(dict.fromkeys(low, STATIC)))
    onnx.save(written, folder / f"{seed}.onnx")
    feed = feeds[0]
    exact, plain = run_plain(model, feed), run_plain(written, feed)
    try:
        got = outputs(folder / f"{seed}.onnx", feed)
    except Exception as error:
        return f"it fails: {type(error).__name__}: {error}"
    found = []
    for name, want in exact.items():
        if got[name].shape != want.shape:
            found.append(f"{name} has the shape {got[name].shape}, not {want.shape}")
        elif want.size and float(np.square(want, dtype=np.float64).mean()) > _SIGNAL:
            before_db, after_db = (sqnr(want, each[name]) for each in (plain, got))
            if not after_db > min(before_db - _WORSE_DB, _GOOD_DB):
                found.append(f"{after_db:.1f} dB, node by node {before_db:.1f} dB")
    operators = " ".join(n.op_type for n in model.graph.node)
    return f"{'; '.join(found)}: {operators}; in 8 bits: {' '.join(low)}" if found else ""
