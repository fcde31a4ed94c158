"""Costs of kernels from times of whole models: planted ones are found, and a target without profiles is calibrated."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks.simulated import Clock, InProcessWorker

from inlay.measure.client import usual_limit
from inlay.run.instant import calibrate_machine as calibration
from inlay.run.instant.calibrate_machine import Total, kernel_readings
from inlay.search.cost_table import fit_table
from inlay.search.workload import Workload
from inlay.targets.base import TargetSpec
from inlay.targets.null import NullTarget
from inlay.targets.ort_web.micro_models import conv, plain

COSTS = {  # ns per call, product, moved element, constant
    ("Conv", "float"): (500.0, 0.1, 1.0, 0.0),
    ("Conv", "low"): (900.0, 0.03, 0.2, 0.0),
    ("Add", "float"): (100.0, 0.0, 0.5, 0.0),
    ("Add", "low"): (100.0, 0.0, 4.0, 0.0),
    ("value", "quantize"): (50.0, 0.0, 6.0, 0.0),
    ("value", "dequantize"): (50.0, 0.0, 0.7, 0.0),
}
CALL_NS = 20_000.0
SIZES = (1e3, 4e3, 1e4, 3e4, 7e4, 2e5)


def chains(mixed: bool = False) -> list[Total]:
    """Chains of one operator in float, and quantized, with a value that is converted at each end.

    ``mixed``: some of one operator write four times as much as they read, and others a quarter.
    """
    found = []
    ratios = (1.0, 4.0, 0.25) if mixed else (1.0,)
    for kind, size, length, ratio in itertools.product(("Conv", "Add"), SIZES, (1, 5), ratios):
        if length > 1 and ratio != 1.0:
            continue
        products = 40.0 * size if kind == "Conv" else 0.0
        generic = "compute" if products else "elements"
        unit = Workload((f"{kind} behind {kind}", kind, generic), products, (1.0 + ratio) * size, 500.0)
        read, written = (Workload((f"value {kind}>{kind}", "value"), moved=n) for n in (size, ratio * size))
        for state in ("float", "low"):
            parts = [(unit, state)] * length + [(read, state)] * (length - 1)
            parts += [(read, "quantize"), (written, "dequantize")] if state == "low" else []
            found.append(Total(parts, CALL_NS + sum(true_ns(work, s) for work, s in parts)))
    return found


def true_ns(work: Workload, state: str) -> float:
    kind = "value" if work.kinds[-1] == "value" else work.kinds[1]
    return float(np.dot(COSTS.get((kind, state), (0.0,) * 4), work.features))


def test_planted_costs_are_found_in_totals() -> None:
    """What goes into integers comes out again, so that only the sum of both conversions can be told."""
    totals = chains()
    table = fit_table(kernel_readings(totals))

    def found(work: Workload, *states: str) -> float:
        return sum(table.ns(work, state) or 0.0 for state in states)

    for work, state in (part for total in totals for part in total.parts):
        if work.kinds[-1] != "value":
            assert found(work, state) == pytest.approx(true_ns(work, state), rel=0.1, abs=1000.0)
    for size in SIZES:
        value, both = Workload(("value",), moved=size), ("quantize", "dequantize")
        assert found(value, *both) == pytest.approx(sum(true_ns(value, s) for s in both), rel=0.1, abs=1000.0)


def test_where_sizes_differ_conversions_are_told_apart() -> None:
    table = fit_table(kernel_readings(chains(mixed=True)))
    for size in SIZES:
        value = Workload(("value",), moved=size)
        for state in ("quantize", "dequantize"):
            assert table.ns(value, state) == pytest.approx(true_ns(value, state), rel=0.1, abs=1000.0)


def test_noise_in_totals_is_no_noise_in_rates() -> None:
    rng = np.random.default_rng(0)
    noisy = [Total(t.parts, t.ns * float(np.exp(rng.normal(0.0, 0.03)))) for t in chains()]
    table = fit_table(kernel_readings(noisy))
    work = Workload(("Conv", "compute"), 8e6, 4e5, 500.0)
    for state in ("float", "low"):
        assert table.ns(work, state) == pytest.approx(float(np.dot(COSTS["Conv", state], work.features)), rel=0.15)


class Blind(NullTarget):
    """It gives no profiles, and offers chains."""

    lacks = frozenset({"profile"})

    def micro_models(self) -> list[onnx.ModelProto]:
        found = [conv(c, 8, 3, n) for c in (4, 8, 12, 16, 24, 32) for n in (1, 4)]
        return found + [plain("Add", c, 8, n, [""]) for c in (4, 8, 12, 16, 24, 32) for n in (1, 4)]


def test_a_target_without_profiles_is_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    def start(spec: TargetSpec, folder: Path) -> InProcessWorker:
        return InProcessWorker(spec, folder, usual_limit, target=Blind(advance_clock=clock.sleep), clock=clock)

    monkeypatch.setattr(calibration, "create", lambda spec: Blind())
    monkeypatch.setattr(calibration, "Worker", start)
    done = calibration.calibrate_machine(TargetSpec("null"), None, np.random.default_rng(0), folder=tmp_path)
    assert done.failed == {}
    assert done.models == (24, 24)
    assert {state for kind, state in done.table.fits if kind == "Conv"} == {"float", "low"}
    work = Workload(("Conv", "compute"), 1e5, 1e3, 100.0)
    in_float, low = (done.table.ns(work, state) for state in ("float", "low"))
    assert in_float is not None
    assert low is not None
    assert low < in_float, "as the target's prices have it"
