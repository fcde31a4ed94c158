"""A fleet of many models on many devices on a simulated clock, with the allocator and the journal that ``fleet`` uses.

Runs are drawn, not tuned: each has a saturating curve of gains over time, a time after which nothing promising is left,
a time for one measurement, and fixed costs of every session. Devices are of four kinds, and a run is for one of them.
A device that is free asks :func:`~inlay.portfolio.allocate.next_slice` which run of its kind gets time next; what
became of the slice is journaled as ``inlay fleet`` does, with the time after every measurement. Two fleets of each
size: one without a limit, where every run goes on to its end, and one whose budget is half of what that took.

The lower bound of the makespan is the larger of two: what all slices of a kind take, spread evenly over its devices,
and the longest run. The driver's own time and memory are real. Each size has a process of its own.
"""

from __future__ import annotations

import heapq
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from inlay.measure.journal import Journal
from inlay.portfolio.allocate import Progressed, next_slice
from inlay.portfolio.fleet import RUN, RunState
from inlay.portfolio.runs import Figures

SIZES = ((250, 25), (1000, 100), (4000, 400))
"""Models and devices."""
MOST_RATIO, MOST_MS = 1.15, 5.0
"""Of the makespan over its lower bound, and the driver's milliseconds for each measurement."""
_KINDS = 4
_MEDIAN_END_S, _SPREAD = 300.0, 0.7
"""Seconds after which nothing promising is left, log-normal; at most those of ``--effort thorough``."""
_MOST_S = 900.0
_SESSION_S, _CONFIRM_SHARE = 6.0, 0.15
"""Fixed seconds of a session, and the share of a slice that confirms; no part of what a run needs until its end."""


@dataclass(frozen=True)
class Drawn:
    """One run: seconds of search until its end, gain then, time constant, seconds of a measurement."""

    end_s: float
    gain: float
    tau_s: float
    measurement_s: float

    def gained(self, searched_s: float) -> float:
        """Logarithm of its speed-up."""
        return self.gain * (1.0 - math.exp(-searched_s / self.tau_s))


def drawn(count: int, seed: int) -> list[Drawn]:
    """The runs of a fleet."""
    rng = np.random.default_rng(seed)
    ends = np.minimum(_MOST_S * (1 - _CONFIRM_SHARE), _MEDIAN_END_S * np.exp(_SPREAD * rng.standard_normal(count)))
    gains = np.where(rng.random(count) < 0.25, 0.0, rng.gamma(2.0, 0.2, count))
    taus, each = ends * rng.uniform(0.1, 0.6, count), rng.uniform(0.5, 4.0, count)
    return [Drawn(*map(float, values)) for values in zip(ends, gains, taus, each, strict=True)]


@dataclass
class Kind:
    """The runs for devices of one kind, with what was searched, spent and promised so far."""

    runs: Sequence[Drawn]
    devices: int
    budget_s: float
    progressed: list[Progressed]
    searched_s: list[float]
    used_s: float = 0.0
    promised_s: float = 0.0


def simulate(models: int, devices: int, seed: int, budgets_s: Sequence[float] | None, folder: Path) -> dict[str, Any]:
    """One fleet to its end; budgets are of each kind, in seconds of its devices together."""
    runs = drawn(models, seed)
    kinds = []
    for k in range(_KINDS):
        own, share = runs[k::_KINDS], len(range(k, devices, _KINDS))
        budget_s = math.inf if budgets_s is None else budgets_s[k]
        kinds.append(Kind(own, share, budget_s, [Progressed() for _ in own], [0.0] * len(own)))
    journal = Journal(folder / "fleet.sqlite", {"fleet": "1"}, seconds=lambda: 0.0)
    free = [(0.0, n % _KINDS) for n in range(devices)]
    heapq.heapify(free)
    ending: list[tuple[float, int, int, float, float]] = []
    measurements = slices = 0
    deciding_s = journaling_s = makespan = 0.0
    idle = [0] * len(kinds)
    while free or ending:
        if not free or (ending and ending[0][0] <= free[0][0]):
            now, k, number, took_s, searched_s = heapq.heappop(ending)
            kind = kinds[k]
            run, before = kind.runs[number], kind.progressed[number]
            kind.searched_s[number] += searched_s
            kind.used_s += took_s
            kind.promised_s -= took_s
            done = kind.searched_s[number] >= run.end_s - 1e-9
            steps = (*before.slices, (before.spent_s + took_s, run.gained(kind.searched_s[number])))
            begun = time.perf_counter()
            kind.progressed[number] = replace(before, slices=steps, done=done, busy=False)
            journal.record_fact(RUN.of(f"model-{k}-{number}"), RunState("0" * 64, steps, "end" * done, _figures(steps)))
            for _ in range(int(took_s / run.measurement_s)):
                journal.record_seconds()
            journaling_s += time.perf_counter() - begun
            measurements, slices, makespan = measurements + int(took_s / run.measurement_s), slices + 1, now
            heapq.heappush(free, (now, k))
            continue
        now, k = heapq.heappop(free)
        kind = kinds[k]
        begun = time.perf_counter()
        chosen = next_slice(kind.progressed, kind.budget_s - kind.used_s - kind.promised_s)
        deciding_s += time.perf_counter() - begun
        if chosen is None:
            idle[k] += 1  # until a slice of its kind ends
            continue
        if idle[k]:  # what one device is given may not be all
            idle[k] -= 1
            heapq.heappush(free, (now, k))
        run, before = kind.runs[chosen.number], kind.progressed[chosen.number]
        given_s = chosen.total_s - before.spent_s
        left_s = run.end_s - kind.searched_s[chosen.number]
        searched_s = min(left_s, max(0.0, given_s * (1 - _CONFIRM_SHARE) - _SESSION_S))
        took_s = min(given_s, searched_s / (1 - _CONFIRM_SHARE) + _SESSION_S)
        kind.promised_s += took_s
        kind.progressed[chosen.number] = replace(before, busy=True)
        heapq.heappush(ending, (now + took_s, k, chosen.number, took_s, searched_s))
    journal.close()
    longest_s = max(run.spent_s for kind in kinds for run in kind.progressed)
    bound = max(longest_s, *(kind.used_s / kind.devices for kind in kinds))
    once_s = sum(run.end_s / (1 - _CONFIRM_SHARE) + _SESSION_S for run in runs)
    gains = [run.slices[-1][1] if run.slices else 0.0 for kind in kinds for run in kind.progressed]
    best = sum(run.gained(run.end_s) for run in runs)
    return {
        "makespan_s": round(makespan, 1),
        "bound_s": round(bound, 1),
        "ratio": round(makespan / bound, 4),
        "slices": slices,
        "measurements": measurements,
        "decision_ms": round(1e3 * deciding_s / slices, 3),
        "overhead_ms": round(1e3 * (deciding_s + journaling_s) / measurements, 3),
        "driver_s": round(deciding_s + journaling_s, 1),
        "done": sum(run.done for kind in kinds for run in kind.progressed),
        "begun": sum(bool(run.slices) for kind in kinds for run in kind.progressed),
        "device_s": round(sum(kind.used_s for kind in kinds)),
        "device_s_by_kind": [round(kind.used_s, 1) for kind in kinds],
        "device_s_unsliced": round(once_s),
        "gain_share": round(sum(gains) / best, 4),
    }


