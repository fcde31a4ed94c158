"""Does a run contradict itself? Verdict, table, notes and JSON of runs on a busy machine, against each other and truth.

    python -m benchmarks.one_story [--models DIR] [--runs 10] [--budget 40] [--load 2] [--out DIR]
    python -m benchmarks.one_story --simulated 200

Each run is ``inlay tune`` on one of five small models, beside processes that compute in random bursts. What it prints
and what it writes must agree (:func:`contradictions`), and so must both with a long paired measurement of the same
files behind each run (:func:`refuted`), on the same machine beside the same load. ``--simulated`` does the same on the
``null`` target, whose every cost is known, in budgets that are too short in part and on machines that become slower
meanwhile.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import honesty, paired
from benchmarks.quality import RECIPES
from benchmarks.rows import Row, facts, write_table
from benchmarks.simulated import Clock, simulated
from benchmarks.subjects import Subject, default_models, make
from inlay.cli.render import verdict
from inlay.cli.terminal import laid_out
from inlay.data import input_specs, read_samples
from inlay.errors import TooShort
from inlay.model.load import load as read_model
from inlay.prepare.config import TuneConfig
from inlay.run.confirm.undecided import NOTABLE
from inlay.run.inputs import TuneRequest
from inlay.run.result import TuneResult
from inlay.run.tune import tune
from inlay.search.baselines import ORIGINAL
from inlay.targets.base import TargetSpec
from inlay.targets.null import NullTarget
from inlay.trial import UNTOLD

MODELS = ("mnist", "ppocr_cls", "g2p_bert", "stm_mbv2_flowers", "fastestdet")
_WITH_A_RESULT = (0, 3)
"""Exit codes of a run that delivered something; 3 where its accuracy is not shown."""
_PROCESSES = 12
"""Of the long measurement: single processes differ by percents."""
_ROUNDING = 0.006  # of a printed ratio, half a unit of its last digit and a little
_ROW = re.compile(r"^  (\S.*?)  +(at most )?([\d.]+) ms  +(?:at least )?([\d.]+)x(?: \[[\d.]+, [\d.]+\]| \([^)]*\))?  ")
_GAIN = re.compile(
    r"Verdict.*?: (at least )?([\d.]+)x(?: \[[\d.]+, [\d.]+\]| \([^)]*\))? over the given model "
    r"\(([\d.]+) ms -> (?:at most )?([\d.]+) ms\)"
)
_BARE = re.compile(r"(?<![\d.])(?<!at least )(\d+\.\d\d)x(?! \[)")


def text_of(result: TuneResult) -> str:
    """What ``inlay tune`` prints at its end."""
    return "\n".join(laid_out(verdict(result)))


def contradictions(text: str, result: Mapping[str, Any]) -> list[str]:
    """What a run's text and its ``result.json`` say against themselves or each other.

    Args:
        text: what it printed.
        result: what it wrote.
    """
    return [*_of_json(result), *_of_text(text, result)]


def _of_json(result: Mapping[str, Any]) -> Iterator[str]:
    best, base_ms = result["best"], result["baseline"]["latency_ms"]
    named = {a["name"]: a for a in result["anchors"]}
    for name, figures in [*named.items(), ("best", best), *(("point " + p["origin"], p) for p in result["pareto"])]:
        ms, gain = figures.get("latency_ms"), figures.get("speedup")
        if (ms is None) != (gain is None):
            yield f"{name}: a latency without a speed-up, or the reverse"
        elif ms is not None and not math.isclose(base_ms / ms, gain, rel_tol=1e-6):
            yield f"{name}: {base_ms} ms over {ms} ms is not {gain}"
        if gain is not None and "speedup_high" in figures and figures["speedup_high"] is None:
            yield f"{name}: a speed-up without an interval"
    if best["origin"] == ORIGINAL and best["speedup"] != 1.0:
        yield f"the given model is {best['speedup']} times as fast as itself"
    kept = best["origin"] == ORIGINAL and best["confirmed"]
    if kept and result["undecided"]:
        yield "undecided, and confirmed"
    for name, a in named.items():
        if (
            kept
            and a["feasible"]
            and a["speedup"] is not None
            and a["speedup_low"] > NOTABLE
            and not _lost(name, result)
        ):
            yield f"nothing is faster, confirmed, beside {name} {a['speedup']:.2f}x from {a['speedup_low']:.2f}"
        if name == best["origin"] and a["speedup"] is not None and a["speedup"] != best["speedup"]:
            yield f"{name} is {a['speedup']:.3f}x in the table and {best['speedup']:.3f}x in the verdict"
    for name in result["not_timed"]:
        if named.get(name, {}).get("speedup") is not None:
            yield f"{name} was not timed and has a speed-up"


def _lost(name: str, result: Mapping[str, Any]) -> bool:
    """Whether a note says that an anchor failed on unseen samples or in fresh processes."""
    return any(
        note.startswith((f"{name} was faster, but on unseen", f"{name} was given up")) for note in result["notes"]
    )


def _of_text(text: str, result: Mapping[str, Any]) -> Iterator[str]:
    base_ms = result["baseline"]["latency_ms"]
    named = {a["name"]: a for a in result["anchors"]}
    for line in text.splitlines():
        if (row := _ROW.match(line)) and row[1] in named:
            ms, gain, figures = float(row[3]), float(row[4]), named[row[1]]
            told = figures["speedup_low"] if row[2] else figures["speedup"]  # of a wide interval the lower bound alone
            if abs(base_ms / ms - gain) > _ROUNDING + gain * 0.0006 / ms:
                yield f"table: {row[1]} {ms} ms beside {gain}x of {base_ms:.4f} ms"
            if abs(told - gain) > _ROUNDING or abs(base_ms / told - ms) > 0.0006:
                yield f"table and JSON differ in {row[1]}"
        if said := _GAIN.search(line):
            gain, before, after = map(float, said.groups()[1:])
            told = result["best"]["speedup_low"] if said[1] else result["best"]["speedup"]
            if abs(before / after - gain) > _ROUNDING + gain * 0.0012 / after:
                yield f"verdict: {before} -> {after} ms is not {gain}x"
            if abs(told - gain) > _ROUNDING:
                yield "verdict and JSON differ"
        for bare in _BARE.findall(line):
            exact = {round(f["speedup"], 2) for f in [*named.values(), result["best"]] if _is_exact(f)}
            if float(bare) not in {1.0, *exact}:
                yield f"a number without an interval: {line.strip()}"
    sure = result["best"]["confirmed"] and not result["undecided"]
    if "float is best" in text and "no operator of the model runs" not in text and (result["not_timed"] or not sure):
        yield "float is called the best beside what was not timed or decided"
    if "is measurably faster" in text and (result["not_timed"] or not sure):
        yield "nothing is measurably faster, beside what was not timed or decided"
    if not sure and "NOT CONFIRMED" not in text and "NOT DECIDED" not in text and not result["best"]["confirmed"]:
        yield "not confirmed, and the verdict does not say so"
    if UNTOLD in text and all(f.get("speedup") is not None for f in named.values()):
        yield "too few readings in the text, and a speed-up in JSON"


def _is_exact(figures: Mapping[str, Any]) -> bool:
    return figures.get("speedup") is not None and figures["speedup_low"] == figures["speedup_high"]


def missing(result: Mapping[str, Any]) -> tuple[int, int]:
    """How many figures lack an interval, of how many models that were tried: anchors, and what is delivered."""
    tried = [
        a for a in result["anchors"] if a["name"] != ORIGINAL and not (a["why"] or "").startswith(("compile", "run"))
    ]
    lacking = sum(a["speedup"] is None for a in tried) + len(result["not_timed"])
    return lacking, len(tried) + len(result["not_timed"]) + 1


def refuted(result: Mapping[str, Any], truth: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What a run says that the truth refutes.

    Args:
        result: what it wrote.
        truth: speed-up of the delivered model (``best``) and of anchors by name: ``low`` and ``high``.
    """
    best, found = result["best"], []
    kept = best["origin"] == ORIGINAL and best["confirmed"]
    for a in result["anchors"]:
        known = truth.get(a["name"])
        if kept and known and a["feasible"] and known["low"] > NOTABLE and not _lost(a["name"], result):
            found.append(f"nothing is faster, confirmed: {a['name']} truly has {known['low']:.2f}x or more")
    known = truth.get("best")
    if best["confirmed"] and best["origin"] != ORIGINAL and known and known["high"] < 1.0:
        found.append(f"delivered as {best['speedup']:.2f}x: it truly is slower, {known['high']:.2f}x at most")
    return found


