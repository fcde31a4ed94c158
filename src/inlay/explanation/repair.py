"""Repair a Q/DQ model: a search from its own placement and qparams; its result counts where it beats the given file."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from inlay.data import Samples, save_feeds, workload_of
from inlay.errors import InlayError, ModelError, TargetError, UsageError
from inlay.explanation import policy
from inlay.explanation.explanation import Change, ChangeKind, Explanation, Repair
from inlay.explanation.mended import exact_form, put_back, write_static
from inlay.files import scratch
from inlay.measure.client import Worker
from inlay.model.heard import hearing
from inlay.model.held import held
from inlay.model.load import ModelFile, load
from inlay.model.reference import Session
from inlay.model.store import WeightStore, externalize_weights
from inlay.prepare.candidate_writer import deliver
from inlay.prepare.config import TuneConfig
from inlay.prepare.strip_qdq import holds_quantized, strip_qdq
from inlay.quant.accuracy import EXACT_DB, Bound, Judge, Outputs
from inlay.quant.extract import Extraction
from inlay.quant.tasks.recognize import task_of
from inlay.quant.tasks.task import broken
from inlay.run.compare import compare
from inlay.run.inputs import TuneRequest
from inlay.run.outputs import publish
from inlay.run.progress import Phases, Progress
from inlay.run.select import select, wish
from inlay.run.tune import tune
from inlay.targets.base import Artifact, TargetSpec
from inlay.targets.preconditions import preconditions_of
from inlay.targets.registry import create, known_operators
from inlay.trial import Accuracy, Interval, TaskFigure, shown_ratio, shown_sqnr


@dataclass(frozen=True, eq=False, kw_only=True)
class _Subject:
    """What a repair works with: the given file, the float model in it, and its accuracy against that.

    ``form`` is the given model in its exact form, with what is slower on integers put back to float, where that is
    another model; a search starts from it, or from float where nothing is left on integers (``starts_quantized`` is
    not). ``forms`` are others of the same operators, ``apart`` is what the given one is made of, and ``inference_s``
    about what it takes for a sample.
    """

    given: ModelFile
    inner: ModelFile
    form: Path
    starts_quantized: bool
    forms: tuple[Path, ...]
    apart: Extraction
    samples: Samples
    judge: Judge
    feeds: Sequence[Path]
    accuracy: Accuracy
    runs: bool
    inference_s: float


def refuse(file: ModelFile, out: Path) -> None:
    """Raise UsageError where there is nothing to repair, or no folder to write to."""
    if not holds_quantized(file):
        raise UsageError(f"--repair {out}: {file.path} holds no Q/DQ nodes; inlay tune sets them")
    if not out.parent.is_dir():
        raise UsageError(f"--repair {out}: there is no folder {out.parent}")


def repair(
    file: ModelFile,
    out: Path,
    spec: TargetSpec,
    samples: Samples,
    budget_s: float | None,
    seed: int,
    progress: Progress,
    slower: Collection[str] = (),
) -> tuple[Repair, ModelFile | None]:
    """Look for a placement that is faster than the given one and at least as accurate; write it to ``out``.

    Values that the given model quantizes keep its scales and zero points, in the target's type of activations; what it
    does not quantize gets them from ``samples``.

    Args:
        samples: judge the accuracy, against the model without its Q/DQ nodes.
        budget_s: seconds of the search.
        slower: operators that take more on integers than in float, by their names in the plain form; those that
            quantize in each inference start in float.

    Returns:
        What came of it, and the written model, if any.

    Raises:
        ModelError: its Q/DQ nodes cannot be taken out.
    """
    with scratch() as work, Worker(spec, work) as worker:
        file = held(file, work / "held")
        subject = _subject(file, spec, samples, worker, work, slower)
        given_db, margin = subject.accuracy.sqnr_db, subject.accuracy.margin_db
        config = TuneConfig(
            target=spec,
            bound=Bound(min_sqnr_db=given_db - margin),
            budget_s=budget_s,
            seed=seed,
            qdq_baseline=subject.form if subject.starts_quantized else None,
            keep_qparams=subject.starts_quantized,
            cost_db=False,
        )
        origin, problem, failed = None, "no model at least as accurate was measured", None
        try:
            request = TuneRequest(
                file=subject.inner, out=work / "search", samples=samples, config=config, progress=progress
            )
            origin = tune(request).best.origin
        except InlayError as error:
            problem, failed = f"the search failed: {error}", error
        phases = Phases(progress)
        phases.begin("compare the repaired model with the given one")
        with hearing(phases.doing):
            static = work / "static.onnx"
            if write_static(file, subject.apart, spec, create(spec).rules(), samples, static):
                subject = replace(subject, forms=(*subject.forms, static))
            if failed is not None and not subject.forms:
                raise failed
            best, why = _best(subject, origin, work / "search", worker, seed)
        speedup, repaired_db, made = best or (None, None, None)
        if made is not None:
            publish(made, out)
    written = None if made is None else load(out)
    return Repair(
        path=str(out),
        written=written is not None,
        speedup=speedup,
        given_db=given_db,
        repaired_db=repaired_db,
        judged=len(subject.samples),
        sha256="" if written is None else written.sha256,
        problem=(why or problem) if written is None else "",
    ), written


def _best(
    subject: _Subject, origin: str | None, search: Path, worker: Worker, seed: int
) -> tuple[tuple[Interval | None, float, Path] | None, str]:
    """The fastest candidate that is no less accurate than the given model: speed-up, SQNR, file; or what was wrong."""
    best: tuple[Interval | None, float, Path] | None = None
    as_fast: tuple[Interval | None, float, Path] | None = None
    problem, tried = "", set[str]()
    for path, is_searched in _candidates(subject, origin, search):
        if is_searched and best is not None:
            continue
        made = load(path)
        if made.sha256 in tried:
            continue
        tried.add(made.sha256)
        accuracy = subject.judge.judge(worker.run(Artifact(path.resolve(), made.sha256), subject.feeds), in_task=True)
        why = less_accurate(accuracy, subject.accuracy)
        if why:
            problem = f"the fastest {why}"
            continue
        gain = _gain(subject, made, worker, seed)
        if gain is not None and not gain.shows_gain():
            problem = f"the fastest at its accuracy is not shown to gain: {shown_ratio(gain)}"
            if is_better(gain, accuracy.sqnr_db - subject.accuracy.sqnr_db):
                as_fast = as_fast or (gain, accuracy.sqnr_db, path)
        elif best is None or best[0] is None or (gain is not None and gain.value > best[0].value):
            best = gain, accuracy.sqnr_db, path
    return best or as_fast, problem


def is_better(gain: Interval | None, more_db: float) -> bool:
    """Whether a model that is no less accurate is worth writing: it runs, gains, or is as fast and far more accurate.

    Args:
        gain: its speed-up over the given model; None where that does not run.
        more_db: SQNR beyond that of the given model.
    """
    if gain is None or gain.shows_gain():
        return True
    return gain.low >= policy.AS_FAST and more_db >= policy.FAR_MORE_DB


def less_accurate(made: Accuracy, given: Accuracy) -> str:
    """In what ``made`` is less accurate than ``given``; empty where it is not.

    Both the decibels and the figures of its task, where it is known, must be as good: models with the same SQNR may do
    their task less well. Where little is left of the given model's signal, or its outputs have another length than
    float's, decibels differ by chance, and the figures alone decide.
    """
    if lost := broken(made.figures, given.figures):
        return f"does less of what the given model does: {lost}"
    lower = made.sqnr_db < given.sqnr_db - policy.SAME_DB
    if lower and (not given.figures or (given.sqnr_db >= policy.TELLING_DB and not given.reshaped)):
        return f"has {shown_sqnr(made.sqnr_db)}, the given model {shown_sqnr(given.sqnr_db)}"
    theirs = {f.name: f for f in made.figures}
    for figure in given.figures:
        mine = theirs.get(figure.name)
        if mine is None or mine.value < figure.value - (0.0 if lower else _no_less(figure)):
            return f"has {f'no {figure.name}' if mine is None else mine.said}, the given model {figure.said}"
    return ""


def _no_less(figure: TaskFigure) -> float:
    """By how much another model's figure may be below ``figure`` at the same SQNR; no limit where it is only told."""
    if figure.most is None:
        return math.inf
    return policy.SAME_SHARE * figure.most + (1.0 / figure.of if figure.of else 0.0)


