"""Tune one model for several targets under one budget, then measure the files of all of them on all of them.

Two questions, one way. Which runtime? All targets get first readings of the given model; those that can win are tuned
for; the files that they deliver run on their own targets. One file for all: all targets are tuned for; candidates of
every front run on every target, and the one whose worst regret is smallest is delivered. The figures that are reported
come from fresh processes, in blocks that all targets share.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain

from inlay.errors import InlayError, ModelError, TargetError, TooShort, UsageError
from inlay.measure.journal import Fact, made, spent_in
from inlay.model.load import file_sha256
from inlay.model.store import model_bytes
from inlay.portfolio import policy
from inlay.portfolio.choose import choose_file, choose_target
from inlay.portfolio.comparing import Comparison, open_comparison
from inlay.portfolio.outlook import Outlook
from inlay.portfolio.result import GIVEN, AcrossResult, Cell, Chosen, Column
from inlay.portfolio.runs import Figures
from inlay.run.inputs import TuneRequest
from inlay.run.outcome.notes import RANDOM
from inlay.run.outputs import install
from inlay.run.result import NO_DOUBT, Doubt, write_json
from inlay.run.tune import tune
from inlay.targets.base import Artifact, TargetSpec
from inlay.trial import Interval

RUN: Fact[Figures] = Fact("run", partial(made, Figures), asdict)  # what a run that is over found, by label
_UNSTATED = Doubt("the file for all targets is a candidate for which nothing was stated beforehand")


def tune_across(
    asked: TuneRequest, specs: Mapping[str, TargetSpec], others: Mapping[str, str] | None = None
) -> AcrossResult:
    """Tune for several targets, and write the model to deploy.

    Args:
        asked: for all targets: its folder holds the result and a folder of each target's run, its budget is that of the
            whole command, and its config's target is not used, nor ``any_precision``.
        others: installed targets that cannot be used, with the reason: one of ``specs`` is to be chosen. None where
            one file is wanted for all of ``specs``.

    Raises:
        InlayError: the model, the samples, a target or the folder cannot be used.
    """
    with open_comparison(asked, specs, others) as comparison:
        screened = {} if others is None else comparison.screen()
        tuned = _tune_each(comparison, screened)
        if not tuned.runs:
            raise UsageError("; ".join(f"{label}: {why}" for label, why in {**(others or {}), **tuned.why}.items()))
        comparison.held.stage("measure the files of all targets in fresh processes")
        delivered = {label: _delivered(comparison, label, f) for label, f in tuned.runs.items()}
        if others is None:
            chosen = choose_file(comparison, delivered)
        else:
            chosen = choose_target(comparison, delivered, tuned.spared)
        result = _result(comparison, tuned, screened, chosen)
        install(chosen.file.path, asked.out / "model.onnx")
        write_json(asked.out / "result.json", result.as_json())
        return result


@dataclass(frozen=True)
class _Tuned:
    """What became of the targets."""

    runs: Mapping[str, Figures]  # what those found that were tuned for, by label
    why: Mapping[str, str]  # the others were not
    interrupted: bool = False  # the user ended a run
    # targets that were not tuned for, on which the given model is faster than where runs are: should these have found
    # nothing, it is the fastest
    spared: tuple[str, ...] = ()


def _tune_each(comparison: Comparison, screened: Mapping[str, float | str]) -> _Tuned:
    """A run for each target that can win, the one that can become the fastest first.

    Where one target is to be chosen, a run has as much of the time as those that may become as fast leave to it; where
    a share would be too short to find anything, all of it. What one leaves goes to the next.
    """
    runs: dict[str, Figures] = {}
    why = {label: found for label, found in screened.items() if isinstance(found, str)}
    float_ns = {label: found for label, found in screened.items() if not isinstance(found, str)}
    outlook = _outlook(comparison, float_ns)
    order = sorted(float_ns, key=outlook.ns) if screened else list(comparison.specs)
    begun_s = comparison.left_s
    # the look is of another moment than the first readings: only what runs find is held against it
    fastest_ns = math.inf if outlook.known else min(float_ns.values(), default=0.0)
    for number, label in enumerate(order):
        if screened and (hopeless := outlook.beaten(label, fastest_ns)):
            why[label] = hopeless
            continue
        left = [each for each in order[number:] if not (screened and outlook.beaten(each, fastest_ns))]
        for alike in (outlook.alike(label, left) if screened else left, [label]):
            compare_s = _comparing_share(len(runs) + len(alike), len(order), chooses=bool(screened)) * begun_s
            whole_s = max(0.0, comparison.left_s - compare_s)
            if whole_s / len(alike) >= outlook.least_s:
                break
        if runs and outlook.known and whole_s < outlook.least_s and _finished(comparison, label) is None:
            why[label] = f"there was no time left ({outlook.told(label)}): give a larger --budget"
            continue
        share_s, first = whole_s / len(alike), bool(screened) and not runs
        try:
            runs[label], interrupted = _in_time(comparison, label, share_s, whole_s, takes_all=first)
        except (UsageError, ModelError, TargetError) as error:
            if not screened or (not runs and label == left[-1]):
                raise _of_target(label, error, comparison.asked.config.budget_s, share_s) from error
            why[label] = str(error)
            continue
        if interrupted:
            return _Tuned(runs, {**why, **dict.fromkeys(left[1:], "the command was interrupted")}, True)
        fastest_ns = min(fastest_ns, 1e6 * runs[label].latency_ms)
    given_ns = min((float_ns[label] for label in runs if label in float_ns), default=0.0)
    return _Tuned(runs, why, spared=tuple(n for n in float_ns if n not in runs and float_ns[n] < given_ns))


def _outlook(comparison: Comparison, float_ns: Mapping[str, float]) -> Outlook:
    """How fast targets can become: by a look at the forms, where time is short and the given model leaves several."""
    plain = Outlook(float_ns)
    fastest_ns = min(float_ns.values(), default=0.0)
    labels = [label for label in float_ns if not plain.beaten(label, fastest_ns)]
    if len(labels) < 2 or math.isinf(comparison.left_s):
        return plain
    return Outlook(float_ns, comparison.looked(labels))


def _comparing_share(tuned: int, targets: int, chooses: bool) -> float:
    """The share of the time that is kept for comparing the files of so many runs."""
    files = tuned * (1 + tuned) + targets - tuned  # the runs' files where these were; the given model everywhere
    return min(policy.COMPARING_SHARE, policy.COMPARING_EACH * files) if chooses else policy.COMPARING_SHARE


def _in_time(
    comparison: Comparison, label: str, share_s: float, most_s: float, takes_all: bool
) -> tuple[Figures, bool]:
    """As :func:`_one`, with a share of ``most_s``; where that is too short, with the least that is not.

    Where an equal share is too short for anything, the first target that can win takes all there is.
    """
    if takes_all and share_s < most_s:
        with contextlib.suppress(UsageError):
            return _one(comparison, label, share_s)
        share_s = most_s
    try:
        return _one(comparison, label, share_s)
    except TooShort as error:
        if not share_s < error.least_s <= most_s:
            raise
        return _one(comparison, label, error.least_s)


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


def _one(comparison: Comparison, label: str, share_s: float) -> tuple[Figures, bool]:
    """What the run for one target found, and if the user ended it; a finished one is not repeated."""
    asked, folder, journal = comparison.asked, comparison.folder(label), comparison.held.journal
    if known := _finished(comparison, label):
        return known, False
    comparison.held.stage(f"tune for {label}")
    budget_s = asked.config.budget_s
    if budget_s is not None:  # the journal of the run counts what it spent; what is left of the command is its own
        budget_s = share_s + (0.0 if asked.restart else spent_in(folder / "run.sqlite"))
    config = replace(asked.config, target=comparison.specs[label], budget_s=budget_s)
    own = replace(asked, out=folder, config=config, progress=comparison.held.hears(label), before_s=0.0)
    result = tune(replace(own, any_precision=False))  # the label says which one it is, and its twin is another target
    found = Figures.of(result)
    return found if result.interrupted else journal.record_fact(RUN.of(label), found), result.interrupted


def _finished(comparison: Comparison, label: str) -> Figures | None:
    """What the run for a target found in an earlier session, whose file lies there as it was written."""
    known, path = comparison.held.journal.fact(RUN.of(label)), comparison.folder(label) / "model.onnx"
    return known if known is not None and path.is_file() and file_sha256(path) == known.output_sha256 else None


def _delivered(comparison: Comparison, label: str, found: Figures) -> Artifact:
    return Artifact((comparison.folder(label) / "model.onnx").resolve(), found.output_sha256)


def _result(comparison: Comparison, tuned: _Tuned, screened: Mapping[str, float | str], chosen: Chosen) -> AcrossResult:
    config, file, samples = comparison.inputs.config, comparison.inputs.file, comparison.inputs.samples
    columns = {
        label: Column(
            spec,
            comparison.fingerprints[label],
            comparison.folder(label).name if label in tuned.runs else None,
            tuned.why.get(label, ""),
        )
        for label, spec in comparison.specs.items()
    }
    unusable = {label: Column(TargetSpec(label), why=why) for label, why in (comparison.others or {}).items()}
    first = {  # of targets that were not tuned for, the first readings
        (GIVEN, label): Cell(found / 1e6, Interval.exactly(1.0), None, f"first readings; {tuned.why.get(label, '')}")
        for label, found in screened.items()
        if not isinstance(found, str) and label not in tuned.runs
    }
    notes = chain(
        comparison.inputs.changed,
        [RANDOM] if samples.kind == "random" else [],
        ["the command was interrupted"] if tuned.interrupted else [],
        chosen.notes,
    )
    found = {
        **vars(chosen),
        "origin": chosen.origin or tuned.runs[chosen.row].origin,
        "table": {**first, **chosen.table},
        "notes": tuple(notes),
    }
    return AcrossResult(
        **found,
        folder=comparison.held.out,
        model=(str(file.path), file.sha256),
        columns={**columns, **unusable},
        size_bytes=model_bytes(chosen.file.path),
        bound=next((found.bound for found in tuned.runs.values()), str(config.bound)),
        seed=config.seed,
        wall_s=comparison.held.seconds,
        interrupted=tuned.interrupted,
        doubt=_doubt(comparison, tuned, chosen.file),
        accept_unproven=config.accept_unproven,
    )


def _doubt(comparison: Comparison, tuned: _Tuned, file: Artifact) -> Doubt:
    """Why the bound is not shown for the delivered file: none where it is, or where there is nothing to show."""
    bound = comparison.inputs.config.bound
    if (bound.min_sqnr_db, bound.max_drop) == (None, None) or file.digest == comparison.given.digest:
        return NO_DOUBT
    return {found.output_sha256: found.doubt for found in tuned.runs.values()}.get(file.digest, _UNSTATED)
