"""From the opened session to the calibrated model: the given model run, normalized, indexed, outliers evened out.

Helpers, where a cluster has some, are asked for before the given model is built if it is large: they get ready
meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from inlay.data import evenly_spaced
from inlay.errors import Late, TimedOut
from inlay.model.guard import limited
from inlay.model.hands import foresee, helped
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.model import PreparedModel, prepare
from inlay.prepare.qdq_import import ImportedQDQ, import_qdq
from inlay.prepare.smoothquant import Scales, Smoothed, find_scales, smoothed
from inlay.prepare.strip_qdq import strip_qdq
from inlay.run.calibration import Calibration
from inlay.run.facts import EQUALIZATION, FROZEN, MAX_OPSET, OPAQUE, OUTLIERS_LEFT, SATURATIONS
from inlay.run.given import Given, run_given
from inlay.run.robustness import StressTest
from inlay.run.session import Session
from inlay.run.stress import calibration_stress, stress_test
from inlay.targets.base import Capabilities
from inlay.targets.registry import create
from inlay.trial import counted


@dataclass(frozen=True, eq=False)
class Calibrated:
    """The model made ready for the search: normalized, indexed and calibrated.

    Attributes:
        prepared: the model.
        imported: quantized models to start from and to beat.
        candidates: turns placements into files.
        test: variations of the selection samples.
    """

    prepared: PreparedModel
    imported: ImportedQDQ
    candidates: CandidateWriter
    test: StressTest


def make_ready(session: Session) -> tuple[Given, Calibrated | Late]:
    """What is known of the given model, and the model made ready, or that there was no time for it."""
    with helped(session.lab.recruit, session.least_preparing_s):
        given = run_given(session)
        foresee(session.costs.sample_s * len(session.inputs.parts.calibration))
        try:
            with limited(lambda: math.inf if session.resumed else session.plan.before_writing.left):
                model = _calibrated(session, given)
        except TimedOut as error:
            if not isinstance(error, Late) and not session.is_over:
                raise
            return given, error if isinstance(error, Late) else Late(str(error))
    if session.resumed:
        session.plan = session.plan.with_time_to_confirm(session.inputs.config.budget_s)
    return given, model


def _calibrated(session: Session, given: Given) -> Calibrated:
    inputs, config, parts = session.inputs, session.inputs.config, session.inputs.parts
    session.stage("normalize and index the model")
    target = Capabilities.of(create(config.target), config.quant_type, config.max_opset)
    prepared = prepare_model(session, target)
    imported = import_qdq(prepared, inputs.qdq_baseline, target.float_rewrites, parts.calibration.feeds, session.work)
    prepared = without_outliers(session, prepared)
    units, samples = sum(u.quantizable for u in prepared.units), len(parts.calibration)
    deadline = session.plan.calibration(session.costs, config)
    on = counted(samples, "sample")
    session.stage(f"calibrate {counted(units, 'unit')} on {on}", lambda: deadline)
    test = stress_test(session, "varied", session.inputs.parts.selection, given.reference)
    stress = calibration_stress(session)
    calibration = Calibration(
        config=config,
        parts=parts,
        worker=session.worker,
        journal=session.journal,
        progress=session.progress,
        deadline=deadline,
        stress=stress,
        test=test,
    )
    with session.calibrating():
        candidates = calibration.candidates(prepared, given.judge, given.feeds, imported)
    session.calibrated(prepared)
    return Calibrated(prepared, imported, candidates, test)


def prepare_model(session: Session, target: Capabilities) -> PreparedModel:
    """Prepare the model of ``session``; what samples decide is decided once in a run.

    Raises:
        ModelError: the model does not run.
        UsageError: a glob or a rule of the recipe matches no node.
    """
    inputs, config, journal = session.inputs, session.inputs.config, session.journal
    samples = inputs.parts.calibration
    known = journal.fact(SATURATIONS), journal.fact(OPAQUE)
    extraction = strip_qdq(inputs.file, samples.feeds, session.work, *known)
    if extraction is not None and extraction.opaque:
        journal.record_fact(OPAQUE, extraction.opaque)
    elif extraction is not None:
        journal.record_fact(SATURATIONS, {s.node: s.form for s in extraction.saturations})
    if inputs.frozen:
        journal.record_fact(FROZEN, inputs.frozen)
    if config.max_opset is not None:
        journal.record_fact(MAX_OPSET, config.max_opset)
    feed, frozen = samples.feeds[0], inputs.frozen
    return prepare(inputs.file, target, feed, session.work, config.nodes, config.recipe, extraction, frozen)


def without_outliers(session: Session, prepared: PreparedModel) -> PreparedModel:
    """``prepared`` with the outliers of its activations in weights, as far as the samples show that it helps.

    Scales are not looked for where the model came quantized or qparams of a Q/DQ model are kept: both belong to the
    weights as they are.
    """
    inputs, config = session.inputs, session.inputs.config
    samples = inputs.parts.calibration

    evened = Smoothed()

    def scales() -> Scales:
        nonlocal evened
        kept = inputs.qdq_baseline is not None and config.keep_qparams
        barred = prepared.extraction is not None or kept or samples.kind == "random"
        count = session.plan.samples(len(samples), session.costs)
        some = samples.part(evenly_spaced([*range(len(samples))], count))
        if barred:
            return {}
        deadline = session.plan.equalization(session.costs, config)
        session.stage("look for outliers that can be evened out", lambda: deadline)
        evened = find_scales(prepared, some.feeds, deadline, samples.mask)
        if not evened.in_time:
            session.journal.record_fact(OUTLIERS_LEFT, True)
        return evened.scales

    found = session.journal.once(EQUALIZATION, scales)
    return evened.model or smoothed(prepared, found, samples.feeds[0])
