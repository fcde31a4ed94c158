""":func:`inlay.gate`: the delivered model beside the given one, measured here and held against limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from inlay.data import Samples, labelled, save_feeds
from inlay.errors import LIMIT_BROKEN, UNPROVEN, UsageError
from inlay.files import scratch
from inlay.measure.client import usual_limit
from inlay.measure.lab import Lab, measuring
from inlay.model.heard import doing, hearing
from inlay.model.held import held
from inlay.prepare import options as declared
from inlay.prepare.declare import documented
from inlay.quant.accuracy import Bound, Judge, find_metric
from inlay.quant.metrics import AGREEMENTS
from inlay.quant.tasks.recognize import task_of
from inlay.report.gate_options import Delivered, GateOptions
from inlay.run.call import Given
from inlay.run.compare import compare
from inlay.run.notebook import usual
from inlay.run.progress import Phases
from inlay.targets.base import Artifact
from inlay.trial import Accuracy, Interval, plain, shown_ratio, shown_sqnr, together

_LONGER = 4  # times as many blocks, once, where the first ones leave it open whether the limit is kept


@dataclass(frozen=True, kw_only=True)
class Gate:
    """What holds of a delivered model on this machine, and which limits it keeps.

    ``fall`` is how far ``fell`` (a metric, or what the model is for) is below the given model's on these samples.
    """

    path: Path  # of the delivered model
    sha256: str  # of that file
    target: str  # its name
    facts: Mapping[str, str]  # of its fingerprint here
    same_machine: bool  # whether the run was measured on a target with the same fingerprint
    speedup: Interval | None = None  # over the given model; None where nothing asked for it
    latency_ms: float | None = None  # in `unit`
    unit: str = "ms"
    estimated: bool = False
    fall: float | None = None
    fell: str = ""
    sqnr_db: float | None = None
    samples: int = 0  # that accuracy was judged on
    broken: tuple[str, ...] = ()  # limits that it breaks, with the figures
    unproven: tuple[str, ...] = ()  # limits of which the measurements do not say whether it keeps them
    accept_unproven: bool = False  # these were accepted beforehand

    @property
    def exit_code(self) -> int:
        """Of the command: 4 where a limit is broken, 3 where the measurements leave it open, 0 where all are kept."""
        if self.broken:
            return LIMIT_BROKEN
        return UNPROVEN if self.unproven and not self.accept_unproven else 0

    def __str__(self) -> str:
        """The line of the command."""
        word = "FAIL" if self.broken else "NOT SHOWN" if self.unproven else "PASS"
        figures = []
        if self.speedup is not None:
            ms = "" if self.latency_ms is None else f", {self.latency_ms:.3f} {self.unit}"
            figures.append(f"{'estimated ' * self.estimated}{shown_ratio(self.speedup)} over the given model{ms}")
        if self.fall is not None:
            figures.append(f"{self.fell} {0.0 - self.fall:+.4f} against it")
        if self.sqnr_db is not None:
            figures.append(f"{shown_sqnr(self.sqnr_db)} {together(self.samples)}")
        here = ", ".join([self.target, *(self.facts[key] for key in ("cpu", "device") if self.facts.get(key))])
        other = "" if self.same_machine else ", not the machine, runtime or options of the run"
        limits = "; ".join([*self.broken, *self.unproven])
        return f"{word}: {self.path}: {f'{limits}; ' if limits else ''}{', '.join(figures)} ({here}{other})"


@documented
def gate(out: Annotated[str | Path, declared.RUN], options: GateOptions | None = None, **changes: Any) -> Gate:
    """Measure the model that a run delivered beside the given one on this machine, and hold it against limits.

    Returns:
        What was found; :attr:`Gate.exit_code` says whether all limits are kept.

    Raises:
        UsageError: there is no limit, or nothing to judge it by.
        JournalError: there is no finished run in ``out``, or ``model.onnx`` is no longer what it delivered.
        InlayError: a model cannot be built or run.
    """
    wish = GateOptions.of(options, changes)
    least, most_drop, least_db = wish.least, wish.most_drop, wish.least_db
    if least is None and most_drop is None and least_db is None:
        raise UsageError("give a limit: --fail-below 1.1x, --fail-drop 0.5%, or --fail-sqnr 30")
    phases = Phases(wish.progress or usual())
    phases.doing("read the models and the samples")
    run, rng = Delivered.read(Path(out), wish.given), np.random.default_rng(wish.seed)
    given = Given.of(run.given, run.data(wish), (), wish.images).at_sizes_of([run.given, run.file])
    judged = None if most_drop is None and least_db is None else _samples(run, given, wish)
    with measuring(wish.ray, [run.spec], phases.begin, wish.device) as lab, hearing(phases.doing):
        with scratch() as folder, lab.start(run.spec, folder, usual_limit) as worker:
            fingerprint = worker.fingerprint
            accuracy = None if judged is None else _accuracy(run, judged, wish, worker, folder)
        found = Gate(
            path=run.file.path,
            sha256=run.file.sha256,
            target=run.spec.name,
            facts=dict(fingerprint.facts),
            same_machine=fingerprint.digest == run.fingerprint,
            accept_unproven=wish.accept_unproven,
        )
        if accuracy is not None:
            found = _in_accuracy(found, accuracy, most_drop, least_db, run)
        return found if least is None else _in_speed(found, _timed(run, given, wish, rng, lab), least)


def _samples(run: Delivered, given: Given, wish: GateOptions) -> Samples:
    """Those that accuracy is judged on, with labels where there are some. Raises UsageError, DataError."""
    if given.samples is None:
        raise UsageError(
            "--fail-drop and --fail-sqnr need samples, and those of the run are not files that are here: give --data"
            " (of images with what makes arrays of them)"
        )
    samples = given.masked(given.samples_or_random(np.random.default_rng(wish.seed), 1), wish.mask)
    labels = run.file_said("--labels") if wish.labels is None and wish.data is None else wish.labels
    return samples if labels is None else labelled(samples, labels, given.specs)


def _accuracy(run: Delivered, samples: Samples, wish: GateOptions, worker: Any, folder: Path) -> Accuracy:
    """That of the delivered model against the given one, both run here."""
    said = next(iter(run.said.get("--metric", ())), "")
    usual = said if said in ("top1", *AGREEMENTS) else None  # a function is called only where this call names it
    if said and usual is None and wish.metric is None and wish.fail_drop is not None and said != "sqnr":
        raise UsageError(f"the run's metric is {said}: name it with --metric, if it is to be called")
    name = wish.metric if wish.metric is not None else usual
    metric = find_metric(name, samples.labels)
    doing("judge the models on the samples")
    feeds = save_feeds(folder / "samples", samples.feeds)
    outputs = []
    for number, file in enumerate((run.given, run.file)):
        copy = held(file, folder / f"held-{number}")
        outputs.append(worker.run(Artifact(copy.content.resolve(), f"{number}-{copy.sha256}"), feeds))
    bound = Bound(metric=name if isinstance(name, str) else "the metric", max_drop=1.0) if metric else Bound()
    judge = Judge(outputs[0], samples, bound, metric, confidence=None, task=task_of(samples, outputs[0]))
    return judge.judge(outputs[1], in_task=True)


def _in_accuracy(
    found: Gate, accuracy: Accuracy, most_drop: float | None, least_db: float | None, run: Delivered
) -> Gate:
    """``found`` with what accuracy says. Raises UsageError where there is nothing to tell a drop by."""
    broken = [f"it loses output {each.name}" for each in accuracy.lost]
    fall, fell = accuracy.drop, "metric"
    if fall is None and accuracy.figures:
        fall, fell = accuracy.figures[0].lost, accuracy.figures[0].name
    if most_drop is not None:
        if fall is None:
            raise UsageError("--fail-drop: no metric tells a drop here: give --metric, or --fail-sqnr in place of it")
        if fall > most_drop + 1e-12:
            broken.append(f"{fell} falls by {plain(fall, 4)}, more than {most_drop:g}, {together(accuracy.samples)}")
    if least_db is not None and accuracy.sqnr_db < least_db:
        broken.append(f"SQNR of {shown_sqnr(accuracy.sqnr_db)}, less than {least_db:g} dB")
    return replace(
        found, fall=fall, fell=fell, sqnr_db=accuracy.sqnr_db, samples=accuracy.samples, broken=tuple(broken)
    )


def _timed(
    run: Delivered, given: Given, wish: GateOptions, rng: np.random.Generator, lab: Lab
) -> Iterator[tuple[Interval, float, str, bool]]:
    """Speed-up, latency, its unit and whether it is an estimate: a first look, and a longer one."""
    if given.samples is None and run.feed is not None:
        given = replace(given, samples=Samples((run.feed,), "feeds", "the run"))
    shapes, batch = run.said.get("--shape", ()), next(iter(run.said.get("--batch", ())), None)
    workload = given.workload(rng, shapes, batch)
    for blocks in (wish.blocks, wish.blocks * _LONGER):
        doing("time both models")
        _, row = compare([run.given, run.file], run.spec, workload, blocks, wish.processes, rng, lab)
        yield row.speedup, row.latency_ms, row.unit, row.estimated


def _in_speed(found: Gate, looks: Iterator[tuple[Interval, float, str, bool]], least: float) -> Gate:
    """``found`` with what the time says: a longer look where the first one leaves it open."""
    for speed, ms, unit, estimated in looks:
        found = replace(found, speedup=speed, latency_ms=ms, unit=unit, estimated=estimated)
        if speed.low >= least:
            return found
        if speed.excludes_gain(least):
            return replace(found, broken=(*found.broken, f"slower than {least:g}x"))
    return replace(found, unproven=(f"at least {least:g}x is neither shown nor excluded",))
