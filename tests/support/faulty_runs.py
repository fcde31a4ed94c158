"""Whole runs on a faulty target, and whether what they deliver is true: the ``null`` target's prices are known."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from benchmarks.simulated import Clock, simulated

from inlay.data import Samples
from inlay.errors import InlayError
from inlay.measure.lab import Lab
from inlay.model.load import load
from inlay.prepare.config import TuneConfig
from inlay.quant.accuracy import Bound
from inlay.run.inputs import TuneRequest
from inlay.run.tune import tune
from inlay.targets.base import TargetSpec
from inlay.targets.null import price
from inlay.testing import random_feed, small_model
from inlay.testing.faulty import FAULTS, FaultyTarget

PLACES = ("search", "confirmation", "baseline", "baseline, always")
_SAMPLES = 12
_NOISE = 0.01  # of each reading; an interval of 95 % may miss the truth, hardly by as much again
_GOOD_CALLS = {"compile": 1, "run": 4, "time": 40, "profile": 0, "close": 0, "start": 1}
"""Calls of the given model that go well before it fails: it has been judged and timed by then."""


@dataclass(frozen=True)
class Outcome:
    """What one run came to.

    Attributes:
        seconds: wall time.
        claimed: speed-up, with its bounds; None where there is no result.
        truth: speed-up of the delivered file by the known prices.
        confirmed: whether the result says so.
        message: the first note, or the error.
    """

    seconds: float
    claimed: tuple[float, float, float] | None
    truth: float
    confirmed: bool
    message: str

    @property
    def is_true(self) -> bool:
        """Whether a model was delivered with an interval that holds the truth."""
        if self.claimed is None:
            return False
        return self.claimed[1] * (1.0 - _NOISE) <= self.truth <= self.claimed[2] * (1.0 + _NOISE)


@contextmanager
def installed(site: Path, name: str = "faulty", target: str = "inlay.testing.faulty:FaultyTarget") -> Iterator[None]:
    """A target, by default the faulty one, as an installed package, here and in workers."""
    info = site / f"{name}_target-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-target\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[inlay.targets]\n{name} = {target}\n")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(site), *([before] if before else [])])
    sys.path.insert(0, str(site))
    try:
        yield
    finally:
        sys.path.remove(str(site))
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def attempt(
    fault: str, place: str, folder: Path, budget_s: float | None = 8.0, seed: int = 0, *, is_simulated: bool = False
) -> Outcome:
    """Tune a small model on a target with ``fault`` at ``place``.

    A simulated one needs no processes, but only survives faults that leave its process alive.
    """
    folder.mkdir(parents=True)
    model, calls = folder / "model.onnx", folder / "calls"
    onnx.save(small_model(), model)
    calls.mkdir()
    call = FAULTS[fault].call
    late = _GOOD_CALLS[call] if place == "baseline" or (call == "start" and place == "confirmation") else 0
    options: dict[str, Any] = {
        "fault": fault,
        "place": place.partition(",")[0],
        "folder": str(calls),
        "after": late,
        "times": int(call == "start" and place in ("search", "baseline")),
        "seed": seed,
        "noise": 0.0 if is_simulated else _NOISE,
    }
    config = TuneConfig(
        target=TargetSpec("null") if is_simulated else TargetSpec("faulty", options),
        bound=Bound(min_sqnr_db=10.0),
        budget_s=budget_s,
        seed=seed,
        max_measurements=6,
        cost_db=False,
    )
    samples = Samples(tuple(dict(random_feed(small_model(), n)) for n in range(_SAMPLES)), "npz", "seeds")
    begun = time.monotonic()
    try:
        lab = simulated(FaultyTarget(**options), Clock()) if is_simulated else Lab()
        result = tune(TuneRequest(file=load(model), out=folder / "out", samples=samples, config=config, lab=lab))
    except InlayError as error:
        return Outcome(time.monotonic() - begun, None, float("nan"), False, str(error))
    seconds, gain = time.monotonic() - begun, result.best.speedup
    message = result.notes[0] if result.notes else ""
    truth = cost(model) / cost(result.model_path)
    return Outcome(seconds, (gain.value, gain.low, gain.high), truth, result.best.confirmed, message)


def cost(path: Path) -> float:
    """Nanoseconds of a model on the ``null`` target."""
    return float(np.sum([k.ns for k in price(onnx.load(path))]))
