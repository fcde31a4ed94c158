"""Explain a model on a target: what ran, why not on integers, what conversions cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from inlay.data import Samples, save_feed
from inlay.deadline import Deadline
from inlay.errors import InlayError, ModelError, TargetError, UsageError
from inlay.explanation import policy
from inlay.explanation.bound import Bounded, bound
from inlay.explanation.executed import Executed, operators_of, profiled, written
from inlay.explanation.experiments import Laboratory, Proven, does_run, prove
from inlay.explanation.explanation import Explanation, Operator, Reason
from inlay.explanation.faults import Suspect, misread, suspects
from inlay.explanation.floats import InFloat, grouped, in_float
from inlay.explanation.losses import Losses, kept_wide, losses, too_late
from inlay.explanation.removal import timed
from inlay.explanation.waste import taken_in, wasted
from inlay.files import scratch
from inlay.measure.client import Worker
from inlay.model.flow import flattened
from inlay.model.graph import build_graph
from inlay.model.held import changed_since, held
from inlay.model.load import ModelFile
from inlay.model.passes.constants import with_constants
from inlay.model.passes.names import fix_names
from inlay.model.pieces import run_visibly
from inlay.model.reference import ConstantEvaluator
from inlay.model.store import WeightStore
from inlay.prepare.candidate_writer import PLACED
from inlay.prepare.strip_qdq import holds_quantized, parts_of
from inlay.quant.plain.form import write_plain
from inlay.run.ceiling.bound import NO_CEILINGS, Ceilings
from inlay.run.ceiling.measure import SHORT_S, judged, peaks_here
from inlay.space.rules import Rules
from inlay.targets.base import Capabilities, Feed, TargetSpec
from inlay.targets.preconditions import preconditions_of
from inlay.targets.registry import create, known_operators
from inlay.trial import counted
from inlay.types import AUTO

Stage = Callable[[str], None]  # hears what is done next


def explain(
    file: ModelFile, spec: TargetSpec, samples: Samples, deadline: Deadline, stage: Stage = lambda text: None
) -> Explanation:
    """Say why each operator of ``file`` ran as it did.

    Args:
        file: a float or Q/DQ model of any origin.
        samples: the first one is what is timed.
        deadline: no further experiment is begun after it.

    Raises:
        UsageError: the target gives no profiles.
        ModelError: the model does not run, for no reason that is known.
    """
    target = create(spec)
    rules, rows = target.rules(), preconditions_of(target)
    with scratch() as folder, Worker(spec, folder) as worker:
        file = held(file, folder / "held")
        if "profile" in worker.lacks:
            raise UsageError(f"target {spec.name} reports no kernel times, which an explanation needs")
        feed = folder / "feed.npz"
        save_feed(feed, samples.feeds[0])
        quantized = holds_quantized(file)
        given = flattened(fix_names(file.model.clone())[0])
        plain, replaced = given.clone(), dict[str, tuple[str, str]]()
        if quantized:
            replaced = write_plain(plain, known_operators()).replaced
            plain = with_constants(plain, ConstantEvaluator(folder))
        apart = parts_of(given, folder) if quantized else None
        inside = given if apart is None else apart.model
        stage("profile the model as it is")
        found = suspects(plain.graph, build_graph(inside), rules, rows)
        laboratory = Laboratory(worker, plain, (rules, rows), found, folder / "experiments", feed)
        runs = _as_given(worker, given, rules, folder / "given", feed, deadline)
        failed = ""
        if isinstance(runs, TargetError):
            why = ModelError(f"{file.path} does not run on {spec.name}: {runs}")
            code, mends = does_run(laboratory, list(found.values()), why)
            failed = f"{code} at {counted(len(mends), 'operator')}: {runs}"
            ran, graph = laboratory.profile(mends, policy.PROFILE_LEAST)
            runs = _Runs(graph, ran, float(ran.total_ns), ran, graph.graph)
            broken = {n: Proven(tuple(faults), "together") for n, faults in mends.items()}
        else:
            broken = {}
            kept = {str(n.name) for n in plain.graph}
            runs = replace(runs, operators=grouped(runs.executed, given.graph, replaced, kept), graph=plain.graph)
        known = NO_CEILINGS
        if not failed and deadline.left:
            stage("compare with what the processor can do")
            known = _ceilings(worker, given, runs, samples.feeds[0], folder / "ceiling", deadline)
        floats = InFloat()
        if apart is not None and not apart.opaque and not failed and deadline.left:
            stage("time the float model in it")
            floats = in_float((given, apart.model), worker, rules, folder / "floats", feed, runs.factor, deadline)
        stage("prove the reasons")
        real = quantized and samples.kind != "random"
        proving = (
            deadline.earlier(policy.LOSS_SHARE * deadline.left) if real and math.isfinite(deadline.at) else deadline
        )
        proven, mended = _prove(laboratory, runs, found, proving) if quantized else ({}, None)
        proven = {**proven, **broken}
        rounding = Losses(None, problem=too_late("sources of rounding") if real else "")
        if real and deadline.left:
            stage("find the values that lose the accuracy")
            rounding = losses(file, Capabilities.of(target), samples, worker, folder / "losses", deadline)
        at_most = Bounded(None, {})
        if not quantized:
            stage("find out what INT8 could bring")
            at_most = bound(file, Capabilities.of(target), samples, worker, folder / "bound", feed, runs.factor)
        wide = ""
        if rules.halves and samples.kind != "random" and deadline.left:
            stage("find what loses too much in half precision")
            wide = kept_wide(file, Capabilities.of(target, base=AUTO), samples, folder / "halves", deadline)
        waste = wasted(runs.model.graph, runs.executed)
        if quantized and not failed:
            waste = timed(waste, worker, given, folder / "removals", feed, deadline)
        listed = _operators(runs, found, proven, mended, rules)
        listed = tuple(replace(o, gain_ms=at_most.gains.get(o.name, o.gain_ms), float_ms=floats.ms(o)) for o in listed)
        return Explanation(
            model=str(file.path),
            target=spec.name,
            quantized=quantized,
            latency_ms=runs.latency_ns / 1e6,
            kernels_ms=runs.executed.total_ns / 1e6,
            operators=listed,
            waste=waste,
            failed=failed,
            mended_ms=None if mended is None else mended.total_ns / 1e6,
            sqnr_db=rounding.sqnr_db,
            judged=rounding.judged,
            losses=rounding.sources,
            together=rounding.together,
            bound=at_most.bound,
            notes=(
                *misread(plain.graph, rules, rows, runs.operators),
                *file.notes,
                *filter(None, [changed_since(file)]),
                *_notes(samples, runs.executed),
                *known.remarks,
                *filter(None, [wide, taken_in(given.graph, runs.executed.kernels) if quantized else ""]),
                *filter(None, [floats.problem, rounding.problem, at_most.problem]),
            ),
            facts=worker.fingerprint.facts,
            over_float=floats.speedup,
            chosen=quantized and PLACED in file.model.metadata_props,
            ceiling=known.delivered,
        )


@dataclass(frozen=True, eq=False)
class _Runs:
    """A model with its profile and its latency in nanoseconds."""

    model: ir.Model  # that was profiled
    executed: Executed  # its profile, by its nodes
    latency_ns: float  # of an inference
    operators: Executed  # the profile, by the operators of its plain form
    graph: ir.Graph  # that form
    factor: float = 1.0  # that the profile was scaled by


def _as_given(
    worker: Worker, model: ir.Model, rules: Rules, folder: Path, feed: Path, deadline: Deadline
) -> _Runs | TargetError:
    folder.mkdir()
    artifact = written(model, WeightStore(folder), folder, "given")
    try:
        slot = 0 if worker.deterministic else policy.TIMED_SLOT_NS
        latency = 0.0
        if "latency" not in worker.lacks:
            timing = worker.time([artifact], feed, policy.TIMED_BLOCKS, slot, 0, lambda: deadline.left)
            latency = timing.models[0].median_ns
        found = profiled(worker, artifact, feed, policy.repeats(latency), model.graph, rules)
    except TargetError as error:
        worker.drop(artifact)
        return error
    # profiling costs time of its own: prices are shares of what an inference takes without it
    scaled = found.scaled(min(1.0, latency / max(found.total_ns, 1.0))) if latency else found
    return _Runs(model, scaled, latency, scaled, model.graph, scaled.total_ns / max(found.total_ns, 1.0))


def _ceilings(worker: Worker, given: ir.Model, runs: _Runs, feed: Feed, folder: Path, deadline: Deadline) -> Ceilings:
    """How far the model is from what its processor can do, as far as that can be told."""
    folder.mkdir()
    peaks = peaks_here(worker, folder / "peaks", deadline, SHORT_S)
    if peaks is None:
        return NO_CEILINGS
    try:
        seen = run_visibly(given, WeightStore(folder), feed)
    except InlayError:  # its sizes are not known then
        return Ceilings(peaks)
    graph, fed = build_graph(given), {name: tuple(a.shape) for name, a in feed.items()}
    sized = replace(graph, shapes={**graph.shapes, **seen.shapes, **fed}, dtypes={**graph.dtypes, **seen.dtypes})
    return Ceilings(peaks, judged(worker, peaks, [(runs.executed.kernels, sized, runs.latency_ns)])[0])


def _prove(
    laboratory: Laboratory, runs: _Runs, found: Mapping[str, Suspect], deadline: Deadline
) -> tuple[dict[str, Proven], Executed | None]:
    """Experiments on what ran in float, the most expensive first; and the profile with everything mended."""
    ran = runs.operators.operators
    tried = [
        suspect
        for name, suspect in found.items()
        if name in ran and ran[name].precision == "float" and any(f.row.mend for f in suspect.faults)
    ]
    if not tried:
        return {}, None
    tried.sort(key=lambda s: -ran[s.name].ns)
    if not deadline.left:
        return {}, None
    everything = {s.name: s.faults for s in tried}
    try:
        together = laboratory.profile(everything, policy.PROFILE_LEAST)[0].scaled(runs.factor)
    except TargetError:
        together = None

    def more() -> bool:
        return deadline.left > 0 and laboratory.builds < policy.MOST_EXPERIMENTS

    return prove(laboratory, tried, together, more), together


def _operators(
    runs: _Runs, found: Mapping[str, Suspect], proven: Mapping[str, Proven], mended: Executed | None, rules: Rules
) -> tuple[Operator, ...]:
    listed = []
    total = max(runs.executed.total_ns, 1.0)
    for node in operators_of(runs.graph):
        name = str(node.name)
        ran, rule, suspect = runs.operators.operators.get(name), rules.ops.get(node.op_type), found.get(name)
        product = rule is not None and rule.weight is not None
        if ran is None:
            listed.append(Operator(name, node.op_type, "folded", "", 0.0, False))
            continue
        heavy = (product and ran.precision != "other") or ran.ns >= policy.HEAVY_SHARE * total
        made = Operator(name, node.op_type, ran.precision, ran.kernel, ran.ns / 1e6, heavy)
        if suspect is not None and (ran.precision == "float" or name in proven):
            gain = None
            if mended is not None and mended.is_low(name):
                gain = (ran.ns - mended.operators[name].ns) / 1e6
            made = replace(made, reasons=_reasons(suspect, proven.get(name)), gain_ms=gain)
        listed.append(made)
    return tuple(listed)


def _reasons(suspect: Suspect, proven: Proven | None) -> tuple[Reason, ...]:
    if suspect.unsupported:
        return (Reason("unsupported", suspect.unsupported, "keep it, and what only it reads, in float", "table"),)
    faults = suspect.faults if proven is None else proven.faults
    if not faults:
        return (Reason("unknown", "every known precondition holds", "", "predicted"),)
    return tuple(
        Reason(
            f.row.name,
            f.text,
            f.advice,
            "table" if f.row.mend is None else "predicted" if proven is None else proven.proof,
        )
        for f in faults
    )


def _notes(samples: Samples, ran: Executed) -> Iterator[str]:
    if samples.kind == "random":
        yield "no samples were given: times are for random inputs, and nothing is known about accuracy"
    yield from samples.left_out
    if ran.unknown_ns > policy.HEAVY_SHARE * ran.total_ns:
        yield f"{ran.unknown_ns / ran.total_ns:.0%} of the time is spent in kernels whose origin is not known"
