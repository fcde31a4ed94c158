"""Judge the delivered model on every sample, each time with ranges that the sample had no part in.

The unseen samples are judged first, as the delivered file's own check. Where they are too few for a limit without an
assumption, the other samples follow: those of the search with the delivered file, whose ranges come from the
calibration samples, and these with the same placement and choices and ranges from the rest. So n samples give n
judgements, for one more calibration on the smaller half and one more build.

A metric is judged on the same samples, all in all: on the unseen ones alone where as many could show its bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from inlay.calibrate.table_search import on_other_samples
from inlay.calibrate.tables import observe
from inlay.data import Samples, evenly_spaced
from inlay.errors import InlayError
from inlay.model.guard import limited
from inlay.model.hands import helped
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.model import PreparedModel
from inlay.prepare.qdq_import import ImportedQDQ
from inlay.quant.accuracy import Bound, Judge, Outputs
from inlay.quant.metric_limits import MetricStatement, hits_needed, state_metric
from inlay.quant.tolerance import samples_needed, state
from inlay.run.confirm.decision import Confirmed
from inlay.run.facts import CHOICE, rounding_of
from inlay.run.reference import RunFiles
from inlay.run.session import Session
from inlay.search.baselines import ORIGINAL
from inlay.targets.base import Artifact


@dataclass(frozen=True, eq=False)
class Fold:
    """Samples to judge, and those whose ranges judge them; None for the delivered file as it is."""

    judged: Samples
    ranges: Samples | None = None


def folds(session: Session, ranged: bool) -> Iterator[Fold]:
    """The samples beside the unseen ones, the cheapest first.

    Args:
        session: the run.
        ranged: whether the delivered model has ranges that samples decided.
    """
    parts = session.inputs.parts
    if not parts.verified:
        pair = range(len(parts.calibration))
        for i in pair if len(pair) > 1 or not ranged else ():
            others = parts.calibration.part([j for j in pair if j != i])
            yield Fold(parts.calibration.part([i]), others if ranged else None)
        return
    yield Fold(parts.selection)
    rest = parts.selection.and_then(parts.verification)
    yield Fold(parts.calibration, rest if ranged else None)


@dataclass(frozen=True, eq=False)
class Judged:
    """Samples that a model was judged on, and what float and that model made of them."""

    samples: Samples
    reference: Sequence[Outputs]
    outputs: Sequence[Outputs]

    def and_then(self, other: Judged) -> Judged:
        """These and others, which another model was judged on."""
        reference, outputs = (*self.reference, *other.reference), (*self.outputs, *other.outputs)
        return Judged(self.samples.and_then(other.samples), reference, outputs)


def cross_fitted(
    session: Session, reference: RunFiles, prepared: PreparedModel, imported: ImportedQDQ, confirmed: Confirmed
) -> Confirmed:
    """The decision with what the samples say about new ones: nothing, where they are random.

    What there is no time for is left out, and the statement rests on fewer samples.

    Args:
        session: the run.
        reference: gives outputs of the given model in float32.
        prepared: the model.
        imported: Q/DQ models whose qparams may be kept.
        confirmed: what is delivered.
    """
    inputs, bound = session.inputs, session.inputs.config.bound
    if inputs.samples.kind == "random" or confirmed.best.origin == ORIGINAL:
        return confirmed
    delivered = Artifact(confirmed.file, confirmed.best.output_sha256)
    found = list(confirmed.each_db)
    judged = _unseen_again(session, reference, delivered)
    wanted = _wanted(session, len(found))
    for number, fold in enumerate(folds(session, bool(confirmed.placement))):
        missing = min(wanted - len(found), len(fold.judged))
        seconds = session.costs.crossing_s(missing, 0 if fold.ranges is None else len(fold.ranges))
        if missing <= 0 or not session.plan.before_writing.fits(seconds):
            break
        samples = fold.judged.part(evenly_spaced([*range(len(fold.judged))], missing))
        try:
            model = delivered
            if fold.ranges is not None:
                model = _with_ranges_of(session, fold.ranges, number, prepared, imported, confirmed)
            more = _judge(session, f"crossed-{number}", reference, model, samples)
        except InlayError:  # the result stands without it, on fewer judgements
            break
        found += Judge(more.reference, samples, Bound(), confidence=None).each_db(more.outputs)
        if inputs.metric is not None:  # outputs of many samples may be large
            judged = more if judged is None else judged.and_then(more)
    statement = state(found, bound.min_sqnr_db)
    metric = None if judged is None else _of_metric(session, judged)
    return replace(confirmed, best=replace(confirmed.best, statement=statement, metric_statement=metric))


def _wanted(session: Session, unseen: int) -> int:
    """How many samples are judged, as far as there are as many."""
    bound, everything = session.inputs.config.bound, len(session.inputs.samples)
    wanted = samples_needed() or 0
    if session.inputs.metric is not None:
        enough = None if not bound.max_drop else hits_needed(0.0, 0.0, bound.max_drop, is_agreement=False)
        wanted = max(wanted, unseen if enough is not None and unseen >= enough else everything)
    return session.plan.samples(wanted, session.costs)


def _unseen_again(session: Session, reference: RunFiles, delivered: Artifact) -> Judged | None:
    """What a metric compares on the unseen samples, computed again rather than kept for every contender."""
    unseen = session.inputs.verification
    if session.inputs.metric is None or unseen is None:
        return None
    if not session.plan.before_writing.fits(session.costs.crossing_s(len(unseen), 0)):
        return None
    try:
        return _judge(session, "unseen-again", reference, delivered, unseen)
    except InlayError:  # the result stands without it
        return None


def _of_metric(session: Session, judged: Judged) -> MetricStatement | None:
    bound, rng = session.inputs.config.bound, np.random.default_rng(session.inputs.config.seed)
    judge = Judge(judged.reference, judged.samples, bound, session.inputs.metric, confidence=None)
    try:
        pairs = judge.pairs(judged.outputs)
        return None if pairs is None else state_metric(pairs, bound.max_drop, rng, session.lab.clock)
    except InlayError:  # a metric that takes no samples of several parts
        return None


def _with_ranges_of(
    session: Session,
    samples: Samples,
    number: int,
    prepared: PreparedModel,
    imported: ImportedQDQ,
    confirmed: Confirmed,
) -> Artifact:
    """The delivered placement with the ranges of other samples, by the run's choices."""
    known, placement, until = session.journal.fact(CHOICE), confirmed.placement, session.plan.before_writing
    assert known is not None, "what was calibrated was chosen"
    assert placement is not None, "a given file has no ranges of the run"
    fixed = imported.qparams if session.inputs.config.keep_qparams else {}
    choice = replace(known, rounding=rounding_of(session.journal))
    with helped(session.lab.recruit), limited(lambda: until.left):
        observed = observe(prepared, samples, [p for _, p in imported.placements])
        choice = on_other_samples(choice, prepared, observed, samples.feeds, fixed, until)
    table = choice.table(prepared, observed, fixed)
    writer = CandidateWriter(prepared, table, choice.digest(observed), session.worker.fingerprint.digest)
    folder = session.work / f"crossed-model-{number}"
    folder.mkdir()
    return writer.deliver(placement, folder / "model.onnx")


def _judge(session: Session, name: str, reference: RunFiles, model: Artifact, samples: Samples) -> Judged:
    """What float and ``model`` make of ``samples``."""
    feeds, worker = session.save_feeds(name, samples), session.worker
    exact = reference(feeds)
    try:
        return Judged(samples, exact, worker.run(model, feeds))
    finally:
        worker.drop(model)
