"""The result of a finished run, from what its phases found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inlay.calibrate.tables import CalibrationChoice
from inlay.data import common_sizes, input_specs
from inlay.measure.journal import Journal
from inlay.model.store import model_bytes
from inlay.run.confirm.delivered import Confirmed, latency_ms
from inlay.run.evaluate import Candidate, Evaluator
from inlay.run.facts import CHOICE, MEMORY, PRECISION, SIZE
from inlay.run.inputs import RunInputs
from inlay.run.result import AnchorResult, TuneResult, pareto
from inlay.run.stress import NO_LOSSES, Losses
from inlay.targets.base import Fingerprint, ShowsRun
from inlay.targets.registry import create
from inlay.trial import Measured, Outcome, Trial


def sizes_of(inputs: RunInputs) -> list[dict[str, Any]]:
    """The sizes of dynamic dimensions that latency was measured at, with their weights; none where all are fixed."""
    specs, workload = input_specs(inputs.file.model), inputs.workload
    pairs = zip(workload.feeds, workload.weights, strict=True)
    found = [{"sizes": common_sizes(specs, [feed]), "weight": weight} for feed, weight in pairs]
    return found if any(each["sizes"] for each in found) else []


def assemble(
    inputs: RunInputs,
    fingerprint: Fingerprint,
    journal: Journal,
    evaluator: Evaluator,
    anchors: Mapping[str, Trial],
    confirmed: Confirmed,
    *,
    search: Mapping[str, Any],
    notes: tuple[str, ...],
    interrupted: bool,
    losses: Losses = NO_LOSSES,
    not_timed: tuple[str, ...] = (),
) -> TuneResult:
    """The result.

    Args:
        inputs: what the run worked with.
        fingerprint: of the target.
        journal: knows how ranges were chosen.
        evaluator: knows every candidate that was judged.
        anchors: what the anchors showed, by name.
        confirmed: what is delivered.
        search: facts about the search beyond what the evaluator counted.
        notes: for people; the one on the precision that was chosen goes before them.
        interrupted: whether the user ended the search.
        losses: on variations of the samples.
        not_timed: anchors that there was no time for.
    """
    parts, config, tally = inputs.parts, inputs.config, evaluator.tally
    told = {c.key: one_story(c.key, c.trial.outcome, confirmed) for c in evaluator.judged}
    sizes = {c.key: journal.fact(SIZE.of(c.key)) for c in evaluator.judged}
    sizes[evaluator.judged[0].key] = baseline_bytes = model_bytes(inputs.file.content)
    memory = {c.key: journal.fact(MEMORY.of(c.key)) for c in evaluator.judged}
    imported = [
        AnchorResult(c.trial.proposal.origin, told[c.key], sizes.get(c.key), memory_bytes=memory[c.key])
        for c in evaluator.judged
        if c.source is not None
    ]
    keys = {c.placement: c.key for c in evaluator.judged if c.placement is not None}
    named = [
        AnchorResult(n, told.get(key, t.outcome), sizes.get(key), losses.anchors.get(n), memory.get(key))
        for n, t in anchors.items()
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
        not_timed=not_timed,
        accept_unproven=config.accept_unproven,
    )


def one_story(key: str, outcome: Outcome, confirmed: Confirmed) -> Outcome:
    """The outcome of the candidate ``key`` with the speed-up that fresh processes told, if any, and the latency by it.

    All figures refer to one latency of the given model: readings of different moments would contradict each other.
    """
    if not isinstance(outcome, Measured):
        return outcome
    gained = confirmed.measured.get(key, outcome.latency.speedup)
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
