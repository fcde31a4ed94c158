"""The result of a run from what its phases found, also where there was no time for more than the given model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from inlay.calibrate import policy
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import common_sizes, input_specs
from inlay.errors import InlayError, Late, TargetError, UsageError
from inlay.measure.paired import Series
from inlay.model.heard import counting, doing
from inlay.model.store import model_bytes
from inlay.run.ceiling.bound import NO_CEILINGS, Ceilings
from inlay.run.ceiling.measure import SHORT_S, has_peaks, judged, peaks_here
from inlay.run.confirm.contenders import Entry
from inlay.run.confirm.delivered import Confirmed, Rounds, best_of, latency_ms
from inlay.run.evaluate import Candidate, Evaluator
from inlay.run.facts import CALIBRATION_SAMPLES, CHOICE, MEMORY, OUTLIERS_LEFT, PRECISION, SAMPLES, SIZE, VARIATIONS
from inlay.run.given import Given, evaluator_of
from inlay.run.inputs import RunInputs
from inlay.run.preparation import Calibrated, stress_test
from inlay.run.result import AnchorResult, TuneResult, pareto, write_json
from inlay.run.robustness import Robustness, StressTest
from inlay.run.schedule import PEAKS, Effort
from inlay.run.session import Session
from inlay.search.baselines import FLOAT, FULL_INT8
from inlay.targets.base import Artifact, KernelTime, ShowsRun
from inlay.targets.objective import objective_of
from inlay.targets.registry import create
from inlay.trial import Accuracy, Interval, Measured, Outcome, Trial
from inlay.types import Placement

_INFERENCES = 4  # of the given model, for reading a feed and the first runs


@dataclass(frozen=True)
class Losses:
    """What models lose on variations."""

    delivered: Robustness | None = None  # None where it is float, or there are no variations
    anchors: Mapping[str, Robustness] = field(default_factory=dict)  # by name, those that quantize something
    cut: str = ""  # what there was no time for, for people


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a run found: what is delivered, and what stands beside it."""

    confirmed: Confirmed  # what is delivered
    anchors: Mapping[str, Trial] = field(default_factory=dict)  # what the anchors showed, by name
    losses: Losses = Losses()  # on variations of the samples
    not_timed: tuple[str, ...] = ()  # anchors that there was no time for
    unsearched: str = ""  # that nothing but anchors was tried, and why; empty where more was


def sizes_of(inputs: RunInputs) -> list[dict[str, Any]]:
    """The sizes of dynamic dimensions that latency was measured at, with their weights; none where all are fixed."""
    specs, workload = input_specs(inputs.file.model), inputs.workload
    pairs = zip(workload.feeds, workload.weights, strict=True)
    found = [{"sizes": common_sizes(specs, [feed]), "weight": weight} for feed, weight in pairs]
    return found if any(each["sizes"] for each in found) else []


def assemble(
    session: Session,
    evaluator: Evaluator,
    found: Found,
    *,
    search: Mapping[str, Any],
    notes: tuple[str, ...],
    interrupted: bool,
    known: Ceilings = NO_CEILINGS,
) -> TuneResult:
    """The result.

    Args:
        search: facts about the search beyond what the evaluator counted.
        notes: for people; the one on the precision that was chosen goes before them.
    """
    inputs, journal, fingerprint = session.inputs, session.journal, session.worker.fingerprint
    parts, config, tally = inputs.parts, inputs.config, evaluator.tally
    confirmed, losses = found.confirmed, found.losses
    told = {c.key: one_story(c.key, c.trial.outcome, confirmed) for c in evaluator.judged}
    sizes = {c.key: journal.fact(SIZE.of(c.key)) for c in evaluator.judged}
    sizes[evaluator.judged[0].key] = baseline_bytes = model_bytes(inputs.file.content)
    memory = {c.key: journal.fact(MEMORY.of(c.key)) for c in evaluator.judged}
    imported = [
        AnchorResult(c.origin, told[c.key], sizes.get(c.key), memory_bytes=memory[c.key])
        for c in evaluator.judged
        if c.source is not None
    ]
    keys = {c.placement: c.key for c in evaluator.judged if c.placement is not None}
    named = [
        AnchorResult(n, told.get(key, t.outcome), sizes.get(key), losses.anchors.get(n), memory.get(key))
        for n, t in found.anchors.items()
        for key in [keys.get(t.proposal.placement, "")]
    ]
    precision, target = journal.fact(PRECISION), create(config.target)
    choice = journal.fact(CHOICE) or CalibrationChoice(config.methods[0])  # the time may have ended before
    return TuneResult(
        folder=inputs.out,
        model=(str(inputs.file.path), inputs.file.sha256),
        target=(config.target.name, fingerprint.digest),
        facts=fingerprint.facts,
        data={
            "kind": inputs.samples.kind,
            "samples": len(inputs.samples),
            "sources": [str(path) for path in inputs.sources],
            "calibration_samples": len(parts.calibration),
            "selection_samples": len(parts.selection),
            "validation_samples": len(parts.verification) if parts.verified else 0,
            "ranges": choice.method,
            "ranges_sqnr_db": choice.scores,
            "numbers": choice.report,
            "sizes": sizes_of(inputs),
        },
        baseline_ms=confirmed.baseline_ms,
        baseline_bytes=baseline_bytes,
        best=replace(confirmed.best, robustness=losses.delivered, memory_bytes=memory.get(confirmed.key)),
        anchors=(*imported, *named),
        pareto=tuple(
            pareto(
                [
                    _point(c, outcome, sizes[c.key], memory[c.key])
                    for c in evaluator.judged
                    if isinstance(outcome := told[c.key], Measured) and outcome.latency.speedup.is_told
                ]
            )
        ),
        search={
            "objective": objective_of(config.target),
            "measurements": tally.measurements,
            "compiles": tally.compiles,
            "failed": tally.failed,
            "equal_graphs": tally.equal_graphs,
            "replayed": tally.replayed,
            "trials": len(journal.trials()),
            **search,
        },
        bound=str(config.bound),
        seed=config.seed,
        notes=(*inputs.file.notes, *([precision.note] if precision is not None and precision.note else []), *notes),
        interrupted=interrupted,
        command=config.command,
        baseline_memory=memory[evaluator.judged[0].key],
        run_with=target.run_with() if isinstance(target, ShowsRun) else "",
        precision=precision,
        undecided=confirmed.undecided,
        not_timed=found.not_timed,
        accept_unproven=config.accept_unproven,
        ceilings=known,
    )


