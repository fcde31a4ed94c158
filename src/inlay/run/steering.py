"""Which SQNR a search asks for where the user's own evaluation is bounded: by what full INT8 does to its scores.

One model is evaluated before the search. Where that keeps the bound although its SQNR is low, so may others; where it
does not, the relation of noise and scores says what is needed. The evaluation has the last word in the confirmation.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from inlay.errors import TargetError
from inlay.prepare.options import DEFAULT_MIN_SQNR_DB
from inlay.run.evaluation.judging import STEERING_DB
from inlay.run.given import Given
from inlay.run.preparation import Calibrated
from inlay.run.schedule import EVALUATING
from inlay.run.session import Session
from inlay.search.baselines import FULL_INT8, anchor_placements
from inlay.types import Placement

_SPARE = 0.8
"""Share of the allowed fall that the search aims at: the relation of one model is a rough one."""
_MOST_DB = 40.0
"""Beyond, hardly anything is in 8 bits."""
_EVALUATIONS = 3.0
"""That there must be time for within their share: this one, and two in the confirmation."""


def steered(session: Session, given: Given, model: Calibrated) -> Given:
    """The given model with the bound that the search goes by; the session's settings say the same from now on."""
    evaluation, config = session.evaluation, session.inputs.config
    if evaluation is None or config.searched == config.bound:
        return given
    prepared = model.prepared
    full = dict(anchor_placements(prepared.graph, prepared.units, prepared.rules)).get(FULL_INT8)
    known = session.journal.fact(STEERING_DB)
    if known is None:
        affordable = _EVALUATIONS * evaluation.seconds <= EVALUATING * session.plan.seconds
        found = _by_full_int8(session, given, model, full) if full and affordable else DEFAULT_MIN_SQNR_DB
        known = session.journal.record_fact(STEERING_DB, found)
    elif full:
        evaluation.recall(full.digest)
    session.inputs = replace(session.inputs, config=replace(config, steering_db=known))
    return given.bounded(session.inputs.config.searched)


def _by_full_int8(session: Session, given: Given, model: Calibrated, full: Placement) -> float:
    """The SQNR to ask for, in dB."""
    evaluation, worker = session.evaluation, session.worker
    assert evaluation is not None
    session.stage("evaluate full INT8")
    folder = session.work / "full-int8"
    folder.mkdir(exist_ok=True)
    file = model.candidates.deliver(full, folder / "model.onnx")
    try:
        accuracy = given.judge.judge(worker.run(file, given.feeds))
    except TargetError:
        return DEFAULT_MIN_SQNR_DB
    finally:
        worker.drop(file)
    verdict = evaluation.verdict(file, full.digest, accuracy.sqnr_db, session.plan.least_search())
    if verdict.failure:
        return DEFAULT_MIN_SQNR_DB
    if not verdict.breaks:
        return min(DEFAULT_MIN_SQNR_DB, accuracy.sqnr_db - accuracy.margin_db - 0.1)
    needed, least = evaluation.needs_db(_SPARE), accuracy.sqnr_db + 1.0
    return float(np.clip(DEFAULT_MIN_SQNR_DB if needed is None else needed, least, max(_MOST_DB, least)))
