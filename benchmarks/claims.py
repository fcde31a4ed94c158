"""Whether stated speed-ups hold when others measure them: alone in a process, or in turn with other models.

    python -m benchmarks claims [--models DIR] [--only NAME ...] [--budget 40] [--restart]

Each model is tuned once. ONNX Runtime alone then times the given and the delivered file in the two ways that people
do, without any of Inlay's code: each in a loop in fresh processes of its own, and single inferences in turn with those
of other models, which have used the caches. A claim holds where its interval and the judge's have a value in common.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from scipy import stats

import inlay
from benchmarks import light_models, subjects
from benchmarks.render import ratio
from benchmarks.subjects import Subject
from inlay.data import input_specs, read_samples
from inlay.model.load import load
from inlay.search.baselines import ORIGINAL
from inlay.testing.models import Builder

NETS = tuple(f"net_{i:02d}" for i in range(17))
TURNS, BLOCKS, BLOCK_S = 5, 3, 0.4  # processes of each file in turn, and blocks of a loop in each
ROUNDS, SHORTEST, LONGEST_S = 200, 20, 7.0  # single inferences of each of the models in turn
WAYS = ("in a loop", "in turn with others")


def net(seed: int) -> onnx.ModelProto:
    """A convolutional net of a random shape: residual, branching or separable blocks, and a classifier."""
    rng = np.random.default_rng([seed, 40])
    b = Builder(seed=seed)
    side = int(rng.choice([64, 96, 128, 160]))
    x = b.conv("stem", b.input("x", (1, 3, side, side)), int(rng.choice([16, 24, 32])), stride=2, relu=True)
    for i in range(int(rng.integers(4, 12))):
        kind, width = rng.choice(["residual", "branching", "separable"]), b.channels(x)
        if kind == "residual":
            inner = b.conv(f"in{i}", x, width, relu=True)
            x = b.node(f"relu{i}", "Relu", [b.node(f"add{i}", "Add", [b.conv(f"out{i}", inner, width), x])])
        elif kind == "branching":
            narrow = b.conv(f"one{i}", x, width // 2, kernel=1, relu=True)
            x = b.concat(f"join{i}", [narrow, b.conv(f"three{i}", narrow, width // 2, relu=True)])
        else:
            wide = b.conv(f"expand{i}", x, 4 * width, kernel=1, relu=True)
            x = b.conv(f"project{i}", b.conv(f"depth{i}", wide, 4 * width, group=4 * width, relu=True), width, kernel=1)
        if rng.random() < 0.3 and side > 12:
            side, width = side // 2, min(256, 2 * width)
            x = b.conv(f"down{i}", x, width, stride=2, relu=True)
    b.output(b.classifier("head", x, 40))
    return b.model()


def made(name: str, folder: Path) -> Subject:
    """One of :data:`NETS`, with 24 samples in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    model, data = folder / f"{name}.onnx", folder / "samples.npz"
    proto = net(int(name.removeprefix("net_")))
    onnx.save(proto, model)
    side = proto.graph.input[0].type.tensor_type.shape.dim[2].dim_value
    np.savez(data, x=light_models.samples(24, 0, side)[:, None])
    return Subject(name, model, data, data, False)


