"""Random models, their operators in random precisions: a runtime computes what the same file says node by node."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx

from inlay.prepare.model import PreparedModel
from inlay.space.units import STATIC
from inlay.targets.base import Artifact, Capabilities, Feed, Target, TargetSpec
from inlay.targets.registry import create
from inlay.testing import sqnr
from inlay.types import Placement
from tests.support.random_models import random_model
from tests.support.random_sequences import random_sequence_model
from tests.support.runtime import run_plain
from tests.support.workspace import Workspace

_WORSE_DB, _GOOD_DB = 6.0, 25.0  # than the file node by node; above the latter, by rounding alone
_WITH_STATE_DB = 15.0  # in place of the latter where a state is rounded in each step, of which the file says nothing
_SIGNAL = 1e-6  # mean square of an output that is compared: below, it is a difference of equal values

Run = Callable[[Path, Feed], Mapping[str, np.ndarray]]
Draw = Callable[[np.random.Generator], tuple[onnx.ModelProto, tuple[Feed, ...]]]
KINDS: Mapping[str, Draw] = {"images": random_model, "sequences": random_sequence_model}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="ort-cpu")
    parser.add_argument("--target-option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--kind", choices=tuple(KINDS), default="images")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> int:
    """Print what differs, with the seed that makes it. Returns 1 where anything did."""
    options = dict(option.split("=", 1) for option in arguments.target_option)
    target, found = create(TargetSpec(arguments.target, options)), 0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        with tempfile.TemporaryDirectory() as folder:
            wrong = difference(seed, Path(folder), Capabilities.of(target), runs_on(target), KINDS[arguments.kind])
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


def difference(seed: int, folder: Path, capabilities: Capabilities, outputs: Run, draw: Draw = random_model) -> str:
    """How the file of one random model differs from itself node by node; empty where it does not."""
    rng = np.random.default_rng(seed)
    model, feeds = draw(rng)
    space = Workspace(model, folder, capabilities, feeds=feeds)
    precisions = _precisions(rng, space.prepared)
    placement = space.prepared.label(precisions)
    selected = [r for r in space.prepared.selectable_rewrites if r.port in placement and rng.random() < 0.5]
    plain = space.emit(placement)
    path = folder / f"{seed}.onnx"
    onnx.save(space.emit(Placement(placement, selected)), path)
    states = {u.name for u in space.prepared.selectable if u.rule is not None and u.rule.recurrence.state}
    good_db = _GOOD_DB if states.isdisjoint(precisions) else _WITH_STATE_DB
    found = []
    for feed in feeds[:: len(feeds) - 1]:
        try:
            got = outputs(path, feed)
        except Exception as error:
            found.append(f"it fails: {type(error).__name__}: {error}")
            break
        found += _wrong(run_plain(model, feed), run_plain(plain, feed), got, good_db)
    operators = " ".join(n.op_type for n in model.graph.node)
    chosen = " ".join(f"{name}={precision}" for name, precision in precisions.items())
    return f"{'; '.join(found)}: {operators}; {chosen}" if found else ""


def _precisions(rng: np.random.Generator, prepared: PreparedModel) -> dict[str, str]:
    """All operators in 8 bits that can be, or some of them; or each in one of its precisions."""
    names = [u.name for u in prepared.selectable]
    kind = rng.random()
    if kind < 0.6:
        return {n: STATIC for n in names if kind < 0.3 or rng.random() < 0.6}
    found = {}
    for unit in prepared.units:
        choices = ["", *([STATIC] if unit.selectable else []), *unit.forms]
        if chosen := choices[int(rng.integers(len(choices)))]:
            found[unit.name] = chosen
    return found


def _wrong(exact: Feed, plain: Feed, got: Feed, good_db: float) -> list[str]:
    """What is off in the outputs of one feed: those of float, of the file node by node, and of the runtime."""
    found = []
    for name, want in exact.items():
        if got[name].shape != want.shape:
            found.append(f"{name} has the shape {got[name].shape}, not {want.shape}")
        elif want.size and float(np.square(want, dtype=np.float64).mean()) > _SIGNAL:
            before_db, after_db = (sqnr(want, each[name]) for each in (plain, got))
            if not after_db > min(before_db - _WORSE_DB, good_db):
                found.append(f"{after_db:.1f} dB, node by node {before_db:.1f} dB")
    return found