def one_story(key: str, outcome: Outcome, confirmed: Confirmed) -> Outcome:
    """The outcome of the candidate ``key`` with the speed-up that fresh processes told, if any, and the latency by it.

    All figures refer to one latency of the given model: readings of different moments would contradict each other.
    """
    if not isinstance(outcome, Measured):
        return outcome
    gained = confirmed.rounds.measured.get(key, outcome.latency.speedup)
    ns = latency_ms(1e6 * confirmed.baseline_ms, gained) * 1e6
    return replace(outcome, latency=replace(outcome.latency, ns=ns, speedup=gained))


def _point(candidate: Candidate, outcome: Measured, size: int | None, memory: int | None) -> dict[str, Any]:
    """A measured model as a point of speed and accuracy."""
    proposal = candidate.trial.proposal
    return {
        "origin": proposal.origin,
        "placement_digest": proposal.placement.digest,
        "latency_ms": outcome.latency.ns / 1e6,
        "speedup": outcome.latency.speedup.value,
        "sqnr_db": outcome.accuracy.sqnr_db,
        "metric": outcome.accuracy.metric,
        "feasible": outcome.accuracy.feasible,
        "size_bytes": size,
        "memory_bytes": memory,
    }


def given_alone(session: Session, given: Given, late: Late) -> TuneResult:
    """The result where the time ended before there was a candidate: the given model, as it was timed.

    Raises:
        UsageError: the folder holds a result of this run, which is better than that; it stays.
    """
    inputs = session.inputs
    if session.resumed and (inputs.out / "result.json").exists() and (inputs.out / "model.onnx").exists():
        raise UsageError(
            f"the budget of {inputs.config.budget_s:.0f} s is spent, and {inputs.out} holds the result of this run: "
            "it is kept; a larger --budget continues the search, --restart starts over"
        )
    feed = inputs.workload.save(session.work / "latency")
    protocol = replace(inputs.config.protocol, first_blocks=1)
    evaluator, _ = evaluator_of(session, given, feed, protocol, lambda: 0.0)
    entry = Entry(evaluator.incumbent, given.file, Series(np.array([evaluator.incumbent.latency_ns])))
    same = Interval.exactly(1.0)
    best = replace(best_of(entry, entry, same, same, None), confirmed=False)
    note = f"the budget was spent before there was a candidate: {late}"
    undecided = "no model in low precision was built before the budget ended: give a larger --budget"
    confirmed = Confirmed(
        best=best,
        baseline_ms=best.latency_ms,
        file=given.file.path,
        placement=None,
        rejected=(),
        rounds=Rounds(effort=Effort(0, 0, 0, 0)),
        undecided=undecided,
    )
    result = assemble(
        session,
        evaluator,
        Found(confirmed=confirmed, not_timed=(FLOAT, FULL_INT8)),
        search={"builds": session.worker.builds, "wall_s": round(session.seconds, 3), "stopped_because": note},
        notes=(*inputs.changed, note),
        interrupted=False,
    )
    confirmed.install(inputs.out / "model.onnx")
    write_json(inputs.out / "result.json", result.as_json())
    return result


def measure_memory(session: Session, files: Mapping[str, Artifact], feed: Path) -> None:
    """Record what a session of each model takes, as far as there is time; nothing where the target cannot tell.

    Args:
        files: the models by their keys, the one that matters most first.
    """
    journal, costs = session.journal, session.costs
    worker = session.worker
    if "memory" in worker.lacks or (worker.deterministic and "memory" not in worker.fingerprint.facts):
        return
    once_s = costs.worker_s + costs.candidate_build_s + _INFERENCES * costs.sample_s
    for key, file in counting([*files.items()], "measure the memory of model"):
        if journal.fact(MEMORY.of(key)) is not None:
            continue
        if not session.plan.before_writing.fits(once_s):
            return
        with contextlib.suppress(TargetError):  # nothing else depends on it
            with session.start_beside(session.inputs.config.target, session.work, session.limit_s) as fresh:
                found = fresh.memory(file, feed)
            if found is None:
                return
            journal.record_fact(MEMORY.of(key), found)


