"""Does a run tell the truth? Whole runs of ``inlay.tune`` on a simulated machine whose every cost is known.

    python -m benchmarks honesty [--runs 300] [--jobs 1]
    python -m benchmarks.honesty [--runs 300] [--first-seed 100000] [--jobs 1] [--ray] [--out DIR]

Each run is a real one (search, races, confirmation in fresh workers) on the ``null`` target: 3 % noise on every
reading, in half of the scenarios with one reading in ten half as slow again, and a clock that is part of the
simulation, so that the default budget of 120 s means what it says for a model of 5 ms. Counted are: models delivered
although no placement is any faster; effects that were found; and how often the reported interval covers the true
ratio, over the runs that delivered something else than the given file (its ratio to itself is 1, in every run).

With ``--loud`` readings have ten times that noise, three in ten are half as slow again, and a run has 12 s: there is
time for a few deciding blocks that show nothing, so that the rules for what is likely decide. Counted is what they
deliver although no placement is any faster; the table is ``honesty_loud``.

With ``--ray`` the same runs measure on devices of a Ray cluster on this machine, which needs the extra ``ray``: only
pauses move the clock there, and a run ends after :data:`MEASUREMENTS`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from scipy.stats import binomtest

from benchmarks.simulated import Clock, simulated
from inlay.calibrate.observe import observe
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import Samples, input_specs, random_samples
from inlay.installed import __version__
from inlay.model.load import load
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.config import TuneConfig
from inlay.prepare.model import prepare
from inlay.prepare.options import DEFAULT_BUDGET_S
from inlay.ray.cluster import LOCAL, cluster
from inlay.ray.lab import measuring, resource_of
from inlay.run.inputs import TuneRequest
from inlay.run.tune import tune
from inlay.search.baselines import anchor_placements
from inlay.targets.base import Capabilities, TargetSpec
from inlay.targets.null import NullTarget, price
from inlay.trial import Measured
from inlay.types import Placement

NOISE = 0.03
LATENCY_NS = 5e6  # of the simulated model
MEASUREMENTS = 30  # of a run through Ray


@dataclass(frozen=True)
class Scenario:
    """What is planted.

    Attributes:
        name: of the scenario.
        gains: least and largest true speed-up of the best placement; drawn log-uniformly for each run.
        burst: share of readings that are half as slow again.
        noise: standard deviation of readings, as a share of the latency.
        budget_s: of a run, on the simulated clock.
    """

    name: str
    gains: tuple[float, float]
    burst: float
    noise: float = NOISE
    budget_s: float = DEFAULT_BUDGET_S


SCENARIOS = tuple(
    Scenario(f"{name}{', bursts' if burst else ''}", gains, burst)
    for name, gains in (("no effect", (1.0, 1.0)), ("2 % effect", (1.02, 1.02)), ("1 to 30 % effect", (1.01, 1.3)))
    for burst in (0.0, 0.1)
)
LOUD = tuple(
    Scenario(f"{name}, loud", (gain, gain), 0.3, 0.3, 12.0) for name, gain in (("no effect", 1.0), ("2x effect", 2.0))
)


@dataclass(frozen=True)
class Outcome:
    """One run: what was reported of the delivered model, and the truth.

    Attributes:
        seed: of the run.
        gain: true speed-up of the best placement that there is.
        is_float: nothing but float was delivered.
        given: the very file that was given was delivered.
        value: reported speed-up.
        low: lower end of its interval.
        high: upper end.
        truth: true speed-up of the delivered model.
        largest: largest speed-up that the search measured: what a naive choice would report.
        anchors: for each anchor the reported interval and the truth: (low, high, truth).
        measurements: timed candidates.
        simulated_s: seconds on the simulated clock.
        real_s: seconds that the run took.
    """

    seed: int
    gain: float
    is_float: bool
    given: bool
    value: float
    low: float
    high: float
    truth: float
    largest: float
    measurements: int
    simulated_s: float
    real_s: float
    anchors: tuple[tuple[float, float, float], ...] = ()

    @property
    def covered(self) -> bool:
        """Whether the reported interval holds the truth."""
        return self.low <= self.truth <= self.high


def network(seed: int = 0, channels: int = 8) -> onnx.ModelProto:
    """Two branches of Conv and Relu, joined, one more convolution, a residual Add, a convolution, pooled.

    The prices of the target follow from the nodes' names: with these, the best placement is none of the anchors.
    """
    rng = np.random.default_rng(seed)
    tensors: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []

    def op(kind: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"{name}.y"], f"m.{name}", **attributes))
        return f"{name}.y"

    def conv(x: str, name: str, inputs: int) -> str:
        weight = rng.standard_normal((channels, inputs, 3, 3)) / np.sqrt(9.0 * inputs)
        tensors.append(numpy_helper.from_array(weight.astype(np.float32), f"{name}.w"))
        return op("Relu", [op("Conv", [x, f"{name}.w"], name, pads=[1] * 4)], f"{name}.relu")

    stem = conv("x", "stem", 3)
    joined = op("Concat", [conv(stem, "a", channels), conv(stem, "b", channels)], "cat", axis=1)
    added = op("Add", [conv(joined, "after", 2 * channels), stem], "add")
    y = op("GlobalAveragePool", [conv(added, "last", channels)], "pool")
    graph = helper.make_graph(
        nodes,
        "planted",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, [1, channels, 1, 1])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def samples(seed: int = 0, count: int = 12) -> Samples:
    """Inputs of :func:`network`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(network(), path)
        found = random_samples(input_specs(load(path).model), np.random.default_rng(seed), count)
    return replace(found, kind="npz")


