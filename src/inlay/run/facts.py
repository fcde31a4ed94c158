"""The facts of a run: what the journal keeps besides trials and blocks, each declared once with its type.

A run decides them once. A resumed run reads them back, so that it repeats the decisions and the search of the first
session; :mod:`inlay.run.select` reads the calibration to write a candidate of a finished run.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

import numpy as np

from inlay.calibrate.tables import CalibrationChoice
from inlay.errors import JournalError
from inlay.measure.client import kernel_times
from inlay.measure.journal import Fact, Journal
from inlay.prepare.smoothquant import Scales
from inlay.quant.gptq import NEAREST, Rounding
from inlay.quant.parts import Parts
from inlay.quant.saturation import Form
from inlay.quant.sensitivity import Powers, ProbeBudget, Sensitivity
from inlay.search.rewrite_choice import RewriteChoice
from inlay.targets.base import KernelTime, OptionValue, TargetSpec, is_estimate
from inlay.trial import Interval, shown_ratio
from inlay.types import Port, PortRewrite


def not_measured(facts: Mapping[str, str]) -> str:
    """That a target with these facts gives no times, and what it counts instead; empty where it gives times.

    Its fact ``measures`` says what its figures are.
    """
    measures = facts.get("measures", "")
    if facts.get("unit"):
        return f"SPEED WAS NOT MEASURED: figures are {facts['unit']}, {measures}"
    return f"SPEED WAS NOT MEASURED: times are estimates {measures}" if is_estimate(facts) and measures else ""


@dataclass(frozen=True)
class CalibrationRecord:
    """The quantization parameters that a run's candidates were written with."""

    digest: str  # of the calibration
    target: str  # digest of the target's fingerprint
    spec: TargetSpec  # the target
    table: Mapping[str, Any]  # the quantization parameters, for `from_json`
    tuned_for: Mapping[str, str] = field(default_factory=dict)  # what written models say that they are for

    def as_json(self) -> dict[str, Any]:
        """As plain data; see :meth:`from_json`."""
        return {**vars(self), "spec": asdict(self.spec), "tuned_for": dict(self.tuned_for)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CalibrationRecord:
        """The record that gave ``data``."""
        spec = TargetSpec(**data["spec"])
        if not all(isinstance(text, str) for text in (data["digest"], data["target"], spec.name)):
            raise TypeError("digests and the target's name are text")
        spec, told = replace(spec, options=dict(spec.options)), data.get("tuned_for", {})
        if not all(isinstance(text, str) for text in told.values()):
            raise TypeError("what models are for is text")
        return cls(data["digest"], data["target"], spec, dict(data["table"]), dict(told))


@dataclass(frozen=True)
class PrecisionChoice:
    """What a target that computes float32 operators in fewer bits was tuned for in."""

    own: str  # the type in which it computes them by itself
    # of the target, with which it computes in float32; none where it was tuned for in its own precision
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    # how much faster the given model is in float32, paired; None where that was not measured
    gain: Interval | None = None
    late: bool = False  # there was no time for that

    @property
    def note(self) -> str:
        """That the run was in float32, and why, for people; empty where it was not."""
        if not self.options or self.gain is None:
            return ""
        gain = shown_ratio(self.gain)
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        found = f"float32 is {gain} as fast as {self.own} for the given model"
        return f"{found}: it was tuned with {options}; run it with that, too"

    def as_json(self) -> dict[str, Any]:
        """As in ``result.json``."""
        value, low, high = (None, None, None) if self.gain is None else astuple(self.gain)
        return {
            "own": self.own,
            "options": dict(self.options),
            "speedup": value,
            "speedup_low": low,
            "speedup_high": high,
            "late": self.late,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PrecisionChoice:
        """The choice that gave ``data``."""
        bounds = [data[key] for key in ("speedup", "speedup_low", "speedup_high")]
        gain = None if None in bounds else Interval(*map(float, bounds))
        return cls(str(data["own"]), dict(data["options"]), gain, bool(data["late"]))


def digest_of(parts: Parts) -> str:
    """Digest of how outputs are compared: names of the parts, sizes of the axes that are divided, and log odds."""
    names = {output: [part.name for part in found] for output, found in parts.divided.items()}
    sizes = {output: sorted(found.items()) for output, found in parts.sizes.items()}
    odds = [sorted(parts.odds)] if parts.odds else []
    return hashlib.sha256(json.dumps([names, sizes, *odds], sort_keys=True).encode()).hexdigest()


def _sensitivity(data: Mapping[str, Mapping[str, Any]]) -> Sensitivity:
    values, constants = ({n: _powers(p) for n, p in data[kind].items()} for kind in ("values", "constants"))
    forms = {f: {n: _powers(p) for n, p in units.items()} for f, units in data.get("forms", {}).items()}
    return Sensitivity(values, constants, forms)


def _rewrite_choice(data: Mapping[str, Any]) -> RewriteChoice:
    rewrites = frozenset(PortRewrite(Port(str(node), int(slot)), str(name)) for node, slot, name in data["rewrites"])
    return RewriteChoice(rewrites, {str(unit): float(ratio) for unit, ratio in data["ratios"].items()})


def _powers(data: list[float]) -> Powers:
    return tuple(map(float, data))


def _nanoseconds(data: float) -> float:
    if not 0.0 < float(data) < math.inf:
        raise ValueError(f"{data} ns: no time that anything takes")
    return float(data)


BASELINE_NS = Fact("baseline_ns", _nanoseconds)  # median latency of the given model, nanoseconds
SAMPLES: Fact[tuple[int, int]] = Fact("samples", lambda data: (int(data[0]), int(data[1])), list)
"""Samples that candidates are judged on, and the winner."""
PARTS = Fact("parts", str)  # digest of the parts that outputs are compared in, see `digest_of`
CALIBRATION_SAMPLES = Fact("calibration_samples", int)  # samples that qparams come from
VARIATIONS = Fact("variations", int)  # variations of samples that models are judged on
HURRIED = Fact("hurried", bool)  # whether the anchors took half of the search's time
HURRIES = Fact("hurries", bool)  # whether there may have been time for one anchor only
DONE: Fact[float] = Fact(
    "done", lambda data: math.inf if data is None else float(data), lambda found: None if math.isinf(found) else found
)
"""The budget in seconds of a session that ended since hardly anything was left to find; a larger one looks further."""
SPARE = Fact("spare", bool)  # whether there was time for anchors that are not expected to gain
USUAL_REWRITES: Fact[RewriteChoice] = Fact(
    "usual_rewrites",
    _rewrite_choice,
    lambda found: {"rewrites": sorted([*r.port, r.name] for r in found.rewrites), "ratios": dict(found.ratios)},
)
"""The rewrites that pay by the processor's table, where there was no time to profile them."""
KNOWN_COSTS: Fact[dict[str, float]] = Fact("known_costs", lambda data: {key: float(ns) for key, ns in data.items()})
"""Nanoseconds by signature that the cost database knew when the run began."""
PRICED: Fact[np.ndarray] = Fact(
    "priced",
    lambda data: np.array([np.nan if ns is None else float(ns) for ns in data], np.float64),
    lambda found: [None if np.isnan(ns) else ns for ns in found.tolist()],
)
"""Nanoseconds of each parameter of the cost model by the processor's table; empty without a table."""
OPAQUE: Fact[str] = Fact("opaque", str)  # why the given model was taken as it is, Q/DQ nodes included
SATURATIONS: Fact[dict[str, Form]] = Fact("saturations", dict)
"""What the pairs of a Q/DQ model clip, as operators of its float model, by node."""
EQUALIZATION: Fact[Scales] = Fact("equalization", lambda data: {v: tuple(map(float, s)) for v, s in data.items()})
"""What the channels of activations are divided by, for the products that read them."""
OUTLIERS_LEFT = Fact("outliers_left", bool)  # whether there was no time to find these
FROZEN: Fact[dict[str, int]] = Fact("frozen", lambda data: {name: int(size) for name, size in data.items()})
"""Sizes of the dynamic dimensions that were fixed, by symbol."""
FIXED_VALUES: Fact[dict[str, Any]] = Fact("fixed", dict)
"""Values of the inputs that were fixed, by name, as nested lists."""
ROUNDS_FLOATS = Fact("rounds_floats", bool)
"""Whether the target's own outputs of the given model differ from float32, so that accuracy is against those."""
PRECISION: Fact[PrecisionChoice] = Fact("precision", PrecisionChoice.from_json, PrecisionChoice.as_json)
"""Whether the run is in the target's own precision or in float32; none where there was nothing to choose."""
BASE = Fact("base", str)  # precision of what is not quantized, where that may be half
KEPT_WIDE: Fact[Mapping[str, str]] = Fact("kept_wide", dict)  # units in float32 beside it, each with the reason
MAX_OPSET = Fact("max_opset", int)  # the newest opset that written models may have, where there is a limit
CHOICE: Fact[CalibrationChoice] = Fact("numbers", CalibrationChoice.from_json, CalibrationChoice.as_json)
"""How ranges are chosen and biases corrected."""
_ROUNDING = "rounding"


def record_rounding(journal: Journal, rounding: Rounding) -> None:
    """Keep how weights are rounded, before the choice that names it."""
    if rounding.steps:
        journal.record_feed(f"{_ROUNDING} {rounding.digest}", rounding.as_arrays())


def rounding_of(journal: Journal) -> Rounding:
    """How the run rounds weights. Raises JournalError where it is damaged."""
    choice = journal.fact(CHOICE)
    if choice is None or not choice.rounded:
        return NEAREST
    arrays = journal.feed(f"{_ROUNDING} {choice.rounded}")
    try:
        found = None if arrays is None else Rounding.from_arrays(arrays)
    except ValueError:
        found = None
    if found is None or found.digest != choice.rounded:
        raise JournalError(
            f"{journal.path} is damaged: how weights were rounded cannot be read; start over with --restart"
        )
    return found


CALIBRATION = Fact("calibration", CalibrationRecord.from_json, CalibrationRecord.as_json)
"""The quantization parameters themselves."""
PROBE_BUDGET: Fact[ProbeBudget] = Fact("probing", ProbeBudget.from_json, ProbeBudget.as_json)
"""How many noise probes fit into their share of the budget."""
SENSITIVITY = Fact("sensitivity", _sensitivity, asdict)
"""Noise of every source alone; empty where the probe model does not run."""
NOISE = Fact("noise", _powers)  # noise of one placement, by its digest; empty where the probe model does not run
COMPUTED = Fact("computed", lambda data: {str(name): float(noise) for name, noise in data.items()})
"""Noise of one placement at each output, by the numeric reference; by its digest, empty where it does not run."""
GRAPH = Fact("graph", str)
"""Digest of the graph that the runtime makes of one candidate, by its key; empty where the target cannot tell."""
SIZE = Fact("size", int)  # bytes of one candidate as a file of its own, by its key
MEMORY = Fact("memory", int)
"""Bytes that a session of one candidate takes at most, by its key; of those that were measured in fresh processes."""
PROFILE: Fact[list[KernelTime]] = Fact("profile", kernel_times, lambda found: [list(astuple(k)) for k in found])
"""Kernel times of one candidate, by its key; empty where it cannot be profiled."""
