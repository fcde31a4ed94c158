"""How the delivered model compares in other uses than the one it was tuned for: at once, by processor time, cold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from inlay.errors import InlayError, UsageError
from inlay.measure.client import Worker
from inlay.measure.paired import MIN_PAIRS, Timing, speedup
from inlay.measure.readings import Reading
from inlay.measure.serving import Load, Served
from inlay.run.confirm.delivered import Confirmed
from inlay.run.result import Use
from inlay.run.schedule import USES
from inlay.run.session import Session
from inlay.search.baselines import ORIGINAL
from inlay.targets.base import Artifact, TargetSpec
from inlay.targets.objective import aimed_at, objective_of, streams_of

_BLOCKS = MIN_PAIRS + 2
_REQUESTS = 100  # requests that each of two turns of a model answers: the 99th percentile of 200 is the second longest


def in_other_uses(session: Session, confirmed: Confirmed, given: Artifact, feed: Path) -> Confirmed:
    """The decision with what it comes to in other uses, as far as a small share of the budget allows for it."""
    spec, plan = session.inputs.config.target, session.plan
    is_asked = objective_of(spec) != "latency"
    if confirmed.best.origin == ORIGINAL or session.worker.deterministic or not (is_asked or plan.is_limited):
        return confirmed
    delivered = Artifact(confirmed.file, confirmed.best.output_sha256)
    found: list[Use] = []
    with contextlib.suppress(InlayError):  # the result stands without them
        for wanted, readings in _others(spec):
            readings = dict(islice(readings.items(), _fitting(session, len(readings))))
            if not readings:
                continue
            with session.start_beside(wanted, session.work, session.limit_s) as worker:
                found += _measured(session, worker, (given, delivered), feed, readings)
    return replace(confirmed, best=replace(confirmed.best, uses=tuple(found)))


def _fitting(session: Session, most: int) -> int:
    """How many readings there is time for, up to ``most``."""
    plan = session.plan
    for count in range(most, 0, -1):
        costs_s = session.costs.process_s(2, count * _BLOCKS)
        if plan.before_writing.fits(costs_s) and (not plan.is_limited or costs_s <= USES * plan.seconds):
            return count
    return 0


def _others(spec: TargetSpec) -> Iterator[tuple[TargetSpec, Mapping[str, Reading]]]:
    """How the target is set up for other uses, and what is then read, by the name of the use; what matters most first.

    Where it is tuned for many at once, that is among them: only how it serves is not known yet.
    """
    alone: dict[str, Reading] = {"latency": "latency", "cold": "cold", "cpu-time": "cpu-time"}
    single = {**spec.options, **({"streams": 1} if streams_of(spec) > 1 else {})}
    yield TargetSpec(spec.name, single), {k: r for k, r in alone.items() if streams_of(spec) > 1 or r != spec.reading}
    with contextlib.suppress(UsageError):  # it runs one at a time
        yield aimed_at(TargetSpec(spec.name, spec.options), "throughput"), {"throughput": "latency"}


def _measured(
    session: Session, worker: Worker, models: tuple[Artifact, Artifact], feed: Path, readings: Mapping[str, Reading]
) -> Iterator[Use]:
    left, protocol = session.plan.before_writing, session.plan.protocol()
    for name, reading in readings.items():
        seed = int(session.rng.integers(2**31))
        timing: Timing = worker.time(models, feed, _BLOCKS, protocol.slot_ns, seed, lambda: left.left, reading)
        given, delivered = timing.models
        gained = speedup(given, delivered)
        if not gained.is_told:
            return
        streams = streams_of(worker.spec)
        served = _served(worker, models, feed, Load(streams=streams, requests=_REQUESTS)) if streams > 1 else None
        yield Use(name=name, streams=streams, speedup=gained, given_ms=given.median_ns / 1e6, served=served)


def _served(worker: Worker, models: tuple[Artifact, Artifact], feed: Path, load: Load) -> tuple[Served, Served]:
    """How both serve, each in two turns around the other's."""
    given, delivered = models
    turns = [worker.serve(model, feed, load) for model in (given, delivered, delivered, given)]
    return turns[0].and_then(turns[3]), turns[1].and_then(turns[2])
