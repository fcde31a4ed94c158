"""What a popular model is judged by: its owners' own measure, on samples that no run has seen.

A task lays a folder: ``model.onnx``, ``samples.npz`` (what a user would give to ``tune``), ``evaluation.npz`` (inputs
from other sources), whatever its measure needs besides, and int8 files of the model's makers as ``shipped_NAME.onnx``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks.subjects import Subject

SAMPLES, EVALUATION = "samples.npz", "evaluation.npz"
TRUTH, OWN = "truth.npz", "own"
"""What the evaluation's samples hold; and a folder for the same of the samples to tune on."""
RESAMPLES = 1000

Records = Sequence[np.ndarray]
"""What was found of each sample: numbers of which the measure is made, in any shape that the task knows."""
Session = Any
"""ONNX Runtime's."""


def _alone(record: np.ndarray, _float: np.ndarray) -> np.ndarray:
    return record


@dataclass(frozen=True)
class Task:
    """A model and its measure.

    Attributes:
        name: of the row.
        packages: whose files are used.
        make: lays the folder; arguments are the cache of packages and the folder.
        judge: records of a model's session on the folder's evaluation.
        pair: of a sample's record and the float model's, the record of both; the first alone where that is enough.
        value: the measure of such records.
        metric: what the measure is called, with its unit where it has one.
        higher: more of it is better.
        bound: by how much it may be worse than the float model's.
        trained: the weights are real.
        options: words that ``inlay tune`` needs besides, as a user would find them.
    """

    name: str
    packages: tuple[str, ...]
    make: Callable[[Path, Path], None]
    judge: Callable[[Session, Path], list[np.ndarray]]
    value: Callable[[Records], float]
    metric: str
    higher: bool
    bound: float
    trained: bool = True
    pair: Callable[[np.ndarray, np.ndarray], np.ndarray] = field(default=_alone)
    options: tuple[str, ...] = ()

    @property
    def by_float(self) -> bool:
        """Whether the measure is of the float model's own outputs, so that its owners need no labels for it."""
        return self.pair is not _alone

    def laid(self, cache: Path, folder: Path) -> Subject:
        """The folder, laid.

        Raises:
            OSError: a package cannot be fetched.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.make(cache, folder)
        return Subject(self.name, folder / "model.onnx", folder / SAMPLES, folder / EVALUATION, self.trained)


@dataclass(frozen=True)
class Judged:
    """A measure with the loss against float, and the loss's 95 % interval (paired bootstrap over samples)."""

    value: float
    loss: float
    low: float
    high: float

    def as_json(self) -> dict[str, float]:
        """All four."""
        return {"value": self.value, "loss": self.loss, "loss_low": self.low, "loss_high": self.high}


def judged(task: Task, records: Records, floats: Records, seed: int = 0) -> Judged:
    """The measure of ``records`` beside the float model's records of the same samples."""

    def loss(order: Iterable[int]) -> float:
        mine, own = zip(*(pairs[i] for i in order), strict=True)
        change = task.value(mine) - task.value(own)
        return -change if task.higher else change

    if len(records) != len(floats):
        raise ValueError(f"{len(records)} records of a model, {len(floats)} of the float model")
    pairs = [(task.pair(a, b), task.pair(b, b)) for a, b in zip(records, floats, strict=True)]
    n = len(pairs)
    rng = np.random.default_rng(seed)
    losses = [loss(rng.integers(n, size=n)) for _ in range(RESAMPLES)]
    low, high = np.nanpercentile(losses, (2.5, 97.5))
    return Judged(float(task.value([a for a, _ in pairs])), float(loss(range(n))), float(low), float(high))


def session(model: Path, threads: int = 1) -> Session:
    """The model in ONNX Runtime on the processor, optimized as by default."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def feeds(path: Path) -> list[dict[str, np.ndarray]]:
    """The samples of an archive, each along the first axis of its arrays."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = {k: archive[k] for k in archive.files}
    count = len(next(iter(arrays.values())))
    return [{k: a[i] for k, a in arrays.items()} for i in range(count)]


def truth_of(folder: Path, unseen: bool) -> Path:
    """Where the truth of the evaluation's samples, or of those to tune on, is laid."""
    where = folder if unseen else folder / OWN
    where.mkdir(exist_ok=True)
    return where / TRUTH


def save_records(path: Path, records: Iterable[np.ndarray]) -> None:
    """One array for each sample, of whatever shape."""
    np.savez(path, **{str(i): record for i, record in enumerate(records)})


def read_records(path: Path) -> list[np.ndarray]:
    """What :func:`save_records` wrote."""
    with np.load(path, allow_pickle=False) as archive:
        return [archive[str(i)] for i in range(len(archive.files))]


def first_outputs(model: Session, folder: Path) -> list[np.ndarray]:
    """The first output on each feed of the evaluation."""
    return [model.run(None, feed)[0] for feed in feeds(folder / EVALUATION)]


def save(path: Path, samples: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Samples of the same shapes, along a first axis of their own."""
    np.savez(path, **{name: np.stack([s[name] for s in samples]) for name in samples[0]})


def ratio_of_sums(records: Records) -> float:
    """Of records of two numbers: what was counted by what there was to count, pooled over samples."""
    errors, of = np.sum(np.reshape(records, (len(records), 2)), axis=0)
    return float(errors / of)


def edits(wanted: Sequence[Any], found: Sequence[Any]) -> int:
    """Insertions, deletions and substitutions between two sequences (Levenshtein)."""
    row = list(range(len(found) + 1))
    for i, a in enumerate(wanted, 1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(found, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]