@functools.lru_cache(maxsize=1)
def savings() -> dict[str, float]:
    """Share of the float price that placements save at full effect: each anchor, and the best of all placements."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "model.onnx"
        onnx.save(network(), path)
        feeds = samples()
        prepared = prepare(load(path), Capabilities.of(NullTarget()), feeds.feeds[0], folder)
        table = CalibrationChoice("minmax").table(prepared, observe(prepared, feeds))
        candidates = CandidateWriter(prepared, table, "", "")
        units = [u.name for u in prepared.selectable]
        whole = total(network(), 1.0)

        def saved(placement: Placement) -> float:
            return 1.0 - total(candidates.proto(placement), 1.0) / whole

        anchors = anchor_placements(prepared.graph, prepared.units, prepared.rules)
        found = {name: saved(placement) for name, placement in anchors}
        subsets = (itertools.compress(units, s) for s in itertools.product((False, True), repeat=len(units)))
        return {**found, "best": max(saved(prepared.label(frozenset(s))) for s in subsets)}


def total(model: onnx.ModelProto, effect: float) -> float:
    """True cost of a model, before scaling."""
    return sum(k.ns for k in price(model, effect))


def planted(scenario: Scenario, seed: int) -> tuple[float, float, TargetSpec]:
    """The true gain of a run, the effect on prices that makes it, and the target with that."""
    low, high = np.log(scenario.gains)
    gain = float(np.exp(np.random.default_rng([seed, 17]).uniform(low, high)))
    effect, scale = (1.0 - 1.0 / gain) / savings()["best"], LATENCY_NS / total(network(), 1.0)
    options = {"noise": scenario.noise, "burst": scenario.burst, "seed": seed, "effect": effect, "scale": scale}
    return gain, effect, TargetSpec("null", options)


def simulate(scenario: Scenario, seed: int, ray: str = "") -> Outcome:
    """One run. Its noise and its choices depend on ``seed`` only.

    Args:
        scenario: what is planted.
        seed: of the run.
        ray: address of a cluster that announces the run's target, in place of the simulated clock.
    """
    begun, shares, clock = time.perf_counter(), savings(), Clock()
    gain, effect, spec = planted(scenario, seed)
    config = TuneConfig(target=spec, seed=seed, budget_s=scenario.budget_s, cost_db=False, methods=("minmax",))
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        lab = simulated(NullTarget(**spec.options, advance_clock=clock.sleep), clock)  # type: ignore[arg-type]
        if ray:
            config = replace(config, budget_s=None, max_measurements=MEASUREMENTS)
            far = stack.enter_context(measuring(ray, [spec], lambda line: None))
            lab = replace(far, clock=clock, sleep=clock.sleep)  # pauses between blocks cost nothing
        path = Path(folder) / "model.onnx"
        onnx.save(network(), path)
        result = tune(
            TuneRequest(file=load(path), out=Path(folder) / "out", samples=samples(seed), config=config, lab=lab)
        )
        delivered = onnx.load(result.model_path)
        given = path.read_bytes() == result.model_path.read_bytes()
    best = result.best
    return Outcome(
        seed,
        gain,
        best.is_float,
        given,
        best.speedup.value,
        best.speedup.low,
        best.speedup.high,
        total(network(), effect) / total(delivered, effect),
        max(float(p["speedup"]) for p in result.pareto),
        int(result.search["measurements"]),
        clock.seconds,
        time.perf_counter() - begun,
        tuple(
            (a.outcome.latency.speedup.low, a.outcome.latency.speedup.high, 1.0 / (1.0 - effect * shares[a.name]))
            for a in result.anchors
            if isinstance(a.outcome, Measured) and a.name in shares
        ),
    )


def through_ray(scenario: Scenario, seeds: Sequence[int]) -> list[Outcome]:
    """A run for each seed, on a cluster of this machine that announces all of their targets."""
    devices = {seed: resource_of(planted(scenario, seed)[2]) for seed in seeds}
    with cluster(LOCAL, dict.fromkeys(devices.values(), 1.0)):
        return [simulate(scenario, s, ray=f"auto#{device.rpartition(':')[2]}") for s, device in devices.items()]


def run(scenario: Scenario, seeds: Sequence[int], jobs: int = 1) -> list[Outcome]:
    """A run for each seed."""
    if jobs == 1:
        return [simulate(scenario, seed) for seed in seeds]
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        return pool.starmap(simulate, [(scenario, seed) for seed in seeds], chunksize=4)


def summary(scenario: Scenario, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Shares with their exact binomial 95 % intervals."""
    told = [o for o in outcomes if not o.given]
    return {
        "scenario": scenario.name,
        "noise": scenario.noise,
        "burst": scenario.burst,
        "budget_s": scenario.budget_s,
        "runs": len(outcomes),
        "not_float": _share(sum(not o.is_float for o in outcomes), len(outcomes)),
        "coverage": _share(sum(o.covered for o in told), len(told)),
        "coverage_of_quantized": _share(
            sum(o.covered for o in told if not o.is_float), sum(not o.is_float for o in told)
        ),
        "coverage_of_anchors": _share(
            sum(low <= truth <= high for o in outcomes for low, high, truth in o.anchors),
            sum(len(o.anchors) for o in outcomes),
        ),
        "share_of_the_best_gain": float(np.mean([np.log(o.truth) / np.log(o.gain) for o in outcomes]))
        if scenario.gains[0] > 1.0
        else None,
        "measurements": float(np.mean([o.measurements for o in outcomes])),
        "simulated_s": float(np.mean([o.simulated_s for o in outcomes])),
        "real_s": float(np.mean([o.real_s for o in outcomes])),
    }


