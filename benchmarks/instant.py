"""What ``inlay quantize`` delivers in seconds, against float, the one-shot recipes, and a long run's file.

    python -m benchmarks instant [--models DIR] [--only NAME ...] [--long DIR] [--restart]

``--long`` names a folder with ``NAME/model.onnx`` of earlier runs of ``inlay tune``. The cost table is that of
``inlay calibrate-machine`` where there is one for this processor; it rests on no model that is measured here. All files
of a model are timed in the same interleaved blocks. An anchor is feasible where its SQNR keeps the bound on samples
from other sources.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import inlay
from benchmarks import paired, quality, render
from benchmarks.subjects import Subject

BLOCKS, PROCESSES = 10, 1
EVALUATION = 16  # most samples to judge by
NAME, LONG = "instant", "long run"


def row(subject: Subject, folder: Path, long: Path | None) -> dict[str, Any]:
    """Quantize one model, and time what comes out beside every anchor.

    Raises:
        InlayError: the model cannot be quantized.
    """
    folder.mkdir(parents=True, exist_ok=True)
    delivered = folder / "instant.onnx"
    begun = time.monotonic()
    done = inlay.quantize(subject.model, delivered, data=subject.samples, min_sqnr=quality.BOUND_DB)
    inside_s = time.monotonic() - begun
    begun = time.monotonic()  # as users see it: with the start of the program
    command = ["-m", "inlay", "quantize", str(subject.model), "-o", str(folder / "again.onnx")]
    subprocess.run([sys.executable, *command, "--data", str(subject.samples)], check=True, capture_output=True)
    wall_s = time.monotonic() - begun
    made, notes = paired.quantized(subject, folder, {name: name for name in quality.RECIPES})
    files = {"delivered": delivered, "given": subject.model, **made}
    known = None if long is None else long / subject.name / "model.onnx"
    if known is not None and known.exists():
        files[LONG] = known
    readings = paired.measure(files, paired.read(subject.samples, subject.model, 1), BLOCKS, PROCESSES)
    files = {name: path for name, path in files.items() if name not in readings.failed}
    accuracy = paired.sqnr(files, subject.model, paired.read(subject.evaluation, subject.model, EVALUATION))
    anchors = [
        quality.anchor(name, readings, accuracy, notes, "given", quality.BOUND_DB)
        for name in ("given", *quality.RECIPES)
    ]
    best = quality.fastest(anchors)
    how = done.by_costs
    return {
        "model": subject.name,
        "trained": subject.trained,
        "wall_s": round(wall_s, 1),
        "inside_s": round(inside_s, 1),
        "builds": None if how is None else how.models,
        "table": None if how is None else how.source.split(" (")[0],
        "predicted": None if how is None else how.speedup,
        "over_given": readings.ratio("given", "delivered"),
        "best_anchor": best["name"],
        "over_best_anchor": best["delivered_over"],
        "over_long_run": readings.ratio(LONG, "delivered") if LONG in files else None,
        "sqnr_db": accuracy["delivered"],
        "stated_sqnr_db": None if done.accuracy is None else done.accuracy.sqnr_db,
        "anchors": anchors,
        "load": os.getloadavg()[0],
    }


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows, and geometric means over float, the best feasible anchor, and the long run's file."""
    done = [r for r in rows if "error" not in r]
    means = {
        key: paired.geometric_mean([r[key] for r in done if r[key] is not None])
        for key in ("over_given", "over_best_anchor", "over_long_run")
    }
    return {"bound_db": quality.BOUND_DB, "rows": rows, "geometric_mean": means}


def text(found: dict[str, Any]) -> str:
    """The table as Markdown."""
    lines = [
        "# Instant",
        "",
        render.machine(found["machine"]).partition("; search")[0] + ".",
        f"Paired ratios with 95 % intervals; the bound is {found['bound_db']:.0f} dB on samples from other sources.",
        "",
        "| model | seconds | builds | over float | predicted | over the best feasible anchor | which "
        "| over a long run | SQNR | load |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in found["rows"]:
        if "error" in each:
            lines.append(f"| {each['model']} | fails: {each['error']} | | | | | | | | |")
            continue
        predicted = "" if each["predicted"] is None else f"{each['predicted']:.2f}x"
        cells = [
            each["model"],
            f"{each['wall_s']:.1f}",
            str(each["builds"]),
            render.ratio(each["over_given"]),
            predicted,
            render.ratio(each["over_best_anchor"]),
            each["best_anchor"],
            render.ratio(each["over_long_run"]),
            render.decibels(each["sqnr_db"]),
            f"{each['load']:.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    names = {"over_given": "float", "over_best_anchor": "the best feasible anchor", "over_long_run": "the long run"}
    said = [f"{render.ratio(m)} over {names[key]}" for key, m in found["geometric_mean"].items() if m is not None]
    return "\n".join([*lines, "", f"Geometric means: {', '.join(said)}."]) + "\n"
