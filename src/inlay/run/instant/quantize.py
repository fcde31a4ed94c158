"""Quantize a model without a search: by what is known of the processor, or by a recipe; one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from inlay.calibrate import policy
from inlay.calibrate.choose import choose_calibration
from inlay.calibrate.observe import observe
from inlay.calibrate.scorer import OnTarget, score_by
from inlay.calibrate.table_search import CalibrationTask
from inlay.calibrate.tables import CalibrationChoice, sharing_of
from inlay.data import save_feeds
from inlay.deadline import NEVER, Deadline
from inlay.errors import UsageError
from inlay.files import refuse_odd_name, scratch
from inlay.measure.client import usual_limit
from inlay.measure.lab import HERE, Lab
from inlay.model.held import changed_since, held
from inlay.model.load import file_sha256, load
from inlay.model.passes.branches import METADATA
from inlay.model.pinned import random_note
from inlay.model.pool import pooled
from inlay.prepare.candidate_writer import CandidateWriter, recipe_for
from inlay.prepare.model import PreparedModel
from inlay.prepare.options import DEFAULT_MIN_SQNR_DB
from inlay.quant.accuracy import Bound, Judge
from inlay.quant.observers import METHODS
from inlay.quant.plain.graph import Leftover
from inlay.quant.tasks.recognize import task_of
from inlay.run.belonging import inexact
from inlay.run.inputs import fixable_notes, freezable_notes, limit_notes
from inlay.run.instant.by_costs import ELSEWHERE_S, INSTANT_S, ByCosts, choose_by_costs
from inlay.run.instant.one_shot import Chosen, OneShot, QuantizeRequest
from inlay.run.instant.shapes import profiled_here
from inlay.run.machine_costs import read_costs
from inlay.run.outputs import install, publish
from inlay.run.reference import RunFiles, in_reference
from inlay.run.robustness import Robustness, beside_noise, variations_of
from inlay.search.baselines import FULL_INT8
from inlay.space.recipe import elsewhere
from inlay.space.recipe_file import find_recipe
from inlay.space.resolve import Decision, resolve
from inlay.space.units import rejection_counts
from inlay.targets.base import Artifact, Capabilities, OwnPrecision, TargetSpec
from inlay.targets.registry import create
from inlay.trial import Accuracy, counted
from inlay.types import Placement


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """A model quantized without a search."""

    path: Path  # where it was written
    sha256: str  # of the file
    ports: int  # consumer slots that read quantized values
    units: tuple[int, int]  # operators in low precision, and operators in all
    # the method of calibration, or how many domains each method serves and what that gained, for people; empty where
    # nothing has a range that samples chose
    ranges: str
    accuracy: Accuracy | None  # against float on the given samples, or some of them; None for random inputs
    refusals: Mapping[str, int]  # how many operators stay float, by reason
    # precision, deciding rule and reason of every node; none of a quantized file that is delivered as it was given
    decisions: tuple[Decision, ...] = ()
    leftovers: tuple[Leftover, ...] = ()  # quantized operators of the given model that could not be taken apart
    by_costs: ByCosts | None = None  # how the placement was chosen, where no recipe said it
    # how the file was read, that the recipe is tuned for another target or machine, or what is wrong with the
    # processor's cost table
    warning: str = ""
    frozen: str = ""  # the dynamic dimensions that were fixed, with their sizes, for people
    robustness: Robustness | None = None  # what variations of the samples lose; None where none are made
    samples: int = 0  # how many were given
    asked_db: float = DEFAULT_MIN_SQNR_DB  # least SQNR that was asked for, or the default
    silent: tuple[str, ...] = ()  # outputs that are the same number on all samples, and do not count
    quantizable: bool = True  # whether the target runs any of the model's operators in low precision
    given_quantized: bool = False  # the given model was quantized itself; `accuracy` is against it as it was given
    own_precision: str = ""  # what the target computes float32 operators in, where that is something else, for people
    random: str = ""  # what people should know of a model that draws random numbers
    # what people should know of what there was no time for, of data that was left out, and of inputs whose values or
    # sizes are fixed, or could be
    inputs: tuple[str, ...] = ()


BY_RULES_S = 60.0
"""Seconds that an answer is planned to take where a recipe says what is quantized, with the start of the program."""
_OBSERVING, _CALIBRATING = 0.25, 0.7
"""Shares of what is left of them when each begins; behind that the file is written and judged."""
_COMPARING = 0.5
"""Share of the calibration's time for comparing methods for all values: where samples take long, few of them judge."""
_LEAST_JUDGED, _MOST_JUDGED = 4, 64
"""Samples that the written file is judged on: at most as many as the search and the verdict of a tuning together."""


