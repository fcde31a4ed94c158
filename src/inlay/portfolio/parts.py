"""The models of one program, each as a run of its own: what it measured, and what an evaluation says of all of them."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from inlay import api
from inlay.deadline import Deadline
from inlay.errors import ModelError, UsageError
from inlay.files import read_json, replacing, scratch
from inlay.model.load import ModelFile, load
from inlay.portfolio import policy
from inlay.portfolio.fleet import Fleet
from inlay.portfolio.pipeline_result import FILES
from inlay.portfolio.plan import Entry
from inlay.portfolio.points import Choice, Point, fastest_kept, front
from inlay.portfolio.runs import Figures, Portfolio
from inlay.quant.accuracy import EXACT_DB
from inlay.quant.bound import EvaluationBound
from inlay.recording.pipeline import Part
from inlay.run.call import Given
from inlay.run.evaluation.evaluator import ModelEvaluator
from inlay.run.evaluation.judging import EvaluationJudge, Verdict
from inlay.run.options import TuneOptions
from inlay.run.outputs import install
from inlay.run.result import Doubt
from inlay.run.select import Wish, select
from inlay.search.baselines import ORIGINAL
from inlay.targets.base import Artifact, TargetSpec
from inlay.targets.registry import AUTO
from inlay.trial import plain

_OF_ONE_MODEL = (
    *("data", "images", "labels", "mask", "metric", "bind", "freeze_shapes", "shapes", "batch", "qdq_baseline"),
    *("keep_qparams", "nodes", "recipe", "pattern_cache", "task", "fix"),
)
"""Options of ``tune`` that mean nothing for several models."""
_OF_THE_WHOLE = (
    *("out", "budget", "ray", "device", "restart", "progress", "before_s", "target"),
    *("evaluate", "max_drop", "at_least", "at_most", "higher_is_better", "lower_is_better"),
)
"""Options that the runs of single models do not get as they are."""


@dataclass(frozen=True, eq=False)
class Tuned:
    """One model with what its run measured."""

    part: Part  # as the pipeline has it
    file: ModelFile  # the given model
    feed: Path  # file of the inputs that it is timed with
    folder: Path  # of its run
    figures: Figures | None = None  # what that found; None without one
    why: str = ""  # there is none
    points: tuple[Point, ...] = ()  # models to choose from, the fastest first; the given one is the last

    def write(self, at: int, path: Path) -> None:
        """Write the model of a point to ``path``."""
        point = self.points[at]
        if point.origin == ORIGINAL:
            placed(self.file.path, path)
        elif self.figures is not None and point.origin == self.figures.origin:
            placed(self.folder / "model.onnx", path)
        else:
            with scratch() as work:
                select(self.folder, work / "model.onnx", Wish(min_sqnr_db=point.sqnr_db - 1e-9))
                placed(work / "model.onnx", path)


def target_asked(wish: TuneOptions) -> str | TargetSpec:
    """The one target of all models. Raises UsageError where there are several."""
    asked = [wish.target] if isinstance(wish.target, (str, TargetSpec)) else list(wish.target)
    if len(asked) != 1 or asked[0] == AUTO:
        raise UsageError("--target: give one target for a pipeline")
    return asked[0]


def check_asked(parts: Sequence[Part], path: Path, wish: TuneOptions) -> None:
    """Raise UsageError or ModelError, one line, for what is missing."""
    usual = TuneOptions()
    for name in _OF_ONE_MODEL:
        given = getattr(wish, name)
        if isinstance(given, np.ndarray) or given != getattr(usual, name):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag}: {path} has several models, and this option is of one: tune that one by itself")
    for part in parts:
        if part.name == FILES:
            raise UsageError(
                f"{path}: a model cannot have the name {FILES}, which is that of the folder for all of them"
            )
        if not part.model.is_file():
            raise ModelError(f"{path}, model {part.name}: {part.model}: no such file")
        if part.data is None:
            raise UsageError(f"{path}, model {part.name}: it has no data: give data, or let inlay record make them")


def feed_of(part: Part, file: ModelFile, work: Path, rng: np.random.Generator) -> Path:
    """A file of the inputs that a model is timed with."""
    return Given.of(file, part.data, ()).workload(rng, (), None).save(work / f"latency-{part.name}")


def shares_of(parts: Sequence[Tuned]) -> list[float]:
    """Of the given pipeline's time: by the runs' own readings, else as recorded; equal where nobody knows."""
    if all(each.figures is not None for each in parts):
        spent = [each.part.runs * each.figures.baseline_ms for each in parts if each.figures is not None]
    else:
        spent = [each.part.seconds or 0.0 for each in parts]
    if not all(spent):
        spent = [1.0] * len(parts)
    return [each / sum(spent) for each in spent]


def tune_each(parts: Sequence[Tuned], wish: TuneOptions, held: Portfolio) -> list[Tuned]:
    """A run of each model that takes a share of the time worth it, each with time by what it can gain."""
    shares = {each.part.name: share for each, share in zip(parts, shares_of(parts), strict=True)}
    small = {name: share for name, share in shares.items() if share < policy.LEAST_SHARE}
    entries = [_entry(each.part, wish) for each in parts if each.part.name not in small]
    fleet = Fleet(entries, held, partial(api.tune, ray=wish.ray, device=wish.device), wish.restart, shares)
    fleet.give_slices()
    rows = {entry.name: fleet.row(entry) for entry in entries}
    tuned = []
    for each in parts:
        row = rows.get(each.part.name)
        figures = None if row is None else row.figures
        why = f"{plain(100 * small[each.part.name], 1)} % of the time" if row is None else row.why
        tuned.append(replace(each, figures=figures, why=why, points=_points(each.folder, figures)))
    if all(each.figures is None for each in tuned):
        raise UsageError("; ".join(f"{each.part.name}: {each.why}" for each in tuned))
    return tuned


def _entry(part: Part, wish: TuneOptions) -> Entry:
    usual = TuneOptions().by_name()
    given = {n: v for n, v in wish.by_name().items() if n not in (*_OF_ONE_MODEL, *_OF_THE_WHOLE) and v != usual[n]}
    options = {
        **given,
        "model": str(part.model),
        "data": part.data,
        "target": target_asked(wish),
        "accept_unproven": True,
    }
    return Entry(part.name, options)


def _points(folder: Path, figures: Figures | None) -> tuple[Point, ...]:
    """Measured models of a run that keep its own bound: the delivered one, more accurate ones, and the given one."""
    if figures is None:
        return (Point(ORIGINAL, 0.0, EXACT_DB),)
    given = Point(ORIGINAL, figures.baseline_ms, EXACT_DB)
    if figures.speedup <= 1.0 or figures.origin == ORIGINAL:
        return (given,)
    found = read_json(folder / "result.json")
    best = Point(figures.origin, figures.baseline_ms / figures.speedup, figures.sqnr_db)
    others = [
        Point(str(each["origin"]), figures.baseline_ms / each["speedup"], float(each["sqnr_db"]))
        for each in found["pareto"]
        if each["feasible"] and each["speedup"] and each["placement_digest"] != found["best"]["placement_digest"]
    ]
    return front([best, *(p for p in others if best.ms < p.ms < given.ms and p.sqnr_db > best.sqnr_db), given])


def placed(source: Path, path: Path) -> None:
    """Copy a model to ``path``; weights beside it go into a file of its own there: others may have the same name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = load(source)
    if not file.external:
        install(source, path)
        return
    with scratch(path.parent) as work:
        data = f"{path.name}.data"
        ir.save(file.model, work / path.name, external_data=data)
        for name in (data, path.name):
            if not (work / name).exists():  # weights that are small go into the model
                continue
            with replacing(path.parent / name) as fresh:
                shutil.copyfile(work / name, fresh)


