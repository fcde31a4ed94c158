"""Which SQNR a search asks for where the user's own evaluation is bounded: by what the usual recipes do to its scores.

They are evaluated before the search, full INT8 first, until one keeps the bound. Where the first one does although its
SQNR is low, so may others; where another one does, what is asked for lies between them, by the relation of noise and
scores. So is the best of them known to be within the bound before anything else takes time; the evaluation has the
last word in the confirmation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inlay.errors import TargetError
from inlay.prepare.options import DEFAULT_MIN_SQNR_DB
from inlay.run.evaluation.judging import STEERING_DB
from inlay.run.given import Given
from inlay.run.preparation import Calibrated
from inlay.run.session import Session
from inlay.search.baselines import CONV_MATMUL, FULL_INT8, anchor_placements
from inlay.types import Placement

_SPARE = 0.8
"""Share of the allowed fall that the search aims at: the relation of few models is a rough one."""
_MOST_DB = 40.0
"""Beyond, hardly anything is in 8 bits."""
_STEP_DB = 1.0
"""What is asked for beyond a recipe that breaks the bound, at least."""
_BELOW_DB = 0.1
"""How far below the SQNR of one that keeps it others may be."""


def steered(session: Session, given: Given, model: Calibrated) -> Given:
    """The given model with the bound that the search goes by; the session's settings say the same from now on."""
    evaluation, config = session.evaluation, session.inputs.config
    if evaluation is None or config.searched == config.bound:
        return given
    prepared = model.prepared
    usual = dict(anchor_placements(prepared.graph, prepared.units, prepared.rules))
    recipes = {name: usual[name] for name in (FULL_INT8, CONV_MATMUL) if usual.get(name)}
    known = session.journal.fact(STEERING_DB)
    if known is None:
        known = session.journal.record_fact(STEERING_DB, _by_recipes(session, given, model, recipes))
    else:
        for placement in recipes.values():
            evaluation.recall(placement.digest)
    session.inputs = replace(session.inputs, config=replace(config, steering_db=known))
    return given.bounded(session.inputs.config.searched)


def _by_recipes(session: Session, given: Given, model: Calibrated, recipes: Mapping[str, Placement]) -> float:
    """The SQNR to ask for, in dB."""
    evaluation = session.evaluation
    assert evaluation is not None
    broken: list[float] = []
    for name, placement in recipes.items():
        if not evaluation.affords(session.plan.least_search()):
            break
        found = _evaluated(session, given, model, name, placement)
        if found is None:
            break
        sqnr_db, margin_db, keeps = found
        if keeps:
            most = sqnr_db - margin_db - _BELOW_DB
            return (
                _between(evaluation.needs_db(_SPARE), max(broken), most) if broken else min(DEFAULT_MIN_SQNR_DB, most)
            )
        broken.append(sqnr_db)
    if not broken:
        return DEFAULT_MIN_SQNR_DB
    return _between(evaluation.needs_db(_SPARE), max(broken), max(_MOST_DB, max(broken) + _STEP_DB))


def _between(needed: float | None, broken: float, most: float) -> float:
    """What is needed, but more than what broke the bound, and no more than what kept it."""
    return min(most, max(DEFAULT_MIN_SQNR_DB if needed is None else needed, broken + _STEP_DB))


def _evaluated(
    session: Session, given: Given, model: Calibrated, name: str, placement: Placement
) -> tuple[float, float, bool] | None:
    """SQNR of a recipe and its margin, in dB, and whether it keeps the bound; None where that was not found out."""
    evaluation, worker = session.evaluation, session.worker
    assert evaluation is not None
    session.stage(f"evaluate {name}")
    folder = session.work / name
    folder.mkdir(exist_ok=True)
    file = model.candidates.deliver(placement, folder / "model.onnx")
    try:
        accuracy = given.judge.judge(worker.run(file, given.feeds))
    except TargetError:
        return None
    finally:
        worker.drop(file)
    verdict = evaluation.verdict(file, placement.digest, accuracy.sqnr_db, session.plan.least_search())
    return None if verdict.failure else (accuracy.sqnr_db, accuracy.margin_db, not verdict.breaks)
