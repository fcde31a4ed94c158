"""What calibration gains: one placement with plain ranges, with chosen ones, and with all that Inlay does.

    python -m benchmarks ranges [--models DIR] [--only NAME ...] [--restart]

The recipes full-int8 and conv-matmul of each model on ONNX Runtime, three times: with the extremes of the samples as
ranges and nothing else (``minmax``); with methods chosen for each domain, weights rounded by what operators read, and
corrected biases (``chosen``); and with outliers of activations evened out before (``all``). SQNR is against float, on
samples from other sources than those of calibration. Speed is ``all`` over ``minmax`` in the same blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import paired
from benchmarks.subjects import Subject
from inlay.calibrate.observe import observe
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import input_specs, read_samples
from inlay.measure.client import usual_limit
from inlay.measure.lab import HERE
from inlay.model.load import load
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.model import PreparedModel, prepare
from inlay.quant.qparams import QParamsTable
from inlay.run.instant.one_shot import OneShot, QuantizeRequest
from inlay.run.instant.quantize import choose_by_rules
from inlay.run.reference import in_reference
from inlay.space.recipe_file import find_recipe
from inlay.space.resolve import resolve
from inlay.targets.base import Capabilities
from inlay.targets.registry import create
from inlay.types import Placement

RECIPES = ("full-int8", "conv-matmul")
WAYS = ("minmax", "chosen", "all")
BLOCKS, PROCESSES = 20, 2
EVALUATION = 16  # most samples to judge by


def row(subject: Subject, folder: Path) -> dict[str, Any]:
    """For each recipe, dB of each way, and how fast the last is over the first.

    Raises:
        InlayError: the model cannot be quantized.
    """
    files = _files(subject, folder)
    evaluation = paired.read(subject.evaluation, subject.model, EVALUATION)
    sqnr_db = paired.sqnr(files, subject.model, evaluation)
    readings = paired.measure(files, paired.read(subject.samples, subject.model, 1), BLOCKS, PROCESSES)
    found = {
        recipe: {
            "sqnr_db": {way: sqnr_db[f"{recipe} {way}"] for way in WAYS},
            "speed": readings.ratio(f"{recipe} minmax", f"{recipe} all"),
        }
        for recipe in RECIPES
    }
    return {"model": subject.name, "trained": subject.trained, "ranges": found}


def _files(subject: Subject, folder: Path) -> dict[str, Path]:
    file = load(subject.model)
    specs = input_specs(file.model)
    samples = read_samples(str(subject.samples), specs)
    target, work = Capabilities.of(create(paired.TARGET)), folder / "quantized"
    files: dict[str, Path] = {}
    (work / "plain").mkdir(parents=True)
    with HERE.start(paired.TARGET, work, usual_limit) as worker:
        asked = QuantizeRequest(file=file, target=paired.TARGET, samples=samples)
        evened = OneShot.open(asked, target, worker, work, in_reference(file))
        plain = prepare(file, target, samples.feeds[0], work / "plain")
        for recipe in RECIPES:
            for way in WAYS:
                one_shot = evened if way == "all" else replace(evened, prepared=plain)
                placement, table = _choose(one_shot, recipe, plain_ranges=way == "minmax")
                path = folder / f"{recipe} {way}.onnx"
                writer = CandidateWriter(one_shot.prepared, table, way, worker.fingerprint.digest)
                files[path.stem] = writer.deliver(placement, path).path
    return files


def _choose(one_shot: OneShot, recipe: str, plain_ranges: bool) -> tuple[Placement, QParamsTable]:
    prepared: PreparedModel = one_shot.prepared
    resolved = resolve(find_recipe(recipe), prepared.graph, prepared.units, prepared.rules)
    one_shot = replace(one_shot, prepared=(prepared := replace(prepared, resolved=resolved)))
    if plain_ranges:
        return resolved.placement, CalibrationChoice("minmax").table(
            prepared, observe(prepared, one_shot.asked.samples)
        )
    chosen = choose_by_rules(one_shot, resolved.placement)
    return chosen.placement, chosen.writer.table


def line(row: Mapping[str, Any]) -> str:
    """A row in short."""
    return "; ".join(f"{recipe} {' -> '.join(_cells(found)[:3])}" for recipe, found in row["ranges"].items())


def text(table: Mapping[str, Any]) -> str:
    """The table as Markdown."""
    lines = [
        "# Ranges",
        "",
        "SQNR in dB at the worst output of one placement, on samples from other sources than those of calibration:",
        "with the extremes of the samples as ranges (minmax), with methods chosen by domain, weights rounded by what",
        "operators read and biases corrected (chosen), and with outliers of activations evened out before (all).",
        "Speed: all over minmax, paired.",
        "\\* seeded weights.",
        "",
        f"| model | recipe | {' | '.join(WAYS)} | gained | speed |",
        "|---" * (len(WAYS) + 4) + "|",
    ]
    for found in table["rows"]:
        name = found["model"] + ("" if found.get("trained", True) else "\\*")
        if "error" in found:
            lines.append(f"| {name} | fails: {found['error']} |" + " |" * (len(WAYS) + 2))
            continue
        for recipe, of in found["ranges"].items():
            gained = of["sqnr_db"]["all"] - of["sqnr_db"]["minmax"]
            cells = _cells(of)
            lines.append(f"| {name} | {recipe} | {' | '.join(cells[:-1])} | {gained:+.1f} | {cells[-1]} |")
    return "\n".join(lines) + "\n"


def _cells(found: Mapping[str, Any]) -> list[str]:
    speed = found["speed"]
    return [
        *(f"{found['sqnr_db'][way]:.1f}" for way in WAYS),
        f"{speed['value']:.2f}x [{speed['low']:.2f}, {speed['high']:.2f}]",
    ]
