"""The main job: from a model and samples to the fastest model that was measured and keeps the accuracy bound."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from inlay.data import Samples, input_specs, random_samples, save_feed, split
from inlay.errors import JournalError, ModelError, TargetError, UsageError
from inlay.measure.client import Lab, Worker
from inlay.measure.journal import Journal
from inlay.measure.race import Meter, Protocol
from inlay.model.load import load
from inlay.prepare.candidate_writer import CandidateWriter, recipe_for
from inlay.prepare.config import TuneConfig
from inlay.prepare.model import PreparedModel, prepare
from inlay.prepare.qdq_import import Imported, import_baseline, read_baseline
from inlay.quant.accuracy import EXACT_DB, Judge, Metric, Outputs
from inlay.regions.cache import PatternCache
from inlay.run.assemble import assemble
from inlay.run.budget import Budget
from inlay.run.calibration import Calibration
from inlay.run.confirm import Confirmed, confirm
from inlay.run.evaluate import Candidate, Evaluator
from inlay.run.facts import BASELINE_NS
from inlay.run.inputs import RunInputs
from inlay.run.notes import compare_profiles, notes_for
from inlay.run.oracles import Guide, learned
from inlay.run.progress import Progress, Silent
from inlay.run.result import TuneResult, replacing, write_json
from inlay.run.strategies import Plan, compose
from inlay.search.base import Strategy
from inlay.search.baselines import Anchors
from inlay.search.guided import Guided
from inlay.space.recipe_file import to_text
from inlay.targets.base import Artifact, Capabilities, TargetSpec
from inlay.targets.registry import create
from inlay.trial import Accuracy, Interval, Latency, Measured, Proposal, Trial
from inlay.types import Placement
from inlay.version import __version__

_RANDOM_SAMPLES = 8
_RACE_SHARE = 0.05  # of the budget
_RETREATS = 3
_SAFETY_DB = 1.0  # that a retreat aims above what it needs


def tune(
    model: str | Path,
    out: str | Path,
    samples: Samples | None = None,
    config: TuneConfig | None = None,
    metric: Metric | None = None,
    restart: bool = False,
    progress: Progress | None = None,
    lab: Lab | None = None,
) -> TuneResult:
    """Find the fastest placement of Q/DQ nodes that keeps the accuracy bound, and write it to ``out``.

    Args:
        model: path of the ONNX model.
        out: folder for ``model.onnx``, ``result.json`` and ``run.sqlite``; the same call on it continues the run.
        samples: real inputs, with labels where the metric needs them; None for random inputs (latency is then real,
            accuracy is not).
        config: settings.
        metric: the function behind ``config.bound.metric``.
        restart: forget an earlier run in ``out``.
        progress: is told what happens.
        lab: where latency is measured, and by which clock; this machine's own by default.

    Raises:
        InlayError: the model, the samples, the target or the folder cannot be used; nothing was written.
    """
    config = config or TuneConfig()
    progress = progress or Silent()
    file = load(model)
    specs = input_specs(file.model)
    if config.qdq_baseline is not None:
        read_baseline(config.qdq_baseline, file)
    rng = np.random.default_rng(config.seed)
    if samples is None:
        samples = random_samples(specs, config.bind, rng, _RANDOM_SAMPLES)
    parts = split(samples, rng, others=2000 if samples.labels is not None else 32)
    folder = Path(out)
    setting = RunInputs(config, file, specs, parts, samples, metric, folder)
    with (
        _locked(folder),
        tempfile.TemporaryDirectory(prefix=".scratch-", dir=folder, ignore_cleanup_errors=True) as work,
    ):
        return Run(setting, Path(work), rng, progress, restart, lab or Lab()).result()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise JournalError(f"another run is using {folder}: wait for it, or give another output folder") from None
    except OSError as error:
        raise JournalError(f"{folder} cannot be written: {error.strerror or error}") from error
    try:
        for stale in folder.glob(".scratch-*"):  # of a run that was killed: nobody else holds the lock
            shutil.rmtree(stale, ignore_errors=True)
        yield
    finally:
        lock.release()
        with contextlib.suppress(OSError):
            (folder / ".lock").unlink()
            if made:
                folder.rmdir()  # only where nothing was written to it


class Run:
    """One run, step by step; see :meth:`result` for the order."""

    def __init__(
        self, setting: RunInputs, work: Path, rng: np.random.Generator, progress: Progress, restart: bool, lab: Lab
    ) -> None:
        self.setting, self.config, self.work = setting, setting.config, work
        self.rng, self.progress, self.lab = rng, progress, lab
        self.started = lab.clock()
        self.calibrating_s = self.waiting_s = 0.0
        self.builds = 0  # of the search; checking the winner builds models, too
        self.workers: list[Worker] = []
        self.worker = self._start_worker(self.config.target, work, self.config.limit_s)
        try:
            self.journal = Journal(setting.out / "run.sqlite", self._identity(), restart)
        except BaseException:
            self.worker.close()
            raise

    def _start_worker(self, spec: TargetSpec, folder: Path, limit_s: float) -> Worker:
        worker = self.lab.start(spec, folder, limit_s)
        self.workers.append(worker)
        return worker

    def _identity(self) -> dict[str, str]:
        feeds = hashlib.sha256()
        for feed in self.setting.samples.feeds:
            for name in sorted(feed):
                feeds.update(name.encode() + feed[name].tobytes())
        if self.setting.samples.labels is not None:
            feeds.update(self.setting.samples.labels.tobytes())
        return {
            "version": __version__,
            "model": self.setting.file.sha256,
            "samples": feeds.hexdigest(),
            "target": f"{self.worker.fingerprint.target} {self.worker.fingerprint.digest}",
            "qdq_baseline": _digest(self.config.qdq_baseline),
            **self.config.identity(),
        }

    def result(self) -> TuneResult:
        """Run, and write the result. A run that fails before its first trial leaves no journal behind."""
        worth_keeping = True
        try:
            return self._run()
        except BaseException:
            worth_keeping = self.journal.resumed
            raise
        finally:
            self.worker.close()
            self.journal.close()
            if not worth_keeping:
                self.journal.path.unlink(missing_ok=True)

    def _run(self) -> TuneResult:
        setting, progress = self.setting, self.progress
        baseline = Artifact(setting.file.path.resolve(), setting.file.sha256)
        selection = self._feeds("selection", setting.parts.selection)
        progress.stage("build and run the model as it is")
        reference = self._reference(baseline, selection)
        progress.stage("normalize and index the model")
        target = create(self.config.target)
        prepared = prepare(
            setting.file,
            Capabilities.of(target),
            setting.parts.calibration.feeds[0],
            self.work,
            self.config.nodes,
            self.config.recipe,
        )
        progress.stage(f"calibrate {len(prepared.selectable)} units on {len(setting.parts.calibration)} samples")
        imported = import_baseline(prepared, self.config)
        judge = Judge(reference, setting.parts.selection, self.config.bound, setting.metric)
        begun, busy = self.lab.clock(), self.worker.busy_s
        calibration = Calibration(self.config, setting.parts, self.worker, self.journal, progress, self.lab.clock)
        candidates = calibration.candidates(prepared, judge, selection, imported)
        self.calibrating_s = self.lab.clock() - begun - (self.worker.busy_s - busy)
        feed = self._feeds("latency", setting.parts.calibration.part([0]))[0]
        meter = Meter(self.worker, self.journal, feed, self._protocol(), self.rng, self.lab.sleep, self.lab.clock)
        evaluator = self._evaluator(meter, judge, selection, baseline)
        # on a deterministic target a run depends on its seed alone, not on what other runs learned
        config = replace(self.config, cost_db=self.config.cost_db and not self.worker.deterministic)
        budget = Budget(self.config, self.journal, self.worker, self.lab.clock)
        guide = Guide(prepared, candidates, evaluator, self.journal, self.worker.fingerprint, config, feed)
        anchors = Anchors(prepared.graph, prepared.units, prepared.rules, imported.placements)
        guided = guide.strategy(anchors.trials, setting.parts.selection.feeds, progress, budget.hurried)
        plan = compose(prepared, imported, self.config, evaluator, anchors, guided)
        stopped, interrupted = self._search(evaluator, candidates, plan.strategy, imported, budget)
        self.builds = self.worker.builds
        self._save_cache(plan)
        guide.remember(guided)
        progress.stage("confirm the winner in fresh processes")
        confirmed = self._confirm(evaluator, candidates, guided, baseline, interrupted)
        self.waiting_s = meter.waited_s
        self.calibrating_s += sum(guide.probing)

        def why_slow() -> str:
            full = anchors.trials["full-int8"].proposal.placement
            return compare_profiles(
                self.worker, lambda: candidates.write(Placement()), lambda: candidates.write(full), feed
            )

        notes = notes_for(
            confirmed,
            reports=prepared.normalized.reports,
            units=prepared.units,
            rewrites=prepared.rewrites,
            anchors=anchors.trials,
            imported=imported,
            data_kind=setting.samples.kind,
            verified=setting.parts.verified,
            interrupted=interrupted,
            why_slow=why_slow,
        )
        self._write_recipe(prepared, confirmed)
        result = assemble(
            setting,
            self.worker.fingerprint,
            self.journal,
            evaluator,
            anchors.trials,
            confirmed,
            search={
                "builds": self.builds,
                "wall_s": round(self.lab.clock() - self.started, 3),
                "stopped_because": stopped,
                **({} if self.worker.deterministic else {"overhead": self._overhead()}),
                **learned(guided),
            },
            notes=notes,
            interrupted=interrupted,
        )
        confirmed.install(setting.out / "model.onnx")
        write_json(setting.out / "result.json", result.as_json())
        return result

    def _protocol(self) -> Protocol:
        """How to measure: no single race may take a large part of the budget."""
        budget = self.config.budget_s
        protocol = self.config.protocol
        return protocol if budget is None else replace(protocol, race_s=min(protocol.race_s, _RACE_SHARE * budget))

    def _feeds(self, name: str, samples: Samples) -> list[Path]:
        folder = self.work / name
        folder.mkdir()
        paths = []
        for number, feed in enumerate(samples.feeds):
            path = folder / f"{number}.npz"
            save_feed(path, feed)
            paths.append(path)
        return paths

    def _reference(self, baseline: Artifact, feeds: Sequence[Path]) -> list[Outputs]:
        try:
            self.worker.load(baseline, identify=True)
            return list(self.worker.run(baseline, feeds))
        except TargetError as error:
            raise ModelError(f"{self.setting.file.path} does not run on {self.config.target.name}: {error}") from error

    def _evaluator(self, meter: Meter, judge: Judge, feeds: Sequence[Path], baseline: Artifact) -> Evaluator:
        """The baseline is the first incumbent: by definition as fast as itself, and exact."""
        blocks = self.config.protocol.first_blocks
        ns = self.journal.once(BASELINE_NS, lambda: float(np.median(meter.measure("baseline", [baseline], blocks))))
        exact = Accuracy(True, EXACT_DB, metric=judge.float_metric, drop=None if judge.float_metric is None else 0.0)
        outcome = Measured(Latency(ns, Interval(1.0, 1.0, 1.0), 1), exact)
        trial = Trial(Proposal(Placement(), "original", anchor=True), outcome, accepted=True)
        first = Candidate(baseline.digest, trial, lambda: baseline, source=baseline.path)
        return Evaluator(self.worker, meter, judge, self.journal, feeds, first, baseline)

    def _search(
        self, evaluator: Evaluator, candidates: CandidateWriter, strategy: Strategy, imported: Imported, budget: Budget
    ) -> tuple[str, bool]:
        """The loop. Returns why it ended, and whether the user ended it."""
        budget.begin()
        try:
            for path, digest in imported.files:
                given = Proposal(Placement(), f"qdq-baseline: {path.name}", anchor=True)
                evaluator.evaluate(given, digest, partial(Artifact, path, digest), source=path)
            while True:
                proposal = strategy.ask()
                if proposal is None:
                    return "nothing promising is left", False
                key = candidates.key(proposal.placement)
                over = budget.refuses(proposal, key, evaluator)
                if over:
                    return over, False
                seconds = budget.seconds
                trial = evaluator.evaluate(proposal, key, partial(candidates.write, proposal.placement))
                strategy.tell(trial)
                self.progress.trial(trial, evaluator, seconds, self.config.budget_s)
        except KeyboardInterrupt:
            return "interrupted", True
        finally:
            budget.end()

    def _overhead(self) -> float:
        """Share of the wall time in which no worker was busy, nothing was calibrated or probed, and no pause was made.

        Normalization counts as overhead, although it runs the model.
        """
        wall = max(self.lab.clock() - self.started, 1e-9)
        at_work = sum(w.busy_s for w in self.workers) + self.waiting_s + self.calibrating_s
        return round(max(0.0, 1.0 - at_work / wall), 4)

    def _save_cache(self, plan: Plan) -> None:
        """Keep what evolution learned, together with what the folder's cache held before."""
        learned = plan.harvest()
        if learned is None:
            return
        path = self.setting.out / "pattern_cache.yaml"
        if path.exists():
            with contextlib.suppress(UsageError):  # a damaged cache is replaced
                learned.merge(PatternCache.load(path))
        learned.save(path)

    def _write_recipe(self, prepared: PreparedModel, confirmed: Confirmed) -> None:
        """Rules that reproduce the delivered placement; none for a given file, whose numbers are its own."""
        path = self.setting.out / "recipe.yaml"
        placement = confirmed.placement
        if placement is None:
            path.unlink(missing_ok=True)
            return
        with replacing(path) as fresh:
            fresh.write_text(to_text(recipe_for(prepared, placement)), encoding="utf8")

    def _confirm(
        self, evaluator: Evaluator, candidates: CandidateWriter, guided: Guided, baseline: Artifact, quick: bool
    ) -> Confirmed:
        """Confirm the winner; where all that was fast falls outside the bound on unseen samples, retreat and try again.

        Every retreat asks for more accuracy than the last, by what was missing, so that the unseen samples are asked
        few times, in an order that they do not choose.
        """
        setting = self.setting
        verification = setting.parts.verification if setting.parts.verified else None
        decide = partial(
            confirm,
            evaluator.judged,
            candidates=candidates,
            baseline=baseline,
            worker=self.worker,
            feeds=[] if verification is None else self._feeds("verification", verification),
            latency_feed=self.work / "latency" / "0.npz",
            verification=verification,
            metric=setting.metric,
            config=replace(self.config, confirm_processes=1) if quick else self.config,
            folder=self.work,
            rng=self.rng,
            start=self._start_worker,
        )
        confirmed = decide(evaluator.incumbent)
        rejected = confirmed.rejected
        retreats = 0 if quick or self.config.strategy == "anchors" else _RETREATS
        while retreats and confirmed.rejected and confirmed.best.is_float:
            retreats -= 1
            least_db = max(r.least_db(self.config.bound.min_sqnr_db) for r in confirmed.rejected)
            self.progress.stage(
                f"look for a model of {least_db + _SAFETY_DB:.1f} dB: faster ones fail on unseen samples"
            )
            self._drive(evaluator, candidates, guided.retreat(least_db + _SAFETY_DB))
            confirmed = decide(evaluator.incumbent, least_db=least_db)
            rejected += confirmed.rejected
        return replace(confirmed, rejected=rejected)

    def _drive(self, evaluator: Evaluator, candidates: CandidateWriter, strategy: Strategy) -> None:
        """Judge all that a strategy asks for."""
        before = self.worker.builds
        while (proposal := strategy.ask()) is not None:
            key = candidates.key(proposal.placement)
            trial = evaluator.evaluate(proposal, key, partial(candidates.write, proposal.placement))
            strategy.tell(trial)
            self.progress.trial(trial, evaluator, self.lab.clock() - self.started, None)
        self.builds += self.worker.builds - before


def _digest(path: Path | None) -> str:
    return "" if path is None else load(path).sha256
