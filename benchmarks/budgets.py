"""Whether ``--budget`` bounds the whole command: wall time of processes, on a quiet machine and beside busy ones.

    python -m benchmarks budgets [--models DIR] [--only NAME ...] [--restart]

Each figure is the time from starting the process to its end, over the budget. A budget that is too short for a model is
refused with the least that is enough; the command is then given that one, which it must keep as well.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.subjects import Subject

SUBJECTS = ("ppocr_cls", "ultraface_rfb320_simplified", "deeplab_v3_mnv2", "basic_pitch", "resnet50", "densenet121")
"""By default: 1 to 60 ms on the processor of the committed tables."""
BUDGETS_S = (15, 45, 120)
BUSY = (0, 2)
"""Processes beside that use a core each."""
MOST = 1.1
"""Wall time over budget that is still kept."""
_GIVEN_UP_S = 900.0
LEAST = re.compile(r"give (\d+)s or more")


def row(subject: Subject, folder: Path) -> dict[str, Any]:
    """Every budget of one model, quiet and busy."""
    found = []
    for busy in BUSY:
        for budget in BUDGETS_S:
            with _beside(busy):
                found.append({"busy": busy, **_run(subject, folder / f"out-{busy}-{budget}", budget)})
    kept = [c for c in found if c["ratio"] <= MOST]
    return {"model": subject.name, "trained": subject.trained, "cells": found, "kept": len(kept) == len(found)}


def _run(subject: Subject, out: Path, budget: int) -> dict[str, Any]:
    """One command, and where its budget is refused, the one with the least budget."""
    done, wall_s = _command(subject, out, budget)
    cell: dict[str, Any] = {"asked_s": budget, "budget_s": budget, "refused_s": None}
    least = LEAST.search(done.stderr)
    if done.returncode == 2 and least is not None:
        cell |= {"refused_s": wall_s, "budget_s": int(least[1])}
        done, wall_s = _command(subject, out, int(least[1]))
    cell |= {"wall_s": wall_s, "ratio": max(wall_s / cell["budget_s"], (cell["refused_s"] or 0.0) / budget)}
    cell |= {"code": done.returncode, "last": (done.stderr.splitlines() or [""])[-1]}
    if done.returncode == 0:
        result = json.loads((out / "result.json").read_text(encoding="utf8"))
        cut = [n for n in result["notes"] if n.startswith("the budget cut short")]
        cell |= {"given_ms": result["baseline"]["latency_ms"], "speedup": result["best"]["speedup"], "cut": cut}
        cell |= {"timed": result["search"]["measurements"], "float": result["best"]["is_float"]}
    shutil.rmtree(out, ignore_errors=True)
    return cell


def _command(subject: Subject, out: Path, budget: int) -> tuple[subprocess.CompletedProcess[str], float]:
    options = ["--data", str(subject.samples), "-o", str(out), "--budget", f"{budget}s", "--no-cost-db"]
    command = [sys.executable, "-m", "inlay", "tune", str(subject.model), *options]
    begun = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_GIVEN_UP_S)
    return done, round(time.monotonic() - begun, 2)


@contextmanager
def _beside(count: int) -> Iterator[None]:
    """So many processes that compute without a pause."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: sum(range(10**6))"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows, and the largest share of a budget that was used."""
    cells = [c for r in rows if "error" not in r for c in r["cells"]]
    return {
        "rows": list(rows),
        "largest": max((c["ratio"] for c in cells), default=None),
        "kept": sum(c["ratio"] <= MOST for c in cells),
        "of": len(cells),
    }


def line(row: dict[str, Any]) -> str:
    """A row in short."""
    return ", ".join(f"{c['wall_s']:.0f} of {c['budget_s']} s" for c in row["cells"])
