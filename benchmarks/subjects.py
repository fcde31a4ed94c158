"""Models to measure, each with samples to tune on and others to judge by."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from benchmarks import light_models, transformers

MODELS_VARIABLE = "INLAY_MODELS"


@dataclass(frozen=True)
class Subject:
    """A model.

    Attributes:
        name: of the model.
        model: the file.
        samples: what a user would give to ``tune``.
        evaluation: samples from other sources, which neither calibration nor search sees.
        trained: weights and samples are real; otherwise the architecture is, and the numbers are seeded.
    """

    name: str
    model: Path
    samples: Path
    evaluation: Path
    trained: bool


def default_models() -> Path | None:
    """The folder that the environment names, if it does."""
    given = os.environ.get(MODELS_VARIABLE)
    return Path(given) if given else None


def names(models: Path | None) -> list[str]:
    """Of every model: the trained ones of ``models`` (where the folder is given), the light ones, and transformers."""
    trained = [] if models is None else sorted(p.stem for p in models.glob("*.onnx"))
    return [*trained, *light_models.NAMES, *transformers.MODELS]


def make(name: str, models: Path | None, folder: Path) -> Subject:
    """One of :func:`names`, with its files in ``folder``.

    ``models`` is a folder of trained models with a ``feeds.py`` that writes two sets of samples from different sources:
    ``feeds.py NAME samples.npz evaluation.npz``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    samples, evaluation = folder / "samples.npz", folder / "evaluation.npz"
    if name in light_models.NAMES:
        made = light_models.light_model(name)
        model = folder / f"{name}.onnx"
        onnx.save(made, model)
        for path, seed in ((samples, 0), (evaluation, 1)):
            np.savez(path, **{light_models.input_name(made): light_models.samples(seed=seed)})
        return Subject(name, model, samples, evaluation, False)
    if name in transformers.MODELS:
        net = transformers.MODELS[name]()
        onnx.save(net, folder / f"{name}.onnx")
        for path, seed in ((samples, 0), (evaluation, 1)):
            np.savez(path, **transformers.samples(net, seed=seed))
        return Subject(name, folder / f"{name}.onnx", samples, evaluation, False)
    assert models is not None
    command = [sys.executable, str(models / "feeds.py"), name, str(samples), str(evaluation)]
    subprocess.run(command, check=True)
    return Subject(name, models / f"{name}.onnx", samples, evaluation, True)


def chosen(models: Path | None, only: Sequence[str]) -> list[str]:
    """The names to measure: all, or those of ``only``. Exits with a line where one is not known."""
    known = names(models)
    unknown = [n for n in only if n not in known]
    if unknown:
        where = "" if models else f" (trained models: give --models or {MODELS_VARIABLE})"
        raise SystemExit(f"there is no model {', '.join(unknown)}: there are {', '.join(known)}{where}")
    return [n for n in known if not only or n in only]
