"""What Inlay delivers against what everybody would try: the given model, the runtime's quantizer, uniform recipes.

    python -m benchmarks quality [--models DIR] [--budget 40] [--bound 20] [--only NAME ...] [--nncf PYTHON] [--restart]

All of a model's files are timed in the same interleaved blocks, so that every figure is a paired ratio with its 95 %
interval. An anchor is feasible where its SQNR keeps the bound on samples from other sources, which neither
calibration nor search has seen. NNCF quantizes the ONNX model, where ``--nncf`` names a Python that has it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import inlay
from benchmarks import nncf_peer, paired, peer
from benchmarks.subjects import Subject
from inlay.space.recipe import Recipe
from inlay.targets.base import TargetSpec

BOUND_DB = 20.0
BLOCKS, PROCESSES = 12, 2
EVALUATION = 32  # most samples to judge by

PEERS = {
    "quantize_static": "static",
    "quantize_dynamic": "dynamic",
    "MatMulNBits 8": "weights8",
    "MatMulNBits 4": "weights4",
}
NNCF = "NNCF"
USUAL = ("given", *PEERS, NNCF)
"""What people have without Inlay."""
RECIPES = ("full-int8", "conv-matmul", "dynamic")
ANCHORS = (*USUAL, *RECIPES)
"""With Inlay's own one-shot recipes, which have its ranges, rewrites and shared scales, but no search."""
NORMALIZED = "normalized"  # float, normalized by Inlay: not what anybody would try, but it tells gains apart


def row(
    subject: Subject,
    folder: Path,
    budget: float,
    bound_db: float = BOUND_DB,
    nncf: str | None = None,
    threads: int = 1,
) -> dict[str, Any]:
    """Tune one model, and time what is delivered beside every anchor.

    Args:
        subject: the model.
        folder: to work in.
        budget: of the search, in seconds.
        bound_db: that the outputs keep.
        nncf: a Python that has NNCF and ``onnx``.
        threads: of the runtime.

    Raises:
        InlayError: the model cannot be tuned.
    """
    target = TargetSpec(paired.TARGET.name, {"threads": threads})
    result = inlay.tune(
        subject.model,
        out=delivered(folder).parent,
        target=target,
        data=subject.samples,
        min_sqnr=bound_db,
        budget=budget,
        cost_db=False,
    )
    recipes: dict[str, Recipe | str] = {NORMALIZED: Recipe().set_global(None), **{name: name for name in RECIPES}}
    made, notes = paired.quantized(subject, folder, recipes, target)
    files = {"delivered": result.model_path, "given": subject.model, **made}
    theirs, why_not = by_others(subject, folder, nncf)
    files.update(theirs)
    notes.update(why_not)
    samples = paired.read(subject.samples, subject.model, 1)
    targets = dict.fromkeys(files, target)
    readings = paired.measure(files, samples, BLOCKS, PROCESSES, targets=targets)
    notes.update({name: f"makes a model that does not work: {why}" for name, why in readings.failed.items()})
    notes = {name: note.replace(f"{folder}{os.sep}", "") for name, note in notes.items()}
    files = {name: path for name, path in files.items() if name not in readings.failed}
    accuracy = paired.sqnr(files, subject.model, paired.read(subject.evaluation, subject.model, EVALUATION), targets)
    anchors = [anchor(name, readings, accuracy, notes, "given", bound_db) for name in (*ANCHORS, NORMALIZED)]
    best = fastest([a for a in anchors if a["name"] in ANCHORS])
    usual = fastest([a for a in anchors if a["name"] in USUAL])
    search = dict(result.search)
    return {
        "model": subject.name,
        "trained": subject.trained,
        "best_anchor": best["name"],
        "over_best_anchor": best["delivered_over"],
        "over_usual": usual["delivered_over"],
        "over_given": readings.ratio("given", "delivered"),
        "latency_ms": readings.milliseconds("delivered"),
        "given_ms": readings.milliseconds("given"),
        "sqnr_db": accuracy["delivered"],
        "selection_sqnr_db": result.best.selection.sqnr_db,
        "feasible": accuracy["delivered"] >= bound_db,
        "is_float": result.best.is_float,
        "delivers_given": readings.digests["delivered"] == readings.digests["given"],
        "origin": result.best.origin,
        "verdict": {k: result.best.as_json()[k] for k in ("speedup", "speedup_low", "speedup_high")},
        "anchors": anchors,
        "search": {
            k: search.get(k)
            for k in (
                "measurements",
                "compiles",
                "builds",
                "failed",
                "replayed",
                "wall_s",
                "overhead",
                "forecast_error",
                "unattributed",
            )
        },
        "stopped_because": search["stopped_because"],
    }


def by_others(
    subject: Subject, folder: Path, nncf: str | None, methods: Mapping[str, str] = PEERS
) -> tuple[dict[str, Path], dict[str, str]]:
    """The files that other tools make of a model in their usual settings, and why some do not; both by name."""
    files: dict[str, Path] = {}
    notes: dict[str, str] = {}
    for name, method in methods.items():
        path = folder / f"{name.replace('/', ' ')}.onnx"
        theirs = peer.quantize(method, subject.model, subject.samples, path)
        if theirs.path is not None:
            files[name] = theirs.path
        if theirs.note:
            notes[name] = theirs.note
    if nncf:
        path = folder / "nncf.onnx"
        notes[NNCF] = nncf_peer.quantize(nncf, subject.model, subject.samples, path, nncf_peer.PRESETS[0])
        if not notes[NNCF]:
            files[NNCF] = path
    return files, notes


def delivered(folder: Path) -> Path:
    """Where the delivered model of a row lies in its working folder."""
    return folder / "tune" / "model.onnx"


def fastest(anchors: list[dict[str, Any]]) -> dict[str, Any]:
    """Of those within the bound; the given model always is one."""
    return max((a for a in anchors if a["feasible"]), key=lambda a: float(a["over_given"]["value"]))


def anchor(
    name: str,
    readings: paired.Readings,
    accuracy: dict[str, float],
    notes: dict[str, str],
    over: str,
    bound_db: float,
) -> dict[str, Any]:
    """Figures of one anchor: its speed over the model ``over``, and what is delivered over it."""
    if name not in accuracy:
        return {"name": name, "feasible": False, "note": notes.get(name, "not tried")}
    return {
        "name": name,
        "feasible": accuracy[name] >= bound_db,
        "sqnr_db": accuracy[name],
        "over_given": readings.ratio(over, name),
        "delivered_over": readings.ratio(name, "delivered"),
        "note": notes.get(name, ""),
    }


def table(rows: list[dict[str, Any]], bound_db: float = BOUND_DB) -> dict[str, Any]:
    """Rows, and geometric means of the delivered model over the best feasible anchor, and over the best usual one."""

    def means(over: str) -> dict[str, paired.Ratio | None]:
        trained = paired.geometric_mean([r[over] for r in done if r["trained"]])
        return {"trained": trained, "all": paired.geometric_mean([r[over] for r in done])}

    done = [r for r in rows if "error" not in r]
    overheads = [r["search"]["overhead"] for r in done if not r["search"]["replayed"]]
    return {
        "bound_db": bound_db,
        "rows": rows,
        "geometric_mean": means("over_best_anchor"),
        "geometric_mean_over_usual": means("over_usual"),
        "models": {"trained": sum(r["trained"] for r in done), "all": len(done)},
        "overhead": {"largest": max(overheads, default=None), "of": len(overheads)},
        "unattributed": max((u for r in done if (u := r["search"]["unattributed"]) is not None), default=None),
    }
