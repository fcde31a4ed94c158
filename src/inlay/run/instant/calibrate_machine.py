"""``inlay calibrate-machine``: what the kernels of this processor cost, from a minute of measurements.

The target gives small float models that hold its kernels in their usual surroundings. Each is prepared as any other
model, written in several precisions, and timed in the worker: all of its forms in interleaved blocks, so that a busy
moment hits all alike. Profiles divide these times among kernels, and the fits go to the table; where the target gives
none, the models are as simple as their kernels, and their times alone tell: a model takes the sum of what its operators
and the values between them take, each linear in its workload, and something for the call. Models that hold few kinds,
in several precisions, sizes and numbers, are equations enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from inlay.data import input_specs, random_samples, save_feed
from inlay.deadline import NEVER
from inlay.errors import InlayError, TargetError, UsageError
from inlay.files import scratch
from inlay.measure.client import Worker
from inlay.model.graph import Graph
from inlay.model.load import load
from inlay.prepare.model import PreparedModel, prepare
from inlay.run.ceiling.measure import LONG_S, SHORT_S, measure_peaks, writer_by_extremes
from inlay.run.machine_costs import write_costs, write_table
from inlay.search.baselines import anchor_units
from inlay.search.cost_prior import CASES, CostParameters
from inlay.search.cost_table import CostTable, Reading, fit_table, rewritten_state
from inlay.search.peaks import Peaks
from inlay.search.unit_graph import UnitGraph, build_unit_graph
from inlay.search.workload import Workload, workloads
from inlay.space.units import STATIC
from inlay.targets.base import Artifact, Calibrates, Capabilities, Fingerprint, KernelTime, TargetSpec
from inlay.targets.registry import create
from inlay.types import Placement

_BLOCKS = 4
"""Of each micro-model: their median leaves half of the spread of one; every kind of kernel has many readings."""
_SLOT_NS = 2_000_000  # nanoseconds of one reading: short, as there are many models
_PROFILE_REPEATS = 12  # inferences of a profile, which tells the median of each kernel
_BEHIND = " behind "
_PLAIN = {"float behind low": "float", "low behind float": "low"}
"""States in which a unit costs what it does elsewhere, as far as whole models can tell."""
_NO_KERNEL = ("float", "low")  # states of a value in which it is handed on as it is


@dataclass(frozen=True)
class Calibrated:
    """What a calibration of this machine gave."""

    path: Path  # where the table was written
    table: CostTable  # the fits
    fingerprint: Fingerprint  # of the target
    models: tuple[int, int]  # micro-models that were measured, of how many
    readings: int  # of single kernels
    failed: dict[str, int]  # why micro-models could not be measured, and how many
    peaks: Peaks | None = None  # of the processor; None where the target tells too little


def calibrate_machine(
    spec: TargetSpec,
    seconds: float | None,
    rng: np.random.Generator,
    stage: Callable[[str], None] = lambda text: None,
    folder: Path | None = None,
    to: Path | None = None,
) -> Calibrated:
    """Measure the kernels of ``spec`` and the processor's peaks on this machine, and keep both.

    Args:
        seconds: after which no further micro-model is begun; None for no limit.
        folder: where the table is kept; the user's cache folder by default.
        to: a file that it is also written to, for another machine.

    Raises:
        UsageError: the target offers no micro-models, and times no kernels.
        TargetError: none of them could be measured.
    """
    target = create(spec)
    if to is not None and not to.resolve().parent.is_dir():
        raise UsageError(f"--costs {to}: there is no folder {to.parent}")
    models = target.micro_models() if isinstance(target, Calibrates) else []
    deadline = NEVER if seconds is None else NEVER.within(seconds)
    readings: list[Reading] = []
    totals: list[Total] = []
    failed: Counter[str] = Counter()
    done = 0
    with scratch() as place, Worker(spec, place) as worker:
        worker.must_time()
        profiles = "profile" not in worker.lacks
        for number, proto in enumerate(models):
            if done and not deadline.left:
                break
            stage(f"measure kernels: {proto.graph.name} ({number + 1} of {len(models)})")
            work = place / str(number)
            work.mkdir()
            try:
                if profiles:
                    readings += _readings(proto, Capabilities.of(target), worker, work, rng)
                else:
                    totals += _totals(proto, Capabilities.of(target), worker, work, rng)
                done += 1
            except InlayError as error:
                failed[str(error)] += 1
        fingerprint = worker.fingerprint
        brief = seconds is not None and seconds < LONG_S
        stage("measure the peaks of this processor")
        limit = NEVER.within(SHORT_S if brief else LONG_S)
        peaks = measure_peaks(worker, Capabilities.of(target), place / "peaks", rng, limit, brief)
    if totals:
        readings = kernel_readings(totals)
    if not models and peaks is None:
        raise UsageError(f"target {spec.name} has no models that its kernels could be measured by")
    if models and not readings:
        raise TargetError(f"no kernel could be measured: {next(iter(failed), 'there are no models')}")
    table = fit_table(readings)
    path = write_costs(fingerprint, table, folder, peaks)
    if to is not None:
        write_table(to, fingerprint, table)
    return Calibrated(path, table, fingerprint, (done, len(models)), len(readings), dict(failed), peaks)


@dataclass(frozen=True, eq=False)
class _Timed:
    """A micro-model in all of its forms."""

    graph: Graph  # of the prepared model
    parameters: CostParameters  # what has a cost in it
    # labels, placement and file of each form that the target builds
    forms: Sequence[tuple[np.ndarray, Placement, Artifact]]
    ns: Sequence[float]  # nanoseconds of each


def _timed(
    proto: onnx.ModelProto, target: Capabilities, worker: Worker, work: Path, rng: np.random.Generator
) -> tuple[_Timed, Path]:
    """A micro-model timed in all of its forms, and the file of its inputs. Raises InlayError."""
    path = work / "micro.onnx"
    onnx.save(proto, path)
    file = load(path)
    samples = random_samples(input_specs(file.model), rng, 1)
    prepared = prepare(file, target, samples.feeds[0], work)
    writer = writer_by_extremes(prepared, samples, worker.fingerprint.digest)
    feed = work / "feed.npz"
    save_feed(feed, samples.feeds[0])
    graph = build_unit_graph(prepared.graph, prepared.units)
    forms = [(labels, placement, writer.write(placement)) for labels, placement in _placements(prepared, graph)]
    ran = [form for form in forms if _builds(worker, form[2])]
    timing = worker.time([artifact for _, _, artifact in ran], feed, _BLOCKS, _SLOT_NS, int(rng.integers(2**31)))
    return _Timed(prepared.graph, CostParameters(graph), ran, [model.median_ns for model in timing.models]), feed


def _totals(
    proto: onnx.ModelProto, target: Capabilities, worker: Worker, work: Path, rng: np.random.Generator
) -> list[Total]:
    """What one micro-model holds and takes, in each of its forms. Raises InlayError."""
    timed, _ = _timed(proto, target, worker, work, rng)
    found, units = workloads(timed.graph, timed.parameters), timed.parameters.graph
    totals = []
    for (labels, _, artifact), ns in zip(timed.forms, timed.ns, strict=True):
        worker.drop(artifact)
        paid = timed.parameters.paid(units.propagate(labels))
        totals.append(Total([found[at] for at in paid.tolist()], ns))
    return totals


def _readings(
    proto: onnx.ModelProto, target: Capabilities, worker: Worker, work: Path, rng: np.random.Generator
) -> list[Reading]:
    """Readings of each kernel of one micro-model in all of its forms. Raises InlayError."""
    timed, feed = _timed(proto, target, worker, work, rng)
    parameters, graph = timed.parameters, timed.parameters.graph
    profiles = [worker.profile(artifact, feed, _PROFILE_REPEATS) for _, _, artifact in timed.forms]
    for _, _, artifact in timed.forms:
        worker.drop(artifact)
    found = workloads(timed.graph, parameters)
    readings = []
    for (labels, placement, _), kernels, ns in zip(timed.forms, profiles, timed.ns, strict=True):
        states = {graph.index[r.port.node]: r for r in placement.rewrites}
        for at, cost in _costs(timed.graph, parameters, labels, kernels, ns).items():
            work_there, state = found[at]
            unit = at // CASES
            if at < parameters.first_edge and unit in states:
                state = rewritten_state(state, states[unit])
            if not cost and at < parameters.first_edge:  # fused, or removed, where it stands: not so elsewhere
                if work_there.products:
                    continue
                work_there = replace(work_there, kinds=work_there.kinds[:1])
            readings.append(Reading(work_there, state, cost))
    return readings


def _costs(
    graph: Graph, parameters: CostParameters, labels: np.ndarray, kernels: Sequence[KernelTime], ns: float
) -> dict[int, float]:
    """Nanoseconds by parameter, scaled to the time of the whole model.

    A kernel of two fused operators may count as one of the second: it is the first one's then, whose work it does.
    """
    units = parameters.graph
    paid = parameters.paid(units.propagate(labels))
    costs, outside = parameters.shares(paid, kernels)
    total = sum(costs.values()) + outside
    for i, unit in enumerate(units.units):
        readers = {units.index.get(p.node, -1) for v in unit.outputs for p in graph.consumers(v)}
        if len(readers) == 1 and unit.weights and not costs[int(paid[i])] and (j := readers.pop()) >= 0:
            costs[int(paid[i])], costs[int(paid[j])] = costs[int(paid[j])], 0.0
    return {at: cost * ns / total for at, cost in costs.items()} if total > 0.0 else {}


def _placements(prepared: PreparedModel, graph: UnitGraph) -> Iterator[tuple[np.ndarray, Placement]]:
    """Labelings in which each kernel runs in all its precisions, behind its own and behind the other one."""
    offered = prepared.selectable_rewrites
    named = list(anchor_units(prepared.graph, prepared.units).values())
    low = [u.name for u in prepared.units if u.selectable]
    turns = [dict.fromkeys(low[first::2], STATIC) for first in (0, 1)]
    seen: set[Placement] = set()
    for precisions in [*named, *turns]:
        labels = graph.fixed_point(graph.labels(precisions))
        plain = prepared.label(graph.precisions(labels))
        for rewrites in [(), *([r for r in offered if r.name == name] for name in sorted({r.name for r in offered}))]:
            placement = plain.with_rewrites(rewrites)
            if placement not in seen:
                seen.add(placement)
                yield labels, placement


def _builds(worker: Worker, artifact: Artifact) -> bool:
    try:
        worker.load(artifact)
    except TargetError:
        return False
    return True


@dataclass(frozen=True, eq=False)
class Total:
    """A model that was timed."""

    parts: Sequence[tuple[Workload, str]]  # workload and state of each of its units and values
    ns: float  # nanoseconds of an inference


def kernel_readings(totals: Sequence[Total]) -> list[Reading]:
    """What each part of each model takes, by the costs that explain all totals best; none is negative.

    Relative errors of totals are what is least, so that models of any size count alike.
    """
    from scipy.optimize import nnls  # commands that fit nothing do not wait for it

    parts = [[(work, key) for work, state in total.parts if (key := _key(work, state)) is not None] for total in totals]
    keys = {key: number for number, key in enumerate(dict.fromkeys(key for each in parts for _, key in each))}
    rows = np.zeros((len(totals), len(keys), len(Workload(()).features)))
    for row, each in zip(rows, parts, strict=True):
        for work, key in each:
            row[keys[key]] += work.features
    scale = np.maximum(rows.max(axis=0), 1.0)
    ns = np.array([total.ns for total in totals])
    relative = (rows / scale / ns[:, None, None]).reshape(len(totals), -1)
    found, _ = nnls(np.concatenate([relative, 1.0 / ns[:, None]], axis=1), np.ones(len(totals)))
    costs = found[:-1].reshape(scale.shape) / scale
    readings = []
    for total in totals:
        for work, state in total.parts:
            key = _key(work, state)
            cost = 0.0 if key is None else float(costs[keys[key]] @ work.features)
            readings.append(Reading(_alike(work), _PLAIN.get(state, state), cost))
    return readings


def _key(work: Workload, state: str) -> tuple[str, str] | None:
    """What has costs of its own: a sort of operators or values in a state; None for a value without a kernel."""
    kind = _alike(work).kinds[0]
    if kind.startswith("value"):
        return None if state in _NO_KERNEL else (work.kinds[-1], state)
    return kind, _PLAIN.get(state, state)


def _alike(work: Workload) -> Workload:
    """Without the kinds that say what stands before: what is removed or fused there, no total tells."""
    return Workload(tuple(k for k in work.kinds if _BEHIND not in k), work.products, work.moved, work.constants)
