"""Judge models on every sample, each time with ranges that the sample had no part in.

Contenders are, before the decision, as far as there is time, and what is delivered is.

The unseen samples are judged first, as the file's own check. Where they are too few for a limit without an
assumption, the other samples follow: those of the search with the file itself, whose ranges come from the
calibration samples, and these with the same placement and choices and ranges from the rest. So n samples give n
judgements, for one more calibration on the smaller half and one more build.

A metric is judged on the same samples, all in all: on the unseen ones alone where as many could show its bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from inlay.calibrate.observe import observe
from inlay.calibrate.table_search import on_other_samples
from inlay.data import Samples
from inlay.deadline import Deadline
from inlay.errors import InlayError
from inlay.model.guard import limited
from inlay.model.pool import pooled
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.model import PreparedModel
from inlay.prepare.options import DEFAULT_MIN_SQNR_DB
from inlay.prepare.qdq_import import ImportedQDQ
from inlay.quant.accuracy import Outputs
from inlay.quant.metric_limits import CHOOSING_S, RESAMPLING_S, MetricStatement, hits_needed, state_metric
from inlay.quant.tolerance import Statement, samples_needed, state
from inlay.run.confirm.contenders import Entry
from inlay.run.confirm.delivered import Confirmed
from inlay.run.confirm.evidence import Evidence
from inlay.run.facts import CHOICE, rounding_of
from inlay.run.given import Given
from inlay.run.session import Session
from inlay.search.baselines import ORIGINAL
from inlay.targets.base import Artifact
from inlay.trial import Accuracy
from inlay.types import Placement

_RANDOM = "no samples were given, and random inputs say nothing of new ones; give --data"


@dataclass(frozen=True, eq=False)
class Fold:
    """Samples to judge, and those whose ranges judge them; None for the delivered file as it is."""

    judged: Samples
    ranges: Samples | None = None


def folds(session: Session, ranged: bool) -> Iterator[Fold]:
    """The samples beside the unseen ones, the cheapest first.

    Args:
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
    yield Fold(parts.calibration, parts.selection.and_then(parts.verification) if ranged else None)


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


