"""What a run works with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inlay.data import InputSpec, Samples, Split
from inlay.model.load import ModelFile
from inlay.prepare.config import TuneConfig
from inlay.quant.accuracy import Metric


@dataclass(frozen=True, eq=False)
class RunInputs:
    """What a run works with, once everything that can be wrong with the call has been ruled out.

    Attributes:
        config: settings.
        file: the model.
        specs: its inputs.
        parts: the samples, split.
        samples: all of them.
        metric: the function behind ``config.bound.metric``.
        out: folder of the results.
    """

    config: TuneConfig
    file: ModelFile
    specs: tuple[InputSpec, ...]
    parts: Split
    samples: Samples
    metric: Metric | None
    out: Path
