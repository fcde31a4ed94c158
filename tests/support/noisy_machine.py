"""Models of known speed on a busy machine, and what measures them, without a process or a runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

import numpy as np

from inlay.measure.blocks import run_block, slot_repeats
from inlay.measure.journal import Journal
from inlay.measure.paired import Timing
from inlay.measure.preemption import Preempted
from inlay.measure.race import Meter
from inlay.prepare.protocol import Protocol
from inlay.targets.base import Artifact, Feed, KernelTime


class NoisyModel:
    """3 % noise on every inference, and one in ten takes 1.5 times as long."""

    warms_up = False
    one_by_one = True

    def __init__(self, ns: float, rng: np.random.Generator) -> None:
        self._ns, self._rng = ns, rng
        self.preempted = Preempted()

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
    took: ClassVar[dict[str, tuple[float, ...]]] = {"load": ()}

    def __init__(self, ns: Mapping[str, float], rng: np.random.Generator) -> None:
        self._models: Mapping[str, NoisyModel] = {name: NoisyModel(each, rng) for name, each in ns.items()}
        self._rng = rng

    def time(self, artifacts: Sequence[Artifact], feed: Path, blocks: int, slot_ns: int, seed: int) -> Timing:
        models = [self._models[a.digest] for a in artifacts]
        rows = [run_block(models, [3] * len(models), {}, self._rng) for _ in range(blocks)]
        return Timing.of([asdict(r) for r in rows])


@contextmanager
def noisy_meter(
    ns: Mapping[str, float],
    seed: int,
    folder: Path,
    protocol: Protocol | None = None,
    clock: Callable[[], float] = lambda: 0.0,
) -> Iterator[tuple[Meter, dict[str, Artifact]]]:
    """A meter of models that take ``ns`` nanoseconds by name, and their artifacts."""
    rng = np.random.default_rng(seed)
    with closing(Journal(folder / f"{seed}.sqlite", {})) as journal:
        meter = Meter(
            NoisyWorker(ns, rng),  # type: ignore[arg-type]
            journal,
            Path("feed"),
            protocol or Protocol(),
            seed,
            sleep=lambda seconds: None,
            clock=clock,
        )
        yield meter, {name: Artifact(Path(name), name) for name in ns}


class BusyMachine:
    """Other processes come in bursts, and take turns with whatever runs: a clock of its own, moved by the models.

    Args:
        rng: draws everything.
        busy: share of the time in which others run.
        burst_ns: mean length of a burst, in nanoseconds.
    """

    TURN_NS = 4e6  # mean length of a turn of the others
    EVERY_NS = 6e6  # mean time between two, as seen by what runs

    def __init__(self, rng: np.random.Generator, busy: float, burst_ns: float = 60e6) -> None:
        self._rng, self._busy, self._burst_ns = rng, busy, burst_ns
        self._left, self._is_busy = 0.0, False

    def waits(self, ns: float) -> float:
        """Nanoseconds that others take of what runs for ``ns`` by itself."""
        if self._left <= 0.0:
            self._is_busy = not self._is_busy
            share = self._busy if self._is_busy else 1.0 - self._busy
            self._left = self._rng.exponential(2.0 * share * self._burst_ns)
        turns = self._rng.poisson(ns / self.EVERY_NS) if self._is_busy else 0
        waited = float(self._rng.exponential(self.TURN_NS, turns).sum())
        self._left -= ns + waited
        return waited


class PreemptedModel(NoisyModel):
    """2 % noise on every inference, on a machine that others use too.

    Args:
        ns: of an inference alone.
        rng: draws the noise.
        machine: where it runs.
        exposed: how much more often it is interrupted than others of the same length (a model with more threads).
        told: whether the system tells how long it waited.
        alone: it computes in one thread, so that it lost what it waited.
    """

    def __init__(
        self, ns: float, rng: np.random.Generator, machine: BusyMachine, exposed: float, told: bool, alone: bool
    ) -> None:
        super().__init__(ns, rng)
        self._machine, self._exposed, self._told, self._alone = machine, exposed, told, alone

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        own = self._ns * np.exp(self._rng.normal(0.0, 0.02, repeats))
        waits = np.array([self._machine.waits(self._exposed * ns) for ns in own])
        taken = float(waits.sum()) if self._told else 0.0
        self.preempted = Preempted(taken if self._alone else 0.0, taken)
        return np.asarray(own + waits)


class BusyWorker(NoisyWorker):
    """Stands in for a fresh process on a busy machine; the first model is the most exposed one."""

    def __init__(self, ns: Mapping[str, float], rng: np.random.Generator, busy: float, told: bool, alone: bool) -> None:
        super().__init__(ns, rng)
        machine = BusyMachine(rng, busy)
        exposed = [2.0, *[1.0] * (len(ns) - 1)]
        self._models = {
            name: PreemptedModel(each, rng, machine, e, told, alone)
            for (name, each), e in zip(ns.items(), exposed, strict=True)
        }

    def __enter__(self) -> BusyWorker:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def time(
        self, artifacts: Sequence[Artifact], feed: Path, blocks: int, slot_ns: int, seed: int, left_s: object = None
    ) -> Timing:
        models = [self._models[a.digest] for a in artifacts]
        repeats = [slot_repeats(m, {}, slot_ns) for m in models]
        rows = [run_block(models, repeats, {}, self._rng) for _ in range(blocks)]
        return Timing.of([asdict(r) for r in rows])
