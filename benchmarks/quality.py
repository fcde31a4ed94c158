"""Tables of what Inlay delivers, from one command: quality, compiles, honesty, overhead; JSON and Markdown.

    python -m benchmarks.quality [--models DIR] [--budget 40] [--out benchmarks/out] [--only NAME ...] [--compiles]

Every figure of speed is a ratio of readings from the same interleaved blocks, with its 95 % interval. ``--models``
names a folder of trained models with a ``feeds.py`` that writes their samples (``feeds.py NAME calibration.npz
evaluation.npz``); without it, or for names that it lacks, the seeded light models are used.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import inlay
from benchmarks import light_models
from inlay.errors import InlayError
from inlay.measure.stats import hodges_lehmann

LIGHT = ("squeezenet", "inception_v1", "inception_v2", "resnet50", "shufflenet", "densenet121")
COMPILES = ("squeezenet", "inception_v1", "ultraface_rfb320_simplified")
BOUND_DB = 20.0


@dataclass(frozen=True)
class Subject:
    """A model with samples to tune on."""

    name: str
    model: Path
    samples: Path


def subjects(models: Path | None, folder: Path, only: Sequence[str]) -> list[Subject]:
    """The models that there are."""
    found = []
    names = [] if models is None else sorted(p.stem for p in models.glob("*.onnx"))
    for name in (*names, *LIGHT):
        if only and name not in only:
            continue
        samples = folder / f"{name}.npz"
        if name in LIGHT:
            model = folder / f"{name}.onnx"
            made = light_models.light_model(name)
            onnx.save(made, model)
            np.savez(samples, **{light_models.input_name(made): light_models.samples()})
        else:
            assert models is not None
            model = models / f"{name}.onnx"
            command = [sys.executable, str(models / "feeds.py"), name, str(samples), str(folder / "evaluation.npz")]
            subprocess.run(command, check=True)
        found.append(Subject(name, model, samples))
    return found


def quality(subject: Subject, folder: Path, budget: float) -> dict[str, Any]:
    """Tune, then time the delivered model against every feasible anchor, written anew, in blocks of its own."""
    out = folder / f"out-{subject.name}"
    result = inlay.tune(
        subject.model, out=out, data=subject.samples, min_sqnr=BOUND_DB, budget=budget, restart=True, cost_db=False
    )
    anchors = [subject.model, *_anchor_files(subject, result, folder)]
    rows = inlay.bench([result.model_path, *anchors], data=subject.samples, blocks=12, processes=2)
    # bench gives the first model's latency over each other's: what is wanted is the inverse
    over = [(row.path, 1.0 / row.speedup.value, 1.0 / row.speedup.high, 1.0 / row.speedup.low) for row in rows[1:]]
    best = min(over, key=lambda o: o[1])
    search = dict(result.search)
    return {
        "model": subject.name,
        "over_given": _ratio(over[0][1:]),
        "over_best_anchor": _ratio(best[1:]),
        "best_anchor": best[0].stem if best[0] != subject.model else "given",
        "sqnr_db": (result.best.verification or result.best.selection).sqnr_db,
        "delivered": result.best.origin,
        "compiles": search["compiles"],
        "measurements": search["measurements"],
        "forecast_error": search["forecast_error"],
        "overhead": search.get("overhead"),
        "wall_s": search["wall_s"],
    }


def _anchor_files(subject: Subject, result: inlay.TuneResult, folder: Path) -> list[Path]:
    """Feasible quantized anchors of the run, as files; the runtime's own quantizer too where it works."""
    files = []
    for anchor in result.anchors:
        row = anchor.as_json()
        if not row["feasible"] or row["name"] not in ("full-int8", "conv-matmul"):
            continue
        path = folder / f"{subject.name}-{row['name']}.onnx"
        try:
            inlay.quantize(subject.model, path, data=subject.samples, recipe=row["name"])
        except InlayError:
            continue
        files.append(path)
    return files


