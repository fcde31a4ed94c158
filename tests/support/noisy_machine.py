"""Models of known speed on a busy machine, and what measures them, without a process or a runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from inlay.measure.blocks import run_block
from inlay.measure.client import Timing
from inlay.measure.journal import Journal
from inlay.measure.race import Meter, Protocol
from inlay.targets.base import Artifact, Feed, KernelTime


class NoisyModel:
    """3 % noise on every inference, and one in ten takes 1.5 times as long."""

    preempted_ns = 0.0
    warms_up = False

    def __init__(self, ns: float, rng: np.random.Generator) -> None:
        self._ns, self._rng = ns, rng

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        factor = np.exp(self._rng.normal(0.0, 0.03, repeats))
        return np.asarray(self._ns * np.where(self._rng.random(repeats) < 0.1, 1.5 * factor, factor), np.int64)

    def profile(self, feed: Feed, repeats: int) -> list[KernelTime]:
        raise NotImplementedError

    def close(self) -> None:
        pass


class NoisyWorker:
    """Stands in for a worker: real blocks of :class:`NoisyModel`, by the digests of their artifacts."""

    deterministic = False

    def __init__(self, ns: Mapping[str, float], rng: np.random.Generator) -> None:
        self._models = {name: NoisyModel(each, rng) for name, each in ns.items()}
        self._rng = rng

    def time(self, artifacts: Sequence[Artifact], feed: Path, blocks: int, slot_ns: int, seed: int) -> Timing:
        models = [self._models[a.digest] for a in artifacts]
        rows = [run_block(models, [3] * len(models), {}, self._rng) for _ in range(blocks)]
        return Timing(*(np.array([getattr(r, key) for r in rows]) for key in ("ns", "drift", "preempted")))


def noisy_meter(
    ns: Mapping[str, float],
    seed: int,
    folder: Path,
    protocol: Protocol | None = None,
    clock: Callable[[], float] = lambda: 0.0,
) -> tuple[Meter, dict[str, Artifact]]:
    """A meter of models that take ``ns`` nanoseconds by name, and their artifacts."""
    rng = np.random.default_rng(seed)
    journal = Journal(folder / f"{seed}.sqlite", {})
    worker = NoisyWorker(ns, rng)
    meter = Meter(
        worker,  # type: ignore[arg-type]
        journal,
        Path("feed"),
        protocol or Protocol(),
        rng,
        sleep=lambda seconds: None,
        clock=clock,
    )
    return meter, {name: Artifact(Path(name), name) for name in ns}