def _share(hits: int, of: int) -> dict[str, float | int] | None:
    if not of:
        return None
    interval = binomtest(hits, of).proportion_ci(0.95, "exact")
    return {"value": hits / of, "low": float(interval.low), "high": float(interval.high), "hits": hits, "of": of}


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table."""

    def cell(share: dict[str, Any] | None) -> str:
        if share is None:
            return ""
        return f"{share['value']:.1%} [{share['low']:.1%}, {share['high']:.1%}] of {share['of']}"

    lines = [
        "# Honesty",
        "",
        f"Whole runs of {rows[0].get('budget_s', DEFAULT_BUDGET_S):g} s on the simulated target `null`; "
        f"{rows[0]['noise']:.0%} noise on every reading.",
        "",
        "| scenario | runs | delivered other than float | the delivered one's interval covers the truth "
        "| the anchors' intervals do | share of the gain found |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        found = row["share_of_the_best_gain"]
        lines.append(
            f"| {row['scenario']} | {row['runs']} | {cell(row['not_float'])} | {cell(row['coverage'])} "
            f"| {cell(row['coverage_of_anchors'])} "
            f"| {'' if found is None else f'{found:.0%}'} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write ``honesty.json`` and ``.md``, or ``honesty_loud``; scenarios that are finished are not run again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--first-seed", type=int, default=100_000, help="tests use the seeds from 0 on")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--loud", action="store_true", help="short runs on a loud machine")
    parser.add_argument("--ray", action="store_true", help="measure through Ray, on this machine")
    parser.add_argument("--restart", action="store_true", help="forget the scenarios that are done")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    options = parser.parse_args(arguments)
    name, scenarios = ("honesty_loud", LOUD) if options.loud else ("honesty", SCENARIOS)
    folder = options.out / "rows" / name
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"runs": options.runs, "first_seed": options.first_seed, "version": __version__}
    if options.ray:
        settings["ray"] = True
    rows, details = [], {}
    for number, scenario in enumerate(scenarios):
        path = folder / f"{number}.json"
        done = None if options.restart or not path.exists() else json.loads(path.read_text(encoding="utf8"))
        if done is None or done["settings"] != settings:
            seeds = range(options.first_seed, options.first_seed + options.runs)
            outcomes = through_ray(scenario, seeds) if options.ray else run(scenario, seeds, options.jobs)
            done = {"settings": settings, "row": summary(scenario, outcomes), "runs": [asdict(o) for o in outcomes]}
            path.write_text(json.dumps(done) + "\n", encoding="utf8")
        rows.append(done["row"])
        details[scenario.name] = done["runs"]
        print(markdown(rows).splitlines()[-1], flush=True)
    (options.out / f"{name}.json").write_text(
        json.dumps({"settings": settings, "rows": rows, "runs": details}) + "\n", encoding="utf8"
    )
    (options.out / f"{name}.md").write_text(markdown(rows), encoding="utf8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
