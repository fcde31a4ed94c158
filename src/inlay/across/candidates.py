"""Files that may be the single one for all targets: of every run its delivered model, and the fastest of its front."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from inlay.across import policy
from inlay.across.session import AcrossSession
from inlay.deadline import Deadline
from inlay.errors import InlayError
from inlay.measure.journal import Journal, Record
from inlay.run.finished import writer_of
from inlay.targets.base import Artifact
from inlay.trial import Measured
from inlay.types import Placement


def candidates(session: AcrossSession, delivered: Mapping[str, Artifact]) -> dict[str, Artifact]:
    """Files by a name that says where they come from; each content once.

    Args:
        session: of the command.
        delivered: the model that each run delivered, by label.
    """
    found = {session.given.digest: ("the given model", session.given)}
    for label, file in delivered.items():
        found.setdefault(file.digest, (f"{label}: what it delivers", file))
    end = session.share(policy.WRITING_SHARE)
    for label in delivered:
        if not end.left:
            break
        with contextlib.suppress(InlayError):  # a front that cannot be read again leaves what was delivered
            for origin, file in _front(session, label, end):
                found.setdefault(file.digest, (f"{label}: {origin}", file))
    return dict(found.values())


def _front(session: AcrossSession, label: str, end: Deadline) -> list[tuple[str, Artifact]]:
    journal = Journal(session.folder(label) / "run.sqlite", None)
    try:
        chosen = _fastest(journal)
        folder = session.work / f"front-{session.folder(label).name}"
        folder.mkdir()
        found = []
        if chosen:
            write = writer_of(journal, session.inputs.file, folder)
            found = [(r.origin, write(p, folder / f"{r.candidate}.onnx")) for r, p in chosen if end.left]
        return found
    finally:
        journal.close()


def _fastest(journal: Journal) -> list[tuple[Record, Placement]]:
    """Measured candidates that keep the bound: those that no other beats in speed and accuracy first, then by speed."""
    kept = [
        (record, placement, outcome)
        for record in journal.trials()
        if isinstance(outcome := record.outcome, Measured)
        and outcome.accuracy.feasible
        and (placement := journal.placement(record.candidate)) is not None
    ]
    kept.sort(key=lambda each: -each[2].latency.speedup.value)
    front, others, best_db = list[tuple[Record, Placement]](), list[tuple[Record, Placement]](), float("-inf")
    for record, placement, outcome in kept:
        (front if outcome.accuracy.sqnr_db > best_db else others).append((record, placement))
        best_db = max(best_db, outcome.accuracy.sqnr_db)
    return [*front, *others][: policy.CANDIDATES - 1]