def _figures(slices: Sequence[tuple[float, float]]) -> Figures:
    speedup = math.exp(slices[-1][1])
    versus = (speedup, speedup, speedup)
    return Figures("guided", False, True, *versus, 10.0, 10.0 / speedup, 30.0, None, "20 dB", "0" * 64, "the budget")


def point(models: int, devices: int, seed: int = 0) -> dict[str, Any]:
    """Both fleets of one size, with the peak memory of this process over what it had before, on Linux."""
    before = _memory_mb("VmRSS")
    with tempfile.TemporaryDirectory() as folder:
        whole = simulate(models, devices, seed, None, Path(folder))
    half = [seconds / 2 for seconds in whole["device_s_by_kind"]]
    with tempfile.TemporaryDirectory() as folder:
        limited = simulate(models, devices, seed, half, Path(folder))
    return {
        "models": models,
        "devices": devices,
        "whole": whole,
        "limited": limited,
        "memory_mb": round(_memory_mb("VmHWM") - before, 1),
        "base_mb": round(before, 1),
    }


def _memory_mb(what: str) -> float:
    """From proc(5); what getrusage(2) says of a new process includes its parent's peak."""
    lines = Path("/proc/self/status").read_text(encoding="utf8").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{what}:"))) / 1e3


def table() -> dict[str, Any]:
    """All sizes, each in a process of its own."""
    rows = []
    for models, devices in SIZES:
        command = [sys.executable, "-m", "benchmarks.fleet", str(models), str(devices)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows.append(json.loads(done.stdout))
    return {"rows": rows, "most_ratio": MOST_RATIO, "most_ms": MOST_MS}


def missed(found: Mapping[str, Any]) -> list[str]:
    """The limits that a table misses."""
    return [
        f"{row['models']} models on {row['devices']} devices, {name}: {row[name][key]} of {most}"
        for row in found["rows"]
        for name in ("whole", "limited")
        for key, most in (("ratio", found["most_ratio"]), ("overhead_ms", found["most_ms"]))
        if row[name][key] > most
    ]


def text(found: Mapping[str, Any]) -> str:
    """The table as Markdown."""
    lines = [
        "# Fleets on a simulated clock",
        "",
        "The allocator and the journal of `inlay fleet`, with drawn runs on devices of four kinds: no model is tuned.",
        "To the end: every run goes on until nothing promising is left; half: half of the device time that this took.",
        "The bound is the larger of the time of all slices, spread evenly over their devices, and the longest run.",
        "The driver's times are of a machine that other programs used as well.",
        "",
        "| models | devices | fleet | makespan | over the bound | runs begun, done | gain found | measurements | "
        "driver, each | decision | driver memory |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        for name, title in (("whole", "to the end"), ("limited", "half")):
            f = row[name]
            lines.append(
                f"| {row['models']} | {row['devices']} | {title} | {f['makespan_s']:.0f} s | {f['ratio']:.3f} | "
                f"{f['begun']}, {f['done']} | {f['gain_share']:.0%} | {f['measurements']} | "
                f"{f['overhead_ms']:.2f} ms "
                f"| {f['decision_ms']:.2f} ms | {row['memory_mb']:.0f} MB over {row['base_mb']:.0f} MB |"
            )
    costs = [r["whole"]["device_s"] / r["whole"]["device_s_unsliced"] for r in found["rows"]]
    lines += [
        "",
        f"To the end, slices take {min(costs):.2f} to {max(costs):.2f} times the device time of runs in one piece:",
        f"every session costs {_SESSION_S:.0f} s and confirms for {_CONFIRM_SHARE:.0%} of its time.",
        f"Limits: {found['most_ratio']:.2f} of the bound, {found['most_ms']:.0f} ms of the driver a measurement: "
        + ("kept." if not missed(found) else f"missed: {'; '.join(missed(found))}."),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(json.dumps(point(int(sys.argv[1]), int(sys.argv[2]))))
