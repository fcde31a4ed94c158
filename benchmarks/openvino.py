"""What Inlay delivers where OpenVINO is installed, against what everybody would try there, and ONNX Runtime.

    python -m benchmarks openvino [--models DIR] [--budget 40] [--only NAME ...] [--nncf PYTHON] [--restart]
    python -m benchmarks auto [--models DIR] [--budget 90] [--only NAME ...] [--nncf PYTHON] [--cache DIR] [--restart]

``openvino`` tunes for OpenVINO alone, ``auto`` for whichever runtime is the fastest.
Anchors on OpenVINO: the given model in each inference precision, what ONNX Runtime's quantizer makes of all of it and
of its convolutions and products, and NNCF's post-training quantization with both of its presets, where ``--nncf`` names
a Python that has it. ``openvino`` has Inlay's one-shot recipes besides; there ONNX Runtime runs the given model. In
``auto`` the given model and what ONNX Runtime's quantizers make of it are anchors on ONNX Runtime, too.
Bfloat16 is the default where the processor has it; elsewhere all precisions are float32. What equals the default is not
timed a second time: each target has a process of its own, and equal models differ by up to 7 % between two. What is
delivered runs in the precision that the run chose.
All are timed in the same blocks; accuracy is against ONNX Runtime on the given model, on samples from other sources.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import inlay
from benchmarks import nncf_peer, paired, peer
from benchmarks.quality import BLOCKS, BOUND_DB, EVALUATION, PROCESSES, anchor, fastest
from benchmarks.subjects import Subject
from inlay.errors import TooShort
from inlay.portfolio.result import AcrossResult
from inlay.targets.base import OwnPrecision, TargetSpec
from inlay.targets.registry import create

NAME = "openvino-cpu"
PLAIN = TargetSpec(NAME, {"threads": 1})
FLOAT = "onnxruntime"  # the given model there: what the others are over
PRECISIONS = {
    "given": PLAIN,  # the same one, so that the given model is never timed against itself in another process
    "given, f32": TargetSpec(NAME, {"threads": 1, "precision": "f32"}),
    "given, bf16": TargetSpec(NAME, {"threads": 1, "precision": "bf16"}),
}
PEERS = {"quantize_static": "static", "quantize_static, products": "products"}
NNCF = {preset: f"NNCF {preset}" for preset in nncf_peer.PRESETS}
USUAL = (*PRECISIONS, *PEERS, *NNCF.values())
"""What people have without Inlay."""
RECIPES = ("full-int8", "conv-matmul")
ANCHORS = (*USUAL, *RECIPES)
"""With Inlay's own one-shot recipes, which have its ranges, rewrites and shared scales, but no search."""

ON_BOTH = {FLOAT: "", **{f"{FLOAT}, {name}": name for name in ("quantize_static", "quantize_static, products")}}
DYNAMIC = f"{FLOAT}, quantize_dynamic"
ANYWHERE = (*ON_BOTH, DYNAMIC, *USUAL)
"""What people have without Inlay, where they may choose the runtime."""

OVER = ("over_usual", "over_best_anchor", "over_onnxruntime")


@dataclass(frozen=True)
class Delivered:
    """What a run delivers."""

    file: Path
    on: TargetSpec
    facts: Mapping[str, Any]  # of the run, for its row


