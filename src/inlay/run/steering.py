"""Which SQNR a search asks for where the user's own evaluation is bounded: by what the usual recipes do to its scores.

They are evaluated before the search, full INT8 first and what is quantized at run time last, until one keeps the bound;
one that is no more accurate than another that does not keep it is passed over, and so is noise where there is time to
evaluate few. Where the first one keeps it although its SQNR is low, so may others, if its samples show that of new ones
as well: of few samples, a detector that loses every fourth object elsewhere may lose one in all. Where a later one
keeps it, what is asked for lies between them, by the relation of noise and scores. So is the best of them known to be
within the bound before anything else takes time; the evaluation has the last word in the confirmation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from inlay.errors import TargetError
from inlay.prepare.options import DEFAULT_MIN_SQNR_DB
from inlay.run.evaluation.judging import STEERING_DB, EvaluationJudge, Verdict
from inlay.run.given import Given
from inlay.run.preparation import Calibrated
from inlay.run.session import Session
from inlay.search.baselines import CONV_MATMUL, FULL_INT8, anchor_placements
from inlay.targets.base import Artifact
from inlay.trial import Accuracy
from inlay.types import Placement

_SPARE = 0.8  # share of the allowed fall that the search aims at: the relation of few models is a rough one
_MOST_DB = 40.0  # beyond, hardly anything is in 8 bits
_STEP_DB = 1.0  # what is asked for beyond a recipe that breaks the bound, at least
_NOISE_DB = 6.0  # below, half of an output is noise: an evaluation that takes long had better be of another recipe
_BELOW_DB = 0.1  # how far below the SQNR of one that keeps it others may be


def steered(session: Session, given: Given, model: Calibrated) -> Given:
    """The given model with the bound that the search goes by; the session's settings say the same from now on."""
    evaluation, config = session.evaluation, session.inputs.config
    if evaluation is None or config.searched == config.bound:
        return given
    prepared = model.prepared
    usual = dict(anchor_placements(prepared.graph, prepared.units, prepared.rules))
    at_run_time = (f.name for f in prepared.rules.forms if f.activation is not None and f.activation.dynamic)
    recipes = {name: usual[name] for name in (FULL_INT8, CONV_MATMUL, *at_run_time) if usual.get(name)}
    known = session.journal.fact(STEERING_DB)
    if known is None:
        known = session.journal.record_fact(STEERING_DB, _by_recipes(session, given, model, recipes))
    else:
        for name, placement in recipes.items():
            _remark(evaluation, name, evaluation.recall(placement.digest))
    session.inputs = replace(session.inputs, config=replace(config, steering_db=known))
    return given.bounded(session.inputs.config.searched)


def _by_recipes(session: Session, given: Given, model: Calibrated, recipes: Mapping[str, Placement]) -> float:
    """The SQNR to ask for, in dB."""
    evaluation = session.evaluation
    assert evaluation is not None
    broken = -math.inf  # SQNR of the most accurate recipe outside the bound
    for number, (name, placement) in enumerate(recipes.items(), 1):
        affords = evaluation.affords(session.plan.least_search())
        if not affords:
            break
        session.stage(f"evaluate {name}")
        folder = session.work / name
        folder.mkdir(exist_ok=True)
        file = model.candidates.deliver(placement, folder / "model.onnx")
        accuracy = _judged(session, given, file)
        if accuracy is None or accuracy.sqnr_db < broken + _STEP_DB:  # that one need not be evaluated
            continue
        if accuracy.sqnr_db < _NOISE_DB and affords <= len(recipes) - number:
            continue
        verdict = evaluation.verdict(file, placement.digest, accuracy.sqnr_db, session.plan.least_search())
        _remark(evaluation, name, verdict)
        if verdict.failure:
            break
        if not verdict.breaks:  # what samples do not show of it, they show of nothing noisier
            most = accuracy.sqnr_db - accuracy.margin_db - _BELOW_DB if verdict.shows else math.inf
            return min(most, DEFAULT_MIN_SQNR_DB if math.isinf(broken) else _needed(evaluation, broken))
        broken = accuracy.sqnr_db
    if math.isinf(broken):
        return DEFAULT_MIN_SQNR_DB
    return min(max(_MOST_DB, broken + _STEP_DB), _needed(evaluation, broken))


def _remark(evaluation: EvaluationJudge, name: str, verdict: Verdict | None) -> None:
    """Note what is wrong with a recipe: that its SQNR is below what is asked for then does not say why."""
    if verdict is not None and verdict.breaks:
        evaluation.remarks.append(f"{name}: {verdict.why}")


def _needed(evaluation: EvaluationJudge, broken: float) -> float:
    """What the relation of noise and scores asks for, and more than what broke the bound."""
    needed = evaluation.needs_db(_SPARE)
    return max(DEFAULT_MIN_SQNR_DB if needed is None else needed, broken + _STEP_DB)


def _judged(session: Session, given: Given, file: Artifact) -> Accuracy | None:
    """How far a recipe is from float on the samples of the search; None where it does not run."""
    try:
        return given.judge.judge(session.worker.run(file, given.feeds))
    except TargetError:
        return None
    finally:
        session.worker.drop(file)
