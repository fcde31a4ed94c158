"""How often a model is delivered below its bound, without a word in the first line, where a few samples decide.

    python -m benchmarks few_samples [--models DIR] [--only NAME ...] [--restart]

A front of placements of each trained model is written with ranges from one, two and four samples of one source, and
judged once on every sample of both sources; latency is measured once. Then draws of n = 1 … 8 samples of one source are
taken through the functions by which ``tune`` decides, for bounds around what the front has: what is delivered, and
whether it is announced as shown. The other source tells the truth: the SQNR over all of its samples. Whatever the
statement takes from other models is also fitted without each model in turn, which is then drawn from with that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

from benchmarks import paired
from benchmarks.coverage import pooled
from benchmarks.subjects import Subject
from inlay.calibrate.observe import observe
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import Samples, save_feed
from inlay.measure.client import Worker
from inlay.model.load import file_sha256, load
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.model import PreparedModel, prepare
from inlay.quant import accuracy, tolerance
from inlay.quant.accuracy import CHECKED_LATER, UNCHECKED, Bound, Judge, margin_db
from inlay.quant.tolerance import MAX_DB, SHARE, state
from inlay.run.confirm.evidence import Evidence, most_credible
from inlay.run.reference import in_reference
from inlay.space.units import Unit, placement_from_labels
from inlay.targets.base import Artifact, Capabilities
from inlay.targets.registry import create
from inlay.types import Placement

RANGED = (1, 2, 4)
"""Samples that ranges come from: half of those given, as ``tune`` splits them."""
FLOAT_SHARES = (0.0, 0.08, 0.2, 0.4, 0.6, 0.8)
"""Of a model's units, first and last ones, that stay float: from full INT8 to next to nothing."""
FEW = range(1, 9)
MORE = (12, 20)
"""Further numbers of samples, of the models that have as many beside those that ranges come from."""
DRAWS = 50
"""Of each model and number of samples."""
SPARE_DB = 3.0
"""A bound is drawn from up to so far below the SQNR that one of the front has on the source that is given."""
MOST = 24  # samples of a source
_BLOCKS = 12


@dataclass(frozen=True)
class Draw:
    """What a model showed on the samples that were drawn, and what is true of it.

    Attributes:
        speedup: over float.
        feasible: whether the search lets it pass.
        kept: whether it also keeps the bound on the unseen samples.
        evidence: of all that were given.
        truth_db: SQNR over all samples of the other source.
        tenth_db: what nine in ten of these keep.
    """

    speedup: float
    feasible: bool
    kept: bool
    evidence: Evidence
    truth_db: float
    tenth_db: float


def front(prepared: PreparedModel) -> list[Placement]:
    """Placements from the fastest to the most accurate: ever more units at both ends of the model stay float."""
    able = [u.name for u in prepared.units if u.selectable]
    made = []
    for share in FLOAT_SHARES:
        first, last = math.ceil(share * len(able) / 3), math.ceil(2 * share * len(able) / 3)
        low = set(able[first : len(able) - last])
        made.append(placement_from_labels(prepared.graph, prepared.units, prepared.rules, partial(_among, low)))
    return list(dict.fromkeys(p for p in made if p))


def _among(names: set[str], unit: Unit) -> bool:
    return unit.name in names


