"""The models of one program under one budget and one bound: each is a run of its own, then the whole is judged.

Time goes where the program's time is: how often each model runs, and how long that takes. Of what the runs measured,
one model of each is chosen so that all of their runs together take least; then all are timed together, in blocks
that they share.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from inlay.errors import Late, ModelError, UsageError
from inlay.files import refuse_overwriting
from inlay.measure.client import usual_limit
from inlay.measure.lab import Lab, measuring
from inlay.measure.panel import Readings, time_in_turn
from inlay.model.load import file_sha256, load
from inlay.portfolio import policy
from inlay.portfolio.comparing import in_fresh_processes
from inlay.portfolio.parts import (
    Tuned,
    WholeJudge,
    check_asked,
    doubt_of,
    feed_of,
    shares_of,
    target_asked,
    tune_each,
    whole_judge,
)
from inlay.portfolio.pipeline_result import FILES, PartResult, PipelineResult
from inlay.portfolio.points import Choice
from inlay.portfolio.result import GIVEN
from inlay.portfolio.runs import Portfolio, open_portfolio
from inlay.prepare.config import TuneConfig, edited
from inlay.quant.bound import Bound
from inlay.recording.pipeline import Pipeline, pipeline_of, read_pipeline
from inlay.run.call import bound_of, seconds_of, sources_of
from inlay.run.evaluation.evaluator import evaluator_of
from inlay.run.notebook import usual
from inlay.run.options import TuneOptions
from inlay.run.result import NO_DOUBT, Doubt, write_json
from inlay.search.baselines import ORIGINAL
from inlay.targets.base import Artifact, TargetSpec
from inlay.targets.registry import target_of
from inlay.trial import Interval

_CHOSEN = "chosen"  # the row of a part's delivered model


def tune_pipeline(models: Path | Sequence[Path], wish: TuneOptions) -> PipelineResult:
    """Tune the models of a pipeline under one budget, and write all of them under their names into ``OUT/pipeline``.

    Args:
        models: ``pipeline.yaml``, or the folder that it is in; or the files themselves, whose samples are in the folder
            that ``data`` names.
        wish: for all models: its budget is that of the whole command.

    Raises:
        InlayError: the pipeline, a model, its samples, the target or the folder cannot be used.
    """
    begun = time.monotonic() - wish.before_s
    path, pipeline, wish = _read(models, wish)
    out, progress = Path(wish.out), wish.progress or usual()
    check_asked(pipeline.parts, path, wish)
    spec = target_of(target_asked(wish), wish.target_options, wish.threads)
    files = {part.name: load(part.model) for part in pipeline.parts}
    given = [p for part in pipeline.parts for p in (part.model, *([Path(part.data)] if part.data else []))]
    refuse_overwriting([out / "result.json", *(out / FILES / f"{name}.onnx" for name in files)], given)
    budget_s, rng = seconds_of(wish.budget), np.random.default_rng(wish.seed)
    evaluator = evaluator_of(wish.evaluate)
    bound = bound_of(wish, evaluator)
    identity = {
        "evaluation": f"{wish.evaluate} {bound.evaluation}" if evaluator is not None else "none",
        "pipeline": json.dumps({part.name: [files[part.name].sha256, part.runs] for part in pipeline.parts}),
        "target": json.dumps([spec.name, dict(spec.options)], sort_keys=True),
        **{edited(option): digest for option, digest in sources_of({"--evaluate": wish.evaluate}).items()},
    }
    with (
        measuring(wish.ray, [spec], progress.stage, wish.device) as lab,
        open_portfolio(
            out / "run.sqlite",
            identity,
            progress,
            restart=wish.restart,
            budget_s=budget_s,
            begun=begun - time.monotonic() + lab.clock(),
            clock=lab.clock,
        ) as held,
    ):
        parts = [
            Tuned(p, files[p.name], feed_of(p, files[p.name], held.work, rng), out / p.name) for p in pipeline.parts
        ]
        whole, most_s = None, math.inf if budget_s is None else budget_s
        measuring_s = 0.0 if budget_s is None else policy.MEASURING_SHARE * budget_s
        if evaluator is not None and bound.evaluation is not None:
            whole = whole_judge(evaluator, bound.evaluation, parts, held, most_s, wish.seed)
        spared_s = measuring_s + (0.0 if whole is None else whole.judge.planned_s)
        tuned = tune_each(parts, wish, replace(held, deadline=held.deadline.earlier(spared_s)))
        choice: Choice = (0,) * len(tuned)
        if whole is not None:
            held.stage("evaluate the models together")
            choice = whole.choose(tuned, held.deadline.earlier(measuring_s))
        held.stage("measure all models together in fresh processes")
        return _delivered(tuned, choice, _Call(path, wish, spec, lab, held, rng, whole, bound))


def _read(models: Path | Sequence[Path], wish: TuneOptions) -> tuple[Path, Pipeline, TuneOptions]:
    """What a pipeline is known by, the pipeline, and the options of all its models."""
    if isinstance(models, Path):
        return models, read_pipeline(models), wish
    if not isinstance(wish.data, str | Path) or not Path(wish.data).is_dir():
        raise UsageError(
            "several models: give --data FOLDER with the samples of each, NAME.npz for NAME.onnx, as inlay record does"
        )
    return Path(wish.data), pipeline_of(models, Path(wish.data)), replace(wish, data=None)


@dataclass(frozen=True, eq=False)
class _Call:
    """What a call works with."""

    path: Path
    wish: TuneOptions
    spec: TargetSpec
    lab: Lab
    held: Portfolio
    rng: np.random.Generator
    whole: WholeJudge | None
    bound: Bound


# --- the whole -------------------------------------------------------------------------------------------------------


def _delivered(parts: Sequence[Tuned], choice: Choice, call: _Call) -> PipelineResult:
    """Write the chosen models, and time them together with the given ones."""
    files = call.held.out / FILES
    for each, at in zip(parts, choice, strict=True):
        each.write(at, files / f"{each.part.name}.onnx")
    readings, facts, notes = None, dict[str, str](), list[str]()
    with contextlib.suppress(Late):
        readings, facts = _measured(parts, choice, files, call)
    if readings is None:
        notes.append("the budget left no time to measure all models together: figures are those of their own runs")
    rows, final = [], list[int]()
    for each, at, share in zip(parts, choice, shares_of(parts), strict=True):
        gained = _gained(each, at, readings)
        if gained.high < 1.0:  # here, beside the others, it is slower
            notes.append(f"{each.part.name}: {each.points[at].origin} is slower beside the other models: left as given")
            at, gained = len(each.points) - 1, Interval.exactly(1.0)
            each.write(at, files / f"{each.part.name}.onnx")
        rows.append(_row(each, at, share, gained, readings, files))
        final.append(at)
    cells = {(_CHOSEN if row.origin != ORIGINAL else GIVEN, row.name): row.runs for row in rows}
    ms, total, blocks = _total(rows, cells, readings)
    said, doubt = None, _own_doubts(parts)
    own = f"each model by itself {next((e.figures.bound for e in parts if e.figures), 'none')}"
    if call.whole is not None:
        said = call.whole.verdict(parts, tuple(final), call.held.deadline)
        doubt = doubt_of(said)
        notes += call.whole.judge.notes()
    result = PipelineResult(
        folder=call.held.out,
        pipeline=call.path,
        spec=call.spec,
        facts=facts,
        parts=tuple(rows),
        ms=ms,
        speedup=total,
        blocks=blocks,
        bound=own if call.whole is None else f"{call.bound.evaluation}; {own}",
        seed=call.wish.seed,
        wall_s=call.held.seconds,
        scores=None if said is None else said.as_json(),
        said="" if said is None else str(said),
        doubt=doubt,
        accept_unproven=call.wish.accept_unproven,
        notes=(*notes, *_of_models(parts)),
    )
    write_json(call.held.out / "result.json", result.as_json())
    return result


def _own_doubts(parts: Sequence[Tuned]) -> Doubt:
    """Why single models are not shown to keep their own bounds."""
    unproven = [f"{e.part.name}: {e.figures.doubt.note}" for e in parts if e.figures and e.figures.doubt.note]
    broken = any(e.figures is not None and e.figures.doubt.broken for e in parts)
    return Doubt("; ".join(unproven), broken) if unproven else NO_DOUBT


def _of_models(parts: Sequence[Tuned]) -> Iterator[str]:
    """What people should know of single models."""
    for each in parts:
        if each.part.sha256 not in ("", each.file.sha256):
            yield f"{each.part.name}: {each.file.path} is another file than the one that was recorded"
        if each.figures is None:
            yield f"{each.part.name}: left as given: {each.why}"


def _gained(tuned: Tuned, at: int, readings: Readings | None) -> Interval:
    if tuned.points[at].origin == ORIGINAL:
        return Interval.exactly(1.0)
    if readings is not None:
        return readings.ratio((GIVEN, tuned.part.name), (_CHOSEN, tuned.part.name))
    return Interval(tuned.points[-1].ms / tuned.points[at].ms, 0.0, np.inf)


def _row(tuned: Tuned, at: int, share: float, gained: Interval, readings: Readings | None, files: Path) -> PartResult:
    name, known = tuned.part.name, tuned.figures
    ms = readings.latency_ms((GIVEN, name)) if readings is not None else None if known is None else known.baseline_ms
    return PartResult(
        name=name,
        model=tuned.file.path,
        sha256=tuned.file.sha256,
        runs=tuned.part.runs,
        share=share,
        origin=tuned.points[at].origin,
        ms=ms,
        speedup=gained,
        sqnr_db=tuned.points[at].sqnr_db,
        output_sha256=file_sha256(files / f"{name}.onnx"),
        folder=None if known is None else tuned.folder.name,
        why=tuned.why,
    )


def _total(
    rows: Sequence[PartResult], chosen: Mapping[tuple[str, str], float], readings: Readings | None
) -> tuple[float | None, Interval, int]:
    """Milliseconds of all runs of the given models, how many times as fast the chosen ones are, and the blocks."""
    if readings is not None:
        before = {(GIVEN, row.name): row.runs for row in rows}
        gained = Interval.exactly(1.0) if before == chosen else readings.gain(before, chosen)
        return readings.total(before).median_ns / 1e6, gained, readings.blocks
    if any(row.ms is None for row in rows):
        return None, Interval(1.0, 0.0, np.inf), 0
    spent = [row.runs * (row.ms or 0.0) for row in rows]
    now = sum(ms / (row.speedup.value if row.speedup else 1.0) for ms, row in zip(spent, rows, strict=True))
    return sum(spent), Interval(sum(spent) / now, 0.0, np.inf), 0


def _measured(
    parts: Sequence[Tuned], choice: Sequence[int], files: Path, call: _Call
) -> tuple[Readings, dict[str, str]]:
    """Readings of all models, given and chosen, in fresh processes; and facts of the target. Raises Late."""
    cells: dict[str, dict[str, Artifact]] = {}
    for each, at in zip(parts, choice, strict=True):
        rows = {GIVEN: Artifact(each.file.path.resolve(), each.file.sha256)}
        if each.points[at].origin != ORIGINAL:
            path = (files / f"{each.part.name}.onnx").resolve()
            rows[_CHOSEN] = Artifact(path, file_sha256(path))
        cells[each.part.name] = rows
    feeds, slot_ns = {each.part.name: each.feed for each in parts}, TuneConfig().protocol.slot_ns
    end, facts = call.held.deadline.earlier(policy.WRITING_S), dict[str, str]()

    def measured() -> Readings:
        with contextlib.ExitStack() as opened:
            workers = {
                name: opened.enter_context(call.lab.start(call.spec, call.held.work, usual_limit)) for name in cells
            }
            facts.update(next(iter(workers.values())).fingerprint.facts)
            found = time_in_turn(workers, cells, feeds, policy.BLOCKS, slot_ns, call.rng, lambda: end.left, end.clock)
        for (_, name), why in found.failed.items():
            raise ModelError(f"{name}: {why}")
        return found

    return in_fresh_processes(measured, end), facts