def quantize(
    asked: QuantizeRequest,
    out: Path,
    lab: Lab = HERE,
    begun: float | None = None,
    stage: Callable[[str], None] = lambda text: None,
) -> Quantized:
    """Quantize a model and write it to ``out``.

    Args:
        lab: where the target runs; this machine by default.
        begun: when the program did, on the monotonic clock; by default now.

    Raises:
        UsageError: a rule matches nothing, or ``out`` has no folder.
        InlayError: the model or the samples cannot be used.
    """
    refuse_odd_name(out)
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {out.parent}")
    rules, samples = asked.rules, asked.samples
    spent_s = 0.0 if begun is None else NEVER.clock() - begun
    with scratch() as work, lab.start(asked.target, work, usual_limit) as worker:
        is_elsewhere = "processor" in worker.fingerprint.facts
        made = create(asked.target, worker.fingerprint.facts)
        target = Capabilities.of(made, asked.quant_type, asked.max_opset, asked.base)
        known = None if rules is not None else read_costs(made, worker.fingerprint, given=asked.costs)
        # where nothing can be timed, the table's word is all that there is
        told = known is not None and ("latency" not in worker.lacks or known.table is not None)
        quick = told and "accuracy" not in worker.lacks
        answer_s = BY_RULES_S if not quick else ELSEWHERE_S if is_elsewhere else INSTANT_S
        deadline = NEVER.within(answer_s - spent_s)  # a device may have been waited for until now
        asked = replace(asked, file=(file := held(asked.file, work / "given")))
        own = OwnPrecision.of(made)
        run = in_reference(file) if quick or own is not None else partial(worker.run, asked.given)
        stage("run the model as it is, and normalize it")
        one_shot = OneShot.open(asked, target, worker, work, run, deadline)
        prepared = one_shot.prepared
        resolved = resolve(rules or find_recipe(FULL_INT8), prepared.graph, prepared.units, prepared.rules)
        one_shot = replace(one_shot, prepared=(prepared := replace(prepared, resolved=resolved)))
        how: ByCosts | None = None
        stage(f"choose ranges on {counted(len(samples), 'sample')}")
        if quick:
            assert known is not None
            machine = worker.fingerprint.facts.get("machine")
            with profiled_here(asked.target, machine, work) as here:
                chosen, how = choose_by_costs(one_shot, known, resolved.placement, deadline, here)
            resolved = resolve(recipe_for(prepared, chosen.placement), prepared.graph, prepared.units, prepared.rules)
        else:
            with pooled(lab.open_pool):
                chosen = choose_by_rules(one_shot, resolved.placement, deadline)
            if known is not None:
                elsewhere_name = worker.fingerprint.facts.get("processor", "")
                how = ByCosts(known.source, models=worker.builds, elsewhere=elsewhere_name)
        unchanged = how is not None and how.unchanged
        delivered = asked.given if unchanged else chosen.writer.deliver(chosen.placement, work / out.name)
        accuracy, loss = chosen.accuracy, None
        if asked.real and accuracy is None:
            stage("judge what is written")
            accuracy = _on_all(one_shot, run, delivered, work, deadline)
        if accuracy is not None and chosen.varied is not None:
            loss = one_shot.test.robustness(chosen.varied, accuracy.sqnr_db)
        unsure: tuple[str, ...] = ()
        if is_elsewhere and prepared.extraction is not None:  # what it keeps of the given model was not judged so
            unsure = inexact(load(delivered.path).model, prepared.rules, create(TargetSpec(asked.target.name)).rules())
        if unchanged:
            install(delivered.path, out)
        else:
            publish(delivered.path, out)
        changed = changed_since(file)
    low = {d.node for d in resolved.decisions if d.precision != "float"}
    cuts = () if quick else chosen.calibration.cuts(len(METHODS))
    warned = elsewhere(rules, lambda: worker.fingerprint.named_facts) or ("" if known is None else known.warning)
    own_file = unchanged and prepared.extraction is not None
    frozen = prepared.normalized.model.metadata_props.get(METADATA, "")
    return Quantized(
        path=out,
        sha256=file_sha256(out),
        ports=len(chosen.placement),
        units=(sum(u.name in low for u in prepared.units), len(prepared.units)),
        ranges=str(chosen.calibration).removeprefix("ranges by ") if _has_ranges(prepared, chosen.placement) else "",
        accuracy=accuracy,
        refusals=rejection_counts(prepared.units),
        decisions=() if own_file else tuple(_with_sharing(d, chosen.shared) for d in resolved.decisions),
        leftovers=() if prepared.extraction is None else prepared.extraction.leftovers,
        by_costs=how,
        warning="; ".join(filter(None, [*file.notes, changed, warned, *unsure])),
        frozen=frozen,
        robustness=loss,
        samples=len(samples) if asked.real else 0,
        asked_db=one_shot.bound.min_sqnr_db or DEFAULT_MIN_SQNR_DB,
        silent=one_shot.judge.silent,
        quantizable=any(u.quantizable for u in prepared.units),
        given_quantized=prepared.extraction is not None,
        own_precision="" if own is None else str(own),
        random=random_note(file.model),
        inputs=(
            *([f"the limit of {BY_RULES_S:.0f} s cut short: {'; '.join(cuts)}"] if cuts else ()),
            *samples.left_out,
            *limit_notes(file, frozen),
            *fixable_notes(file, samples),
            *freezable_notes(prepared.graph, file, samples),
        ),
    )


