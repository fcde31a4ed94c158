"""Candidates of a finished run, written again from its journal without search or calibration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from inlay.errors import JournalError
from inlay.measure.journal import Journal
from inlay.model.load import ModelFile
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.equalize import equalized
from inlay.prepare.model import prepare
from inlay.prepare.take_apart import take_apart
from inlay.quant.qparams import QParamsTable
from inlay.run.facts import CALIBRATION, EQUALIZATION, FROZEN, MAX_OPSET, SATURATIONS
from inlay.targets.base import Artifact, Capabilities
from inlay.targets.registry import create
from inlay.types import Placement

TOO_OLD = "was written by an older version, which did not keep what is needed"


def writer_of(journal: Journal, file: ModelFile, work: Path) -> Callable[[Placement, Path], Artifact]:
    """What writes a placement of the run to a path, in the form in which the run would have delivered it.

    Args:
        journal: of the run.
        file: the model of the run.
        work: folder for scratch files.

    Raises:
        JournalError: the journal is of an older version, or damaged; also when a placement is written.
    """
    known, feed = journal.fact(CALIBRATION), journal.feed("shapes")
    if known is None or feed is None:
        raise JournalError(f"{journal.path} {TOO_OLD}")
    extraction = take_apart(file, [feed], work, journal.fact(SATURATIONS))
    target = Capabilities.of(create(known.spec), max_opset=journal.fact(MAX_OPSET))
    prepared = prepare(file, target, feed, work, extraction=extraction, sizes=journal.fact(FROZEN))
    prepared = equalized(prepared, journal.fact(EQUALIZATION) or {}, target, feed)

    def write(placement: Placement, path: Path) -> Artifact:
        try:
            table = QParamsTable.from_json(prepared.graph, prepared.rules, known.table)
            return CandidateWriter(prepared, table, known.digest, known.target).deliver(placement, path)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise JournalError(f"{journal.path} is damaged: {error!r} does not fit {file.path}") from error

    return write
