"""What a quantized model loses on plausible variations of its samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from inlay.calibrate.scorer import Run, score_by
from inlay.calibrate.table_search import StressTask
from inlay.data import InputSpec, Samples, StressSet, save_feeds, stress_set, with_unnoticed_noise
from inlay.errors import Ended, InlayError, TargetError, TimedOut
from inlay.model.heard import doing
from inlay.model.user_code import user_function
from inlay.quant.accuracy import Bound, Judge, Outputs
from inlay.quant.metric_limits import least_share
from inlay.quant.parts import Parts
from inlay.quant.tasks.task import Task
from inlay.run.reference import RunFiles
from inlay.trial import TaskFigure, counted, shown_sqnr

_PARTS = 5  # of the samples, each of which is left out once


@dataclass(frozen=True)
class Robustness:
    """SQNR of one model, in dB, on samples and on their variations."""

    samples_db: float  # on the samples, of the worst output
    varied_db: Mapping[str, float]  # the same by way of variation; the worst way first

    def __str__(self) -> str:
        (name, db), *others = self.varied_db.items()
        if db >= self.samples_db:
            varied = counted(len(others) + 1, "variation")
            return f"{shown_sqnr(self.samples_db)} over all samples, and no less on {varied} of them"
        rest = f", the worst of {len(others) + 1} variations" if others else ""
        return f"{shown_sqnr(self.samples_db)} over all samples, {shown_sqnr(db)} with {name}{rest}"

    def as_json(self) -> dict[str, Any]:
        """As in ``result.json``: the worst way first."""
        varied = [{"name": name, "sqnr_db": db} for name, db in self.varied_db.items()]
        return {"samples_sqnr_db": self.samples_db, "variations": varied}


@dataclass(frozen=True, eq=False)
class StressTest:
    """Variations of some samples, and what the float model makes of them."""

    names: Sequence[str]  # of the ways, one for each file
    feeds: Sequence[Path]  # files of the variations
    reference: Sequence[Outputs]  # outputs of the float model for each
    samples: Samples  # the variations
    parts: Parts | None = None  # how outputs are divided; None to find out

    @classmethod
    def of(
        cls, stress: StressSet, samples: Samples, folder: Path, run: RunFiles, parts: Parts | None = None
    ) -> StressTest:
        """Of the variations that the float model runs on: it may refuse another length, for instance."""
        paths = save_feeds(folder, stress.feeds)
        found = dict(enumerate(_outputs(run, paths)))
        kept = [i for i, outputs in found.items() if outputs is not None]
        varied = replace(samples, feeds=tuple(stress.feeds[i] for i in kept), labels=None, numbers=())
        reference = [outputs for outputs in found.values() if outputs is not None]
        return cls([stress.variations[i].name for i in kept], [paths[i] for i in kept], reference, varied, parts)

    @property
    def judge(self) -> Judge:
        """Of all variations together."""
        return Judge(self.reference, self.samples, Bound(), confidence=None, parts=self.parts)

    def widening(self, reach: StressSet, run: Run) -> StressTask | None:
        """What ranges are widened for, judged by what ``run`` gives on ``feeds``; None where nothing varies."""
        return StressTask(reach=reach, score=score_by(self.judge, run)) if self.names and reach.variations else None

    def robustness(self, outputs: Sequence[Outputs], samples_db: float) -> Robustness | None:
        """What a model loses, from its ``outputs`` for each of ``feeds``; None where there are no variations."""
        found = {}
        for name in dict.fromkeys(self.names):
            those = [i for i, n in enumerate(self.names) if n == name]
            reference, samples = [self.reference[i] for i in those], self.samples.part(those)
            judge = Judge(reference, samples, Bound(), confidence=None, parts=self.parts)
            found[name] = judge.judge([outputs[i] for i in those]).sqnr_db
        return Robustness(samples_db, dict(sorted(found.items(), key=lambda item: item[1]))) if found else None


def _outputs(run: RunFiles, paths: Sequence[Path]) -> Sequence[Outputs | None]:
    """Outputs for each file; None where the model does not run on it.

    Behind one that ends the runtime's process or takes too long no other is tried: that costs seconds each time.
    """
    found = list[Outputs | None]()
    try:
        return run(paths) if paths else []
    except TimedOut:
        return [None] * len(paths)
    except TargetError:
        pass
    for path in paths:
        try:
            found += run([path])
        except (Ended, TimedOut):
            break
        except TargetError:
            found.append(None)
    return found + [None] * (len(paths) - len(found))


def beside_noise(
    task: Task | None, samples: Samples, reference: Sequence[Outputs], run: RunFiles, folder: Path
) -> Task | None:
    """``task`` that allows for what 1 % of noise in the inputs, which hardly anybody would notice, costs float itself.

    The edges of masks and near ties change with anything: a quantized model cannot be asked to keep more of them than
    the float model does when its pictures were stored as JPEG. It is found out once, where some model loses too much.
    Only what is shown counts: the lower limit of what was counted, or the least without any fifth of the samples.
    """
    if task is None:
        return None
    return replace(task, noisy=cache(partial(_by_noise, task, samples, reference, run, folder)))


def _by_noise(
    task: Task, samples: Samples, reference: Sequence[Outputs], run: RunFiles, folder: Path
) -> Mapping[str, TaskFigure]:
    """Figures of the float model on noisy samples by name, with what is shown to be lost; none where it fails there."""
    feeds = with_unnoticed_noise(samples, np.random.default_rng(len(samples)))
    if not feeds:
        return {}
    doing("run the float model on samples with a little noise")
    try:
        outputs = run(save_feeds(Path(mkdtemp(dir=folder)) / "noisy", feeds))
    except InlayError:  # then nothing more may be lost
        return {}
    parts = np.array_split(np.arange(len(feeds)), min(len(feeds), _PARTS))
    rests = [[i for i in range(len(feeds)) if i not in part] for part in parts] if len(parts) > 1 else []
    without = [task.told([outputs[i] for i in rest], [reference[i] for i in rest]) for rest in rests]

    def shown(figure: TaskFigure) -> float:
        if figure.of:
            return least_share(figure.of - figure.right, figure.of)
        return min((f.lost for some in without for f in some if f.name == figure.name), default=0.0)

    return {f.name: replace(f, lost=shown(f)) for f in task.told(outputs, reference)}


def variations_of(
    samples: Samples, specs: Sequence[InputSpec], augment: str, seed: int, each: int, most: int
) -> StressSet:
    """The variations of a part of a run's samples: equal for equal arguments, whatever else was drawn before."""
    return stress_set(
        samples, specs, augment, np.random.default_rng([seed, len(samples), each]), each, most, user_function
    )
