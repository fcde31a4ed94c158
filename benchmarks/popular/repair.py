"""The table ``shipped``: int8 files as their makers ship them, explained and repaired, and what that brings."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import paired
from benchmarks.popular import judge
from benchmarks.popular.packages import PACKAGES
from benchmarks.popular.row import megabytes, tuned
from benchmarks.popular.table import cell, packages_of
from benchmarks.popular.task import EVALUATION, SAMPLES, Records, Task, judged
from benchmarks.render import machine, ratio
from benchmarks.subjects import Subject
from inlay.errors import ModelError
from inlay.model.load import load
from inlay.model.store import WeightStore, externalize_weights
from inlay.prepare.candidate_writer import deliver
from inlay.prepare.strip_qdq import holds_quantized, strip_qdq
from inlay.targets.base import TargetSpec

Row = dict[str, Any]

GIVEN, FLOAT, REPAIRED, TUNED = "as shipped", "the float model in it", "repaired", "tuned"
WANTED = 1.3
_PROCESSES, _BLOCKS, _TIMED_S = 3, 12, 300.0
_LIMIT_S = 2400.0


def row(task: Task, cache: Path, folder: Path, budget: float, threads: int, _nncf: str | None) -> Row:
    """Fetch, explain and repair as a user does, time all in the same blocks, and judge each on unseen samples.

    Raises:
        OSError: a package cannot be fetched, or the command fails.
        InlayError: the file cannot be measured.
    """
    folder.mkdir(parents=True, exist_ok=True)
    task.make(cache, folder)
    given, repaired, inner = (folder / f"{name}.onnx" for name in ("model", "repaired", "float"))
    begun = time.monotonic()
    repairable = holds_quantized(load(given))
    if repairable:
        found = _explained(folder, budget, threads)
        _write_float(given, folder, inner)
        files = {GIVEN: given, FLOAT: inner}
        if found["repair"]["written"]:
            files[REPAIRED] = repaired
    else:  # whatever its weights are stored as, it runs in float
        found = _tuned(task, folder, budget, threads)
        files = {GIVEN: given, FLOAT: given, TUNED: folder / "tune" / "model.onnx"}
    wall_s = round(time.monotonic() - begun, 1)
    target = TargetSpec(paired.TARGET.name, {"threads": threads})
    blocks = max(3, min(_BLOCKS, int(_TIMED_S * 1e3 / (_PROCESSES * len(files) * found["latency_ms"]))))
    samples = paired.read(folder / SAMPLES, given, 1)
    readings = paired.measure(files, samples, blocks, _PROCESSES, targets=dict.fromkeys(files, target))
    records = {name: judge.records(task.name, folder, path, threads) for name, path in files.items()}
    entries: list[Row] = [
        {
            "name": name,
            "mb": megabytes(path),
            "ms": readings.milliseconds(name),
            "over_given": readings.ratio(GIVEN, name),
            "metric": _against(task, records[name], records[GIVEN], records[FLOAT]),
        }
        for name, path in files.items()
    ]
    done = entries[-1] if len(entries) > 2 else None
    return {
        "model": task.name,
        "packages": {n: [PACKAGES[n].version, PACKAGES[n].sha256, PACKAGES[n].licence] for n in task.packages},
        "metric": {"name": task.metric, "higher": task.higher},
        "files": entries,
        "slower": _slower(found),
        "repair": {k: found["repair"][k] for k in ("written", "problem", "given_db", "repaired_db", "speedup")},
        "reached": done is not None and done["over_given"]["value"] >= WANTED and done["metric"]["loss_low"] <= 0.0,
        "run": {"budget_s": budget, "wall_s": wall_s},
    }


def _explained(folder: Path, budget: float, threads: int) -> Row:
    words = ["explain", str(folder / "model.onnx"), "--data", str(folder / SAMPLES), "--budget", f"{budget:g}s"]
    words += ["--repair", str(folder / "repaired.onnx"), "--threads", str(threads), "--json"]
    command = [sys.executable, "-m", "inlay", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode:
        lines = [t for t in done.stderr.splitlines() if t.strip()]
        raise OSError(lines[-1] if lines else f"exit code {done.returncode}")
    found: Row = json.loads(done.stdout)
    return found


def _tuned(task: Task, folder: Path, budget: float, threads: int) -> Row:
    """What ``inlay tune`` makes of a file that holds no Q/DQ nodes, in the terms of an explanation."""
    subject = Subject(task.name, folder / "model.onnx", folder / SAMPLES, folder / EVALUATION, task.trained)
    ran = tuned(subject, folder, budget, threads, task.options)
    if "best" not in ran:
        raise OSError(ran["said"])
    best = ran["best"]
    repair = {"written": True, "problem": "", "given_db": None, "repaired_db": best["sqnr_db"], "speedup": None}
    return {"repair": repair, "operators": [], "kernels_ms": 1.0, "latency_ms": 10.0}


def _write_float(given: Path, folder: Path, inner: Path) -> None:
    """The float model in a file. Raises ModelError where it has none."""
    file, store = load(given), WeightStore(folder)
    apart = strip_qdq(file, paired.read(folder / SAMPLES, given, 1).feeds[:1], folder)
    if apart is None or apart.opaque:
        raise ModelError(f"{given.name} holds no float model: {apart.opaque if apart else 'it is one'}")
    deliver(externalize_weights(apart.model, store), store, inner)


def _against(task: Task, mine: Records, given: Records, floats: Records) -> dict[str, float]:
    """The measure, with its loss against the given file; where it is one against float, both are that."""
    ours, theirs = ([task.pair(a, f) for a, f in zip(each, floats, strict=True)] for each in (mine, given))
    return judged(replace(task, pair=lambda record, _: record), ours, theirs).as_json()


def _slower(found: Row) -> list[Row]:
    """Operators that take more on integers than in float, by kind and kernel, the dearest first."""
    groups: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for operator in found["operators"]:
        if operator["float_ms"] is not None and operator["cost_ms"] > operator["float_ms"]:
            groups[operator["op_type"], operator["kernel"]].append(operator)
    rows = [
        {
            "op_type": op_type,
            "kernel": kernel,
            "count": len(members),
            "share": sum(o["cost_ms"] for o in members) / found["kernels_ms"],
            "float_share": sum(o["float_ms"] for o in members) / found["kernels_ms"],
        }
        for (op_type, kernel), members in groups.items()
    ]
    return sorted(rows, key=lambda r: float(r["float_share"]) - float(r["share"]))


# --- the table -------------------------------------------------------------------------------------------------------


def table(rows: list[Row]) -> Row:
    """Rows, how many of them reach what is wanted, and the geometric mean of what repairs bring."""
    done = [f["over_given"] for r in rows for f in r.get("files", ()) if f["name"] in (REPAIRED, TUNED)]
    return {
        "rows": rows,
        "reached": [sum(bool(r.get("reached")) for r in rows), len(rows)],
        "geometric_mean": paired.geometric_mean(done),
    }


def text(found: Mapping[str, Any]) -> str:
    """What repairs bring, why files are slow, and what was fetched."""
    lines = [
        "# Shipped int8 files, repaired",
        "",
        machine(found["machine"]),
        "Int8 files out of public packages, as their makers ship them; `inlay explain FILE --repair OUT` writes a file "
        "that is faster and, on the samples that it is given, no less accurate against the float model in the file. "
        "Ratios are paired, from the same interleaved blocks, with 95 % intervals. Metrics are of samples that the "
        "repair had not seen, with the loss against the shipped file (paired bootstrap over samples; less than nothing "
        "is a gain).",
        "",
        "| file | repaired over shipped | float over shipped | metric | shipped | repaired | loss "
        "| SQNR, shipped → repaired | run |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in found["rows"]:
        lines.append(_line(each))
    reached, count = found["reached"]
    mean = found["geometric_mean"]
    lines += ["", f"At least {WANTED}x at a metric that is not shown to be worse: {reached} of {count}."]
    lines += [f"Geometric mean of the repaired ones: {ratio(mean)}."] if mean else []
    lines += [
        "",
        "## Why they are slow",
        "",
        "Operators that take more on integers than in float, of the file's time:",
        "",
    ]
    for each in found["rows"]:
        for group in each.get("slower", ())[:3]:
            what = f"{group['count']} x {group['op_type']} as {group['kernel']}"
            lines.append(f"- {each['model']}: {what}: {group['share']:.0%}; in float {group['float_share']:.0%}")
    lines += ["", "## Files", "", "| model | file | over shipped | latency | size |", "|---|---|---|---|---|"]
    for each in found["rows"]:
        for file in each.get("files", ()):
            timed = f"{ratio(file['over_given'])} | {file['ms']:.3g} ms | {file['mb']:.1f} MB"
            lines.append(f"| {each['model']} | {file['name']} | {timed} |")
    return "\n".join([*lines, "", *packages_of(found["rows"])]) + "\n"


def line(each: Row) -> str:
    """A row in brief, for a log."""
    done = next((f for f in each["files"] if f["name"] in (REPAIRED, TUNED)), None)
    return f"{ratio(done['over_given'])} over the shipped file" if done else str(each["repair"]["problem"])


def _line(each: Row) -> str:
    if "error" in each:
        return f"| {each['model']} | fails: {cell(each['error'])} | | | | | | | |"
    files = {f["name"]: f for f in each["files"]}
    done, repair = files.get(REPAIRED) or files.get(TUNED), each["repair"]
    gain = ratio(done["over_given"]) if done else f"none: {cell(repair['problem'])}"
    gain += " (`inlay tune`: it holds no Q/DQ nodes)" if TUNED in files else ""
    loss = "{loss:.4f} [{loss_low:.4f}, {loss_high:.4f}]".format(**done["metric"]) if done else ""
    values = [f"{f['metric']['value']:.4f}" if f else "" for f in (files[GIVEN], done)]
    decibels = f"{_decibels(repair['given_db'])} → {_decibels(repair['repaired_db']) if done else '—'}"
    return (
        f"| {each['model']} | {gain} | {ratio(files[FLOAT]['over_given'])} | {each['metric']['name']} | {values[0]} "
        f"| {values[1]} | {loss} | {decibels} | {each['run']['wall_s']:.0f} s |"
    )


def _decibels(value: float | None) -> str:
    return "as float" if value is None or value > 100 else f"{value:.1f} dB"
