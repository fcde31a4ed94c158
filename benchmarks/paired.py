"""Several models in the same interleaved blocks: any two of them give a paired ratio. And their accuracy."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inlay.data import Samples, input_specs, read_samples, save_feed
from inlay.errors import TargetError
from inlay.measure.client import Worker
from inlay.measure.stats import speedup
from inlay.model.load import file_sha256, load
from inlay.quant.accuracy import Bound, Judge
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
    """

    ns: Mapping[str, np.ndarray]
    digests: Mapping[str, str]
    failed: Mapping[str, str]

    def ratio(self, over: str, name: str) -> Ratio:
        """Latency of ``over`` by latency of ``name``, from the blocks that both share; 1 for the same file."""
        a, b = self.digests[over], self.digests[name]
        if a == b:
            return {"value": 1.0, "low": 1.0, "high": 1.0}
        found = speedup(self.ns[a], self.ns[b])
        return {"value": found.value, "low": found.low, "high": found.high}

    def milliseconds(self, name: str) -> float:
        """Median latency."""
        return float(np.median(self.ns[self.digests[name]])) / 1e6


def measure(files: Mapping[str, Path], samples: Samples, blocks: int, processes: int, seed: int = 0) -> Readings:
    """Time every model in ``blocks`` blocks in each of ``processes`` fresh processes; the first must work."""
    digests = {name: file_sha256(path) for name, path in files.items()}
    artifacts = {digests[n]: Artifact(p.resolve(), digests[n]) for n, p in files.items()}
    rng = np.random.default_rng(seed)
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        feed = folder / "feed.npz"
        save_feed(feed, samples.feeds[0])
        with Worker(TARGET, folder) as worker:
            for digest, artifact in list(artifacts.items()):
                try:
                    worker.run(artifact, [feed])
                except TargetError as error:
                    failed[digest] = str(error)
                    del artifacts[digest]
        chosen = list(artifacts.values())
        rows = []
        for _ in range(processes):
            with Worker(TARGET, folder) as worker:
                rows.append(worker.time(chosen, feed, blocks, SLOT_NS, int(rng.integers(2**31))).ns)
    ns = np.concatenate(rows)
    return Readings(
        {a.digest: ns[:, i] for i, a in enumerate(chosen)},
        digests,
        {n: failed[d] for n, d in digests.items() if d in failed},
    )


def sqnr(files: Mapping[str, Path], reference: Path, evaluation: Samples) -> dict[str, float]:
    """SQNR in dB of each model's worst output against ``reference`` on the evaluation samples; -300 where it fails."""
    found = {}
    with tempfile.TemporaryDirectory() as name, Worker(TARGET, Path(name)) as worker:
        feeds = []
        for number, feed in enumerate(evaluation.feeds):
            feeds.append(Path(name) / f"{number}.npz")
            save_feed(feeds[-1], feed)
        judge = Judge(worker.run(Artifact(reference.resolve(), "reference"), feeds), evaluation, Bound(), margin=False)
        for key, path in files.items():
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
