"""What a model that was tuned for one objective is worth for the others: latency, throughput and processor time.

Each model is tuned once for every objective; all files are then timed in each of the three, interleaved, and answer
requests at a rate that takes most of what the given model can do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import inlay
from benchmarks.subjects import Subject
from inlay.run.result import speedup_json
from inlay.targets.objective import OBJECTIVES

BLOCKS, PROCESSES = 10, 2
LOAD = 0.7  # of the requests that the given model can answer with all cores busy


def row(subject: Subject, work: Path, budget: float) -> dict[str, Any]:
    """The files of one model, one for each objective, in every use."""
    files = [subject.model]
    for objective in OBJECTIVES:
        out = work / objective
        inlay.tune(
            subject.model, data=subject.samples, out=out, budget=budget, objective=objective, accept_unproven=True
        )
        files.append(out / "model.onnx")
    timing: dict[str, Any] = {"data": subject.samples, "blocks": BLOCKS, "processes": PROCESSES}
    uses = {objective: inlay.bench(files, objective=objective, **timing) for objective in OBJECTIVES}
    rate = LOAD * 1e3 / uses["throughput"][0].latency_ms
    served = inlay.bench(files, objective="throughput", rate=rate, **timing)
    return {
        "model": subject.name,
        "tuned_for": list(OBJECTIVES),
        "streams": os.cpu_count(),
        "speedups": {name: [speedup_json(found.speedup) for found in rows[1:]] for name, rows in uses.items()},
        "rate": rate,
        "p99_ms": [found.served.p99_ms for found in served if found.served is not None],
    }


def line(row: Mapping[str, Any]) -> str:
    """A row in a few words."""
    own = (f"{name} {_shown(row['speedups'][name][i])}" for i, name in enumerate(row["tuned_for"]))
    return ", ".join(own)


def _shown(found: Mapping[str, float | None]) -> str:
    low, high = (found[f"speedup_{end}"] for end in ("low", "high"))
    return f"{found['speedup']:.2f}x" + ("" if low is None or high is None else f" [{low:.2f}, {high:.2f}]")


def markdown(table: Mapping[str, Any]) -> str:
    """The table for people."""
    return "\n".join(_lines(table["rows"])) + "\n"


def _lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "# What a model tuned for one objective is worth for the others"
    yield ""
    yield "Speed-ups over the given model with 95 % intervals, interleaved, in two fresh processes; `throughput` with"
    yield "as many inferences at once as there are cores. Last column: 99 % of requests are answered within so many"
    yield f"milliseconds (the given model first), at a rate of {LOAD:.0%} of what the given model can answer."
    yield ""
    yield f"| model | tuned for | {' | '.join(OBJECTIVES)} | p99 at a rate |"
    yield "|---|---|" + "--:|" * (len(OBJECTIVES) + 1)
    for row in rows:
        for i, tuned_for in enumerate(row.get("tuned_for", ())):  # none of a model that failed
            cells = [_shown(row["speedups"][name][i]) for name in OBJECTIVES]
            p99 = f"{row['p99_ms'][0]:.2f} -> {row['p99_ms'][1 + i]:.2f} ms at {row['rate']:.0f}/s"
            yield f"| {row['model']} | {tuned_for} | {' | '.join(cells)} | {p99} |"
