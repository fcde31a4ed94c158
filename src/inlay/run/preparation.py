"""From the opened session to the calibrated model: the given model run, normalized, indexed, and smoothed.

What was calibrated, values observed and qparams chosen, is kept in the journal. Helpers, where a cluster has some, are
asked for before the given model is built if it is large: they get ready meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from inlay.calibrate import policy
from inlay.calibrate.choose import choose_calibration, choose_flips
from inlay.calibrate.observe import observe
from inlay.calibrate.scorer import OnTarget, in_process, score_by
from inlay.calibrate.table_search import CalibrationTask
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import Samples, StressSet, bound, fixed_values, input_specs
from inlay.deadline import NEVER, Deadline
from inlay.errors import Late, TimedOut
from inlay.model.guard import limited
from inlay.model.pool import open_early, pooled
from inlay.prepare.candidate_writer import CandidateWriter, belongs
from inlay.prepare.config import TuneConfig
from inlay.prepare.halves import find_wide, keep_wide
from inlay.prepare.model import PreparedModel, prepare, where_taken
from inlay.prepare.options import DEFAULT_MIN_SQNR_DB
from inlay.prepare.qdq_import import ImportedQDQ, import_qdq
from inlay.prepare.smoothquant import Scales, Smoothed, find_scales, smoothed
from inlay.prepare.strip_qdq import strip_qdq
from inlay.quant.accuracy import Judge
from inlay.quant.extract import Extraction
from inlay.quant.observers import Method
from inlay.quant.qparams import QParamsTable
from inlay.run.facts import (
    BASE,
    CALIBRATION,
    CALIBRATION_SAMPLES,
    CHOICE,
    EQUALIZATION,
    FIXED_VALUES,
    FROZEN,
    KEPT_WIDE,
    MAX_OPSET,
    OPAQUE,
    OUTLIERS_LEFT,
    SATURATIONS,
    VARIATIONS,
    CalibrationRecord,
    record_rounding,
    rounding_of,
)
from inlay.run.given import Given, run_given
from inlay.run.inputs import RunInputs
from inlay.run.machine_costs import carried
from inlay.run.robustness import StressTest, variations_of
from inlay.run.schedule import CALIBRATING, SMOOTHING
from inlay.run.session import Session
from inlay.search.baselines import CONV_MATMUL, FULL_INT8, anchor_placements
from inlay.targets.base import Artifact, Capabilities
from inlay.targets.registry import create
from inlay.trial import counted
from inlay.types import Placement

_USUAL: tuple[Method, ...] = ("minmax", "entropy")  # its calibrators, `max` and `entropy`


@dataclass(frozen=True, eq=False)
class Calibrated:
    """The model made ready for the search: normalized, indexed and calibrated."""

    prepared: PreparedModel  # the model
    imported: ImportedQDQ  # quantized models to start from and to beat
    candidates: CandidateWriter  # turns placements into files
    test: StressTest  # variations of the selection samples
    # full INT8 beside half precision with ranges as NVIDIA's tool chooses them, by name: more files to beat
    usual: tuple[tuple[str, Artifact], ...] = ()


def make_ready(session: Session) -> tuple[Given, Calibrated | Late]:
    """What is known of the given model, and the model made ready, or that there was no time for it."""
    if session.inputs.config.costs is not None:
        carried(session.inputs.config.costs, session.worker.fingerprint)  # what cannot be used is refused at once
    with pooled(session.lab.open_pool, session.least_preparing_s):
        given = run_given(session)
        session.evaluate_given()
        open_early(session.costs.sample_s * len(session.inputs.parts.calibration))
        try:
            with limited(lambda: math.inf if session.resumed else session.plan.before_writing.left):
                model = _calibrated(session, given)
        except TimedOut as error:
            if not isinstance(error, Late) and not session.is_over:
                raise
            return given, error if isinstance(error, Late) else Late(str(error))
    if session.resumed:
        session.plan = session.plan.with_time_to_confirm()
    return given, model


def _calibrated(session: Session, given: Given) -> Calibrated:
    inputs, config, parts = session.inputs, session.inputs.config, session.inputs.parts
    session.stage("normalize and index the model")
    prepared = prepare_model(session)
    target = prepared.request.target
    prepared = prepared.tuned_for(belongs(session.worker.fingerprint))
    imported = import_qdq(prepared, inputs.qdq_baseline, target.float_rewrites, parts.calibration.feeds, session.work)
    prepared = in_half(session, without_outliers(session, prepared))
    units, samples = sum(u.quantizable for u in prepared.units), len(parts.calibration)
    deadline = session.plan.preparing(CALIBRATING)
    on = counted(samples, "sample")
    session.stage(f"calibrate {counted(units, 'unit')} on {on}", lambda: deadline)
    if config.bound == config.searched:  # the task may have a better one, and a metric that is unsure a narrower one
        session.inputs = replace(session.inputs, config=replace(config, bound=given.judge.bound))
    test = stress_test(session, "varied", session.inputs.parts.selection, given)
    with session.calibrating():
        candidates, usual = _candidates(session, given, prepared, imported, deadline, test)
    session.calibrated(prepared)
    return Calibrated(prepared, imported, candidates, test, usual)


def target_of(config: TuneConfig, facts: Mapping[str, str]) -> Capabilities:
    """What the target of a run is asked for where it has these ``facts``. Raises UsageError where it lacks some."""
    return Capabilities.of(create(config.target, facts), config.quant_type, config.max_opset, config.base)


def prepared_for(
    inputs: RunInputs, target: Capabilities, samples: Samples, extraction: Extraction | None, folder: Path
) -> PreparedModel:
    """The model of a run, prepared by ``samples``; see :func:`~inlay.prepare.model.prepare`."""
    config, feed = inputs.config, samples.feeds[0]
    prepared = prepare(inputs.file, target, feed, folder, config.nodes, config.recipe, extraction, inputs.frozen)
    return where_taken(prepared, samples.feeds)


def prepare_model(session: Session) -> PreparedModel:
    """Prepare the model of ``session``; what samples decide is decided once in a run.

    Raises:
        ModelError: the model does not run.
        UsageError: a glob or a rule of the recipe matches no node.
    """
    inputs, config, journal = session.inputs, session.inputs.config, session.journal
    target, samples = target_of(config, session.worker.fingerprint.facts), inputs.parts.calibration
    known = journal.fact(SATURATIONS), journal.fact(OPAQUE)
    extraction = strip_qdq(inputs.file, samples.feeds, session.work, *known)
    if extraction is not None and extraction.opaque:
        journal.record_fact(OPAQUE, extraction.opaque)
    elif extraction is not None:
        journal.record_fact(SATURATIONS, {s.node: s.form for s in extraction.saturations})
    if inputs.frozen:
        journal.record_fact(FROZEN, inputs.frozen)
    if values := fixed_values(inputs.file.model):
        journal.record_fact(FIXED_VALUES, values)
    if config.max_opset is not None:
        journal.record_fact(MAX_OPSET, config.max_opset)
    prepared = prepared_for(inputs, target, samples, extraction, session.work)
    session.inputs = session.inputs.timed_on(prepared.request.shown)
    return prepared


def without_outliers(session: Session, prepared: PreparedModel) -> PreparedModel:
    """``prepared`` with the outliers of its activations in weights, as far as the samples show that it helps.

    Scales are not looked for where the model came quantized or qparams of a Q/DQ model are kept: both belong to the
    weights as they are.
    """
    inputs, config = session.inputs, session.inputs.config
    samples = inputs.parts.calibration

    searched = Smoothed()

    def scales() -> Scales:
        nonlocal searched
        kept = inputs.qdq_baseline is not None and config.keep_qparams
        barred = prepared.extraction is not None or kept or samples.kind == "random"
        some = samples.evenly(session.plan.samples(len(samples)))
        if barred:
            return {}
        deadline = session.plan.preparing(SMOOTHING)
        session.stage("look for outliers to move into weights", lambda: deadline)
        searched = find_scales(prepared, some.feeds, deadline, samples.mask)
        if not searched.in_time:
            session.journal.record_fact(OUTLIERS_LEFT, True)
        return searched.scales

    found = session.journal.once(EQUALIZATION, scales)
    return searched.model or smoothed(prepared, found, samples.feeds[0])


def in_half(session: Session, prepared: PreparedModel) -> PreparedModel:
    """``prepared`` with those units in float32 that lose too much in the base's half precision on the samples."""
    base, config = prepared.rules.base, session.inputs.config
    if base is None:
        return prepared
    session.journal.record_fact(BASE, base.value)
    deadline = session.plan.preparing(SMOOTHING)
    session.stage(f"find what loses too much in {base.value}", lambda: deadline)
    least_db = DEFAULT_MIN_SQNR_DB if config.searched.min_sqnr_db is None else config.searched.min_sqnr_db
    samples = session.inputs.parts.calibration

    def find() -> dict[str, str]:
        return find_wide(prepared, samples.feeds, least_db, deadline, samples.mask)

    return keep_wide(prepared, session.journal.once(KEPT_WIDE, find))