def tuned(subject: Subject, folder: Path, budget: float) -> Delivered:
    """Tune one model for OpenVINO.

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
    chosen = {} if result.precision is None else result.precision.options
    search = dict(result.search)
    facts = {
        "selection_sqnr_db": result.best.selection.sqnr_db,
        "is_float": result.best.is_float,
        "origin": result.best.origin,
        "search": {k: search.get(k) for k in ("measurements", "builds", "failed", "wall_s", "unattributed")},
        "stopped_because": search["stopped_because"],
    }
    return Delivered(result.model_path, TargetSpec(NAME, {**PLAIN.options, **chosen}), facts)


def tuned_anywhere(subject: Subject, folder: Path, budget: float) -> Delivered:
    """Tune one model for the runtime that it is fastest on; where ``budget`` is too short, in the least that is asked.

    Raises:
        InlayError: the model cannot be tuned.
    """
    try:
        result = inlay.tune(
            subject.model,
            out=folder / "tune",
            target="auto",
            data=subject.samples,
            min_sqnr=BOUND_DB,
            budget=budget,
            cost_db=False,
        )
    except TooShort as error:
        if error.least_s <= budget:
            raise
        return tuned_anywhere(subject, folder, error.least_s)
    assert isinstance(result, AcrossResult)
    column = result.columns[result.deployed or result.used[0]]
    facts = {
        "origin": result.origin,
        "verdict": result.cell.as_json(),
        "wall_s": result.wall_s,
        "budget_s": budget,
        "unproven": result.unproven,
        "notes": list(result.notes),
    }
    return Delivered(
        result.model_path, column.spec, {"deployed": column.spec.name, "options": dict(column.spec.options), **facts}
    )


def row(subject: Subject, folder: Path, budget: float, nncf: str | None) -> dict[str, Any]:
    """Tune one model for OpenVINO, and time what is delivered beside every anchor.

    Raises:
        InlayError: the model cannot be tuned.
    """
    delivered = tuned(subject, folder, budget)
    made, notes = paired.quantized(subject, folder, {name: name for name in RECIPES}, PLAIN)
    return _beside(subject, folder, nncf, delivered, made, notes)


def row_anywhere(subject: Subject, folder: Path, budget: float, nncf: str | None) -> dict[str, Any]:
    """Tune one model for whichever runtime is the fastest, and time it beside what people have on both.

    Raises:
        InlayError: the model cannot be tuned.
    """
    return _beside(subject, folder, nncf, tuned_anywhere(subject, folder, budget))


def _beside(
    subject: Subject,
    folder: Path,
    nncf: str | None,
    delivered: Delivered,
    recipes: Mapping[str, Path] | None = None,
    why_not: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The row: ``delivered`` beside what people have, and beside ``recipes``; without these, on both runtimes.

    Args:
        why_not: there is no file of a recipe, by its name.
    """
    files: dict[str, Path] = {FLOAT: subject.model, "delivered": delivered.file, **(recipes or {})}
    targets = {"delivered": delivered.on, **dict.fromkeys(recipes or {}, PLAIN)}
    notes = dict(why_not or {})
    fewer_bits = OwnPrecision.of(create(PLAIN)) is not None
    for name, spec in PRECISIONS.items():
        if name == "given" or (fewer_bits and name != "given, bf16"):
            files[name], targets[name] = subject.model, spec
        else:
            notes[name] = (
                "the default here" if fewer_bits else "float32 is the default here, and bfloat16 has no kernels"
            )
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
    if recipes is None:
        files.update({there: files[name] for there, name in ON_BOTH.items() if name in files})
        theirs = peer.quantize("dynamic", subject.model, subject.samples, folder / "dynamic.onnx")
        notes.update({there: notes[name] for there, name in ON_BOTH.items() if name in notes}, **{DYNAMIC: theirs.note})
        if theirs.path is not None:
            files[DYNAMIC] = theirs.path
    samples = paired.read(subject.samples, subject.model, 1)
    readings = paired.measure(files, samples, BLOCKS, PROCESSES, targets=targets)
    notes.update({name: f"makes a model that does not work: {why}" for name, why in readings.failed.items()})
    notes = {name: note.replace(f"{folder}{os.sep}", "") for name, note in notes.items()}
    files = {name: path for name, path in files.items() if name not in readings.failed}
    evaluation = paired.read(subject.evaluation, subject.model, EVALUATION)
    accuracy = paired.sqnr(files, subject.model, evaluation, targets)
    names = ANYWHERE if recipes is None else ANCHORS
    anchors = [anchor(name, readings, accuracy, notes, FLOAT, BOUND_DB) for name in names]
    best = fastest(anchors)
    usual = fastest([a for a in anchors if a["name"] not in RECIPES])
    return {
        "model": subject.name,
        "trained": subject.trained,
        "best_anchor": best["name"],
        "over_best_anchor": best["delivered_over"],
        "usual_anchor": usual["name"],
        "over_usual": usual["delivered_over"],
        "over_onnxruntime": readings.ratio(FLOAT, "delivered"),
        "over_given": None if "given" in readings.failed else readings.ratio("given", "delivered"),
        "latency_ms": readings.milliseconds("delivered"),
        "sqnr_db": accuracy["delivered"],
        "feasible": accuracy["delivered"] >= BOUND_DB,
        **delivered.facts,
        "anchors": anchors,
    }


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows, and geometric means of what is delivered over the best feasible anchors and over ONNX Runtime's float.

    What does not keep the bound on samples from other sources counts in no mean.
    """
    done = [r for r in rows if "error" not in r]
    kept = [r for r in done if r["feasible"]]
    over = {key: paired.geometric_mean([r[key] for r in kept]) for key in OVER}
    return {"bound_db": BOUND_DB, "rows": rows, "geometric_mean": over, "models": len(done), "kept": len(kept)}
