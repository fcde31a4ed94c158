"""What Inlay delivers for OpenVINO against what everybody would try there, and against ONNX Runtime.

    python -m benchmarks openvino [--models DIR] [--budget 40] [--only NAME ...] [--nncf PYTHON] [--restart]

Anchors on OpenVINO: the given model in each inference precision, what ONNX Runtime's quantizer makes of all of it and
of its convolutions and products, NNCF's post-training quantization with both of its presets, where ``--nncf`` names a
Python that has it, and Inlay's one-shot recipes. ONNX Runtime runs the given model.
Bfloat16 is the default where the processor has it, and not timed a second time there: each target has a process of its
own, and equal models differ by up to 5 % between two. What is delivered runs in the precision that the run chose.
All are timed in the same blocks; accuracy is against ONNX Runtime on the given model, on samples from other sources.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import inlay
from benchmarks import nncf_peer, paired, peer
from benchmarks.quality import BLOCKS, BOUND_DB, EVALUATION, PROCESSES, anchor, fastest
from benchmarks.subjects import Subject
from inlay.targets.base import TargetSpec
from inlay.targets.registry import create

NAME = "openvino-cpu"
PLAIN = TargetSpec(NAME, {"threads": 1})
FLOAT = "onnxruntime"  # the given model there: what the others are over
PRECISIONS = {
    "given": PLAIN,  # the same one, so that the given model is never timed against itself in another process
    "given, f32": TargetSpec(NAME, {"threads": 1, "precision": "f32"}),
    "given, bf16": TargetSpec(NAME, {"threads": 1, "precision": "bf16"}),
}
HAS_BF16 = "avx512_bf16"
PEERS = {"quantize_static": "static", "quantize_static, products": "products"}
NNCF = {preset: f"NNCF {preset}" for preset in nncf_peer.PRESETS}
USUAL = (*PRECISIONS, *PEERS, *NNCF.values())
"""What people have without Inlay."""
RECIPES = ("full-int8", "conv-matmul")
ANCHORS = (*USUAL, *RECIPES)
"""With Inlay's own one-shot recipes, which have its ranges, rewrites and shared scales, but no search."""

OVER = ("over_usual", "over_best_anchor", "over_onnxruntime")


def row(subject: Subject, folder: Path, budget: float, nncf: str | None) -> dict[str, Any]:
    """Tune one model for OpenVINO, and time what is delivered beside every anchor.

    Raises:
        InlayError: the model cannot be tuned.
    """
    result = inlay.tune(
        subject.model,
        out=folder / "tune",
        target=PLAIN,
        data=subject.samples,
        min_sqnr=BOUND_DB,
        budget=budget,
        cost_db=False,
    )
    made, notes = paired.quantized(subject, folder, {name: name for name in RECIPES}, PLAIN)
    files = {FLOAT: subject.model, "delivered": result.model_path, **made}
    chosen = {} if result.precision is None else result.precision.options
    targets = {"delivered": TargetSpec(NAME, {**PLAIN.options, **chosen}), **dict.fromkeys(made, PLAIN)}
    by_default = HAS_BF16 in create(PLAIN).fingerprint().facts["isa"].split()
    for name, spec in PRECISIONS.items():
        if name != "given, bf16" or not by_default:
            files[name], targets[name] = subject.model, spec
        else:
            notes[name] = "the default here"
    for name, method in PEERS.items():
        theirs = peer.quantize(method, subject.model, subject.samples, folder / f"{method}.onnx")
        notes[name] = theirs.note
        if theirs.path is not None:
            files[name], targets[name] = theirs.path, PLAIN
    for preset, name in NNCF.items() if nncf else ():
        path = folder / f"nncf-{preset}.xml"
        notes[name] = nncf_peer.quantize(str(nncf), subject.model, subject.samples, path, preset)
        if not notes[name]:
            files[name], targets[name] = path, PLAIN
    samples = paired.read(subject.samples, subject.model, 1)
    readings = paired.measure(files, samples, BLOCKS, PROCESSES, targets=targets)
    notes.update({name: f"makes a model that does not work: {why}" for name, why in readings.failed.items()})
    notes = {name: note.replace(f"{folder}{os.sep}", "") for name, note in notes.items()}
    files = {name: path for name, path in files.items() if name not in readings.failed}
    evaluation = paired.read(subject.evaluation, subject.model, EVALUATION)
    accuracy = paired.sqnr(files, subject.model, evaluation, targets)
    anchors = [anchor(name, readings, accuracy, notes, FLOAT, BOUND_DB) for name in ANCHORS]
    best, usual = fastest(anchors), fastest([a for a in anchors if a["name"] in USUAL])
    search = dict(result.search)
    return {
        "model": subject.name,
        "trained": subject.trained,
        "best_anchor": best["name"],
        "over_best_anchor": best["delivered_over"],
        "usual_anchor": usual["name"],
        "over_usual": usual["delivered_over"],
        "over_onnxruntime": readings.ratio(FLOAT, "delivered"),
        "over_given": readings.ratio("given", "delivered"),
        "latency_ms": readings.milliseconds("delivered"),
        "sqnr_db": accuracy["delivered"],
        "selection_sqnr_db": result.best.selection.sqnr_db,
        "feasible": accuracy["delivered"] >= BOUND_DB,
        "is_float": result.best.is_float,
        "origin": result.best.origin,
        "anchors": anchors,
        "search": {k: search.get(k) for k in ("measurements", "builds", "failed", "wall_s", "unattributed")},
        "stopped_because": search["stopped_because"],
    }


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows, and geometric means of what is delivered over the best feasible anchors and over ONNX Runtime's float."""
    done = [r for r in rows if "error" not in r]
    over = {key: paired.geometric_mean([r[key] for r in done]) for key in OVER}
    return {"bound_db": BOUND_DB, "rows": rows, "geometric_mean": over, "models": len(done)}
