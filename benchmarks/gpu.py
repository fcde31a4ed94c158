"""What Inlay delivers on an NVIDIA GPU, against FP16 and against NVIDIA's own tool.

    python -m benchmarks gpu --out FOLDER [--models DIR] [--budget 40] [--only NAME ...] [--modelopt PYTHON] [--limit S]
    python -m benchmarks gpu --wheels

On the first runtime that runs a small model on the GPU of this machine: TensorRT 11, TensorRT for RTX, or where neither
does ONNX Runtime's CUDA provider. Without one it says in a line what each of them lacks. Nothing but wheels is needed;
``--wheels`` lists them with their versions, as pip reads them. A call takes no more than ``--limit`` seconds, 9 minutes
by default, and the same command goes on: each step of a model is made once, and a search that was cut continues.

Anchors: the given model; FP16 wherever the bound allows it; INT8 beside FP16 of all that can be, and of the products
alone; what NVIDIA's tool writes (INT8 and FP16), by itself and with its autotuner. All files of a model are timed in
the same interleaved blocks, and SQNR is that of the GPU against float32 on the CPU, on samples from other sources.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import onnx
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import inlay
from benchmarks import modelopt_peer, paired
from benchmarks.quality import BLOCKS, BOUND_DB, EVALUATION, PROCESSES, anchor, fastest
from benchmarks.render import anchor_lines, decibels, machine, ratio
from benchmarks.rows import OutOfTime, Row, at_most, collect, facts, trained, write_json, write_table
from benchmarks.subjects import Subject
from inlay.data import save_feed
from inlay.deadline import NEVER, Deadline
from inlay.errors import InlayError
from inlay.installed import __version__
from inlay.measure.client import Worker
from inlay.model.load import file_sha256
from inlay.space.recipe import OpConfig, Recipe
from inlay.targets.base import Artifact, TargetSpec, is_estimate
from inlay.targets.registry import create
from inlay.testing import random_feed, residual_model

RUNTIMES = (
    TargetSpec("tensorrt"),
    TargetSpec("tensorrt-rtx"),
    TargetSpec("ort-ep", {"provider": "cuda", "rules": "tensorrt"}),
)
WHEELS = Path(__file__).parents[1] / "requirements" / "gpu.txt"
LIMIT_S, LAST_S = 540.0, 10.0  # of a call; and what of it is left for ending
PEER_S, WRITING_S, MEASURING_S, SEARCHING = 200.0, 60.0, 180.0, 60.0
"""Most seconds of a tool, of the recipes' files, of measuring, and of what a search takes beyond its budget."""

FP16, MODELOPT, AUTOTUNED = "fp16", "ModelOpt", "ModelOpt, autotuned"
RECIPES: Mapping[str, Recipe | str] = {
    FP16: Recipe().set_global(OpConfig(form="fp16")),
    "full-int8": "full-int8",
    "conv-matmul": "conv-matmul",
}
MODES = {MODELOPT: "", AUTOTUNED: "quick"}
"""What NVIDIA's tool is told: the mode of its autotuner."""
ANCHORS = ("given", *RECIPES, *MODES)
OVER = {"over_fp16": FP16, "over_modelopt": MODELOPT, "over_autotuned": AUTOTUNED}


def runtime(specs: tuple[TargetSpec, ...] = RUNTIMES) -> tuple[TargetSpec, Mapping[str, str]]:
    """The first of them that runs a small model on this machine's GPU, and its facts.

    Raises:
        SystemExit: there is none, with one line on what each lacks.
    """
    lacking = []
    for spec in specs:
        try:
            known = create(spec).fingerprint().facts
            if not is_estimate(known):
                _try(spec)
                return spec, known
            why = f"it would estimate times: {known.get('device', 'there is no GPU')}"
        except InlayError as error:
            why = str(error)
        lacking.append(f"{spec.name}: {why}")
    raise SystemExit(
        f"gpu: nothing is timed, as no runtime here runs a model on a GPU: {'; '.join(lacking)}. "
        "What to install: python -m benchmarks gpu --wheels"
    )


def _try(spec: TargetSpec) -> None:
    """Run a small model. Raises TargetError."""
    with tempfile.TemporaryDirectory() as name, Worker(spec, Path(name)) as worker:
        model, feed = Path(name) / "model.onnx", Path(name) / "feed.npz"
        onnx.save(residual_model(), model)
        save_feed(feed, random_feed(residual_model()))
        worker.run(Artifact(model, file_sha256(model)), [feed])