class CrossFit:
    """Judges models on every sample, each time with ranges that the sample had no part in.

    The ranges of a fold serve all models: what one more model costs is a build, and an inference of each sample.
    """

    def __init__(self, session: Session, given: Given, prepared: PreparedModel, imported: ImportedQDQ) -> None:
        self._session, self._given = session, given
        self._prepared, self._imported = prepared, imported
        self._exact: dict[tuple[str, int], tuple[list[Path], Sequence[Outputs]]] = {}
        self._writers: dict[int, CandidateWriter] = {}
        self._found: dict[str, Evidence] = {}

    def weigh(self, entry: Entry, unseen_db: Sequence[float], until: Deadline) -> Evidence | None:
        """What the samples, and the user's own evaluation, say of a contender.

        Where nothing but the evaluation is bounded, it has all the time: other samples decide nothing.
        """
        bound = self._session.inputs.config.bound
        if self._session.evaluation is not None and bound.min_sqnr_db is None and bound.max_drop is None:
            found = Evidence(bound, state(unseen_db)) if unseen_db else None
        else:
            found = self.evidence(entry.file, entry.candidate.placement, unseen_db, until, final=False)
        return self.evaluated(found, entry.file, entry.candidate.placement, entry.candidate.trial.accuracy, until)

    def evaluated(
        self,
        found: Evidence | None,
        model: Artifact,
        placement: Placement | None,
        searched: Accuracy | None,
        until: Deadline,
    ) -> Evidence | None:
        """What samples say of a model, with the user's own evaluation of it, where there is one and it matters."""
        evaluation = self._session.evaluation
        is_given = model.digest == self._session.inputs.file.sha256
        if evaluation is None or is_given or (found is not None and found.breaks):
            return found
        if found is None:  # random samples show nothing
            found = Evidence(replace(self._session.inputs.config.bound, min_sqnr_db=None), state([]))
        sqnr_db = 0.0 if searched is None else searched.sqnr_db
        verdict = evaluation.verdict(model, model.digest if placement is None else placement.digest, sqnr_db, until)
        # models for which the bound is shown lower what is usual; a relation that a few suggest does not
        usual_db = min([DEFAULT_MIN_SQNR_DB, *evaluation.shown_db])
        return replace(found, evaluated=verdict, searched_db=sqnr_db, usual_db=usual_db)

    def evidence(
        self, model: Artifact, placement: Placement | None, unseen_db: Sequence[float], until: Deadline, final: bool
    ) -> Evidence | None:
        """What the samples say of a model on new ones: nothing, where they are random.

        What there is no time for is left out, and the statement rests on fewer samples.

        Args:
            unseen_db: SQNR of each unseen sample, which it was judged on already; empty where there are none.
            final: it is what is delivered: resampling a metric that does not count hits may take longer.
        """
        session, bound = self._session, self._session.inputs.config.bound
        if session.inputs.samples.kind == "random":
            return None
        earlier = self._found.get(model.digest)
        if earlier is not None:
            says_nothing = earlier.metric is None or earlier.metric.most_drop is None
            if not (final and bound.metric is not None and says_nothing):
                return earlier
        found, ranged = list(unseen_db), bool(placement)
        judged = self._unseen_again(model, until)
        wanted, in_time = _wanted(session, len(found)), True
        for number, fold in enumerate(folds(session, ranged)):
            missing = min(wanted - len(found), len(fold.judged))
            known = fold.ranges is None or number in self._writers
            seconds = session.costs.crossing_s(missing, 0 if known or fold.ranges is None else len(fold.ranges))
            if missing <= 0:
                break
            if not until.fits(seconds):
                in_time = False
                break
            samples = fold.judged.evenly(missing)
            try:
                made = model
                if fold.ranges is not None and placement is not None:
                    made = self._with_ranges_of(fold.ranges, number, model.digest, placement, until)
                more = self._judge(f"crossed-{number}", made, samples)
            except InlayError:  # the result stands without it, on fewer judgements
                break
            found += self._given.compare(samples, more.reference).each_db(more.outputs)
            if session.inputs.config.bound.metric is not None:  # outputs of many samples may be large
                judged = more if judged is None else judged.and_then(more)
        limit_s = RESAMPLING_S if final else min(CHOOSING_S, until.left)
        metric = None if judged is None else self._of_metric(judged, limit_s)
        shown = Evidence(bound, state(found, bound.min_sqnr_db), metric)
        if in_time:  # else there may be more to find out later
            self._found[model.digest] = shown
        return shown

    def of_given(self, model: Artifact, unseen_db: Sequence[float], until: Deadline) -> Statement | None:
        """What the samples say of the given model where the target itself computes it in fewer bits; None elsewhere."""
        if self._given.rounded is None:
            return None
        found = self.evidence(model, None, unseen_db, until, final=False)
        return None if found is None else found.statement

    def _unseen_again(self, model: Artifact, until: Deadline) -> Judged | None:
        """What a metric compares on the unseen samples, computed again rather than kept for every contender."""
        session, unseen = self._session, self._session.inputs.verification
        if session.inputs.config.bound.metric is None or unseen is None:
            return None
        if not until.fits(session.costs.crossing_s(len(unseen), 0)):
            return None
        try:
            return self._judge("unseen-again", model, unseen)
        except InlayError:  # the result stands without it
            return None

    def _with_ranges_of(
        self, samples: Samples, number: int, digest: str, placement: Placement, until: Deadline
    ) -> Artifact:
        """A placement with the ranges of other samples, by the run's choices."""
        folder = self._session.work / f"crossed-model-{number}-{digest[:16]}"
        folder.mkdir(exist_ok=True)
        if number not in self._writers:
            self._writers[number] = self._ranged(samples, until)
        return self._writers[number].deliver(placement, folder / "model.onnx")

    def _ranged(self, samples: Samples, until: Deadline) -> CandidateWriter:
        session, prepared, imported = self._session, self._prepared, self._imported
        known = session.journal.fact(CHOICE)
        assert known is not None, "what was calibrated was chosen"
        fixed = imported.qparams if session.inputs.config.keep_qparams else {}
        choice = replace(known, rounding=rounding_of(session.journal))
        with pooled(session.lab.open_pool), limited(lambda: until.left):
            observed = observe(prepared, samples, [p for _, p in imported.placements])
            choice = on_other_samples(choice, prepared, observed, samples.feeds, fixed, until)
        table = choice.table(prepared, observed, fixed)
        return CandidateWriter(prepared, table, choice.digest(observed), session.worker.fingerprint.digest)

    def _judge(self, name: str, model: Artifact, samples: Samples) -> Judged:
        """What float and ``model`` make of ``samples``."""
        worker, key = self._session.worker, (name, len(samples))
        if key not in self._exact:
            feeds = self._session.save_feeds(f"{name}-{len(samples)}", samples)
            self._exact[key] = feeds, self._given.reference(feeds)
        feeds, exact = self._exact[key]
        try:
            return Judged(samples, exact, worker.run(model, feeds))
        finally:
            worker.drop(model)

    def _of_metric(self, judged: Judged, limit_s: float) -> MetricStatement | None:
        inputs = self._session.inputs
        bound, rng = inputs.config.bound, np.random.default_rng(inputs.config.seed)
        judge = self._given.compare(judged.samples, judged.reference, bound, inputs.metric)
        try:
            pairs, clock = judge.pairs(judged.outputs), self._session.lab.clock
            return None if pairs is None else state_metric(pairs, bound.max_drop, rng, clock, limit_s)
        except InlayError:  # a metric that takes no samples of several parts
            return None


