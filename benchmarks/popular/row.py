"""One row: a popular model as users would quantize it, and as ``inlay tune`` delivers it from a cold start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import paired, quality
from benchmarks.budgets import LEAST
from benchmarks.popular import evaluate, judge
from benchmarks.popular.packages import PACKAGES
from benchmarks.popular.task import Records, Task, judged
from benchmarks.subjects import Subject
from inlay.errors import UNPROVEN
from inlay.targets.base import TargetSpec

BLOCKS, PROCESSES = 12, 3
METHODS = {
    "quantize_static": "static",
    "quantize_static, Conv/MatMul/Gemm": "products",
    "quantize_dynamic": "dynamic",
}
FLOAT, OURS, SHIPPED = "float", "Inlay", "shipped"
NOTHING = "none of them"
_WITH_A_RESULT = (0, UNPROVEN)
"""Exit codes of a run that delivered something; 3 where its accuracy is not shown."""
_PERIOD_S = 1.0


def row(task: Task, cache: Path, folder: Path, budget: float, threads: int, nncf: str | None) -> dict[str, Any]:
    """Fetch, tune, quantize by other tools, time all files in the same blocks, and judge each on unseen samples.

    Raises:
        OSError: a package cannot be fetched, or the float model or the run fails.
        InlayError: the float model cannot be measured.
    """
    subject = task.laid(cache, folder)
    begun = time.monotonic()
    ran = tuned(subject, folder, budget, threads, (*task.options, *evaluate.options(task, folder)))
    files, notes = quality.by_others(subject, folder, nncf, METHODS)
    files.update({f"{SHIPPED}: {p.stem.partition('_')[2]}": p for p in sorted(folder.glob(f"{SHIPPED}_*.onnx"))})
    if (folder / "tune" / "model.onnx").exists():
        files[OURS] = folder / "tune" / "model.onnx"
    else:
        notes[OURS] = f"fails: {ran['said']}"
    files = {FLOAT: subject.model, **files}
    floats = judge.records(task.name, folder, subject.model, threads)
    target = TargetSpec(paired.TARGET.name, {"threads": threads})
    samples = paired.read(subject.samples, subject.model, 1)
    readings = paired.measure(files, samples, BLOCKS, PROCESSES, targets=dict.fromkeys(files, target))
    notes.update({name: f"makes a model that does not work: {why}" for name, why in readings.failed.items()})
    entries = []
    for name, path in files.items():
        entry: dict[str, Any] = {"name": name, "feasible": False, "mb": megabytes(path)}
        if name not in readings.failed:
            entry.update(over_float=readings.ratio(FLOAT, name), ms=readings.milliseconds(name))
            entry.update(_quality(task, folder, path, floats, threads))
        entries.append({**entry, "note": _plain(notes.get(name) or entry.get("note", ""), folder)})
    entries += [
        {"name": n, "feasible": False, "note": _plain(why, folder)} for n, why in notes.items() if n not in files
    ]
    return {
        "model": task.name,
        "trained": task.trained,
        "packages": {n: [PACKAGES[n].version, PACKAGES[n].sha256, PACKAGES[n].licence] for n in task.packages},
        "metric": {"name": task.metric, "higher": task.higher, "bound": task.bound},
        "files": entries,
        "run": {k: v for k, v in ran.items() if k != "said"},  # in a note where it failed
        "wall_s": round(time.monotonic() - begun, 1),
        **_verdict(entries, readings),
    }


def tuned(subject: Subject, folder: Path, budget: float, threads: int, options: tuple[str, ...]) -> dict[str, Any]:
    """``inlay tune`` as a user calls it: what it took, and what it says in its result.

    A budget that the command refuses as too short for the model is followed by the least that it asks for.
    """
    found = _tuned(subject, folder, budget, threads, options)
    asked = LEAST.search(found["said"])
    if asked and found["exit_code"] not in _WITH_A_RESULT:
        return {**_tuned(subject, folder, float(asked[1]), threads, options), "refused_s": budget}
    return found


def _tuned(subject: Subject, folder: Path, budget: float, threads: int, options: tuple[str, ...]) -> dict[str, Any]:
    out = folder / "tune"
    words = ["tune", str(subject.model), "-o", str(out), "--data", str(subject.samples), "--budget", f"{budget:g}s"]
    command = [sys.executable, "-m", "inlay", *words, "--threads", str(threads), "--no-cost-db", "--quiet", "--restart"]
    begun = time.monotonic()
    command += options
    with (folder / "tune.log").open("w+", encoding="utf8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        peak = _peak_memory(process)
        log.seek(0)
        said = [line.strip() for line in log if line.strip()]
    found: dict[str, Any] = {
        "exit_code": process.returncode,
        "budget_s": budget,
        "wall_s": round(time.monotonic() - begun, 1),
        "peak_mb": round(peak / 1e6),
        "said": (said[-1] if said else f"exit code {process.returncode}")[:300],
    }
    if process.returncode in _WITH_A_RESULT:
        result = json.loads((out / "result.json").read_text(encoding="utf8"))
        kept = ("speedup", "speedup_low", "speedup_high", "sqnr_db", "is_float", "qdq_pairs")
        found["best"] = {k: result["best"].get(k) for k in kept}
        found["stopped_because"] = result["search"]["stopped_because"]
    return found


def _quality(task: Task, folder: Path, path: Path, floats: Records, threads: int) -> dict[str, Any]:
    try:
        found = judged(task, judge.records(task.name, folder, path, threads), floats)
    except (OSError, ValueError) as error:
        return {"note": f"cannot be judged: {error}"}
    return {"metric": found.as_json(), "feasible": found.loss <= task.bound}


def _verdict(entries: list[dict[str, Any]], readings: paired.Readings) -> dict[str, Any]:
    """The fastest of what people have within the bound, and what Inlay delivers over it, over float and what ships.

    Where nothing of theirs is within it, there is nothing to be over.
    """
    ours = next((e for e in entries if e["name"] == OURS and "ms" in e), None)
    feasible = [e for e in entries if e["feasible"] and e["name"] != OURS and "ms" in e]
    best = max(feasible, key=lambda e: float(e["over_float"]["value"]), default={"name": NOTHING})["name"]
    if ours is None:
        return {"best": best, "feasible": False, "over_best": None, "over_float": None, "over_shipped": {}}
    shipped = [e["name"] for e in entries if e["name"].startswith(SHIPPED) and "ms" in e]
    return {
        "best": best,
        "feasible": ours["feasible"],
        "over_best": None if best == NOTHING else readings.ratio(best, OURS),
        "over_float": readings.ratio(FLOAT, OURS),
        "over_shipped": {name: readings.ratio(name, OURS) for name in shipped},
    }


def megabytes(path: Path) -> float:
    """Of a model's file, with the files of its weights beside it."""
    beside = [p for p in path.parent.glob(f"{path.name}*") if p != path]
    return round(sum(p.stat().st_size for p in (path, *beside)) / 1e6, 1)


def _plain(note: str, folder: Path) -> str:
    return note.replace(f"{folder}{os.sep}", "")


# --- memory of a run -------------------------------------------------------------------------------------------------


def _peak_memory(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process; the most bytes that it and its descendants held at a time, shared pages counted once."""
    peak = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(_PERIOD_S):
            peak = max(peak, sum(map(_proportional, _descendants(process.pid))))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        process.wait()
    finally:
        ended.set()
        watcher.join()
    return peak


def _descendants(root: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        children.setdefault(int(words[1]), []).append(int(folder.name))
    waiting = [root]
    while waiting:
        yield (found := waiting.pop())
        waiting += children.get(found, [])


def _proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