@dataclass(frozen=True)
class Judged:
    """The delivered model's speed-up by the judge, with a 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, logs: np.ndarray) -> Judged:
        """From logarithms of ratios that do not depend on each other, shape (count,)."""
        mean, error = float(logs.mean()), float(logs.std(ddof=1)) / len(logs) ** 0.5
        reach = float(stats.t.ppf(0.975, len(logs) - 1)) * error
        return cls(*(float(np.exp(mean + d)) for d in (0.0, -reach, reach)))


def row(subject: Subject, work: Path, budget: float) -> dict[str, Any]:
    """One model: what its run claims, and what the judge finds."""
    result = inlay.tune(subject.model, data=subject.samples, out=work / "out", budget=budget, accept_unproven=True)
    best = result.best
    claims = {"loop": _interval(best.speedup)} | {u.name: _interval(u.speedup) for u in best.uses if u.name == "cold"}
    found: dict[str, Any] = {"model": subject.name, "trained": subject.trained, "origin": best.origin, "claims": claims}
    if best.origin == ORIGINAL:
        return {**found, "kept": True}
    feed = work / "feed.npz"
    np.savez(feed, **_first(subject.model, subject.samples))
    files = [str(subject.model), str(work / "out" / "model.onnx"), *_others(work)]
    judged = {WAYS[0]: _in_a_loop(files[:2], feed), WAYS[1]: _in_turn(files, feed)}
    return {**found, "kept": False, "judged": {k: asdict(v) for k, v in judged.items()}}


def _first(model: Path, samples: Path) -> Mapping[str, np.ndarray]:
    return read_samples(samples, input_specs(load(model).model)).feeds[0]


def _interval(found: Any) -> dict[str, float]:
    return {"value": found.value, "low": found.low, "high": found.high}


def _others(work: Path) -> list[str]:
    """Three nets, and what they are fed, that the caches are shared with."""
    paths = []
    for name in ("squeezenet", "vit", "lstm"):
        model = subjects.make(name, None, work / "others" / name).model
        np.savez(model.with_suffix(".npz"), **_first(model, model.parent / "samples.npz"))
        paths.append(str(model))
    return paths


def _in_a_loop(files: Sequence[str], feed: Path) -> Judged:
    """Fresh processes in turn, each of which runs one file in a loop."""
    ns = [[float(np.median(_ask("loop", feed, [f])[0])) for f in files] for _ in range(TURNS)]
    return Judged.of(np.log([given / delivered for given, delivered in ns]))


def _in_turn(files: Sequence[str], feed: Path) -> Judged:
    """Single inferences of all files in a random order, in two processes; a ratio for each fifth of each."""
    logs = []
    for _ in range(2):
        given, delivered = (np.array_split(np.array(ns), 5) for ns in _ask("turns", feed, files)[:2])
        logs += [np.log(np.median(a) / np.median(b)) for a, b in zip(given, delivered, strict=True)]
    return Judged.of(np.array(logs))


def _ask(how: str, feed: Path, files: Sequence[str]) -> list[list[float]]:
    """Nanoseconds by file, from a new process."""
    command = [sys.executable, "-m", "benchmarks.claims", how, str(feed), *files]
    return list(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def _judge(how: str, feed: str, *files: str) -> list[list[float]]:
    """In the new process: nanoseconds of each file, means of blocks of a loop or single inferences in turn."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    runs = []
    for i, path in enumerate(files):
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        given = np.load(feed if i < 2 else Path(path).with_suffix(".npz"))
        wanted = {v.name: np.asarray(given[v.name]) for v in session.get_inputs()}
        runs.append((session, wanted))

    def once(i: int) -> float:
        session, wanted = runs[i]
        begun = time.perf_counter_ns()
        session.run(None, wanted)
        return float(time.perf_counter_ns() - begun)

    took = [min(once(i) for _ in range(3)) for i in range(len(runs))]
    if how == "loop":
        repeats = max(1, round(BLOCK_S * 1e9 / took[0]))
        return [[float(np.mean([once(0) for _ in range(repeats)])) for _ in range(BLOCKS + 1)][1:]]
    rounds = int(np.clip(LONGEST_S * 1e9 / sum(took), SHORTEST, ROUNDS))
    rng = np.random.default_rng()
    found: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for i in rng.permutation(len(runs)):
            found[i].append(once(int(i)))
    return found


def holds(claims: Mapping[str, Mapping[str, float]], way: str, judged: Mapping[str, float]) -> bool:
    """Whether a claim and what was judged have a value in common.

    Other models leave more in the caches than work that writes to all of them: in turn with them, the truth lies
    between the claims for a loop and for cold caches, where there are both.
    """
    stated = [claims["loop"]] if way == WAYS[0] else list(claims.values())
    low, high = min(c["low"] for c in stated), max(c["high"] for c in stated)
    return low <= judged["high"] and judged["low"] <= high


def table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows, and how many claims hold."""
    told = [r for r in rows if not r.get("error") and not r["kept"]]
    kept = sum(1 for r in rows if r.get("kept"))
    held = {way: sum(holds(r["claims"], way, r["judged"][way]) for r in told) for way in WAYS}
    off = {way: [r["judged"][way]["value"] / r["claims"]["loop"]["value"] for r in told] for way in WAYS}
    mean = {way: float(np.exp(np.mean(np.log(v)))) for way, v in off.items() if v}
    return {"rows": list(rows), "claims": len(told), "kept": kept, "held": held, "judged_over_claimed": mean}


def line(row: Mapping[str, Any]) -> str:
    """A row in a few words."""
    if row["kept"]:
        return "the given file is kept"
    said = ratio(row["claims"]["loop"])
    return f"{said}; " + ", ".join(f"{way} {ratio(row['judged'][way])}" for way in WAYS)


def markdown(found: Mapping[str, Any]) -> str:
    """The table for people."""
    lines = [
        "# Claims, judged by others",
        "",
        "A run's claims, and what ONNX Runtime alone finds for the given and the delivered file: each in a loop in",
        "fresh processes of its own, and single inferences in turn with those of three other models. A claim holds",
        "where its interval and the judge's have a value in common; in turn with others, the truth lies between the",
        "claims for a loop and for cold caches, where a run had time for the latter. `!`: it does not hold.",
        "",
        "| model | claimed | claimed, cold | " + " | ".join(f"judged {way}" for way in WAYS) + " |",
        "|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        if row.get("error") or row["kept"]:
            lines.append(f"| {row['model']} | {row.get('error') or 'the given file is kept'} | | | |")
            continue
        claims, judged = row["claims"], row["judged"]
        cells = [ratio(claims["loop"]), ratio(claims.get("cold"))]
        cells += [ratio(judged[w]) + ("" if holds(claims, w, judged[w]) else " !") for w in WAYS]
        lines.append(f"| {row['model']} | {' | '.join(cells)} |")
    lines += ["", f"The given file is kept of {found['kept']}; of {found['claims']} claims:", ""]
    for way, held in found["held"].items() if found["claims"] else ():
        low, high = stats.binomtest(held, found["claims"]).proportion_ci()
        mean = found["judged_over_claimed"][way]
        said = f"{held} of {found['claims']} hold, {held / found['claims']:.0%} [{low:.0%}, {high:.0%}]"
        lines.append(f"- {way}: {said}; judged over claimed {mean:.3f} in the geometric mean")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(json.dumps(_judge(*sys.argv[1:])))
