"""Peak memory of the few models that were measured last, each in a fresh process of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from inlay.errors import TargetError
from inlay.model.heard import counting
from inlay.run.facts import MEMORY
from inlay.run.session import Session
from inlay.targets.base import Artifact

_INFERENCES = 4
"""Of the given model, for reading a feed and the first runs."""


def measure_memory(session: Session, files: Mapping[str, Artifact], feed: Path) -> None:
    """Record what a session of each model takes, as far as there is time; nothing where the target cannot tell.

    Args:
        session: the run.
        files: the models by their keys, the one that matters most first.
        feed: file of the inputs.
    """
    journal, costs = session.journal, session.costs
    if session.worker.deterministic or "memory" in session.worker.lacks:
        return
    once_s = costs.worker_s + costs.candidate_build_s + _INFERENCES * costs.sample_s
    for key, file in counting([*files.items()], "measure the memory of model"):
        if journal.fact(MEMORY.of(key)) is not None:
            continue
        if not session.plan.before_writing.fits(once_s):
            return
        with contextlib.suppress(TargetError):  # nothing else depends on it
            with session.start_worker(session.inputs.config.target, session.work, session.limit_s) as fresh:
                found = fresh.memory(file, feed)
            if found is None:
                return
            journal.record_fact(MEMORY.of(key), found)