def covered(result: Mapping[str, Any], truth: Mapping[str, Mapping[str, float]]) -> tuple[int, int]:
    """How many intervals reach the truth's, of how many with both."""
    told = {a["name"]: a for a in result["anchors"] if a.get("speedup") is not None}
    told = {**told, "best": result["best"]} if result["best"]["origin"] != ORIGINAL else told
    both = [(told[name], known) for name, known in truth.items() if name in told and name != ORIGINAL]
    return sum(f["speedup_low"] <= k["high"] and k["low"] <= f["speedup_high"] for f, k in both), len(both)


# --- simulated -----------------------------------------------------------------------------------------------------


def simulate(seed: int) -> Row:
    """One run on a machine whose costs are known: gain, noise, budget, speed, and when that changes follow ``seed``."""
    rng = np.random.default_rng([seed, 53])
    gain = float(np.exp(rng.uniform(0.0, np.log(2.5))))
    effect = (1.0 - 1.0 / gain) / honesty.savings()["best"]
    seconds, noise = float(rng.uniform(5.0, 60.0)), float(rng.choice([0.02, 0.1, 0.3]))
    scale = float(rng.choice([5e6, 5e7, 2e8])) / honesty.total(honesty.network(), 1.0)
    factor, since = float(rng.choice([1.0, 2.0, 4.0])), float(rng.uniform(0.2, 0.9))
    try:
        result, delivered = _run(seed, seconds, effect, noise, scale, (factor, since))
    except TooShort as error:  # the least that is accepted is what leaves most open
        result, delivered = _run(seed, float(error.least_s), effect, noise, scale, (factor, since))
    exact = {name: 1.0 / (1.0 - effect * share) for name, share in honesty.savings().items() if name != "best"}
    exact["best"] = honesty.total(honesty.network(), effect) / honesty.total(delivered, effect)
    truth = {name: {"low": value, "high": value} for name, value in exact.items()}
    written, text = json.loads(json.dumps(result.as_json())), text_of(result)
    return {
        "seed": seed,
        "contradictions": [*contradictions(text, written), *refuted(written, truth)],
        "covered": covered(written, truth),
        "missing": missing(written),
        "confirmed": result.best.confirmed,
        "undecided": bool(result.undecided),
        "text": text,
        "result": written,
    }