def measured(subject: Subject, folder: Path) -> dict[str, Any]:
    """The front of a model: SQNR in dB of every sample of each source, by source and count of ranges, and speed-ups.

    Raises:
        InlayError: the model cannot be quantized.
    """
    sources = [paired.read(path, subject.model, MOST) for path in (subject.samples, subject.evaluation)]
    file, target = load(subject.model), Capabilities.of(create(paired.TARGET))
    prepared = prepare(file, target, sources[0].feeds[0], folder)
    placements, sets = front(prepared), []
    with Worker(paired.TARGET, folder) as worker:
        feeds, exact = zip(
            *(_run_given(file, source, folder / f"source-{i}") for i, source in enumerate(sources)), strict=True
        )
        for number, source in enumerate(sources):
            for count in RANGED:
                observed = observe(prepared, source.part(range(count)))
                table = CalibrationChoice("mse").table(prepared, observed)
                writer = CandidateWriter(prepared, table, f"{number}-{count}", worker.fingerprint.digest)
                found = []
                for placement in placements:
                    model, each = writer.write(placement), []
                    for reference, samples, paths in zip(exact, sources, feeds, strict=True):
                        each.append(Judge(reference, samples, Bound()).each_db(worker.run(model, paths)))
                    worker.drop(model)
                    found.append([[round(db, 3) for db in some] for some in each])
                sets.append({"source": number, "ranged": count, "each_db": found})
        given = Artifact(subject.model.resolve(), file_sha256(subject.model))
        files = [given, *(writer.write(p) for p in placements)]
        ns = worker.time(files, feeds[0][0], _BLOCKS, paired.SLOT_NS, 0).ns
    gains = np.median(ns[:, :1] / ns[:, 1:], axis=0)
    return {"model": subject.name, "samples": [len(s) for s in sources], "speedups": gains.tolist(), "sets": sets}


def _run_given(file: Any, samples: Samples, folder: Path) -> tuple[list[Path], Sequence[Any]]:
    folder.mkdir()
    paths = [folder / f"{i}.npz" for i in range(len(samples))]
    for path, feed in zip(paths, samples.feeds, strict=True):
        save_feed(path, feed)
    return paths, in_reference(file)(paths)


