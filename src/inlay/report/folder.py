"""What a run left in its folder, for a report: result, trials, blocks, evidence and kernel times."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from inlay.errors import DataError, JournalError
from inlay.files import read_bytes
from inlay.measure.journal import Journal, Record
from inlay.run.facts import PROFILE, SIZE
from inlay.run.finished import judged_by_older_rules, reading_result
from inlay.run.outcome.evidence import EVIDENCE, Evidence
from inlay.targets.base import KernelTime
from inlay.trial import Interval, Measured

_OF_CONTENT = TemplateError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError
"""What reading a result of other types or numbers than were written raises."""


def facts_of(result: Mapping[str, Any]) -> Mapping[str, str]:
    """The facts of the target's fingerprint, as ``result.json`` has them."""
    return dict(result["target"].get("facts") or {})


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """A finished run."""

    folder: Path  # where it is
    result: Mapping[str, Any]  # the content of `result.json`
    trials: Sequence[Record]  # every trial, in order
    selectable: frozenset[str]  # keys of the trials that `inlay select` can write
    sizes: Mapping[str, int]  # bytes of the candidates, by key, as far as known
    sentinel: Sequence[float]  # nanoseconds of the given model in each block of a race, in order
    # None where the run left none: it ended before there was a candidate, or is of an older version
    evidence: Evidence | None
    profiles: Mapping[str, Sequence[KernelTime]]  # kernel times by candidate key, of those that were profiled
    recipe: str  # the content of `recipe.yaml`; empty where there is none

    @property
    def baseline_ms(self) -> float:
        """Of the given model: every latency of the report follows from it and a speed-up, so that they agree."""
        return float(self.result["baseline"]["latency_ms"])

    @cached_property
    def speeds(self) -> Mapping[str, Interval]:
        """Speed-up of each model that was timed, by key: of fresh processes where the result has it from there."""
        found = {t.candidate: t.outcome.latency.speedup for t in self.trials if isinstance(t.outcome, Measured)}
        if self.evidence is not None:
            named = {a["name"]: a for a in self.result.get("anchors", ())}
            for name, key in self.evidence.anchors.items():
                if key in found and (each := named.get(name)) is not None and each.get("speedup") is not None:
                    found[key] = interval_of(each)
            if self.evidence.delivered:
                found[self.evidence.delivered] = interval_of(self.result["best"])
        return found


def interval_of(figures: Mapping[str, Any]) -> Interval:
    """The speed-up of an anchor or of the delivered model in ``result.json``, which has no infinite numbers."""
    value, low, high = (figures.get(key) for key in ("speedup", "speedup_low", "speedup_high"))
    return Interval(
        math.nan if value is None else value, 0.0 if low is None else low, math.inf if high is None else high
    )


_LARGEST_TEXT = 16 << 20  # bytes of a recipe that is shown


def read_run(folder: Path) -> FinishedRun:
    """The finished run in ``folder``. Raises JournalError where there is none, or it is damaged."""
    with reading_result(folder) as result:
        result["best"]["speedup"], result["model"]["path"], result["baseline"]["latency_ms"]
    with contextlib.closing(Journal(folder / "run.sqlite", None)) as journal:
        older, notes = judged_by_older_rules(journal), result.get("notes")
        if older:
            result["notes"] = [older, *(notes if isinstance(notes, list) else ())]
        trials = journal.trials()
        measured = [t.candidate for t in trials if isinstance(t.outcome, Measured)]
        sizes = {key: journal.fact(SIZE.of(key)) for key in measured}
        evidence = journal.fact(EVIDENCE)
        keys = dict.fromkeys(measured if evidence is None else [*measured, evidence.delivered, evidence.floats])
        profiles = {key: journal.fact(PROFILE.of(key)) for key in keys}
        return FinishedRun(
            folder=folder,
            result=result,
            trials=trials,
            selectable=frozenset(key for key in measured if journal.placement(key) is not None),
            sizes={key: size for key, size in sizes.items() if size is not None},
            sentinel=[ns[0] for kind, _, ns, _ in journal.readings() if kind == "race"],
            evidence=evidence,
            profiles={key: kernels for key, kernels in profiles.items() if kernels},
            recipe=as_shown(folder / "recipe.yaml"),
        )


@contextlib.contextmanager
def refusing_damage(folder: Path) -> Iterator[None]:
    """Raise JournalError where what is made of the run in ``folder`` fails by its content."""
    try:
        yield
    except _OF_CONTENT as error:
        raise JournalError(f"{folder} holds a damaged run: {error!r}") from error


def as_shown(path: Path) -> str:
    """The content of a text file that is shown; empty where it cannot be read."""
    try:
        return read_bytes(path, _LARGEST_TEXT).decode("utf8")
    except (DataError, UnicodeDecodeError):
        return ""
