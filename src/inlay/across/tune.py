"""Tune for several targets under one budget, then measure the files of all of them on all of them.

Two questions, one way. Which runtime? (:func:`tune_auto`): all targets get first readings of the given model; those
that can win are tuned for; the files that they deliver run on their own targets. One file for all (:func:`tune_all`):
all targets are tuned for; candidates of every front run on every target, and the one whose worst regret is smallest is
delivered. The figures that are reported come from fresh processes, in blocks that all targets share.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from inlay.across import policy
from inlay.across.choose import Chosen, choose_file, choose_target
from inlay.across.comparing import Comparison
from inlay.across.labels import folder_of
from inlay.across.precision import one_of_each
from inlay.across.result import AcrossResult, Cell, Column
from inlay.across.session import AcrossSession, open_across
from inlay.errors import DataError, InlayError, JournalError, ModelError, TargetError, TooShort, UsageError
from inlay.files import read_json
from inlay.measure.journal import Fact, spent_in
from inlay.model.load import file_sha256
from inlay.model.store import model_bytes
from inlay.run.inputs import OUTPUTS, TuneRequest
from inlay.run.outputs import install
from inlay.run.result import NO_DOUBT, Doubt, write_json
from inlay.run.tune import tune
from inlay.targets.base import Artifact, TargetSpec
from inlay.trial import Interval

SCREEN: Fact[dict[str, float | str]] = Fact("screen", dict)
"""Nanoseconds of the given model on each target in the first readings, or why there are none."""
DELIVERED: Fact[dict[str, Any]] = Fact("delivered", dict)
"""What a run delivered, by label: origin, digest, why its bound is not shown, and whether it is broken."""
_Delivered = tuple[Artifact, str, Doubt]
"""The file, what proposed it, and why its bound is not shown."""
_UNSTATED = Doubt("the file for all targets is a candidate for which nothing was stated beforehand")


def outputs_of(out: Path, specs: Mapping[str, TargetSpec]) -> list[Path]:
    """Every file that a command for these targets writes."""
    return [folder / name for folder in (out, *(out / folder_of(label) for label in specs)) for name in OUTPUTS]


@dataclass(frozen=True)
class Tuned:
    """What the runs of all targets delivered.

    Attributes:
        files: the delivered models by label.
        origins: what proposed them.
        why: targets that were not tuned for, with the reason.
        interrupted: the user ended a run.
        doubts: why the bound is not shown for a delivered model, by digest.
    """

    files: Mapping[str, Artifact]
    origins: Mapping[str, str]
    why: Mapping[str, str]
    interrupted: bool
    doubts: Mapping[str, Doubt] = field(default_factory=dict)


def tune_across(
    asked: TuneRequest, specs: Mapping[str, TargetSpec], others: Mapping[str, str] | None = None
) -> AcrossResult:
    """Tune for several targets, and write the model to deploy.

    Args:
        asked: for all targets: its folder holds the result and a folder of each target's run, its budget is that of the
            whole command, and its config's target is not used, nor ``any_precision``.
        specs: the targets by label.
        others: installed targets that cannot be used, with the reason: one of ``specs`` is to be chosen. None where
            one file is wanted for all of ``specs``.

    Raises:
        InlayError: the model, the samples, a target or the folder cannot be used.
    """
    with open_across(asked, specs) as session:
        comparison = Comparison(session, choosing=others is not None)
        screened = {}
        if others is not None:
            screened = one_of_each(session, comparison, comparison.screen(SCREEN))
        tuned = _tune_each(session, screened)
        if not tuned.files:
            raise UsageError("; ".join(f"{label}: {why}" for label, why in {**(others or {}), **tuned.why}.items()))
        session.stage("measure the files of all targets in fresh processes")
        chosen = choose_file(comparison, tuned.files) if others is None else choose_target(comparison, tuned.files)
        result = _result(session, tuned, others or {}, screened, chosen)
        install(chosen.file.path, asked.out / "model.onnx")
        write_json(asked.out / "result.json", result.as_json())
        return result


def _tune_each(session: AcrossSession, screened: Mapping[str, float | str]) -> Tuned:
    """A run for each target that can win, the fastest float first; what one leaves of its time goes to the next."""
    files: dict[str, Artifact] = {}
    origins: dict[str, str] = {}
    doubts: dict[str, Doubt] = {}
    why = {label: found for label, found in screened.items() if isinstance(found, str)}
    float_ns = {label: found for label, found in screened.items() if not isinstance(found, str)}
    order = sorted(float_ns, key=lambda label: float_ns[label]) if screened else list(session.specs)
    compare_s = policy.COMPARING_SHARE * session.left_s
    fastest_ns = min(float_ns.values(), default=0.0)
    for number, label in enumerate(order):
        if screened and float_ns[label] > policy.MOST_GAIN * fastest_ns:
            why[label] = (
                f"{float_ns[label] / fastest_ns:.1f} times as slow as the fastest before anything is quantized, "
                f"by which it gains a factor of {policy.MOST_GAIN:g} at most"
            )
            continue
        left = [later for later in order[number:] if not screened or float_ns[later] <= policy.MOST_GAIN * fastest_ns]
        whole_s = max(0.0, session.left_s - compare_s)
        # where an equal share is too short for anything, the first one that can win gets all there is
        shares = [whole_s / len(left), *([whole_s] if screened and not files and len(left) > 1 else [])]
        try:
            found, interrupted = _first_that_fits(session, label, shares, whole_s)
        except (UsageError, ModelError, TargetError) as error:
            if not screened or (not files and label == left[-1]):
                raise _of_target(label, error, session.asked.config.budget_s, shares[-1]) from error
            why[label] = str(error)
            continue
        files[label], origins[label], doubts[found[0].digest] = found
        if interrupted:
            why.update(dict.fromkeys(left[1:], "the command was interrupted"))
            return Tuned(files, origins, why, True, doubts)
        latency_ns = _latency_ns(session, label)
        fastest_ns = min(fastest_ns, latency_ns) if latency_ns else fastest_ns
    return Tuned(files, origins, why, False, doubts)


def _first_that_fits(
    session: AcrossSession, label: str, shares: Sequence[float], most_s: float
) -> tuple[_Delivered, bool]:
    """As :func:`_one`, with the first of the shares that is not too short for a run, or the least that is not."""
    for share_s in shares[:-1]:
        with contextlib.suppress(UsageError):
            return _one(session, label, share_s)
    try:
        return _one(session, label, shares[-1])
    except TooShort as error:
        if not shares[-1] < error.least_s <= most_s:
            raise
        return _one(session, label, error.least_s)


def _of_target(label: str, error: InlayError, budget_s: float | None, share_s: float) -> InlayError:
    """The error of a target's run as that of the command: of its budget, a target gets a share."""
    if not isinstance(error, TooShort) or budget_s is None or not error.least_s or share_s <= 0.0:
        return type(error)(f"{label}: {error}")
    needed_s = math.ceil(budget_s * error.least_s / share_s)
    return TooShort(
        f"{label}: its share of --budget {budget_s:.0f}s is {share_s:.0f} s, and it needs {error.least_s:.0f} s: give "
        f"{needed_s}s or more",
        needed_s,
    )


