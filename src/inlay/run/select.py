"""``inlay select``: write another measured model of a finished run, from its journal, without search or calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inlay.data import save_feed
from inlay.errors import JournalError, UsageError
from inlay.files import refuse_overwriting, scratch
from inlay.measure.client import Worker
from inlay.measure.journal import Journal, Record
from inlay.model.held import held
from inlay.model.load import ModelFile, file_sha256, load
from inlay.model.store import model_bytes
from inlay.prepare.options import check_sqnr, parse_share, parse_size
from inlay.run.evaluation.judging import evaluated_fall
from inlay.run.facts import CALIBRATION, MEMORY, PRECISION, SIZE
from inlay.run.finished import TOO_OLD, inputs_of, judged_by_older_rules, reading_result, writer_of
from inlay.run.outputs import publish
from inlay.targets.base import is_estimate, unit_of
from inlay.trial import Accuracy, Measured, OutputError, shown_size, shown_sqnr
from inlay.types import Placement

_MOST_BYTES = 1 << 63  # no file system holds more in one file


@dataclass(frozen=True)
class Wish:
    """The constraints of a selection; of the models that keep them the fastest, smallest or leanest is chosen."""

    min_sqnr_db: float | None = None  # least SQNR of the worst output on the selection samples, or None
    max_drop: float | None = None  # most that the metric, or what the model is for, may fall, or None
    max_bytes: int | None = None  # most that the file may take with its weights, or None
    smallest: bool = False  # the smallest model is wanted, of equal ones the fastest; otherwise the fastest
    max_memory: int | None = None  # most bytes that a session may take, or None
    leanest: bool = False  # the model whose session takes the least memory is wanted

    def __str__(self) -> str:
        parts = [] if self.min_sqnr_db is None else [f"SQNR at least {self.min_sqnr_db:g} dB"]
        parts += [] if self.max_drop is None else [f"a drop of at most {self.max_drop:g}"]
        parts += [] if self.max_bytes is None else [f"at most {self.max_bytes / 1e6:g} MB"]
        parts += [] if self.max_memory is None else [f"at most {self.max_memory / 1e6:g} MB of memory"]
        return " and ".join(parts) or "no bound"

    def kept_by(self, accuracy: Accuracy, size: int | None) -> bool:
        """Whether a model of this accuracy and of so many bytes keeps it; one that loses an output keeps none."""
        if self != Wish() and accuracy.lost:
            return False
        if self.max_bytes is not None and (size is None or size > self.max_bytes):
            return False
        if self.min_sqnr_db is not None and accuracy.sqnr_db < self.min_sqnr_db:
            return False
        return self.max_drop is None or (accuracy.drop is not None and accuracy.drop <= self.max_drop + 1e-12)


def wish(
    min_sqnr: float | None,
    max_drop: str | float | None,
    max_size: str | int | None,
    minimize: str,
    fastest: bool,
    max_memory: str | int | None = None,
) -> Wish:
    """The wish that these options state. Raises UsageError where they state none, or contradict each other."""
    if minimize not in ("latency", "size", "memory"):
        raise UsageError(f"--minimize {minimize}: give latency, size or memory")
    found = Wish(
        check_sqnr(min_sqnr),
        None if max_drop is None else parse_share(str(max_drop)),
        None if max_size is None else parse_size(str(max_size)),
        minimize == "size",
        None if max_memory is None else parse_size(str(max_memory), "--max-memory"),
        minimize == "memory",
    )
    if fastest == (found != Wish()):
        raise UsageError(
            "give --max-drop, --min-sqnr, --max-size, --max-memory, --minimize size or memory, or --fastest"
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Selected:
    """The model that was written, with what the search measured of it, and sizes of the given model as far as known.

    ``task`` says what it keeps of what the model is for, where the search looked at that. ``latency_ms`` is the given
    model's in ``result.json`` over ``speedup``, in ``unit``; ``estimated`` where the target computes its figures.
    ``lost`` are outputs that it loses, ``unproven`` says that the run's bound is broken or not shown, and ``measured``
    is False where there were too few readings for a speed-up.
    """

    path: Path
    sha256: str
    origin: str
    placement_digest: str
    speedup: float
    latency_ms: float
    sqnr_db: float
    metric: float | None
    size_bytes: int
    task: str = ""
    memory_bytes: int | None = None
    given_bytes: int | None = None
    given_memory: int | None = None
    speedup_low: float = 0.0
    speedup_high: float = math.inf
    unit: str = "ms"
    estimated: bool = False
    measured: bool = True
    lost: tuple[OutputError, ...] = ()
    unproven: str = ""


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What ``result.json`` says of a run."""

    # model, sha256: of the run, and its digest then
    model: Path
    sha256: str
    sources: Sequence[Path]  # all that the run was made from
    # size_bytes, memory_bytes: of the given model in a file and in memory; None where they are not known
    size_bytes: int | None
    memory_bytes: int | None
    latency_ms: float  # of the given model
    facts: Mapping[str, str]  # of the target, which say in what unit that is
    bound: str  # of the run, as text; `none` without one
    delivered: str  # digest of the delivered placement
    note: str  # why the bound is not shown for that; empty where it is
    rejected: Mapping[str, str]  # why placements, by digest, failed on unseen samples

    @classmethod
    def read(cls, folder: Path) -> _Run:
        """That of the run in ``folder``; older ones lack some of it. Raises JournalError where it is damaged."""
        with reading_result(folder) as result:
            model, baseline = result["model"], dict(result["baseline"])
            best, search = dict(result.get("best") or {}), dict(result.get("search") or {})
            return cls(
                model=Path(model["path"]),
                sha256=str(model["sha256"]),
                sources=inputs_of(result),
                size_bytes=_bytes(baseline, "size_bytes"),
                memory_bytes=_bytes(baseline, "memory_bytes"),
                latency_ms=float(baseline["latency_ms"]),
                facts={str(name): str(value) for name, value in dict(result["target"].get("facts") or {}).items()},
                bound=str(result.get("bound") or "none"),
                delivered=str(best.get("placement_digest") or ""),
                note=str(best.get("bound_note") or ""),
                rejected={str(key): str(why) for key, why in dict(search.get("rejected") or {}).items()},
            )

    def doubt(self, placement: Placement, accuracy: Accuracy) -> str:
        """That a placement is outside the bound, or not shown to keep it for new samples; empty where it is."""
        if not accuracy.feasible:
            return "" if accuracy.lost else f"outside the run's bound: {accuracy.reason}"
        if placement.digest in self.rejected:
            return f"outside the run's bound on unseen samples: {self.rejected[placement.digest]}"
        if placement.digest == self.delivered:
            return f"bound not shown: {self.note}" if self.note else ""
        if self.bound == "none" or not placement:
            return ""
        return f"bound not shown: new samples were judged by {self.bound} for the delivered model only"