def run(options: argparse.Namespace, until: Deadline | None = None) -> None:
    """``gpu.json`` and ``.md``, of trained models; or the list of wheels.

    Raises:
        SystemExit: no runtime here has a GPU.
    """
    if options.wheels:
        print("\n".join(wheels()))
        return
    until = until or NEVER.within(options.limit - LAST_S)
    spec, known = runtime(RUNTIMES)
    spec = _with_cache(spec, options.out)
    print(f"gpu: {spec.name}, {known.get('device', 'a GPU of no name')}", flush=True)
    python = options.modelopt or (sys.executable if importlib.util.find_spec("modelopt") else "")
    settings = {"budget": options.budget, "modelopt": bool(python), "target": dict(known), "version": __version__}

    def make(subject: Subject, work: Path) -> Row:
        with at_most(until.left):
            return row(subject, work, spec, options.budget, python, until)

    rows = collect("gpu", trained(options), options, make, settings, line, resumes=True)
    found = {"machine": facts(options.budget), "name": spec.name, "target": dict(known), **table(rows)}
    write_table(options.out, "gpu", found, text)


def _with_cache(spec: TargetSpec, folder: Path) -> TargetSpec:
    """With a file for what TensorRT's builder learns, so that an engine is built slowly in its first process alone."""
    if spec.name != "tensorrt":
        return spec
    return TargetSpec(spec.name, {**spec.options, "timing_cache": str((folder / "tensorrt.cache").resolve())})


@dataclass(frozen=True)
class Steps:
    """What a row takes, each made once; what a call has no time left for, the next one makes.

    Attributes:
        file: of what each has found.
        until: when the call ends.
    """

    file: Path
    until: Deadline

    def once(self, name: str, seconds: float, make: Callable[[], Any]) -> Any:
        """What the step has found, now or before. Raises OutOfTime where so many seconds are not left for it."""
        known = json.loads(self.file.read_text(encoding="utf8")) if self.file.exists() else {}
        if name not in known:
            if not self.until.fits(seconds):
                raise OutOfTime(f"{name} may take {seconds:.0f} s, and {self.until.left:.0f} s are left")
            known[name] = make()
            write_json(self.file, known)
        return known[name]


def row(subject: Subject, folder: Path, spec: TargetSpec, budget: float, modelopt: str, until: Deadline) -> Row:
    """Tune one model, and time what is delivered beside every anchor.

    Args:
        subject: the model.
        folder: of its files, and of what earlier calls have found.
        spec: the runtime.
        budget: of the search, in seconds.
        modelopt: a Python that has NVIDIA's tool; empty for none.
        until: when the call ends.

    Raises:
        InlayError: the model cannot be tuned.
        OutOfTime: the next call goes on.
    """
    steps = Steps(folder / "steps.json", until)

    def tune() -> Row:
        result = inlay.tune(
            subject.model,
            out=folder / "tune",
            target=spec,
            data=subject.samples,
            min_sqnr=BOUND_DB,
            budget=budget,
            cost_db=False,
        )
        return {
            "origin": result.best.origin,
            "is_float": result.best.is_float,
            "selection_sqnr_db": result.best.selection.sqnr_db,
            "search": {k: result.search.get(k) for k in ("measurements", "builds", "failed", "wall_s")},
            "stopped_because": result.search["stopped_because"],
        }

    found = steps.once("the search", budget + SEARCHING, tune)
    notes = dict(steps.once("writing recipes", WRITING_S, lambda: paired.quantized(subject, folder, RECIPES, spec)[1]))
    for name, mode in MODES.items():
        path = _file(folder, name)

        def peer(path: Path = path, mode: str = mode) -> str:
            return modelopt_peer.quantize(modelopt, subject.model, subject.samples, path, "fp16", mode, PEER_S)

        notes[name] = steps.once(name, PEER_S, peer) if modelopt else "nvidia-modelopt is not installed"
    measured = steps.once("measuring", MEASURING_S, lambda: _measured(subject, folder, spec, notes))
    return {"model": subject.name, "trained": subject.trained, **found, **measured}


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name.replace(', ', '-')}.onnx"


