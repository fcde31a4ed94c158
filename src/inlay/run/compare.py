"""`inlay bench`: the latency of given models against the first, paired in fresh processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np

from inlay.data import Workload, input_specs
from inlay.errors import CompileFailed, ModelError, UsageError
from inlay.files import scratch
from inlay.measure.client import Worker, usual_limit
from inlay.measure.lab import HERE, Lab
from inlay.measure.paired import Timing, joined, read_again, speedup
from inlay.measure.serving import Load, Served
from inlay.model.heard import counting
from inlay.model.held import changed_since, held
from inlay.model.load import ModelFile, ModelSource, load
from inlay.prepare.candidate_writer import tuned_for
from inlay.run.belonging import differences
from inlay.targets.base import Artifact, TargetSpec, is_estimate, unit_of
from inlay.targets.objective import streams_of
from inlay.trial import Interval

_SLOT_NS = 4_000_000  # that each reading takes at least
_SERVED_S, _REQUESTS = 5.0, (50, 5000)
"""Seconds for which each model answers requests in each process, and the fewest and most of them."""


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One model of a comparison, and the first model's latency over its own, paired by block.

    ``latency_ms`` is the first one's median in ``unit`` over ``speedup``: medians of their own have another ratio.
    Without an interval it is its own median. ``estimated`` says that the target computes its figures and measures none,
    ``changed`` that the file is no longer the model that was timed; it is empty where it is. ``served`` says how it
    answers requests, where a rate was asked for. ``elsewhere`` says how the target differs from the one that the file
    was quantized for; it is empty where it does not, or the file does not say.
    """

    path: Path
    latency_ms: float
    speedup: Interval
    blocks: int
    unit: str = "ms"
    estimated: bool = False
    changed: str = ""
    served: Served | None = None
    elsewhere: str = ""


def load_all(models: Sequence[ModelSource]) -> list[ModelFile]:
    """Models to compare. Raises UsageError where they are fewer than two, or do not take the same inputs."""
    if len(models) < 2:
        raise UsageError("bench compares models: give two or more")
    files = [load(model) for model in models]
    first, *others = [[s.name for s in input_specs(file.model)] for file in files]
    for file, names in zip(files[1:], others, strict=True):
        if names != first:
            raise UsageError(f"{file.path} takes the inputs {names}, {files[0].path} takes {first}")
    return files


def compare(
    files: Sequence[ModelFile],
    spec: TargetSpec,
    workload: Workload,
    blocks: int,
    processes: int,
    rng: np.random.Generator,
    lab: Lab = HERE,
    rate: float = 0.0,
) -> list[BenchRow]:
    """Time models that take the same inputs.

    Args:
        files: the models; ratios are to the first.
        rate: requests a second that each is to answer besides; 0 for none.

    Raises:
        InlayError: a model cannot be built or run.
    """
    readings, served = [], list[list[Served]]()
    with scratch() as folder:
        feed = workload.save(folder / "latency")
        copies = [held(file, folder / f"given-{i}") for i, file in enumerate(files)]
        artifacts = [Artifact(f.content.resolve(), f"{i}-{f.sha256}") for i, f in enumerate(copies)]
        for _ in counting(range(processes), "time the models in process"):
            with lab.start(spec, folder, usual_limit) as worker:
                worker.must_time()
                for file, artifact in zip(files, artifacts, strict=True):
                    try:
                        worker.load(artifact)
                    except CompileFailed as error:
                        raise ModelError(f"{file.path}: {error}") from error
                readings.append(_read(worker, artifacts, feed, blocks, rng))
                if rate:
                    requests = int(np.clip(_SERVED_S * rate, *_REQUESTS))
                    load = Load(streams_of(spec), requests, rate, int(rng.integers(2**31)))
                    served.append([worker.serve(artifact, feed, load) for artifact in artifacts])
                facts, named = worker.fingerprint.facts, worker.fingerprint.named_facts
        changed = [changed_since(copy) for copy in copies]
    first, *_ = models = joined(readings, apart=True).models
    rows = []
    each = [reduce(Served.and_then, turns) for turns in zip(*served, strict=True)] or [None] * len(files)
    for file, model, why, answers in zip(files, models, changed, each, strict=True):
        gain = speedup(first, model)
        rows.append(
            BenchRow(
                path=file.path,
                latency_ms=first.median_ns / 1e6 / gain.value if gain.is_told else model.median_ns / 1e6,
                speedup=gain,
                blocks=len(model),
                unit=unit_of(facts),
                estimated=is_estimate(facts),
                changed=why,
                elsewhere="; ".join(differences(tuned_for(file.model.metadata_props), named)),
                served=answers,
            )
        )
    return rows


def _read(worker: Worker, artifacts: Sequence[Artifact], feed: Path, blocks: int, rng: np.random.Generator) -> Timing:
    parts: list[Timing] = []

    def more(count: int) -> Timing:
        parts.append(worker.time(artifacts, feed, count, _SLOT_NS, int(rng.integers(2**31))))
        return joined(parts)

    return read_again(more(blocks), blocks, more)
