"""Texts as a model's inputs, and what they say of a quantized model: whether it ranks and finds as float does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from inlay.data import InputSpec
from inlay.errors import DataError
from inlay.integrations.folders.layout import TextFolder
from inlay.integrations.packages import required

LEAST_TEXTS = 12
"""Sixty-six pairs: fewer say little of a rank correlation."""
_NEIGHBORS = 10

Feed = dict[str, np.ndarray]


def read(path: Path) -> list[tuple[str, ...]]:
    """Texts, one a line, or pairs with a tab between.

    Raises:
        DataError: the file cannot be read, or holds too few.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--texts {path} cannot be read: {error}") from error
    found = [tuple(line.split("\t")[:2]) for line in lines if line]
    if len(found) < LEAST_TEXTS:
        raise DataError(f"--texts {path}: holds {len(found)} texts; give at least {LEAST_TEXTS}, one a line")
    return found


def feeds_of(folder: TextFolder, texts: Sequence[tuple[str, ...]], specs: Sequence[InputSpec]) -> list[Feed]:
    """What the folder's tokenizer makes of each text, for the model's inputs.

    Raises:
        DataError: the model has an input that no tokenizer fills.
    """
    tokenizer = required("tokenizers", "texts", "a folder with a text model").Tokenizer.from_file(str(folder.tokenizer))
    tokenizer.no_padding()
    tokenizer.enable_truncation(folder.most_tokens)
    feeds = list[Feed]()
    for text in texts:
        encoded = tokenizer.encode(*text)
        made = {"input_ids": encoded.ids, "attention_mask": encoded.attention_mask, "token_type_ids": encoded.type_ids}
        unknown = [s.name for s in specs if s.name not in made]
        if unknown:
            raise DataError(f"the model has the input {unknown[0]}, which no tokenizer fills")
        feeds.append({s.name: np.asarray([made[s.name]], np.int64) for s in specs})
    return feeds


@dataclass(frozen=True)
class Judged:
    """How far a quantized model does on the texts what the float model does."""

    rank_correlation: float  # Spearman's, of the cosines between all pairs of texts, or of the scores
    found: float | None  # share of float's nearest texts that are its nearest ones too; None of scores
    neighbors: int  # how many nearest texts were looked at for each
    texts: int


def judge(given: Path, written: Path, feeds: Sequence[Feed], pooling: str) -> Judged:
    """Compare two models, in ONNX Runtime as it runs for the user."""
    first, second = (results(path, feeds, pooling) for path in (given, written))
    if not pooling:
        return Judged(correlation(first, second, pooling), None, 0, len(feeds))
    count = min(_NEIGHBORS, (len(feeds) - 1) // 2)
    nearest = []
    for vectors in (first, second):
        np.fill_diagonal(cosine := vectors @ vectors.T, -np.inf)
        nearest.append([set(row) for row in np.argsort(-cosine, axis=1, kind="stable")[:, :count].tolist()])
    kept = sum(len(a & b) for a, b in zip(*nearest, strict=True))
    return Judged(correlation(first, second, pooling), kept / (count * len(feeds)), count, len(feeds))


def correlation(first: np.ndarray, second: np.ndarray, pooling: str) -> float:
    """Spearman's, of the cosines between all pairs of rows, or of the scores in them; 0 where all are the same."""
    if pooling:
        pairs = np.triu_indices(len(first), 1)
        first, second = ((rows @ rows.T)[pairs] for rows in (first, second))
    first, second = first.reshape(-1), second.reshape(-1)
    if min(np.ptp(first), np.ptp(second)) == 0.0:
        return 0.0
    return float(stats.spearmanr(first, second).statistic)


def metric_of(reference: np.ndarray, pooling: str) -> Callable[[Sequence[Mapping[str, np.ndarray]], np.ndarray], float]:
    """The correlation with the float model's ``reference`` as a metric, whose labels are the numbers of the texts."""

    def ranks(outputs: Sequence[Mapping[str, np.ndarray]], labels: np.ndarray) -> float:
        rows = np.stack([_row(next(iter(each.values())), pooling) for each in outputs])
        return correlation(reference[np.asarray(labels).reshape(-1)], rows, pooling)

    return ranks


def results(path: Path, feeds: Sequence[Feed], pooling: str) -> np.ndarray:
    """A row for each text: its vector, of length 1, or its scores."""
    import onnxruntime as ort

    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.stack([_row(session.run(None, feed)[0], pooling) for feed in feeds])


def _row(output: np.ndarray, pooling: str) -> np.ndarray:
    array = np.asarray(output, np.float64)[0]
    if array.ndim == 2:
        array = array[0] if pooling == "cls" else array.mean(axis=0)  # no text is padded
    scaled = array / max(float(np.linalg.norm(array)), 1e-30) if pooling else array
    return np.asarray(scaled).reshape(-1)
