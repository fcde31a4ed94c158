"""A finished run: what it was made from, and its candidates, written again without search or calibration."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from inlay.data import FIXED, files_of
from inlay.errors import DataError, JournalError
from inlay.files import read_json
from inlay.measure.journal import Journal
from inlay.model.load import ModelFile
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.halves import keep_wide
from inlay.prepare.model import prepare
from inlay.prepare.smoothquant import smoothed
from inlay.prepare.strip_qdq import strip_qdq
from inlay.quant.accuracy import JUDGING
from inlay.quant.qparams import QParamsTable
from inlay.run.facts import (
    BASE,
    CALIBRATION,
    EQUALIZATION,
    FIXED_VALUES,
    FROZEN,
    KEPT_WIDE,
    MAX_OPSET,
    OPAQUE,
    SATURATIONS,
    rounding_of,
)
from inlay.targets.base import Artifact, Capabilities
from inlay.targets.registry import create
from inlay.types import FP32, Placement


@contextlib.contextmanager
def reading_result(folder: Path) -> Iterator[dict[str, Any]]:
    """The content of ``result.json`` of the run in ``folder``.

    Raises:
        JournalError: there is no finished run, or what is read of it within is damaged.
    """
    try:
        yield read_json(folder / "result.json")
    except (DataError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise JournalError(f"{folder} holds no readable result.json: run inlay tune to its end first") from error
    if not (folder / "run.sqlite").is_file():
        raise JournalError(f"{folder} holds no run.sqlite: it is not the output of inlay tune")


TOO_OLD = "was written by an older version, which did not keep what is needed"


OLDER_RULES = (
    "accuracies of this run were judged by older rules, which miss what is lost in a part of an output: run "
    "inlay tune again with --restart"
)


def judged_by_older_rules(journal: Journal) -> str:
    """That a run's accuracies are not what they would be today, for people; empty where they are."""
    return "" if journal.judging == JUDGING else OLDER_RULES


def writer_of(journal: Journal, file: ModelFile, work: Path) -> Callable[[Placement, Path], Artifact]:
    """What writes a placement of the run to a path, in the form in which the run would have delivered it.

    Raises:
        JournalError: the journal is of an older version, or damaged; also when a placement is written.
    """
    known, feed = journal.fact(CALIBRATION), journal.feed("shapes")
    if values := journal.fact(FIXED_VALUES):
        file.model.metadata_props[FIXED] = json.dumps(values)
    if known is None or feed is None:
        raise JournalError(f"{journal.path} {TOO_OLD}")
    extraction = strip_qdq(file, [feed], work, journal.fact(SATURATIONS), journal.fact(OPAQUE))
    target = Capabilities.of(create(known.spec), max_opset=journal.fact(MAX_OPSET), base=journal.fact(BASE) or FP32)
    prepared = prepare(file, target, feed, work, extraction=extraction, sizes=journal.fact(FROZEN))
    prepared = smoothed(prepared, journal.fact(EQUALIZATION) or {}, feed)
    prepared = keep_wide(prepared, journal.fact(KEPT_WIDE) or {})
    prepared = prepared.tuned_for(known.tuned_for)

    def write(placement: Placement, path: Path) -> Artifact:
        try:
            table = QParamsTable.from_json(prepared.graph, prepared.rules, known.table, rounding_of(journal))
            return CandidateWriter(prepared, table, known.digest, known.target).deliver(placement, path)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise JournalError(f"{journal.path} is damaged: {error!r} does not fit {file.path}") from error

    return write


def inputs_of(result: Mapping[str, Any]) -> list[Path]:
    """The files that a run was made from, by the content of its ``result.json``; what is damaged is passed over.

    Those of older versions name the model alone.
    """
    model, data = result.get("model"), result.get("data")
    found = [model.get("path")] if isinstance(model, Mapping) else []
    sources = data.get("sources") if isinstance(data, Mapping) else None
    found += sources if isinstance(sources, list) else []
    return [path for source in found if isinstance(source, str) and "\0" not in source for path in files_of(source)]
