"""How often a stated limit is broken by samples that were not given, and how often a fine model would be refused.

    python -m benchmarks coverage [--models DIR] [--only NAME ...] [--restart]

Each trained model is quantized once in full, from its first samples. The SQNR of each of its samples is computed once,
and then drawn from: ``n`` are given, the rest is unseen. A statement says that 90 % of new samples keep a limit,
with 95 % confidence; it is broken where fewer of the unseen samples do. A bound that all samples but a tenth keep, with
a few decibels to spare, is one that a fine model keeps: it is refused where the statement does not reach it. Draws of
one source alone, half of them neighbours, tell how often a limit is broken by the other one.

And how often a search lets a model pass: its samples are split as ``tune`` splits them, and the model must keep the
bound on those that candidates are judged on, with the margin, and on the unseen ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import inlay
from benchmarks import paired
from benchmarks.subjects import Subject
from inlay.data import Samples, save_feed
from inlay.measure.client import Worker
from inlay.model.load import file_sha256
from inlay.quant.accuracy import CHECKED_LATER, UNCHECKED, Bound, Judge, margin_db
from inlay.quant.tolerance import SHARE, state
from inlay.run.inputs import MOST_JUDGED
from inlay.targets.base import Artifact

GIVEN = (2, 4, 8, 12, 16, 20, 28, 64)
PASSING = (4, 8, 16, 64)
UNSEEN = 8
"""Samples that a draw leaves at least."""
SPLITS = 500
MOST = 400  # samples of a set
SPARE_DB = (1.0, 2.0, 3.0)
DISTANCES_DB = (-1.0, -0.5, 0.5, 1.0, 2.0, 3.0)
"""Of a model's SQNR on all other samples from the bound."""


