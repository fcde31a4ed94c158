"""What Inlay delivers for ONNX Runtime in WebAssembly, in Node and in Chromium, against float and the usual recipes.

    python -m benchmarks browser [--models DIR] [--budget 40] [--only NAME ...] [--restart]

Every recipe and the delivered file are timed beside the given model in Node, in the same blocks, and the delivered file
beside the given one in headless Chromium, by a page served on the loopback. Accuracy is against ONNX Runtime on the
given model, on samples from other sources.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import inlay
from benchmarks import paired
from benchmarks.chromium import chromium
from benchmarks.quality import BOUND_DB, EVALUATION, anchor, fastest
from benchmarks.render import machine, ratio
from benchmarks.subjects import Subject
from inlay.targets.base import TargetSpec

TARGET = TargetSpec("ort-web", {"threads": 1})
RECIPES = ("full-int8", "conv-matmul")
BLOCKS, PROCESSES = 8, 2


def row(subject: Subject, folder: Path, budget: float) -> dict[str, Any]:
    """Tune one model for WebAssembly, and time what is delivered in Node and in Chromium.

    Raises:
        InlayError: the model cannot be tuned, or there is no browser.
    """
    result = inlay.tune(
        subject.model,
        out=folder / "tune",
        target=TARGET,
        data=subject.samples,
        min_sqnr=BOUND_DB,
        budget=budget,
        cost_db=False,
    )
    made, notes = paired.quantized(subject, folder, {name: name for name in RECIPES}, TARGET)
    files = {"given": subject.model, "delivered": result.model_path, **made}
    targets = dict.fromkeys(files, TARGET)
    samples = paired.read(subject.samples, subject.model, 1)
    readings = paired.measure(files, samples, BLOCKS, PROCESSES, targets=targets)
    notes.update({name: f"makes a model that does not work: {why}" for name, why in readings.failed.items()})
    files = {name: path for name, path in files.items() if name not in readings.failed}
    accuracy = paired.sqnr(files, subject.model, paired.read(subject.evaluation, subject.model, EVALUATION), targets)
    anchors = [anchor(name, readings, accuracy, notes, "given", BOUND_DB) for name in ("given", *RECIPES)]
    best, search = fastest(anchors), dict(result.search)
    node = readings.ratio("given", "delivered")
    found = {"value": 1.0, "low": 1.0, "high": 1.0}
    if readings.digests["given"] != readings.digests["delivered"]:
        with chromium({"given": subject.model, "delivered": result.model_path}) as page:
            told = page.speedup("given", "delivered", samples.feeds[0], BLOCKS * PROCESSES)
        found = {"value": told.value, "low": told.low, "high": told.high}
    return {
        "model": subject.name,
        "trained": subject.trained,
        "best_anchor": best["name"],
        "over_best_anchor": best["delivered_over"],
        "over_given": node,
        "in_chromium": found,
        "agree": _agree(node, found),
        "given_ms": readings.milliseconds("given"),
        "sqnr_db": accuracy["delivered"],
        "origin": result.best.origin,
        "anchors": anchors,
        "megabytes": {name: round(path.stat().st_size / 1e6, 2) for name, path in files.items()},
        "search": {k: search.get(k) for k in ("measurements", "builds", "failed", "wall_s")},
        "stopped_because": search["stopped_because"],
    }


def _agree(node: paired.Ratio, browser: paired.Ratio) -> bool:
    """Whether neither says faster where the other says slower."""
    return not (node["low"] > 1.0 > browser["high"] or browser["low"] > 1.0 > node["high"])


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows, and geometric means of the delivered file over float in both places."""
    done = [r for r in rows if "error" not in r]
    over = {key: paired.geometric_mean([r[key] for r in done]) for key in ("over_given", "in_chromium")}
    return {"bound_db": BOUND_DB, "rows": rows, "geometric_mean": over, "models": len(done)}


def text(table: dict[str, Any]) -> str:
    """The table in Markdown."""
    lines = [
        "# ONNX Runtime in the browser",
        "",
        f"{machine(table['machine'])} WebAssembly with SIMD, one thread. Speed-ups of the delivered file over the "
        f"given one are paired ratios with 95 % intervals; the bound is {table['bound_db']:.0f} dB.",
        "",
        "| model | in Node | in Chromium | agree | full-int8 | conv-matmul | SQNR | MB, before and after | delivered |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for found in table["rows"]:
        if "error" in found:
            lines.append(f"| {found['model']} | fails: {found['error']} | | | | | | | |")
            continue
        recipes = [_recipe(a) for a in found["anchors"] if a["name"] in RECIPES]
        size = found["megabytes"]
        lines.append(
            f"| {found['model']} | {ratio(found['over_given'])} | {ratio(found['in_chromium'])} "
            f"| {'yes' if found['agree'] else 'no'} | {' | '.join(recipes)} | {found['sqnr_db']:.1f} dB "
            f"| {size['given']} to {size['delivered']} | {found['origin']} |"
        )
    means = table["geometric_mean"]
    lines += ["", f"Geometric means over {table['models']} models: {ratio(means['over_given'])} in Node, "]
    lines[-1] += f"{ratio(means['in_chromium'])} in Chromium."
    return "\n".join(lines) + "\n"


def _recipe(found: dict[str, Any]) -> str:
    if "over_given" not in found:
        return "fails"
    return f"{found['over_given']['value']:.2f}x, {found['sqnr_db']:.1f} dB"
