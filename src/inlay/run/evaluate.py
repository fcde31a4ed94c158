"""Evaluate one candidate: emit ▶ compile ▶ accuracy ▶ measure. Failures are values; finished trials are journaled."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from inlay.errors import BadReading, CompileFailed, InlayError, Late, RunFailed, TargetError, TimedOut
from inlay.measure.client import Worker
from inlay.measure.journal import Journal, Record
from inlay.measure.lab import Take
from inlay.measure.race import Meter
from inlay.model.store import model_bytes
from inlay.quant.accuracy import Judge
from inlay.run.facts import GRAPH, PROFILE, SIZE
from inlay.run.progress import SearchStep
from inlay.targets.base import Artifact, KernelTime
from inlay.trial import Accuracy, Failed, Infeasible, Measured, Outcome, Proposal, Stage, Trial, shown_ratio
from inlay.types import Placement

_PROFILE_NS = 300e6  # nanoseconds of inference that a profile should cover
_PROFILE_REPEATS = (8, 60)  # fewest and most inferences of a profile, however slow or fast the model is
_LEAST_PROFILE = 3  # fewest inferences where the time is short: the median of fewer tells nothing


@dataclass(frozen=True)
class Candidate:
    """A model that was evaluated."""

    key: str  # identifies its content
    trial: Trial  # its trial
    write: Callable[[], Artifact]  # writes its file (again), for measuring
    placement: Placement | None = None  # what it quantizes, or None for a file that was given
    source: Path | None = None  # the given file, or None

    @property
    def origin(self) -> str:
        """Which anchor or strategy proposed it."""
        return self.trial.proposal.origin

    @property
    def latency_ns(self) -> float:
        """Of one inference in the search; 0 where it was not timed."""
        outcome = self.trial.outcome
        return outcome.latency.ns if isinstance(outcome, Measured) else 0.0

    @property
    def shown_speedup(self) -> str:
        """Its speed-up over the given model with its interval, for people; empty where there is none."""
        found = self.trial.outcome.latency.speedup if isinstance(self.trial.outcome, Measured) else None
        return shown_ratio(found) if found is not None and found.is_told else ""

    @property
    def speedup(self) -> float:
        """Baseline over this one's latency; 0 where it was not timed."""
        return self.trial.speedup or 0.0


@dataclass
class Tally:
    """How much work the search did; ``equal_graphs`` counts models that another one was measured for."""

    compiles: int = 0
    equal_graphs: int = 0
    measurements: int = 0
    failed: int = 0
    replayed: int = 0