def cross_fitted(session: Session, crossfit: CrossFit, confirmed: Confirmed) -> Confirmed:
    """The decision with what the samples say about new ones: nothing, where they are random."""
    evaluation, others = session.evaluation, confirmed.on_others
    delivered, until = Artifact(confirmed.file, confirmed.best.output_sha256), session.plan.before_writing
    if confirmed.best.origin == ORIGINAL:
        own = None if evaluation is None else evaluation.own
        said = crossfit.of_given(delivered, others.each_db, until)
        return replace(confirmed, best=replace(confirmed.best, evaluation=own, statement=said))
    found = crossfit.evidence(delivered, confirmed.placement, others.each_db, until, final=True)
    found = crossfit.evaluated(found, delivered, confirmed.placement, confirmed.best.selection, until)
    if found is None:
        unshown = not session.inputs.config.bound.is_none and not confirmed.best.is_float
        best = replace(confirmed.best, bound_shown=False, bound_note=_RANDOM) if unshown else confirmed.best
        return replace(confirmed, best=best)
    unseen = confirmed.best.verification
    found = replace(found, varied_lacks_db=others.lacks_db, unseen_db=None if unseen is None else unseen.sqnr_db)
    said = None if session.inputs.samples.kind == "random" else found.statement
    best = replace(confirmed.best, statement=said, metric_statement=found.metric, evaluation=found.evaluated)
    fails = found.evaluated is not None and found.evaluated.breaks
    if not found.bound.is_none and (fails or not best.is_float):  # in float there is nothing else to show
        best = replace(best, bound_shown=found.shows, bound_broken=found.breaks, bound_note=str(found))
    return replace(confirmed, best=best)


def _wanted(session: Session, unseen: int) -> int:
    """How many samples are judged, as far as there are as many."""
    bound, everything = session.inputs.config.bound, len(session.inputs.samples)
    wanted = samples_needed() or 0
    if session.inputs.config.bound.metric is not None:
        enough = None if not bound.max_drop else hits_needed(0.0, 0.0, bound.max_drop, is_agreement=False)
        wanted = max(wanted, unseen if enough is not None and unseen >= enough else everything)
    return session.plan.samples(wanted)