def select(folder: Path, out: Path, wish: Wish) -> Selected:
    """Write the measured model of the run in ``folder`` that ``wish`` chooses to ``out``.

    Raises:
        JournalError: there is no finished run in ``folder``.
        UsageError: no measured model keeps the wish, or the model is not the one of the run.
    """
    run = _Run.read(folder)
    with closing(Journal(folder / "run.sqlite", None)) as journal:
        return _select(journal, run, out, wish)


def _bytes(baseline: Mapping[str, Any], key: str) -> int | None:
    """A size of the given model, None where it is not known. Raises ValueError where it is none."""
    size = baseline.get(key)
    if size is not None and (type(size) is not int or not 0 <= size < _MOST_BYTES):
        raise ValueError(f"{key}: {size!r}")
    return size


def _select(journal: Journal, run: _Run, out: Path, wish: Wish) -> Selected:
    file = load(run.model)
    if file.sha256 != run.sha256:
        raise UsageError(f"{run.model} has changed since the run: its digest is not the one in result.json")
    older = judged_by_older_rules(journal)
    if older and not (wish.min_sqnr_db is None and wish.max_drop is None):
        raise JournalError(f"{older}; --fastest, --max-size and others that promise no accuracy still work")
    trial, measured = _chosen(journal, wish, file)
    refuse_overwriting(
        [out, out.with_name(f"{out.name}.data")],
        [*file.files, *run.sources, journal.path, journal.path.with_name("result.json")],
    )
    placement = journal.placement(trial.candidate)
    if placement is None:
        raise JournalError(f"{journal.path} {TOO_OLD}")
    with scratch() as work:
        file = held(file, work / "given")
        publish(writer_of(journal, file, work)(placement, work / out.name).path, out)
    speedup = measured.latency.speedup
    return Selected(
        path=out,
        sha256=file_sha256(out),
        origin=trial.origin,
        placement_digest=trial.placement_digest,
        speedup=speedup.value,
        latency_ms=run.latency_ms / speedup.value,
        sqnr_db=measured.accuracy.sqnr_db,
        metric=measured.accuracy.metric,
        task=measured.accuracy.in_task,
        size_bytes=model_bytes(out),
        memory_bytes=journal.fact(MEMORY.of(trial.candidate)),
        given_bytes=run.size_bytes,
        given_memory=run.memory_bytes,
        speedup_low=speedup.low,
        speedup_high=speedup.high,
        unit=unit_of(run.facts),
        estimated=is_estimate(run.facts),
        measured=speedup.is_told,
        lost=measured.accuracy.lost,
        unproven=older if older and placement else run.doubt(placement, measured.accuracy),
    )