def _run(
    seed: int, seconds: float, effect: float, noise: float, scale: float, slower: tuple[float, float]
) -> tuple[TuneResult, onnx.ModelProto]:
    """A simulated run and what it delivered; steps take ``slower[0]`` times as long from a share of the time on."""
    clock = Clock()

    def advance(step_s: float) -> None:
        clock.sleep(step_s * (slower[0] if clock.seconds >= slower[1] * seconds else 1.0))

    target = NullTarget(noise=noise, burst=0.1, seed=seed, effect=effect, scale=scale, advance_clock=advance)
    config = TuneConfig(target=TargetSpec("null"), seed=seed, budget_s=seconds, cost_db=False, methods=("minmax",))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "model.onnx"
        onnx.save(honesty.network(), path)
        lab = simulated(target, clock)
        result = tune(
            TuneRequest(
                file=read_model(path), out=Path(name) / "out", samples=honesty.samples(seed), config=config, lab=lab
            )
        )
        return result, onnx.load(result.model_path)


# --- real ----------------------------------------------------------------------------------------------------------


def burn(seed: int) -> None:
    """Compute in random bursts, until this process is ended."""
    rng = np.random.default_rng(seed)
    while True:
        until = time.monotonic() + rng.exponential(0.5)
        while time.monotonic() < until:
            float(np.sum(np.sqrt(np.arange(10_000.0))))
        time.sleep(rng.exponential(0.5))