def errors(subject: Subject, folder: Path) -> list[np.ndarray]:
    """SQNR in dB of each sample of each source, of the model quantized in full from the first one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "full-int8.onnx"
    inlay.quantize(subject.model, path, target=paired.TARGET, data=subject.samples, recipe="full-int8")
    found: list[np.ndarray] = []
    with Worker(paired.TARGET, folder) as worker:
        for source in (subject.samples, subject.evaluation):
            samples = paired.read(source, subject.model, MOST)
            each = [_each_db(worker, subject.model, path, samples.part([i]), folder) for i in range(len(samples))]
            found.append(np.concatenate(each))
    return found


def _each_db(worker: Worker, given: Path, quantized: Path, sample: Samples, folder: Path) -> tuple[float, ...]:
    with tempfile.TemporaryDirectory(dir=folder) as own:  # a worker takes a path for the same feed
        feed = Path(own) / "feed.npz"
        save_feed(feed, sample.feeds[0])
        reference, outputs = (worker.run(Artifact(p.resolve(), file_sha256(p)), [feed]) for p in (given, quantized))
    return Judge(reference, sample, Bound()).each_db(outputs)


def cell(sources: Sequence[np.ndarray], n: int, rng: np.random.Generator) -> dict[str, Any]:
    """Of ``SPLITS`` draws of ``n`` samples: the shares of broken statements and of refusals, and the median limit.

    A statement is broken where fewer than 90 % of the rest keep its limit; where the rest is of a few samples only,
    that happens by its own chance too, and ``broken_kind`` counts against all samples instead.
    """
    db = np.concatenate(sources)
    fine_db = float(np.quantile(db, 1.0 - SHARE, method="lower")) - np.array(SPARE_DB)
    broken, kind, refused, limits, worse = 0, 0, np.zeros(len(SPARE_DB)), [], 0
    for _ in range(SPLITS):
        order = rng.permutation(db.size)
        said = state(db[order[:n]].tolist())
        limit = said.limit_db
        worse += float(np.mean(db >= min(db[order[:n]]))) < said.share_of_least
        if limit is None:
            refused += 1
            continue
        limits.append(limit)
        broken += float(np.mean(db[order[n:]] >= limit)) < SHARE
        kind += float(np.mean(db >= limit)) < SHARE
        refused += limit < fine_db
    return {
        "given": n,
        "assumption": state(db[:n].tolist()).assumption,
        "broken": broken / SPLITS,
        "broken_kind": kind / SPLITS,
        "share_of_least": state(db[:n].tolist()).share_of_least,
        "broken_least": worse / SPLITS,
        "refused": (refused / SPLITS).tolist(),
        "limit_db": float(np.median(limits)) if limits else None,
        "broken_other": _broken_by_other(sources, n, rng) if n <= min(s.size for s in sources) else None,
    }


def _broken_by_other(sources: Sequence[np.ndarray], n: int, rng: np.random.Generator) -> float:
    """How often fewer than nine in ten samples of the other source keep the limit of ``n`` of one."""
    broken = 0
    for i in range(SPLITS):
        own, other = sources[i % 2], sources[1 - i % 2]
        first = int(rng.integers(own.size - n + 1))
        drawn = own[first : first + n] if i % 4 < 2 else rng.permutation(own)[:n]
        limit = state(drawn.tolist()).limit_db
        broken += limit is not None and float(np.mean(other >= limit)) < SHARE
    return broken / SPLITS


def pass_cell(db: np.ndarray, n: int, rng: np.random.Generator) -> dict[str, Any]:
    """How often a model passes at each of ``DISTANCES_DB``: by the search's rule, and by the selection samples alone.

    Every sample counts alike, as if outputs had the same energy in all.
    """
    ours, alone = [], []
    for _ in range(SPLITS):
        drawn = db[rng.permutation(db.size)]
        ranges, apart, check, unseen = np.split(drawn, [n // 2, (3 * n + 3) // 4, n])
        judged = np.concatenate([apart, ranges[: max(0, MOST_JUDGED - apart.size)]])
        truth, least = pooled(unseen), pooled(check)
        wanted = min(pooled(apart), pooled(judged)) - margin_db(judged, apart.size, CHECKED_LATER)
        ours.append(min(wanted, least) - truth)
        alone.append(min(pooled(apart) - margin_db(apart, apart.size, UNCHECKED), least) - truth)
    shares = [[float(np.mean(np.array(spare) >= -d)) for d in DISTANCES_DB] for spare in (ours, alone)]
    return {"given": n, "passed": shares[0], "passed_alone": shares[1]}


def pooled(db: np.ndarray) -> float:
    """SQNR in dB over all samples."""
    return float(-10.0 * np.log10(np.mean(10.0 ** (-db / 10.0))))


def row(subject: Subject, folder: Path) -> dict[str, Any]:
    """One model: every count of given samples that leaves some unseen.

    Raises:
        InlayError: the model cannot be quantized.
    """
    return figures(subject.name, errors(subject, folder))


def figures(name: str, sources: Sequence[np.ndarray]) -> dict[str, Any]:
    """A row of the SQNR of each sample of both sources: by drawing, without the model."""
    db = np.concatenate(sources)
    rng = np.random.default_rng(0)
    return {
        "model": name,
        "samples": int(db.size),
        "sources": [int(s.size) for s in sources],
        "tenth_db": float(np.quantile(db, 1.0 - SHARE)),
        "median_db": float(np.median(db)),
        "each_db": [round(float(x), 3) for x in db],
        "splits": [cell(sources, n, rng) for n in GIVEN if n + UNSEEN <= db.size],
        "passes": [pass_cell(db, n, rng) for n in PASSING if 2 * n <= db.size],
    }


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows, and for each count of given samples the means over models."""
    cells = [c for r in rows for c in r.get("splits", ())]
    means = []
    for n in sorted({c["given"] for c in cells}):
        some = [c for c in cells if c["given"] == n]
        mean = {k: float(np.mean([c[k] for c in some])) for k in ("broken", "broken_kind", "broken_least")}
        other = [c["broken_other"] for c in some if c["broken_other"] is not None]
        mean |= {"refused": np.mean([c["refused"] for c in some], axis=0).tolist()}
        means.append(
            {"given": n, "models": len(some), **mean, "broken_other": float(np.mean(other)) if other else None}
        )
    passes = [c for r in rows for c in r.get("passes", ())]
    rates = []
    for n in sorted({c["given"] for c in passes}):
        some = [c for c in passes if c["given"] == n]
        mean = {k: np.mean([c[k] for c in some], axis=0).tolist() for k in ("passed", "passed_alone")}
        rates.append({"given": n, "models": len(some), **mean})
    return {"rows": rows, "means": means, "passes": rates}