def drawn(row: dict[str, Any], n: int, rng: np.random.Generator) -> tuple[float, list[Draw]]:
    """A bound, and the front of a model judged on ``n`` samples of one source, the fastest first.

    Half of the draws are neighbours in the order of the source, which are often views of one scene.
    """
    source = int(rng.integers(2))
    ranged = max(r for r in RANGED if r <= max(1, n // 2))
    rows = next(s["each_db"] for s in row["sets"] if (s["source"], s["ranged"]) == (source, ranged))
    others = np.arange(ranged, row["samples"][source])
    first = int(rng.integers(max(1, others.size - n + 1)))
    picked = others[first : first + n] if rng.random() < 0.5 else rng.permutation(others)[:n]
    own = [np.array(each[source]) for each in rows]
    bound_db = pooled(own[int(rng.integers(len(own)))][ranged:]) - float(rng.uniform(0.0, SPARE_DB))
    bound = Bound(min_sqnr_db=bound_db)
    found = []
    for each, gain in zip(rows, row["speedups"], strict=True):
        mine, truth = np.array(each[source]), np.array(each[1 - source])
        flattered, rest = mine[:ranged], mine[picked[: n - ranged]]  # the last ones are judged with other ranges
        apart, unseen = (rest[: (rest.size + 1) // 2], rest[(rest.size + 1) // 2 :]) if n > 2 else (flattered, rest[:0])
        judged = np.concatenate([apart, flattered]) if n > 2 else flattered
        margin = margin_db(judged, apart.size, CHECKED_LATER if n > 2 else UNCHECKED)
        passed = min(pooled(apart), pooled(judged)) - margin >= bound_db
        said = state(mine[picked].tolist() if n > 1 else [], bound_db)
        kept = not unseen.size or pooled(unseen) >= bound_db
        evidence = Evidence(bound, said, searched_db=pooled(judged))
        found.append(Draw(gain, passed, kept, evidence, pooled(truth), float(np.quantile(truth, 1.0 - SHARE))))
    return bound_db, sorted(found, key=lambda d: -d.speedup)


def outcome(bound_db: float, front: Sequence[Draw]) -> dict[str, float]:
    """What becomes of one draw, and what would have become of it if the statement did not decide."""
    able = [d for d in front if d.feasible and d.kept and d.speedup > 1.0]
    offered = [d for d in able if not d.evidence.breaks]
    if not offered:
        return {"delivered": 0.0}
    taken = most_credible(offered, lambda d: d.evidence, lambda d: d.speedup)
    below, shown, before = taken.truth_db < bound_db, taken.evidence.shows, able[0]
    return {
        "delivered": 1.0,
        "shown": float(shown),
        "below": float(below),
        "silent": float(below and shown),
        "silent_tenth": float(shown and taken.tenth_db < bound_db),
        "below_before": float(before.truth_db < bound_db),
        "log_gain": float(np.log(taken.speedup)),
        "log_gain_before": float(np.log(before.speedup)),
    }


def figures(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """The share of draws that deliver something in low precision; of these, shares and geometric means of speed-ups."""
    made = [f for f in found if f["delivered"]]
    shares = ("shown", "below", "silent", "silent_tenth", "below_before")
    means = {name: float(np.exp(np.mean([f[key] for f in made]))) if made else 1.0 for name, key in _GAINS}
    of_made = {k: float(np.mean([f[k] for f in made])) if made else 0.0 for k in shares}
    return {"draws": len(found), "delivered": len(made) / max(len(found), 1), **of_made, **means}


_GAINS = (("speedup", "log_gain"), ("speedup_before", "log_gain_before"))


@dataclass(frozen=True)
class Prior:
    """What a statement of few samples takes from other models (:mod:`inlay.quant.tolerance`).

    Attributes:
        spread_db: usual standard deviation between samples.
        weight: its degrees of freedom.
        between: share of the variance that is between sources.
    """

    spread_db: float
    weight: float
    between: float


def fitted(rows: Sequence[dict[str, Any]]) -> Prior:
    """The prior whose logarithms of variances have the mean and variance of those of the models (Smyth 2004).

    The share between sources is that of the model whose sources differ most.
    """
    variances = [_variances(r) for r in rows]
    logs = np.array([np.mean([np.log(own) for own, _, _ in each]) for each in variances])
    shares = []
    for each in variances:
        within, between = sum(w for _, w, _ in each), max(0.0, sum(b for _, _, b in each))
        shares.append(between / (within + between))
    half = brentq(lambda x: float(polygamma(1, x)) - logs.var(ddof=1), 1e-3, 1e3)
    within = np.exp(logs.mean() - np.log(half) + digamma(half))
    return Prior(float(np.sqrt(within / (1.0 - np.mean(shares)))), 2.0 * half, max(shares))


def _variances(row: dict[str, Any]) -> list[tuple[float, float, float]]:
    """Of each placement with ranges from one sample of each source: of that source, within both, and between them."""
    found = []
    for each in (s for s in row["sets"] if s["ranged"] == 1):
        for both in each["each_db"]:
            some = [np.minimum(db[1:] if i == each["source"] else db, MAX_DB) for i, db in enumerate(both)]
            of = [float(db.var(ddof=1)) for db in some]
            apart = float((some[0].mean() - some[1].mean()) ** 2)
            between = (apart - sum(v / db.size for v, db in zip(of, some, strict=True))) / 2.0
            found.append((of[each["source"]], float(np.mean(of)), between))
    return found


@contextmanager
def _taken(prior: Prior) -> Iterator[None]:
    """The statement and the margin with another prior."""
    usual: dict[str, Any] = {
        "USUAL_SPREAD_DB": prior.spread_db,
        "USUAL_WEIGHT": prior.weight,
        "BETWEEN_SOURCES": prior.between,
    }
    with mock.patch.multiple(tolerance, **usual), mock.patch.object(accuracy, "USUAL_WEIGHT", prior.weight):
        tolerance._factor.cache_clear()
        try:
            yield
        finally:
            tolerance._factor.cache_clear()


def simulated(row: dict[str, Any], given: Sequence[int] = (*FEW, *MORE)) -> list[dict[str, float]]:
    """The outcome of each draw of one model, with its number of samples."""
    found = []
    for n in (n for n in given if n <= min(row["samples"]) - RANGED[-1]):
        rng = np.random.default_rng(n)
        found += [{"given": n, **outcome(*drawn(row, n, rng))} for _ in range(DRAWS)]
    return found


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of each model, of each number of samples, and of all draws of few; models without themselves."""
    measured = [r for r in rows if "error" not in r]
    found = {r["model"]: simulated(r) for r in measured}
    every = [f for each in found.values() for f in each]
    left_out: dict[str, tuple[Prior, list[dict[str, float]]]] = {}
    for row in measured if len(measured) > 3 else ():
        prior = fitted([r for r in measured if r is not row])
        with _taken(prior):
            left_out[row["model"]] = prior, simulated(row, FEW)
    without = [f for _, each in left_out.values() for f in each]
    return {
        "rows": rows,
        "models": {name: figures([f for f in each if f["given"] in FEW]) for name, each in found.items()},
        "given": {str(n): figures(some) for n in (*FEW, *MORE) if (some := [f for f in every if f["given"] == n])},
        "all": figures([f for f in every if f["given"] in FEW]),
        "left_out": {name: {"prior": vars(prior), **figures(each)} for name, (prior, each) in left_out.items()},
        "left_out_given": {str(n): figures([f for f in without if f["given"] == n]) for n in FEW if without},
    }


def text(found: dict[str, Any]) -> str:
    """The table as Markdown."""
    lines = [
        "# Few samples",
        "",
        f"{DRAWS} draws of each number of samples of one source for each model, by the functions by which `tune`",
        "decides; a model's figures and those of all are of 1 to 8 samples, those of 12 and 20 of the models that have",
        "as many beside those that ranges come from.",
        f"The bound lies up to {SPARE_DB:g} dB below what one of a front of placements has on that source. Delivered:",
        "the share of draws in which something in low precision is; all else is of these. Below: the SQNR over all",
        "samples of the other source is below the bound. Not announced: below and the first line does not say so;",
        "in brackets, not announced, and fewer than nine in ten samples of the other source keep the bound.",
        "Before: the fastest that keeps the bound on the samples judged, never announced, as if the statement did not",
        "decide. Speed-ups over float are geometric means; latencies were measured once, on a machine that others use.",
        "",
        "| | draws | delivered | shown | below | not announced | below, before | speed-up | before |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    kinds = [*found["models"].items(), *((f"{n} given", c) for n, c in found["given"].items()), ("all", found["all"])]
    for name, c in kinds:
        shares = " | ".join(f"{c[k]:.1%}" for k in ("delivered", "shown", "below"))
        silent = f"{c['silent']:.1%} ({c['silent_tenth']:.1%})"
        speeds = f"{c['speedup']:.2f}x | {c['speedup_before']:.2f}x"
        lines.append(f"| {name} | {c['draws']} | {shares} | {silent} | {c['below_before']:.1%} | {speeds} |")
    lines += [f"| {r['model']} fails: {r['error']} | | | | | | | | |" for r in found["rows"] if "error" in r]
    lines += [
        "",
        "With what the statement takes from other models fitted to all models but the one that is drawn from:",
        "",
        "| | usual spread | degrees of freedom | between sources | shown | not announced |",
        "|---|---|---|---|---|---|",
    ]
    for name, c in [*found["left_out"].items(), *((f"{n} given", c) for n, c in found["left_out_given"].items())]:
        prior = Prior(**c["prior"]) if "prior" in c else None
        usual = f"{prior.spread_db:.1f} dB | {prior.weight:.1f} | {prior.between:.2f}" if prior else "| |"
        lines.append(f"| {name} | {usual} | {c['shown']:.1%} | {c['silent']:.1%} ({c['silent_tenth']:.1%}) |")
    return "\n".join(lines) + "\n"