def _memory_of(journal: Journal, found: Sequence[Record], file: ModelFile) -> dict[str, int]:
    """What sessions of these candidates take: known from the run, or measured now, each in a fresh process.

    Raises:
        UsageError: the target cannot tell, or this is not the device of the run.
        TargetError: one does not run any more.
    """
    known = {record.candidate: journal.fact(MEMORY.of(record.candidate)) for record in found}
    with scratch() as work:
        calibration, feed = journal.fact(CALIBRATION), journal.feed("shapes")
        if calibration is None or feed is None:
            raise JournalError(f"{journal.path} {TOO_OLD}")
        save_feed(work / "feed.npz", feed)
        choice = journal.fact(PRECISION)  # the journal is known by the target as it was asked for
        chosen = choice is not None and choice.options
        there = f"{calibration.spec.name} {calibration.target}" if chosen else journal.target
        write = None
        for candidate in [key for key, memory in known.items() if memory is None]:
            placement = journal.placement(candidate)
            assert placement is not None, "others are not chosen from"
            write = write or writer_of(journal, file, work)
            made = write(placement, work / f"{candidate}.onnx")
            with Worker(calibration.spec, work) as fresh:
                here = fresh.fingerprint.identity
                if there not in ("", here):
                    raise UsageError(
                        f"memory would be measured on {here}, but the run measured on {there}: run inlay "
                        "select on the machine of that device, with the same runtime"
                    )
                memory = fresh.memory(made, work / "feed.npz")
            if memory is None:
                raise UsageError(f"target {calibration.spec.name} does not report how much memory a session takes")
            known[candidate] = journal.record_fact(MEMORY.of(candidate), memory)
    return {key: memory for key, memory in known.items() if memory is not None}


def _with_drop(measured: Measured, journal: Journal, placement: str) -> Measured:
    """What was measured of a model, its drop by the user's own evaluation, or else by what it is for."""
    fall, accuracy = evaluated_fall(journal, placement), measured.accuracy
    if fall is None and accuracy.drop is None and accuracy.figures:
        fall = accuracy.figures[0].lost
    return measured if fall is None else replace(measured, accuracy=replace(accuracy, drop=fall))


def _chosen(journal: Journal, wish: Wish, file: ModelFile) -> tuple[Record, Measured]:
    measured = [
        (trial, _with_drop(trial.outcome, journal, trial.placement_digest))
        for trial in journal.trials()
        if isinstance(trial.outcome, Measured) and journal.placement(trial.candidate) is not None
    ]
    sizes = {trial.candidate: journal.fact(SIZE.of(trial.candidate)) for trial, _ in measured}
    if (wish.smallest or wish.max_bytes is not None) and measured and all(size is None for size in sizes.values()):
        raise JournalError(f"{journal.path} was written by an older version, which did not keep sizes")
    kept = [(t, outcome) for t, outcome in measured if wish.kept_by(outcome.accuracy, sizes[t.candidate])]
    if not kept:
        best = max((outcome.accuracy.sqnr_db for _, outcome in measured), default=None)
        note = "nothing was measured" if best is None else f"the most accurate one has {shown_sqnr(best)}"
        if wish.max_bytes is not None and measured:
            note += f", the smallest one {shown_size(min(s for s in sizes.values() if s is not None))}"
        if wish.max_drop is not None and all(o.accuracy.drop is None for _, o in measured):
            note += "; no metric, task or --evaluate judged any of them"
        gone = next((f"{t.origin} loses output {o.accuracy.lost[0].name}" for t, o in measured if o.accuracy.lost), "")
        note += f"; {gone}, and such models are written for --fastest alone" if gone else ""
        raise UsageError(f"no measured model keeps {wish}: {note}")

    memory: dict[str, int] = {}
    if wish.leanest or wish.max_memory is not None:
        memory = _memory_of(journal, [t for t, _ in kept], file)
        lean = [(t, o) for t, o in kept if wish.max_memory is None or memory[t.candidate] <= wish.max_memory]
        if not lean:
            raise UsageError(f"no measured model keeps {wish}: the leanest takes {shown_size(min(memory.values()))}")
        kept = lean

    def order(found: tuple[Record, Measured]) -> tuple[float, bool, float]:
        size = memory.get(found[0].candidate) if wish.leanest else sizes[found[0].candidate]
        small = (math.inf if size is None else size) if wish.smallest or wish.leanest else 0.0
        gained = found[1].latency.speedup
        return small, not gained.is_told, -gained.value

    return min(kept, key=order)