def _subject(
    file: ModelFile, spec: TargetSpec, samples: Samples, worker: Worker, work: Path, slower: Collection[str]
) -> _Subject:
    """The float model in ``file``, and how far ``file`` is from it."""
    apart = strip_qdq(file, samples.feeds, work)
    assert apart is not None
    if apart.opaque:
        raise ModelError(f"{file.path} cannot be repaired: {apart.opaque}")
    store = WeightStore(work)
    path = work / "float.onnx"
    deliver(externalize_weights(apart.model, store), store, path)
    inner = load(path)
    some = samples.evenly(policy.REPAIR_SAMPLES)
    feeds = save_feeds(work / "samples", some.feeds)
    reference = worker.run(Artifact(path.resolve(), inner.sha256), feeds)
    judge = Judge(reference, some, Bound(), task=task_of(some, reference))
    runs, outputs, begun = True, list[Outputs](), time.monotonic()
    try:
        outputs += worker.run(Artifact(file.content.resolve(), file.sha256), feeds)
    except TargetError:  # then by the numbers that it states
        runs = False
        session = Session(externalize_weights(file.model, store), store, fuse_qdq=False)
        outputs += [session.run(feed) for feed in some.feeds]
    inference_s = (time.monotonic() - begun) / len(feeds)
    accuracy = judge.judge(outputs, in_task=True)
    if accuracy.reshaped and accuracy.sqnr_db <= -EXACT_DB:
        raise ModelError(
            f"{file.path} cannot be repaired: {accuracy.reshaped}, so that nothing tells how accurate it is"
        )
    target, form = create(spec), file.content
    fewer = put_back(file.model, known_operators(), slower) if slower else None
    better = exact_form(fewer or file.model, target.rules(), preconditions_of(target)) or fewer
    if better is not None:
        form = work / "form.onnx"
        deliver(externalize_weights(better, store), store, form)
    return _Subject(
        given=file,
        inner=inner,
        form=form,
        starts_quantized=better is None or holds_quantized(load(form)),
        forms=() if better is None else (form,),
        apart=apart,
        samples=some,
        judge=judge,
        feeds=feeds,
        accuracy=accuracy,
        runs=runs,
        inference_s=inference_s,
    )


