"""What was found for the models of one program, as values and as ``result.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inlay.installed import __version__
from inlay.run.result import NO_DOUBT, Doubt, exit_code, speedup_json
from inlay.targets.base import TargetSpec
from inlay.trial import Interval

FILES = "pipeline"  # the folder of what is delivered, in that of the results


@dataclass(frozen=True, kw_only=True)
class PartResult:
    """One model of the pipeline."""

    name: str  # in the pipeline; the delivered file is `pipeline/NAME.onnx`
    model: Path  # the given file
    sha256: str  # its digest
    runs: float  # how often it runs
    share: float  # of the given pipeline's time
    origin: str  # what proposed the delivered model; `original` for the given one
    ms: float | None  # of one run of the given model
    speedup: Interval | None  # over that, paired; None where it was not measured
    sqnr_db: float  # of the delivered model's worst output, in its own run
    output_sha256: str  # of the delivered file
    folder: str | None  # of its own run; None where it has none
    why: str = ""  # it was not tuned, or its run failed

    def as_json(self) -> dict[str, Any]:
        """As in ``result.json``."""
        left = {k: v for k, v in vars(self).items() if k not in ("speedup", "ms", "model")}
        return {**left, "model": str(self.model), "baseline_ms": self.ms, **speedup_json(self.speedup)}


@dataclass(frozen=True, kw_only=True)
class PipelineResult:
    """The outcome of :func:`inlay.tune` for the models of one program."""

    folder: Path  # where `result.json`, the folder `pipeline` of all models and the folders of their runs are
    pipeline: Path  # the file that said what belongs together
    spec: TargetSpec  # the target
    facts: Mapping[str, str]  # of the target
    parts: tuple[PartResult, ...]  # the models, in the order of the file
    ms: float | None  # of all runs of the given models; None where it was not measured
    speedup: Interval  # of all runs together, paired by block in fresh processes
    blocks: int  # that it rests on
    bound: str  # what must be kept, as text
    seed: int  # of the run
    wall_s: float  # seconds of all sessions
    # what the user's evaluation says of the delivered pipeline, as in `result.json`; None without one
    scores: Mapping[str, Any] | None = None
    said: str = ""  # the same as text
    doubt: Doubt = NO_DOUBT  # why the bound is not shown
    accept_unproven: bool = False  # that was accepted beforehand
    notes: tuple[str, ...] = ()  # for people

    @property
    def files(self) -> Path:
        """The folder of the delivered models."""
        return self.folder / FILES

    @property
    def exit_code(self) -> int:
        """Of the command: 3 where the bound is not shown and nobody accepted that."""
        return exit_code(False, str(self.doubt), self.accept_unproven)

    def as_json(self) -> dict[str, Any]:
        """The content of ``result.json``: stable keys."""
        return {
            "version": __version__,
            "pipeline": str(self.pipeline),
            "target": {"name": self.spec.name, "options": dict(self.spec.options), "facts": dict(self.facts)},
            "bound": self.bound,
            "baseline": {"latency_ms": self.ms},
            "best": {
                "latency_ms": None if self.ms is None else self.ms / self.speedup.value,
                **speedup_json(self.speedup),
                "folder": str(self.files),
                "evaluation": self.scores,
                "bound_note": self.doubt.note,
                "bound_broken": self.doubt.broken,
            },
            "models": [part.as_json() for part in self.parts],
            "blocks": self.blocks,
            "search": {"wall_s": round(self.wall_s, 3)},
            "seed": self.seed,
            "notes": list(self.notes),
        }
