"""Several models in the same interleaved blocks: any two of them give a paired ratio. And their accuracy."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import inlay
from benchmarks.subjects import Subject
from inlay.data import Samples, input_specs, read_samples, save_feed
from inlay.errors import InlayError, TargetError
from inlay.measure.client import Worker
from inlay.measure.paired import Series, speedup
from inlay.model.joins import joined
from inlay.model.load import file_sha256, load
from inlay.quant.accuracy import Bound, Judge
from inlay.space.recipe import Recipe
from inlay.targets.base import Artifact, TargetSpec

SLOT_NS = 4_000_000
TARGET = TargetSpec("ort-cpu", {"threads": 1})

Ratio = dict[str, float]
"""``value``, ``low``, ``high``: a paired ratio with its 95 % interval."""


@dataclass(frozen=True, eq=False)
class Readings:
    """Readings of models by name.

    Attributes:
        ns: nanoseconds per inference by the model's digest, shape (blocks,).
        digests: by name; files with the same content were measured once.
        failed: why a model could not be measured, by name.
        processes: numbers of the processes that blocks were read in, shape (blocks,).
    """

    ns: Mapping[str, np.ndarray]
    digests: Mapping[str, str]
    failed: Mapping[str, str]
    processes: np.ndarray | None = None

    def ratio(self, over: str, name: str) -> Ratio:
        """Latency of ``over`` by latency of ``name``, from the blocks that both share; 1 for the same file."""
        a, b = self.digests[over], self.digests[name]
        if a == b:
            return {"value": 1.0, "low": 1.0, "high": 1.0}
        old, new = (Series(self.ns[digest], processes=self.processes) for digest in (a, b))
        found = speedup(old, new)
        return {"value": found.value, "low": found.low, "high": found.high}

    def milliseconds(self, name: str) -> float:
        """Median latency."""
        return float(np.median(self.ns[self.digests[name]])) / 1e6


def measure(
    files: Mapping[str, Path],
    samples: Samples,
    blocks: int,
    processes: int,
    seed: int = 0,
    targets: Mapping[str, TargetSpec] | None = None,
) -> Readings:
    """Time every model in ``blocks`` blocks in each of ``processes`` fresh processes; the first must work.

    ``targets`` names what a model runs on where that is not :data:`TARGET`. Each target has a process of its own, and
    every block goes through all of them, in a random order.
    """
    specs = {name: (targets or {}).get(name, TARGET) for name in files}
    digests = {name: _key(path, specs[name]) for name, path in files.items()}
    artifacts = {digests[n]: Artifact(p.resolve(), digests[n]) for n, p in files.items()}
    rng = np.random.default_rng(seed)
    failed: dict[str, str] = {}
    groups: dict[str, tuple[TargetSpec, list[Artifact]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        feed = folder / "feed.npz"
        save_feed(feed, samples.feeds[0])
        for spec in {str(s): s for s in specs.values()}.values():
            chosen = {digests[n] for n in files if specs[n] == spec}
            with Worker(spec, folder) as worker:
                for digest in sorted(chosen):
                    try:
                        worker.run(artifacts[digest], [feed])
                    except TargetError as error:
                        failed[digest] = str(error)
            groups[str(spec)] = spec, [artifacts[d] for d in sorted(chosen - failed.keys())]
        working = [(spec, models) for spec, models in groups.values() if models]
        rows: list[dict[str, float]] = []
        for _ in range(processes):
            with ExitStack() as stack:
                workers = [(stack.enter_context(Worker(spec, folder)), models) for spec, models in working]
                for _ in range(blocks):
                    row: dict[str, float] = {}
                    for i in rng.permutation(len(workers)):
                        worker, models = workers[i]
                        ns = worker.time(models, feed, 1, SLOT_NS, int(rng.integers(2**31))).ns[0]
                        row.update((m.digest, float(x)) for m, x in zip(models, ns, strict=True))
                    rows.append(row)
    return Readings(
        {d: np.array([r[d] for r in rows]) for d in rows[0]},
        digests,
        {n: failed[d] for n, d in digests.items() if d in failed},
        np.repeat(np.arange(processes), blocks),
    )


def quantized(
    subject: Subject, folder: Path, recipes: Mapping[str, Recipe | str], target: TargetSpec = TARGET
) -> tuple[dict[str, Path], dict[str, str]]:
    """The files that ``inlay quantize`` writes by each of ``recipes``, and why others fail; both by name."""
    files: dict[str, Path] = {}
    notes: dict[str, str] = {}
    for name, recipe in recipes.items():
        path = folder / f"{name}.onnx"
        try:
            inlay.quantize(subject.model, path, target=target, data=subject.samples, recipe=recipe)
            files[name] = path
        except InlayError as error:
            notes[name] = f"fails: {error}"
    return files, notes


def _key(path: Path, spec: TargetSpec) -> str:
    parts = [path, path.with_suffix(".bin")] if path.suffix == ".xml" else [path]  # a network, and its weights
    digest = " ".join(file_sha256(p) for p in parts)
    return digest if spec == TARGET else hashlib.sha256(f"{digest} {spec}".encode()).hexdigest()


def sqnr(
    files: Mapping[str, Path],
    reference: Path,
    evaluation: Samples,
    targets: Mapping[str, TargetSpec] | None = None,
) -> dict[str, float]:
    """SQNR in dB of each model's worst output against ``reference`` on the evaluation samples; -300 where it fails.

    Where an output joins several things, such as boxes and scores, each is judged by itself. ``targets`` as in
    :func:`measure`; the reference runs on :data:`TARGET`.
    """
    found = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        workers: dict[str, Worker] = {}

        def worker_of(spec: TargetSpec) -> Worker:
            if str(spec) not in workers:
                workers[str(spec)] = stack.enter_context(Worker(spec, Path(name)))
            return workers[str(spec)]

        feeds = []
        for number, feed in enumerate(evaluation.feeds):
            feeds.append(Path(name) / f"{number}.npz")
            save_feed(feeds[-1], feed)
        original = worker_of(TARGET).run(Artifact(reference.resolve(), "reference"), feeds)
        judge = Judge(original, joined(evaluation, load(reference).model), Bound(), confidence=None)
        for key, path in files.items():
            worker = worker_of((targets or {}).get(key, TARGET))
            artifact = Artifact(path.resolve(), key)
            try:
                found[key] = judge.judge(worker.run(artifact, feeds)).sqnr_db
                worker.drop(artifact)
            except TargetError:
                found[key] = -300.0
    return found


def read(path: Path, model: Path, most: int | None = None) -> Samples:
    """Samples of a file."""
    samples = read_samples(path, input_specs(load(model).model))
    return samples if most is None else samples.part(range(min(most, len(samples))))


def geometric_mean(ratios: Sequence[Ratio]) -> Ratio | None:
    """Of independent ratios; the interval from theirs, as errors of logarithms add up in squares."""
    if not ratios:
        return None
    logs = np.log([r["value"] for r in ratios])
    middle, n = float(logs.mean()), len(ratios)
    down = np.sqrt(np.square(logs - np.log([r["low"] for r in ratios])).sum()) / n
    up = np.sqrt(np.square(np.log([r["high"] for r in ratios]) - logs).sum()) / n
    return {"value": float(np.exp(middle)), "low": float(np.exp(middle - down)), "high": float(np.exp(middle + up))}
