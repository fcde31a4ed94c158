"""Judge the delivered model on every sample, each time with ranges that the sample had no part in.

The unseen samples are judged first, as the delivered file's own check. Where they are too few for a limit without an
assumption, the other samples follow: those of the search with the delivered file, whose ranges come from the
calibration samples, and these with the same placement and choices and ranges from the rest. So n samples give n
judgements, for one more calibration on the smaller half and one more build.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inlay.calibrate.tables import observe
from inlay.data import Samples, evenly_spaced
from inlay.errors import InlayError
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.model import PreparedModel
from inlay.prepare.qdq_import import ImportedQDQ
from inlay.quant.accuracy import Bound, Judge
from inlay.quant.tolerance import Statement, samples_needed, state
from inlay.run.confirm import Confirmed
from inlay.run.facts import CHOICE
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
    rest = joined(parts.selection, parts.verification)
    yield Fold(parts.calibration, rest if ranged else None)


def joined(first: Samples, second: Samples) -> Samples:
    """Two parts of the same samples as one, without labels."""
    numbers = [part.number(i) for part in (first, second) for i in range(len(part))]
    feeds = (*first.feeds, *second.feeds)
    return Samples(feeds, first.kind, first.source, None, tuple(numbers), first.mask)


def cross_fitted(
    session: Session, given: Artifact, prepared: PreparedModel, imported: ImportedQDQ, confirmed: Confirmed
) -> Statement | None:
    """What the samples say about new ones; None where they say nothing by their nature, as random ones do.

    What there is no time for is left out, and the statement rests on fewer samples.

    Args:
        session: the run.
        given: the given model.
        prepared: the model.
        imported: Q/DQ models whose qparams may be kept.
        confirmed: what is delivered.
    """
    if session.inputs.samples.kind == "random" or confirmed.best.origin == ORIGINAL:
        return None
    found = list(confirmed.each_db)
    wanted = session.plan.samples(samples_needed() or 0, session.costs)
    delivered = Artifact(confirmed.file, confirmed.best.output_sha256)
    for number, fold in enumerate(folds(session, bool(confirmed.placement))):
        missing = min(wanted - len(found), len(fold.judged))
        seconds = session.costs.crossing_s(missing, 0 if fold.ranges is None else len(fold.ranges))
        if missing <= 0 or not session.plan.before_writing.fits(seconds):
            break
        judged = fold.judged.part(evenly_spaced([*range(len(fold.judged))], missing))
        try:
            model = delivered
            if fold.ranges is not None:
                model = _with_ranges_of(session, fold.ranges, number, prepared, imported, confirmed)
            found += _judge(session, f"crossed-{number}", given, model, judged)
        except InlayError:  # the result stands without it, on fewer judgements
            break
    return state(found, session.inputs.config.bound.min_sqnr_db)


def _with_ranges_of(
    session: Session,
    samples: Samples,
    number: int,
    prepared: PreparedModel,
    imported: ImportedQDQ,
    confirmed: Confirmed,
) -> Artifact:
    """The delivered placement with the ranges of other samples, by the run's choices."""
    choice, placement = session.journal.fact(CHOICE), confirmed.placement
    assert choice is not None, "what was calibrated was chosen"
    assert placement is not None, "a given file has no ranges of the run"
    observed = observe(prepared, samples, [p for _, p in imported.placements])
    fixed = imported.qparams if session.inputs.config.keep_qparams else {}
    table = choice.table(prepared, observed, fixed)
    writer = CandidateWriter(prepared, table, choice.digest(observed), session.worker.fingerprint.digest)
    folder = session.work / f"crossed-model-{number}"
    folder.mkdir()
    return writer.deliver(placement, folder / "model.onnx")


def _judge(session: Session, name: str, given: Artifact, model: Artifact, samples: Samples) -> Sequence[float]:
    """SQNR of each sample's worst output, in dB."""
    feeds, worker = session.save_feeds(name, samples), session.worker
    reference = worker.run(given, feeds)
    try:
        return Judge(reference, samples, Bound(), margin=False).each_db(worker.run(model, feeds))
    finally:
        worker.drop(model)