def _candidates(
    session: Session,
    given: Given,
    prepared: PreparedModel,
    imported: ImportedQDQ,
    deadline: Deadline,
    test: StressTest,
) -> tuple[CandidateWriter, tuple[tuple[str, Artifact], ...]]:
    """What writes placements, with the qparams of all values chosen by ``deadline``, and :attr:`Calibrated.usual`."""
    config, parts = session.inputs.config, session.inputs.parts
    journal, worker = session.journal, session.worker
    count = min(policy.SCORING_SAMPLES, len(parts.selection))
    judge = Judge(given.judge.reference[:count], parts.selection.part(range(count)), config.searched)
    known = journal.fact(CALIBRATION_SAMPLES)  # a resumed run takes the same ones
    observing = deadline.within(policy.OBSERVING_SHARE * deadline.left) if known is None else NEVER
    begun = observing.clock()
    observed = observe(prepared, parts.calibration, [p for _, p in imported.placements], known, observing)
    sample_s = (observing.clock() - begun) / observed.samples
    journal.record_fact(CALIBRATION_SAMPLES, observed.samples)
    fixed = imported.qparams if config.keep_qparams else {}
    anchors = dict(anchor_placements(prepared.graph, prepared.units, prepared.rules))
    placement = anchors.get(FULL_INT8, Placement())
    target, varied = (OnTarget(prepared, worker, feeds) for feeds in (given.feeds[:count], test.feeds))
    # each table that is tried on the target is a build: where their number is limited, the search needs them; and
    # what gives no times is an emulator, which takes seconds for an inference
    spared = config.max_builds is not None or not worker.fingerprint.gives_times
    outputs = in_process(prepared, parts.selection.feeds[:count]) if spared else target.outputs
    task = CalibrationTask(
        prepared=prepared,
        observed=observed,
        placement=placement,
        feeds=() if parts.calibration.kind == "random" else parts.calibration.feeds,
        score=score_by(judge, outputs),
        min_sqnr_db=config.searched.min_sqnr_db,
        methods=config.methods,
        fixed=fixed,
        stress=None if spared else test.widening(calibration_stress(session), varied.outputs),
        products=anchors.get(CONV_MATMUL, Placement()),
    )

    def choose() -> CalibrationChoice:
        budget_s = config.budget_s
        seconds = policy.DEFAULT_SECONDS if budget_s is None else policy.BUDGET_SHARE * budget_s
        choice = choose_calibration(task, seconds, deadline=deadline, inference_s=sample_s)
        if not worker.deterministic or not len(placement) or fixed or spared:
            return choice

        def measure(table: QParamsTable) -> tuple[float, float]:
            outputs, ns = target.timed_outputs(table, placement, config.protocol.slot_ns)
            return ns, judge.judge(outputs).sqnr_db

        return choose_flips(choice, prepared, task.observed_for(choice), measure)

    choice = journal.fact(CHOICE)  # made once in a run, however often that is continued
    if choice is None:
        choice = choose()
        record_rounding(journal, choice.rounding)
        journal.record_fact(CHOICE, choice)
        session.progress.stage(str(choice))
    else:
        choice = replace(choice, rounding=rounding_of(journal))
    seen = task.observed_for(choice)
    digest, runtime = choice.digest(seen, str(sorted(map(str, fixed.items())))), worker.fingerprint.digest
    table = choice.table(prepared, seen, fixed)
    journal.record_fact(
        CALIBRATION, CalibrationRecord(digest, runtime, config.target, table.as_json(), prepared.request.tuned_for)
    )
    journal.record_feed("shapes", parts.calibration.feeds[0])
    usual: list[tuple[str, Artifact]] = []
    if prepared.rules.base is not None and config.max_builds is None:
        for method in _USUAL if len(placement) else ():
            writer = CandidateWriter(prepared, CalibrationChoice(method).table(prepared, observed), method, runtime)
            file = writer.deliver(placement, session.work / f"full-int8-{method}.onnx")
            usual.append((f"{FULL_INT8}, {method} ranges", file))
    return CandidateWriter(prepared, table, digest, runtime), tuple(usual)


def calibration_stress(session: Session) -> StressSet:
    """Variations of the calibration samples, in which ranges are looked for."""
    most = policy.MOST_VARIATIONS * _count(session) // policy.SCORED_VARIATIONS
    return _varied(session, session.inputs.parts.calibration, policy.VARIED_SAMPLES, most)


def stress_test(session: Session, name: str, samples: Samples, given: Given) -> StressTest:
    """Variations of ``samples`` that the given model runs on, as files in the scratch folder ``name``."""
    varied = _varied(session, samples, 1, _count(session))
    return StressTest.of(varied, samples, session.work / name, given.reference, given.judge.parts)


def _varied(session: Session, samples: Samples, each: int, most: int) -> StressSet:
    config = session.inputs.config
    specs = bound(input_specs(session.inputs.file.model), session.inputs.frozen)
    return variations_of(samples, specs, config.augment, config.seed, each, most)


def _count(session: Session) -> int:
    """How many variations models are judged on: decided once in a run."""
    return session.journal.once(VARIATIONS, lambda: session.plan.samples(policy.SCORED_VARIATIONS))