def choose_by_rules(one_shot: OneShot, placement: Placement, deadline: Deadline = NEVER) -> Chosen:
    """Ranges and biases for a placement that a recipe says, in a part of the time for the whole answer."""
    prepared, asked, samples = one_shot.prepared, one_shot.asked, one_shot.asked.samples
    test, ranged = one_shot.test, _has_ranges(prepared, placement)
    begun = deadline.clock()
    observed = observe(
        prepared, samples, most=None if ranged else 1, deadline=deadline.within(_OBSERVING * deadline.left)
    )
    sample_s = (deadline.clock() - begun) / observed.samples
    on_variations = OnTarget(prepared, one_shot.worker, test.feeds)
    choice = CalibrationChoice(METHODS[0])
    if ranged:
        until = deadline.within(_CALIBRATING * deadline.left)
        count = int(np.clip(_COMPARING * until.left / max(len(METHODS) * sample_s, 1e-9), 1, len(one_shot.feeds)))
        judge = Judge(one_shot.reference[:count], one_shot.scored.part(range(count)), Bound(), confidence=None)
        varied = policy.VARIED_SAMPLES, policy.MOST_VARIATIONS
        stress = variations_of(samples, asked.specs, asked.augment, asked.seed, *varied)
        task = CalibrationTask(
            prepared=prepared,
            observed=observed,
            placement=placement,
            feeds=samples.feeds if asked.real else (),
            score=score_by(judge, OnTarget(prepared, one_shot.worker, one_shot.feeds[:count]).outputs),
            stress=test.widening(stress, on_variations.outputs),
        )
        choice = choose_calibration(task, policy.DEFAULT_SECONDS, deadline=until, inference_s=sample_s)
        observed = task.observed_for(choice)
    shared = {d.node: d.reason for d in sharing_of(prepared, observed, choice.method)}
    table = choice.table(prepared, observed)
    varies = asked.real and test.names and len(placement)
    outputs = next(on_variations.outputs([(table, placement)])).result() if varies else None
    return Chosen(
        placement=placement,
        calibration=choice,
        writer=CandidateWriter(prepared, table, choice.digest(observed), one_shot.worker.fingerprint.digest),
        shared=shared,
        accuracy=None,
        varied=outputs,
    )


def _has_ranges(prepared: PreparedModel, placement: Placement) -> bool:
    """Whether a placement quantizes values whose range must be known before they are."""
    graph = prepared.graph
    return any(not (t.dynamic or t.half) and not graph.is_constant(graph.value_of(port)) for port, t in placement)


def _on_all(one_shot: OneShot, reference: RunFiles, made: Artifact, folder: Path, deadline: Deadline) -> Accuracy:
    """Accuracy of a file on all samples, or on as many as there is time for and tune judges by, evenly spaced."""
    fit = deadline.left / max(2.0 * one_shot.inference_s, 1e-9)
    some = one_shot.asked.samples.evenly(int(np.clip(fit, _LEAST_JUDGED, _MOST_JUDGED)))
    paths = save_feeds(folder / "all", some.feeds)
    exact = reference(paths)
    task = beside_noise(task_of(some, exact), some, exact, reference, folder)
    judge = Judge(exact, some, Bound(), confidence=None, task=task)
    return judge.judge(one_shot.worker.run(made, paths), in_task=True)


def _with_sharing(decision: Decision, shared: Mapping[str, str]) -> Decision:
    if decision.precision == "float" or decision.node not in shared:
        return decision
    return replace(decision, reason=f"{decision.reason}; {shared[decision.node]}")