def cuts(session: Session, missing: Sequence[str], first_blocks: int, rounds: Rounds) -> Iterator[str]:
    """What a run did less thoroughly because its budget did not allow for more: one phrase for each phase.

    Args:
        rounds: in fresh processes; where these decided nothing, a note of its own says why.
    """
    if not session.plan.is_limited:
        return
    inputs, journal = session.inputs, session.journal
    parts, config = inputs.parts, inputs.config
    samples, choice = journal.fact(CALIBRATION_SAMPLES), journal.fact(CHOICE)
    precision = journal.fact(PRECISION)
    if precision is not None and precision.late:
        yield f"the given model timed in {precision.own}, not in float32"
    if samples is not None and samples < len(parts.calibration):
        yield f"ranges from {samples} of {len(parts.calibration)} samples"
    if journal.fact(OUTLIERS_LEFT):
        yield "outliers of activations not evened out"
    if choice is not None:
        yield from choice.cuts(len(config.methods))
    if journal.fact(SAMPLES) is not None:
        yield f"accuracy on {inputs.judged} samples in the search and {len(parts.verification)} after it"
    varied = journal.fact(VARIATIONS)
    if varied is not None and varied < policy.SCORED_VARIATIONS:
        yield f"{varied} of {policy.SCORED_VARIATIONS} variations of samples"
    if missing:
        yield f"not timed: {', '.join(missing)}"
    if first_blocks < config.protocol.first_blocks:
        yield f"races begin with {first_blocks} of {config.protocol.first_blocks} blocks"
    if rounds.finalists and (left_out := rounds.effort.cut_from(session.plan.efforts[0])):
        yield left_out


def losses(
    session: Session,
    confirmed: Confirmed,
    test: StressTest,
    anchors: Mapping[str, Trial],
    write: Callable[[Placement], Artifact],
    given: Given,
) -> Losses:
    """Judge the delivered model on variations of the unseen samples, then anchors on those of the selection samples."""
    if not test.names:
        return Losses()
    best, delivered, unseen = confirmed.best, None, session.inputs.verification
    found: dict[str, Robustness] = {}
    each_s = session.costs.judge_s(len(test.names))
    late = "accuracy on variations of the samples"
    try:
        if not best.is_float:
            if not session.plan.before_writing.fits(2 * each_s):
                return Losses(cut=late)
            doing("judge the winner on varied samples")
            accuracy, last = best.selection, test
            if best.verification is not None and unseen is not None:
                accuracy, last = best.verification, stress_test(session, "varied-unseen", unseen, given)
            delivered = _loss(session, Artifact(confirmed.file, best.output_sha256), last, accuracy)
        for name, trial in anchors.items():
            if trial.accuracy is None or not trial.proposal.placement:
                continue
            if not session.plan.before_writing.fits(each_s):
                return Losses(delivered, found, f"{late}, of anchors")
            doing(f"judge {name} on varied samples")
            loss = _loss(session, write(trial.proposal.placement), test, trial.accuracy)
            if loss is not None:
                found[name] = loss
    except InlayError:  # the result stands without it
        return Losses(delivered, found, late)
    return Losses(delivered, found)


def _loss(session: Session, model: Artifact, test: StressTest, accuracy: Accuracy) -> Robustness | None:
    try:
        return test.robustness(session.worker.run(model, test.feeds), accuracy.sqnr_db)
    finally:
        session.worker.drop(model)


def ceilings(
    session: Session, model: Calibrated, confirmed: Confirmed, profile: Callable[[], Iterable[Sequence[KernelTime]]]
) -> Ceilings:
    """Those of a run, as far as there is time and the models were profiled on one feed.

    Args:
        profile: the kernels of the delivered and of the float model, none where there is no profile.
    """
    workload, graph = session.inputs.workload, model.prepared.graph
    sizes = {name: tuple(a.shape) for name, a in workload.feeds[0].items()}
    if len(workload.feeds) > 1 or any(graph.shape(name) != shape for name, shape in sizes.items()):
        return NO_CEILINGS
    plan = session.plan
    share_s = PEAKS * plan.seconds if plan.is_limited else SHORT_S
    peaks = peaks_here(session.worker, session.work / "peaks", plan.before_writing, share_s)
    if peaks is None:
        return Ceilings(unmeasured=has_peaks(session.worker))
    best = confirmed.best
    delivered, in_float = profile()
    delivered_ns = 1e6 * best.latency_ms
    float_ns = delivered_ns * best.over_float.value if best.over_float.is_told else 0.0
    if not float_ns > 0.0:
        in_float = []
    found = judged(session.worker, peaks, [(delivered, graph, delivered_ns), (in_float, graph, float_ns)])
    return Ceilings(peaks, found[0], found[1])