class Evaluator:
    """Evaluates candidates one after the other, and keeps the incumbent.

    Args:
        baseline: the model as it was given; first incumbent, and sentinel of every block.
        take: what a builder found out about the model of a key, where one did.
    """

    def __init__(
        self,
        worker: Worker,
        meter: Meter,
        judge: Judge,
        journal: Journal,
        feeds: Sequence[Path],
        baseline: Candidate,
        baseline_file: Artifact,
        take: Take = lambda key: None,
    ) -> None:
        self._take = take
        self._worker = worker
        self._meter = meter
        self.judge = judge  # compares outputs on the selection samples with the float model's
        self._journal = journal
        self._feeds = feeds
        self._baseline_file = baseline_file
        self._incumbent_file = baseline_file
        self._last: Artifact | None = None  # stays built until the next one: the strategy may want its profile
        self.incumbent = baseline
        self.judged: list[Candidate] = [baseline]
        self._by_key = {baseline.key: baseline}
        self._by_graph: dict[str, Candidate] = {}
        with contextlib.suppress(TargetError):  # without its graph, models that equal it are measured themselves
            self._remember(baseline, worker.load(baseline_file, identify=True))
        self.tally = Tally()

    @property
    def times_kernels(self) -> bool:
        """Whether there are profiles at all."""
        return "profile" not in self._worker.lacks

    def evaluate(
        self, proposal: Proposal, key: str, write: Callable[[], Artifact], source: Path | None = None
    ) -> Trial:
        """Evaluate one proposal; a finished trial of this or an earlier session is not repeated.

        Raises:
            Late: there was no time left to write the model: nothing is recorded of it.
        """
        again = self._by_key.get(key)
        if again is not None:  # proposed before in this session
            return replace(again.trial, proposal=proposal, accepted=False)
        known = self._journal.trial(key)
        if known is not None:
            self.tally.replayed += 1
            trial = Trial(proposal, known.outcome, known.accepted, known.versus_incumbent)
        else:
            trial = self._judge_new(proposal, key, write)
            if source is None:
                self._journal.record_placement(key, proposal.placement)
            digest, versus = proposal.placement.digest, trial.versus_incumbent
            self._journal.record(Record(key, proposal.origin, digest, trial.outcome, trial.accepted, versus))
        if isinstance(trial.outcome, Failed):
            self.tally.failed += 1
        candidate = Candidate(key, trial, write, None if source else proposal.placement, source)
        if not isinstance(trial.outcome, Failed):
            self.tally.equal_graphs += bool(trial.outcome.equal_to)
            self._remember(candidate, self._journal.fact(GRAPH.of(key)) or "")
        self.judged.append(candidate)
        self._by_key[key] = candidate
        if trial.accepted:
            self._promote(candidate, write)
        return trial

    def step(self, trial: Trial, left_s: float) -> SearchStep:
        """The search after ``trial``, with ``left_s`` seconds left, for who reports it."""
        tally = self.tally
        return SearchStep(trial, self.incumbent.trial, len(self.judged) - 1, tally.measurements, tally.failed, left_s)

    def profile(
        self, key: str, write: Callable[[], Artifact], feed: Path, latency_ns: float, seconds: float = math.inf
    ) -> list[KernelTime]:
        """Kernel times of a model, from the journal where they are known; none when it cannot be profiled.

        Args:
            latency_ns: about what one inference takes.
            seconds: that its inferences may take; where they are too few for a profile, there is none.
        """
        fitting = seconds * 1e9 / max(latency_ns, 1.0)
        wanted = float(np.clip(_PROFILE_NS / max(latency_ns, 1.0), *_PROFILE_REPEATS))

        def ask() -> list[KernelTime]:
            repeats = int(min(wanted, fitting))
            artifact, before = write(), self._worker.builds
            try:
                return self._worker.profile(artifact, feed, repeats)
            except TargetError:
                return []
            finally:
                self.tally.compiles += self._worker.builds > before
                self._keep(artifact)

        if not self.times_kernels:
            return []
        known = self._journal.fact(PROFILE.of(key))
        if known is None and fitting < _LEAST_PROFILE:  # not a fact: a resumed run may have more time
            return []
        return self._journal.once(PROFILE.of(key), ask) if known is None else known

    def _remember(self, candidate: Candidate, graph: str) -> None:
        if graph:
            self._by_graph.setdefault(graph, candidate)

    def _equal(self, proposal: Proposal, graph: str) -> Trial | None:
        """The trial of a model with the same optimized graph, for this proposal; None where there is none to reuse."""
        known = self._by_graph.get(graph)
        if known is None or isinstance(known.trial.outcome, Failed):
            return None
        if proposal.anchor and isinstance(known.trial.outcome, Infeasible):  # anchors are timed in any case
            return None
        return Trial(proposal, replace(known.trial.outcome, equal_to=known.key))

    def _promote(self, candidate: Candidate, write: Callable[[], Artifact]) -> None:
        previous = self._incumbent_file
        self.incumbent, self._incumbent_file = candidate, write()
        if self._last is not None and self._last.digest == self._incumbent_file.digest:
            self._last = None
        if previous.digest != self._baseline_file.digest:
            self._drop(previous)

    def _keep(self, artifact: Artifact) -> None:
        """Keep ``artifact`` built, and of the others only baseline and incumbent."""
        last, self._last = self._last, None
        if last is not None and last.digest not in (artifact.digest, self._incumbent_file.digest):
            self._drop(last)
        if artifact.digest not in (self._incumbent_file.digest, self._baseline_file.digest):
            self._last = artifact

    def _judge_new(self, proposal: Proposal, key: str, write: Callable[[], Artifact]) -> Trial:
        built = self._take(key)
        try:
            artifact = write()
        except Late:  # no word on the model: with more time it may be judged
            raise
        except (InlayError, OSError, ValueError) as error:
            return Trial(proposal, Failed("emit", str(error)))
        stage: Stage = "compile"
        self._journal.record_fact(SIZE.of(key), model_bytes(artifact.path))
        self._keep(artifact)
        try:
            if built is None:
                graph = self._worker.load(artifact, identify=True)
            else:
                graph = built.graph
                self._worker.built_elsewhere(artifact)
            self.tally.compiles += 1
            self._journal.record_fact(GRAPH.of(key), graph)
            equal = self._equal(proposal, graph)
            if equal is not None:
                return equal
            stage = "accuracy"
            outputs = self._worker.run(artifact, self._feeds) if built is None else built.outputs
            accuracy = self.judge.judge(outputs, in_task=proposal.anchor)
            if not accuracy.feasible and not (proposal.anchor or proposal.timed):
                return Trial(proposal, Infeasible(accuracy))
            stage = "measure"
            return self._race(proposal, artifact, accuracy)
        except TimedOut as error:
            return Trial(proposal, Failed("timeout", str(error)))
        except (CompileFailed, RunFailed, BadReading) as error:
            ran = isinstance(error, RunFailed) and stage == "accuracy"
            return Trial(proposal, Failed("run" if ran else stage, str(error)))
        except TargetError as error:
            return Trial(proposal, Failed("worker", str(error)))

    def _race(self, proposal: Proposal, artifact: Artifact, accuracy: Accuracy) -> Trial:
        brief = not accuracy.feasible  # it is timed to be known, and replaces nothing
        try:
            race = self._meter.race("race", self._baseline_file, self._incumbent_file, artifact, brief)
        except TargetError as error:
            at_fault = self._incumbent_file.digest
            if error.culprit != at_fault or at_fault in (self._baseline_file.digest, artifact.digest):
                raise
            self.incumbent, self._incumbent_file = self.judged[0], self._baseline_file
            race = self._meter.race("race", self._baseline_file, self._baseline_file, artifact, brief)
        self.tally.measurements += 1
        outcome: Outcome = Measured(race.latency, accuracy)
        return Trial(proposal, outcome, accuracy.feasible and race.versus.shows_gain(), race.versus)

    def _drop(self, artifact: Artifact) -> None:
        """Free a model in the worker and on disk."""
        self._worker.drop(artifact)
        if artifact.path.name.startswith("candidate-"):
            artifact.path.unlink(missing_ok=True)