@dataclass(frozen=True, eq=False)
class WholeJudge:
    """Has pipelines evaluated, each a folder of all models under their names."""

    judge: EvaluationJudge  # asks the evaluation, and keeps what was found
    work: Path  # folder for the pipelines

    def choose(self, parts: Sequence[Tuned], until: Deadline) -> Choice:
        """The fastest choice of points that the evaluation does not reject."""

        def keeps(choice: Choice) -> bool:
            found = self.verdict(parts, choice, until)
            return found.asked and not found.breaks

        return fastest_kept([each.points for each in parts], [each.part.runs for each in parts], keeps)

    def verdict(self, parts: Sequence[Tuned], choice: Choice, until: Deadline) -> Verdict:
        """What the evaluation says of a choice."""
        chosen = [each.points[at] for each, at in zip(parts, choice, strict=True)]
        if all(at == len(each.points) - 1 for each, at in zip(parts, choice, strict=True)):
            return self.judge.own
        folder = self.work / f"choice-{'-'.join(map(str, choice))}" / FILES
        try:
            for each, at in zip(parts, choice, strict=True):
                each.write(at, folder / f"{each.part.name}.onnx")
            digest = digest_of(folder)
            return self.judge.verdict(Artifact(folder, digest), digest, min(p.sqnr_db for p in chosen), until)
        finally:
            shutil.rmtree(folder.parent, ignore_errors=True)


def digest_of(folder: Path) -> str:
    """Over the models in a folder, by name."""
    said = [f"{path.name} {load(path).sha256}" for path in sorted(folder.glob("*.onnx"))]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()


def whole_judge(
    evaluator: ModelEvaluator,
    bound: EvaluationBound,
    parts: Sequence[Tuned],
    held: Portfolio,
    budget_s: float,
    seed: int,
) -> WholeJudge:
    """The judge, once the given pipeline is evaluated.

    Args:
        budget_s: of the command; infinite without a limit.

    Raises:
        DataError: the evaluation fails.
        UsageError: its scores cannot be bounded as asked for, or the budget is too short for it.
    """
    given = held.work / "given" / FILES
    for each in parts:
        placed(each.file.path, given / f"{each.part.name}.onnx")
    judge = EvaluationJudge(
        evaluator=evaluator,
        bound=bound,
        given=given,
        place=held.work,
        journal=held.journal,
        budget_s=budget_s,
        clock=held.deadline.clock,
        seed=seed,
    )
    judge.begin(held.deadline)
    return WholeJudge(judge, held.work)


def doubt_of(verdict: Verdict) -> Doubt:
    """Why the bound is not shown for what is delivered; empty where it is."""
    return Doubt("" if verdict.shows else verdict.why, verdict.breaks)
