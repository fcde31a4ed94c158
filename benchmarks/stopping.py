"""When runs end by themselves, and what they miss of what their whole budget finds.

    python -m benchmarks stopping [--models DIR] [--only NAME ...] [--budget 90] [--restart]

A run ends once a clear gain is unlikely to be left. The same command with a second more then looks further, until that
is spent: one journal holds what was found by the end, and what the whole budget finds. Both are readings of the search;
the larger of many noisy readings is too large by a little, which counts as missed here. Seconds are those of the call.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import inlay
from benchmarks.subjects import Subject
from inlay.run.progress import SearchStep, Silent
from inlay.search.policy import CLEAR_GAIN

GOAL_S, GOAL_LOSS = 25.0, 0.01
"""Median seconds until within a clear gain of what the whole budget finds, and the loss of geometric mean."""


class _Marks(Silent):
    """The speed-up of the best model so far that keeps the bound, at each gain, by seconds of the call."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self.found = [(0.0, 1.0)]

    def trial(self, step: SearchStep) -> None:
        """Note a gain."""
        speedup = step.trial.speedup
        if step.trial.feasible and speedup is not None and speedup > self.found[-1][1]:
            self.found.append((round(time.monotonic() - self._begun, 2), speedup))


def row(subject: Subject, folder: Path, budget: float) -> dict[str, Any]:
    """One model: a run that may end by itself, and the rest of its budget."""
    out, sessions = folder / "out", []
    for seconds in (budget, budget + 1.0):
        marks = _Marks()
        result = inlay.tune(
            subject.model, out=out, data=subject.samples, budget=f"{seconds:g}s", progress=marks, cost_db=False
        )
        sessions.append((marks.found, result.search))
    shutil.rmtree(out, ignore_errors=True)
    (first, search), (rest, _) = sessions
    ended, whole = first[-1][1], max(first[-1][1], rest[-1][1])
    enough = whole * (1.0 - CLEAR_GAIN)
    return {
        "model": subject.name,
        "trained": subject.trained,
        "ended_s": search["wall_s"],
        "stopped_because": search["stopped_because"],
        "timed": search["measurements"],
        "left": search.get("left"),
        "speedup": ended,
        "whole": whole,
        "reached_s": next((s for s, speedup in first if speedup >= enough), None),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows, and what they say together; a run that missed more reached it after its budget."""
    done = [r for r in rows if "error" not in r]
    if not done:
        return {"rows": list(rows)}
    stated = [r["left"]["probability"] for r in done if r["left"] is not None]
    reached = [math.inf if r["reached_s"] is None else r["reached_s"] for r in done]
    return {
        "rows": list(rows),
        "reached_s": float(np.median(reached)),
        "ended_s": float(np.median([r["ended_s"] for r in done])),
        "loss": 1.0 - float(np.exp(np.mean([math.log(r["speedup"] / r["whole"]) for r in done]))),
        "stated": float(np.mean(stated)) if stated else None,
        "missed": float(np.mean([r["reached_s"] is None for r in done if r["left"] is not None])) if stated else None,
    }


def line(row: dict[str, Any]) -> str:
    """A row in short."""
    return f"ended after {row['ended_s']:.0f} s with {row['speedup']:.2f}x of {row['whole']:.2f}x"


def text(found: Mapping[str, Any]) -> str:
    """The table as Markdown."""
    lines = [
        "# When runs end",
        "",
        "A run ends once a model that is more than 2 % faster is less than 10 % likely to be left; the same command",
        "with a second more then spends the rest of the budget. Speed-ups are readings of the search. Reached: when",
        "the first run was within 2 % of what both found.",
        "",
        "| model | reached | ended | timed | speed-up | whole budget | stated to be left | it ended because |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        if "error" in row:
            lines.append(f"| {row['model']} | fails: {row['error']} | | | | | | |")
            continue
        reached = "never" if row["reached_s"] is None else f"{row['reached_s']:.0f} s"
        left = "" if row["left"] is None else f"{row['left']['probability']:.0%}"
        speeds = f"{row['speedup']:.2f}x | {row['whole']:.2f}x | {left}"
        ended = f"{row['ended_s']:.0f} s | {row['timed']}"
        lines.append(f"| {row['model']} | {reached} | {ended} | {speeds} | {row['stopped_because']} |")
    if "loss" in found:
        seconds = f"reached after {found['reached_s']:.0f} s (goal {GOAL_S:g} s), ended after {found['ended_s']:.0f} s"
        lines += ["", f"Median: {seconds}. Loss in geometric mean: {found['loss']:.1%} (goal {GOAL_LOSS:.0%})."]
        if found["stated"] is not None:
            lines.append(
                f"More was {found['stated']:.0%} likely to be left on average, and was in {found['missed']:.0%}."
            )
    return "\n".join(lines) + "\n"
