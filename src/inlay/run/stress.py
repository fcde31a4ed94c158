"""Variations of a run's samples, and what anchors and the delivered model lose on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from inlay.calibrate import policy
from inlay.data import Samples, StressSet, bound, input_specs
from inlay.errors import InlayError
from inlay.model.heard import doing
from inlay.run.confirm.delivered import Confirmed
from inlay.run.facts import VARIATIONS
from inlay.run.reference import RunFiles
from inlay.run.robustness import Robustness, StressTest, variations_of
from inlay.run.session import Session
from inlay.targets.base import Artifact
from inlay.trial import Accuracy, Trial
from inlay.types import Placement


@dataclass(frozen=True)
class Losses:
    """What models lose on variations.

    Attributes:
        delivered: None where it is float, or there are no variations.
        anchors: by name, those that quantize something.
        cut: what there was no time for, for people.
    """

    delivered: Robustness | None = None
    anchors: Mapping[str, Robustness] = field(default_factory=dict)
    cut: str = ""


NO_LOSSES = Losses()
"""Nothing was judged."""


def calibration_stress(session: Session) -> StressSet:
    """Variations of the calibration samples, in which ranges are looked for."""
    most = policy.MOST_VARIATIONS * _count(session) // policy.SCORED_VARIATIONS
    return _varied(session, session.inputs.parts.calibration, policy.VARIED_SAMPLES, most)


def stress_test(session: Session, name: str, samples: Samples, reference: RunFiles) -> StressTest:
    """Variations of ``samples`` that the given model runs on, as files in the scratch folder ``name``."""
    varied = _varied(session, samples, 1, _count(session))
    return StressTest.of(varied, samples, session.work / name, reference)


def losses(
    session: Session,
    confirmed: Confirmed,
    test: StressTest,
    anchors: Mapping[str, Trial],
    write: Callable[[Placement], Artifact],
    reference: RunFiles,
) -> Losses:
    """Judge the delivered model on variations of the unseen samples, then anchors on those of the selection samples.

    Args:
        session: the run.
        confirmed: what is delivered.
        test: variations of the selection samples.
        anchors: what they showed, by name.
        write: a candidate's file.
        reference: gives outputs of the given model in float32.
    """
    if not test.names:
        return NO_LOSSES
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
                accuracy, last = best.verification, stress_test(session, "varied-unseen", unseen, reference)
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


def _varied(session: Session, samples: Samples, each: int, most: int) -> StressSet:
    config = session.inputs.config
    specs = bound(input_specs(session.inputs.file.model), session.inputs.frozen)
    return variations_of(samples, specs, config.augment, config.seed, each, most)


def _count(session: Session) -> int:
    """How many variations models are judged on: decided once in a run."""
    return session.journal.once(VARIATIONS, lambda: session.plan.samples(policy.SCORED_VARIATIONS, session.costs))
