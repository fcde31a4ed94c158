"""What a command for several targets holds open: its folder, scratch files and journal, and how long it may take."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inlay.across import policy
from inlay.across.labels import folder_of
from inlay.data import Samples, save_feed
from inlay.deadline import Deadline
from inlay.measure.journal import Journal
from inlay.measure.panel import Panel
from inlay.model.guard import limited
from inlay.run.inputs import RunInputs, TuneRequest
from inlay.run.progress import Progress, SearchStep
from inlay.run.session import work_in
from inlay.targets.base import Artifact, Fingerprint, TargetSpec
from inlay.targets.registry import create


@dataclass(frozen=True, eq=False, kw_only=True)
class AcrossSession:
    """The resources of one command; see :func:`open_across`.

    Attributes:
        asked: for all targets; its folder is the command's.
        inputs: what the runs work with.
        given: the model as it was given.
        specs: the targets by label.
        fingerprints: theirs.
        work: folder for scratch files.
        journal: of the command; each run keeps its own.
        deadline: of the command.
        begun: when it began, on the clock of ``lab``.
        rng: draws orders of measurements.
    """

    asked: TuneRequest
    inputs: RunInputs
    given: Artifact
    specs: Mapping[str, TargetSpec]
    fingerprints: Mapping[str, Fingerprint]
    work: Path
    journal: Journal
    deadline: Deadline
    begun: float
    rng: np.random.Generator

    @property
    def left_s(self) -> float:
        """Seconds that are left before the result must be written."""
        return max(0.0, self.deadline.left - policy.WRITING_S)

    def share(self, share: float) -> Deadline:
        """The end of work that may take such a share of what is left."""
        return self.deadline if math.isinf(self.deadline.at) else self.deadline.within(share * self.left_s)

    def limit_s(self) -> float:
        """Seconds that the next call of a runtime may take."""
        return min(self.inputs.config.limit_s, max(policy.LEAST_LIMIT_S, self.deadline.left / 2.0))

    def panel(self, labels: Sequence[str]) -> Panel:
        """Fresh processes for these targets."""
        return Panel({label: self.specs[label] for label in labels}, self.asked.lab, self.work, self.limit_s)

    def save_feeds(self, name: str, samples: Samples) -> list[Path]:
        """Write samples as files that a worker can read."""
        paths = [self.work / f"{name}-{number}.npz" for number in range(len(samples))]
        for path, feed in zip(paths, samples.feeds, strict=True):
            save_feed(path, feed)
        return paths

    def stage(self, text: str) -> None:
        """Report that a stage begins, and record the time that was spent until then."""
        self.asked.progress.stage(text)
        self.journal.record_seconds()

    def folder(self, label: str) -> Path:
        """Of the run of one target."""
        return self.inputs.out / folder_of(label)

    def of(self, label: str) -> Labelled:
        """Hears the run of one target."""
        return Labelled(label, self.asked.progress, self.journal)


@dataclass(frozen=True, eq=False)
class Labelled:
    """Passes on what the run of one target reports; the time that it takes is the command's."""

    label: str
    progress: Progress
    journal: Journal

    def stage(self, text: str) -> None:
        """Pass it on with the target's label."""
        self.progress.stage(f"{self.label}: {text}")
        self.journal.record_seconds()

    def doing(self, text: str) -> None:
        """Pass it on."""
        self.progress.doing(text)

    def trial(self, step: SearchStep) -> None:
        """Pass it on."""
        self.progress.trial(step)
        self.journal.record_seconds()

    def close(self) -> None:
        """Nothing to do: the command goes on."""


@contextlib.contextmanager
def open_across(asked: TuneRequest, specs: Mapping[str, TargetSpec]) -> Iterator[AcrossSession]:
    """Check the inputs, lock the folder and open the journal; within it guarded calls end with the budget.

    Raises:
        JournalError: the folder is in use, belongs to another command, or cannot be written.
        InlayError: the inputs or a target cannot be used.
    """
    lab, begun = asked.lab, asked.lab.clock() - asked.before_s
    rng = np.random.default_rng(asked.config.seed)
    inputs = RunInputs.of(asked, rng)
    fingerprints = {label: create(spec).fingerprint() for label, spec in specs.items()}
    named = {label: [dict(specs[label].options), each.target, each.digest] for label, each in fingerprints.items()}
    identity = inputs.identity(json.dumps(named, sort_keys=True))
    with work_in(inputs.out) as work:
        inputs = inputs.held_in(work)
        file = Artifact(inputs.file.content.resolve(), inputs.file.sha256)
        journal = Journal(inputs.out / "run.sqlite", identity, asked.restart, lambda: lab.clock() - begun)
        try:
            budget_s = inputs.config.budget_s
            at = math.inf if budget_s is None else begun + max(0.0, budget_s - journal.spent_s)
            session = AcrossSession(
                asked=asked,
                inputs=inputs,
                given=file,
                specs=specs,
                fingerprints=fingerprints,
                work=work,
                journal=journal,
                deadline=Deadline(at, lab.clock),
                begun=begun,
                rng=rng,
            )
            with limited(session.limit_s):
                yield session
        finally:
            journal.close()
