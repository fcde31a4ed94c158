"""Each tuned file on every runtime: what the best file for each gains over the best single one.

    python -m benchmarks runtimes [--models DIR] [--targets NAME ...] [--budget 120] [--only NAME ...] [--restart]

Each model is tuned for several targets in one command, whose comparison measures every file on every target in blocks
that they share, in fresh processes. The single file is the one whose worst regret is smallest, among the given one,
those that the runs delivered, and the fastest of each run's front. The best file for a target is its own, unless
another delivered one is measurably faster there. SQNR of the table is against the given model on ONNX Runtime, on
samples from other sources, in each target's own precision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import inlay
from benchmarks import paired
from benchmarks.quality import BOUND_DB, EVALUATION
from benchmarks.render import machine, ratio
from benchmarks.subjects import Subject
from inlay.portfolio.result import GIVEN, AcrossResult
from inlay.targets.base import TargetSpec
from inlay.trial import Interval

TARGETS = ("ort-cpu", "openvino-cpu")


def row(subject: Subject, folder: Path, budget: float, targets: Sequence[str] = TARGETS) -> dict[str, Any]:
    """Tune one model for all targets, with a thread on each, and read the table of files on targets.

    Raises:
        InlayError: the model cannot be tuned.
    """
    result = inlay.tune(
        subject.model,
        out=folder / "tune",
        target=[TargetSpec(name, {"threads": 1}) for name in targets],
        data=subject.samples,
        min_sqnr=BOUND_DB,
        budget=budget,
        cost_db=False,
    )
    assert isinstance(result, AcrossResult)
    files = {GIVEN: subject.model, result.row: result.model_path}
    files.update({n: result.folder / (column.folder or "") / "model.onnx" for n, column in result.columns.items()})
    evaluation = paired.read(subject.evaluation, subject.model, EVALUATION)
    unseen = {
        label: paired.sqnr(
            {name: file for name, file in files.items() if result.table[name, label].latency_ms is not None},
            subject.model,
            evaluation,
            dict.fromkeys(files, column.spec),
        )
        for label, column in result.columns.items()
    }
    cells = [
        {
            "file": name,
            "on": label,
            "latency_ms": cell.latency_ms,
            "over_given": _interval(cell.speedup),
            "sqnr_db": unseen[label].get(name),
            "serves": cell.serves,
            "why": cell.reason,
        }
        for (name, label), cell in result.table.items()
    ]
    own = {each.on: _interval(each.ratio) for each in result.ratios}
    return {
        "model": subject.name,
        "trained": subject.trained,
        "cells": cells,
        "single": result.row,
        "origin": result.origin,
        "best": dict(result.best),
        "own_over_single": own,
        "own_over_given": {label: _interval(result.table[label, label].speedup) for label in result.columns},
        "wall_s": result.wall_s,
    }


def _interval(found: Interval | None) -> dict[str, float] | None:
    return None if found is None else {"value": found.value, "low": found.low, "high": found.high}


def table(rows: list[dict[str, Any]], targets: Sequence[str] = TARGETS) -> dict[str, Any]:
    """Rows, and geometric means of the best files over the single one: on each target, and over all of them."""
    done = [r for r in rows if "error" not in r]
    by_target = {t: [r["own_over_single"][t] for r in done if r["own_over_single"].get(t)] for t in targets}
    means = {t: paired.geometric_mean(found) for t, found in by_target.items()}
    means["all"] = paired.geometric_mean([each for found in by_target.values() for each in found])
    return {
        "bound_db": BOUND_DB,
        "targets": list(targets),
        "rows": rows,
        "models": len(done),
        "own_over_single": means,
    }


def line(found: Mapping[str, Any]) -> str:
    """A row as one line."""
    own = ", ".join(f"{ratio(each)} on {target}" for target, each in found["own_over_single"].items())
    return f"the best files over {found['single']} ({found['origin']}): {own}"


def text(table: Mapping[str, Any]) -> str:
    """The table as Markdown."""
    targets = table["targets"]
    lines = [
        "# Each tuned file on every runtime",
        "",
        machine(table["machine"]),
        "The budget is for all targets of a model together. Columns say where a file runs; ratios are over the given "
        "model there, paired, with 95 % intervals; SQNR is on samples from other sources than those given, against the "
        f"given model on ONNX Runtime. A file serves where it keeps {table['bound_db']:.0f} dB on unseen samples of "
        "the given ones. The single file is the one with the smallest worst regret, over which the last column has the "
        "best file for each target: its own, or in brackets another that is measurably faster there. \\* seeded "
        "weights.",
        "",
        "| model | file | " + " | ".join(f"on {t}" for t in targets) + " | best over single |",
        "|---|---|" + "---|" * (len(targets) + 1),
    ]
    for each in table["rows"]:
        name = each["model"] + ("" if each.get("trained", True) else "\\*")
        if "error" in each:
            lines.append(f"| {name} | fails: {each['error']} |" + " |" * (len(targets) + 1))
            continue
        cells = {(c["file"], c["on"]): c for c in each["cells"]}
        for file in dict.fromkeys(f for f, _ in cells):
            own = each["own_over_single"].get(file)
            called = f"{file} (the single one)" if file == each["single"] else file
            shown = " | ".join(_shown(cells.get((file, t))) for t in targets)
            best = each["best"].get(file, file)
            lines.append(f"| {name} | {called} | {shown} | {ratio(own)}{'' if best == file else f' ({best})'} |")
    means = table["own_over_single"]
    lines += ["", f"Geometric means of the best files over the single one, {table['models']} models:", ""]
    lines += [f"- {name}: {ratio(mean)}" for name, mean in means.items() if mean is not None]
    return "\n".join([*lines, ""])


def _shown(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return ""
    if cell["latency_ms"] is None:
        return "does not run"
    decibels = cell["sqnr_db"]
    accuracy = "" if decibels is None or not np.isfinite(decibels) or decibels > 250.0 else f", {decibels:.1f} dB"
    return f"{ratio(cell['over_given'])}{accuracy}" + ("" if cell["serves"] else " (does not serve)")