def _one(session: AcrossSession, label: str, share_s: float) -> tuple[_Delivered, bool]:
    """What was delivered for one target, and if the user ended the run; a finished one is not repeated."""
    asked, folder, key = session.asked, session.folder(label), DELIVERED.of(label)
    known, path = session.journal.fact(key), folder / "model.onnx"
    if known is not None and path.is_file() and file_sha256(path) == known["sha256"]:
        doubt = Doubt(known.get("unproven", ""), known.get("broken", False))
        return (Artifact(path.resolve(), known["sha256"]), known["origin"], doubt), False
    session.stage(f"tune for {label}")
    budget_s = asked.config.budget_s
    if budget_s is not None:  # the journal of the run counts what it spent; what is left of the command is its own
        budget_s = share_s + (0.0 if asked.restart else spent_in(folder / "run.sqlite"))
    config = replace(asked.config, target=session.specs[label], budget_s=budget_s)
    own = replace(asked, out=folder, config=config, progress=session.of(label), before_s=0.0)
    result = tune(replace(own, any_precision=False))  # the label says which one it is, and its twin is another target
    best = result.best
    found = {
        "origin": best.origin,
        "sha256": best.output_sha256,
        "unproven": best.doubt.note,
        "broken": best.doubt.broken,
    }
    if not result.interrupted:
        session.journal.record_fact(key, found)
    return (Artifact(path.resolve(), best.output_sha256), best.origin, best.doubt), result.interrupted