def compiles_to(subject: Subject, folder: Path, budget: float) -> dict[str, Any]:
    """Compiles after which the search had a model within 2 % of the best that a run of 400 compiles finds."""
    long = inlay.tune(
        subject.model, out=folder / f"long-{subject.name}", data=subject.samples, budget=10 * budget, cost_db=False
    )
    short = inlay.tune(
        subject.model,
        out=folder / f"short-{subject.name}",
        data=subject.samples,
        budget=None,
        max_measurements=20,
        cost_db=False,
    )
    row = inlay.bench([long.model_path, short.model_path], data=subject.samples, blocks=12)[1]
    interval = row.speedup
    return {
        "model": subject.name,
        "compiles": short.search["compiles"],
        "compiles_of_the_long_run": long.search["compiles"],
        "short_over_long": _ratio((interval.value, interval.low, interval.high)),
    }


def honesty(runs: int = 1000) -> dict[str, Any]:
    """How often intervals of noise of 3 % with bursts in 10 % of the readings cover the truth, by number of pairs."""
    rng = np.random.default_rng(0)
    found = {}
    for pairs in (8, 24):
        hits = 0
        for _ in range(runs):
            noise = rng.normal(0.0, 0.03, (2, pairs)) + np.log(1.5) * (rng.random((2, pairs)) < 0.1)
            interval = hodges_lehmann(0.02 + noise[0] - noise[1])
            hits += interval.low <= 0.02 <= interval.high
        found[f"coverage_{pairs}_pairs"] = hits / runs
    return found


def _ratio(values: Sequence[float]) -> dict[str, float]:
    value, low, high = values
    return {"value": value, "low": low, "high": high}


def markdown(tables: dict[str, Any]) -> str:
    """The tables as Markdown."""

    def cell(ratio: dict[str, float]) -> str:
        return f"{ratio['value']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"

    lines = ["| model | over the given model | over the best feasible anchor | anchor | SQNR | built | wall |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in tables["quality"]:
        lines.append(
            f"| {row['model']} | {cell(row['over_given'])} | {cell(row['over_best_anchor'])} | {row['best_anchor']} "
            f"| {row['sqnr_db']:.1f} dB | {row['compiles']} | {row['wall_s']:.0f} s |"
        )
    shares = [row["overhead"] for row in tables["quality"] if row["overhead"] is not None]
    lines += ["", f"Overhead (neither building, running nor calibrating), at most: {max(shares, default=0.0):.1%}"]
    lines += ["", f"Geometric mean over the best feasible anchor: {tables['geometric_mean']:.3f}", ""]
    for row in tables.get("compiles", []):
        lines.append(
            f"- {row['model']}: {row['compiles']} compiles reach {cell(row['short_over_long'])} of what "
            f"{row['compiles_of_the_long_run']} reach"
        )
    lines += [f"- {key}: {value:.3f}" for key, value in tables["honesty"].items()]
    return "\n".join(lines) + "\n"


def _collect(rows: list[dict[str, Any]], name: str, make: Callable[[], dict[str, Any]]) -> None:
    try:
        rows.append(make())
    except InlayError as error:  # one model that cannot be tuned must not lose the others' figures
        print(f"{name}: {error}", file=sys.stderr)


def main() -> None:
    """Write ``quality.json`` and ``quality.md``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = os.environ.get("INLAY_MODELS")
    parser.add_argument("--models", type=Path, default=Path(models) if models else None)
    parser.add_argument("--budget", type=float, default=40.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--compiles", action="store_true", help="also compare with long runs (minutes per model)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tables: dict[str, Any] = {"quality": [], "compiles": [], "honesty": honesty()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for subject in subjects(options.models, folder, options.only):
            _collect(tables["quality"], subject.name, lambda s=subject: quality(s, folder, options.budget))
            if options.compiles and subject.name in COMPILES:
                _collect(tables["compiles"], subject.name, lambda s=subject: compiles_to(s, folder, options.budget))
            values = [row["over_best_anchor"]["value"] for row in tables["quality"]]
            tables["geometric_mean"] = float(np.exp(np.mean(np.log(values)))) if values else None
            (options.out / "quality.json").write_text(json.dumps(tables, indent=2) + "\n", encoding="utf8")
            if values:
                (options.out / "quality.md").write_text(markdown(tables), encoding="utf8")


if __name__ == "__main__":
    main()