def _measured(subject: Subject, folder: Path, spec: TargetSpec, notes: Mapping[str, str]) -> Row:
    files = {"given": subject.model, "delivered": folder / "tune" / "model.onnx"}
    files.update({name: path for name in (*RECIPES, *MODES) if (path := _file(folder, name)).exists()})
    targets = dict.fromkeys(files, spec)
    samples = paired.read(subject.samples, subject.model, 1)
    readings = paired.measure(files, samples, BLOCKS, PROCESSES, targets=targets)
    refused = {name: f"makes a model that does not work: {why}" for name, why in readings.failed.items()}
    told = {name: note.replace(f"{folder}/", "") for name, note in {**notes, **refused}.items()}
    files = {name: path for name, path in files.items() if name not in readings.failed}
    evaluation = paired.read(subject.evaluation, subject.model, EVALUATION)
    accuracy = paired.sqnr(files, subject.model, evaluation, targets)
    anchors = [anchor(name, readings, accuracy, told, "given", BOUND_DB) for name in ANCHORS]
    best = fastest(anchors)
    over = {key: readings.ratio(name, "delivered") for key, name in OVER.items() if name in files}
    return {
        "best_anchor": best["name"],
        "over_best_anchor": best["delivered_over"],
        "over_given": readings.ratio("given", "delivered"),
        **over,
        "latency_ms": readings.milliseconds("delivered"),
        "sqnr_db": accuracy["delivered"],
        "feasible": accuracy["delivered"] >= BOUND_DB,
        "anchors": anchors,
    }


def line(row: Mapping[str, Any]) -> str:
    """A row in short."""
    return f"{ratio(row.get('over_fp16'))} over FP16, {ratio(row['over_best_anchor'])} over {row['best_anchor']}"


def table(rows: list[Row]) -> Row:
    """Rows, and geometric means of what is delivered over each anchor."""
    done = [r for r in rows if "error" not in r]
    keys = ("over_given", *OVER, "over_best_anchor")
    means = {key: paired.geometric_mean([r[key] for r in done if r.get(key)]) for key in keys}
    return {"bound_db": BOUND_DB, "rows": rows, "geometric_mean": means, "models": len(done)}


def text(table: Mapping[str, Any]) -> str:
    """The table as Markdown."""
    known = ", ".join(f"{key} {value}" for key, value in table["target"].items() if value)
    titles = (
        "over the given model",
        "over FP16",
        "over ModelOpt's PTQ",
        "over its autotuner",
        "over the best feasible",
    )
    lines = [
        f"# On a GPU: {table['target'].get('device', table['name'])}",
        "",
        f"`{table['name']}`: {known}. {machine(table['machine'])}",
        "Speed-ups are paired ratios from the same blocks with 95 % intervals; the bound is "
        f"{table['bound_db']:.0f} dB on samples from other sources than those given, computed on the GPU. The "
        "best anchor is the fastest within it. \\* seeded weights.",
        "",
        f"| model | {' | '.join(titles)} | which | SQNR | built |",
        "|---|" + "---|" * (len(titles) + 3),
    ]
    keys = ("over_given", *OVER, "over_best_anchor")
    for found in table["rows"]:
        if "error" in found:
            lines.append(f"| {found['model']} | fails: {found['error']} |" + " |" * (len(titles) + 2))
            continue
        cells = [ratio(found.get(key)) for key in keys]
        quality = decibels(found["sqnr_db"]) + ("" if found["feasible"] else " (not within the bound)")
        name = found["model"] + ("" if found["trained"] else "\\*")
        cells += [found["best_anchor"], quality, found["search"]["builds"]]
        lines.append(f"| {name} | " + " | ".join(map(str, cells)) + " |")
    lines += ["", f"Geometric means, {table['models']} models:", ""]
    lines += [
        f"- {title}: {ratio(mean)}"
        for title, key in zip(titles, keys, strict=True)
        if (mean := table["geometric_mean"][key]) is not None
    ]
    lines += ["", "| model | anchor | over the given model | SQNR | feasible | note |", "|---|---|---|---|---|---|"]
    return "\n".join([*lines, *anchor_lines(table), ""])


def wheels() -> Iterator[str]:
    """Requirements of a machine that has a GPU, its driver and Python, and nothing else; in pip's form."""
    yield f"# For Python {platform.python_version()}. Install with: pip install --no-deps -r FILE"
    yield f"inlay=={__version__}"
    yield from sorted(f"{name}=={found}" for name, found in _needed().items())
    yield WHEELS.read_text(encoding="utf8").rstrip()


def _needed() -> Mapping[str, str]:
    """The installed versions of what ``inlay[bench]`` asks for, directly or not, but for ONNX Runtime."""
    found: dict[str, str] = {}
    waiting = [("inlay", "bench")]
    while waiting:
        of, extra = waiting.pop()
        for need in map(Requirement, requires(of) or ()):
            asked = need.marker is None or need.marker.evaluate({"extra": extra})
            with suppress(PackageNotFoundError):  # of an extra that is not installed
                if asked and (name := canonicalize_name(need.name)) not in found:
                    found[name] = version(name)
                    waiting += [(name, each) for each in ("", *need.extras)]
    del found["onnxruntime"]  # the one with the CUDA provider takes its place
    return found