def row(subject: Subject, work: Path, runs: int, budget: float, load: int, blocks: int) -> Row:
    """So many runs on one model beside ``load`` processes, each with its long measurement behind it.

    Directly behind it, and beside the same load: what else a processor does changes ratios by percents, whoever
    measures them, and none of that is known to a run.
    """
    recipes, failed = paired.quantized(subject, work, {name: name for name in RECIPES})
    samples = read_samples(str(subject.samples), input_specs(read_model(subject.model).model))
    found, shares, lacking, each, told = [], [], [], list[Row](), list[Row]()
    burning = [multiprocessing.get_context("spawn").Process(target=burn, args=(i,), daemon=True) for i in range(load)]
    try:
        for process in burning:
            process.start()
        for number in range(runs):
            out = work / f"run-{number}"
            given = f"{subject.model} --data {subject.samples} -o {out} --budget {budget:g}s --seed {number}".split()
            command = [sys.executable, "-m", "inlay", "tune", *given, "--target", "ort-cpu", "--threads", "1", "-q"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode not in _WITH_A_RESULT or not (out / "result.json").exists():
                found.append(f"run {number}: no result: {done.stderr.strip()[-300:]}")
                continue
            result = json.loads((out / "result.json").read_text(encoding="utf8"))
            files = {ORIGINAL: subject.model, **recipes, "best": out / "model.onnx"}
            readings = paired.measure(files, samples, blocks, _PROCESSES, seed=number)
            known = {name: readings.ratio(ORIGINAL, name) for name in files if name not in readings.failed}
            found += [
                f"run {number}: {what}" for what in (*contradictions(done.stdout, result), *refuted(result, known))
            ]
            shares.append(covered(result, {"best": known["best"]}))
            said = {key: result["best"][key] for key in ("origin", "speedup", "speedup_low", "speedup_high")}
            each.append({**said, **known["best"]})
            lacking.append(missing(result))
            told.append(result)
            print(subject.name, number, shares[-1], each[-1], flush=True)
    finally:
        for process in burning:
            process.kill()
    return {
        "model": subject.name,
        "runs": runs,
        "contradictions": found,
        "confirmed": sum(r["best"]["confirmed"] for r in told),
        "undecided": sum(bool(r["undecided"]) for r in told),
        "kept": sum(r["best"]["origin"] == ORIGINAL for r in told),
        "covered": [sum(each[i] for each in shares) for i in (0, 1)],
        "missing": [sum(each[i] for each in lacking) for i in (0, 1)],
        "each": each,
        "not_written": failed,
    }


_HEAD = (
    "| model | runs | contradictions | confirmed | not decided | kept as it is | intervals that reach the long one | "
    "figures without an interval |"
)


def markdown(table: Row) -> str:
    """The table, and what was found."""
    lines = [_HEAD, "|" + "---|" * 8]
    for r in table["rows"]:
        counts = (len(r["contradictions"]), r["confirmed"], r["undecided"], r["kept"])
        shares = (f"{hits} of {of}" for hits, of in (r["covered"], r["missing"]))
        lines.append("| " + " | ".join(map(str, (r["model"], r["runs"], *counts, *shares))) + " |")
    found = [f"- {r['model']}, {what}" for r in table["rows"] for what in r["contradictions"]]
    told = "\n".join(["", "Found:", "", *found]) if found else "\nNo run contradicts itself or the long measurement."
    settings = f"{table['budget_s']:g} s, {table['load']} processes in bursts beside each run, others' work aside."
    return "\n".join([settings, "", *lines, told, ""])


def main(arguments: Sequence[str]) -> None:
    """Write ``one_story.json`` and ``.md``; or print what simulated runs found."""
    parser = argparse.ArgumentParser("benchmarks.one_story")
    parser.add_argument("--models", type=Path, default=default_models())
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--runs", type=int, default=10, help="on each model")
    parser.add_argument("--budget", type=float, default=40.0)
    parser.add_argument("--load", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=6, help="of the long measurement, in each of its processes")
    parser.add_argument("--simulated", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    options = parser.parse_args(arguments)
    if options.simulated:
        for done in map(simulate, range(options.simulated)):
            print(
                done["seed"],
                done["confirmed"],
                done["undecided"],
                done["covered"],
                done["missing"],
                *done["contradictions"],
            )
        return
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            subject = make(name, options.models, Path(folder) / "subject")
            rows.append(row(subject, Path(folder), options.runs, options.budget, options.load, options.blocks))
        table = {"machine": facts(options.budget), "budget_s": options.budget, "load": options.load, "rows": rows}
        write_table(options.out, "one_story", table, markdown)


if __name__ == "__main__":
    main(sys.argv[1:])