def _latency_ns(session: AcrossSession, label: str) -> float:
    path = session.folder(label) / "result.json"
    try:
        return float(read_json(path)["best"]["latency_ms"]) * 1e6
    except (DataError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise JournalError(f"{path} is damaged: {error!r}; give another output folder, or --restart") from error


def _result(
    session: AcrossSession,
    tuned: Tuned,
    others: Mapping[str, str],
    screened: Mapping[str, float | str],
    chosen: Chosen,
) -> AcrossResult:
    config, file = session.inputs.config, session.inputs.file
    columns = {
        label: Column(
            spec,
            session.fingerprints[label],
            session.folder(label).name if label in tuned.files else None,
            tuned.why.get(label, ""),
        )
        for label, spec in session.specs.items()
    }
    unusable = {label: Column(TargetSpec(label), why=why) for label, why in others.items()}
    exact = Interval.exactly(1.0)
    first = {  # of targets that were not tuned for, the first readings
        ("given", label): Cell(found / 1e6, exact, None, f"first readings; {tuned.why.get(label, '')}")
        for label, found in screened.items()
        if not isinstance(found, str) and label not in tuned.files
    }
    return AcrossResult(
        folder=session.inputs.out,
        model=(str(file.path), file.sha256),
        columns={**columns, **unusable},
        row=chosen.row,
        deployed=chosen.deployed,
        origin=chosen.origin or tuned.origins[chosen.row],
        sha256=chosen.file.digest,
        size_bytes=model_bytes(chosen.file.path),
        table={**chosen.table, **first},
        ratios=chosen.ratios,
        blocks=chosen.blocks,
        bound=str(config.bound),
        seed=config.seed,
        wall_s=session.journal.spent_s + session.asked.lab.clock() - session.begun,
        notes=(*_notes(session, tuned), *chosen.notes),
        interrupted=tuned.interrupted,
        best=chosen.best,
        doubt=_doubt(session, tuned, chosen),
        accept_unproven=config.accept_unproven,
    )


def _doubt(session: AcrossSession, tuned: Tuned, chosen: Chosen) -> Doubt:
    """Why the bound is not shown for the delivered file: none where it is, or where there is nothing to show."""
    bound, digest = session.inputs.config.bound, chosen.file.digest
    nothing = (bound.min_sqnr_db, bound.max_drop) == (None, None) or session.inputs.samples.kind == "random"
    if nothing or digest == session.inputs.file.sha256:
        return NO_DOUBT
    return tuned.doubts.get(digest, _UNSTATED)


def _notes(session: AcrossSession, tuned: Tuned) -> list[str]:
    kind = session.inputs.samples.kind
    notes = (
        ["NO SAMPLES WERE GIVEN: inputs were random. Latency is real, accuracy is not: give --data"]
        if kind == "random"
        else []
    )
    return [*session.inputs.changed, *notes, *(["the command was interrupted"] if tuned.interrupted else [])]