def text(found: dict[str, Any]) -> str:
    """The table as Markdown."""
    lines = [
        "# Coverage",
        "",
        f"The statement: at least {SHARE:.0%} of new samples keep the limit, with 95 % confidence.",
        f"Each model is quantized in full; of its samples, n are drawn as given, {SPLITS} times, the rest is unseen.",
        f"Broken: fewer than {SHARE:.0%} of the unseen samples (in brackets: of all) keep the limit; at most 5 % are",
        "promised; where few are left unseen, more are by their own chance. Refused: the limit lies below a bound that",
        f"{SHARE:.0%} of all samples keep with {', '.join(f'{x:g}' for x in SPARE_DB)} dB to spare.",
        "Up to 28 samples the limit takes dB to be normally distributed, and their spread in part from other",
        "models, and up to 8 of them to be of one source; from 29 on it takes nothing for granted, and from 40 on it",
        "is kept by as many unseen samples as were given. The last column is what is said beside it, of any",
        "distribution: the share of all samples that keeps the worst of those given, and how often fewer do. Samples",
        "of both sources are drawn alike, views of one photograph among them. Other source: how often a limit of that",
        "many samples of one source, half of the draws neighbours, is broken by the other source, whose ranges the",
        "model has or not: only up to 8 samples speak for other sources.",
        "",
        "| model | samples | tenth percentile | given | assumption | broken | other source | refused | median limit "
        "| worst kept |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in found["rows"]:
        if "error" in each:
            lines.append(f"| {each['model']} | fails: {each['error']} | | | | | | | |")
            continue
        for i, c in enumerate(each["splits"]):
            head = [each["model"], str(each["samples"]), f"{each['tenth_db']:.1f} dB"] if i == 0 else ["", "", ""]
            counts = f"{c['broken']:.1%} ({c['broken_kind']:.1%})"
            limit = "none" if c["limit_db"] is None else f"{c['limit_db']:.1f} dB"
            cells = [*head, str(c["given"]), c["assumption"], counts, _other(c), _refused(c), limit]
            lines.append("| " + " | ".join([*cells, f"{c['share_of_least']:.0%}: {c['broken_least']:.1%}"]) + " |")
    for c in found["means"]:
        counts = f"{c['broken']:.1%} ({c['broken_kind']:.1%})"
        shares = f"{_other(c)} | {_refused(c)} | | {c['broken_least']:.1%}"
        lines.append(f"| mean of {c['models']} | | | {c['given']} | | {counts} | {shares} |")
    lines += [
        "",
        "How often a search lets a model pass whose SQNR on all other samples is so far from the bound: n samples are",
        f"split in ranges, selection and verification, and it is judged on up to {MOST_JUDGED} of the first two with a",
        f"margin of {CHECKED_LATER:.0%} confidence, then on the last without one. In brackets: on the selection alone",
        f"with a margin of {UNCHECKED:.0%}. Ranges are the same in all draws: that samples which made them flatter a",
        "model, by 0 to 2 dB, is not in these figures.",
        "",
        "| models | given | " + " | ".join(f"{d:+g} dB" for d in DISTANCES_DB) + " |",
        "|---|---|" + "---|" * len(DISTANCES_DB),
    ]
    for c in found["passes"]:
        pairs = zip(c["passed"], c["passed_alone"], strict=True)
        shares = " | ".join(f"{ours:.0%} ({alone:.0%})" for ours, alone in pairs)
        lines.append(f"| {c['models']} | {c['given']} | {shares} |")
    return "\n".join(lines) + "\n"


def _other(cell: dict[str, Any]) -> str:
    return "" if cell["broken_other"] is None else f"{cell['broken_other']:.1%}"


def _refused(cell: dict[str, Any]) -> str:
    return ", ".join(f"{share:.1%}" for share in cell["refused"])