def _candidates(subject: _Subject, origin: str | None, folder: Path) -> Iterator[tuple[Path, bool]]:
    """Models that may be the repaired one, and whether each comes from the search, the fastest of them first.

    Those of the search come before other forms of the given model, unless what it delivered is the form that it started
    from. ``origin``: of what the search delivered; None where it failed.
    """
    starts_again = origin is not None and origin.startswith("qdq-baseline: ")
    if origin is None or starts_again:
        yield from ((form, False) for form in subject.forms)
    if origin is None:
        return
    if not starts_again:
        yield folder / "model.onnx", True
    for number, more_db in enumerate(policy.RETREATS_DB):
        path, least_db = folder.with_name(f"selected-{number}.onnx"), subject.accuracy.sqnr_db + more_db
        try:
            select(folder, path, wish(least_db, None, None, "latency", False))
        except InlayError:
            break
        yield path, True
    if not starts_again:
        yield from ((form, False) for form in subject.forms)


def _gain(subject: _Subject, made: ModelFile, worker: Worker, seed: int) -> Interval | None:
    """Speed-up over the given model, paired in fresh processes; None where that does not run."""
    if not subject.runs:
        return None
    rng = np.random.default_rng(seed)
    workload = workload_of(subject.samples.feeds, ())
    blocks = policy.repair_blocks(2 * len(workload.feeds) * subject.inference_s)
    processes = 1 if worker.deterministic else policy.REPAIR_PROCESSES
    return compare([subject.given, made], worker.spec, workload, blocks, processes, rng)[1].speedup


_LEAST_MS = 1e-4  # of a change of kernel, whose precision is the same: below, it is the profile's own noise


def changes(before: Explanation, after: Explanation) -> tuple[Change, ...]:
    """Every change with what it brought, that which brought most first.

    Operators are known by their names, which normalization keeps; what has no counterpart is no change of its own.
    """
    found = [*_of_operators(before, after), *_of_conversions(before, after)]
    return tuple(sorted(found, key=lambda change: -change.gain_ms))


def _of_operators(before: Explanation, after: Explanation) -> Iterator[Change]:
    made = {o.name: o for o in after.operators}
    for old in before.operators:
        new = made.get(old.name)
        if new is None:
            continue
        kind: ChangeKind = "kernel"
        if (old.precision, new.precision) == ("float", "int8"):
            kind = "to-int8"
        elif (old.precision, new.precision) == ("int8", "float"):
            kind = "to-float"
        gain = old.cost_ms - new.cost_ms
        if kind != "kernel" or abs(gain) > _LEAST_MS:
            yield Change(kind, old.name, old.op_type, gain)


def _of_conversions(before: Explanation, after: Explanation) -> Iterator[Change]:
    old, new = _costs(before), _costs(after)
    for value in dict.fromkeys((*old, *new)):
        gain = old.get(value, 0.0) - new.get(value, 0.0)
        if abs(gain) > _LEAST_MS:
            yield Change("conversion-removed" if gain > 0 else "conversion-added", value, "", gain)


def _costs(found: Explanation) -> Mapping[str, float]:
    costs: defaultdict[str, float] = defaultdict(float)
    for row in found.waste:
        costs[row.value] += row.cost_ms
    return costs
