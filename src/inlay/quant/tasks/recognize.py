"""What a model looks like, by the float model's outputs: their shapes, names and values, and what computes them.

Nothing is said unless all outputs that hold floats (caches aside) speak for one task. A plain product's numbers may be
anything: they are taken for scores of classes only where a name says so, or where one of them stands out in most
samples, not the same one in all; and for an embedding where a name says so or all vectors have length one. ``--task``
overrules that, and then asks for less.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from inlay.data import Samples
from inlay.errors import UsageError
from inlay.quant.metrics import Outputs, compared
from inlay.quant.tasks import task as tasks
from inlay.quant.tasks.layouts import Facts, layout_of
from inlay.quant.tasks.maps import THRESHOLD
from inlay.quant.tasks.task import MOST_LOST, Task

AUTO, NONE = "auto", "none"
CHOICES = (AUTO, NONE, *MOST_LOST)

_LINEAR = frozenset({"Conv", "Einsum", "FusedMatMul", "Gemm", "MatMul", "LSTM", "GRU"})
_SCORES = re.compile(r"logit|prob|score|class|softmax", re.I)
_VECTORS = re.compile(r"embed|hidden_state|pooler|feature|(^|_)feats?($|_)", re.I)
_SOUND = re.compile(r"audio|wav|speech|sound|pcm", re.I)
_TEXT = re.compile(r"token|sequence|output_ids|text|sentence|hypothes", re.I)
_LEAST_SYMBOLS, _VOCABULARY = 10, 1000
_LEAST_VECTOR, _LEAST_SOUND, _LEAST_SIDE, _MOST_CLASSES = 16, 2048, 8, 1024
_BLANKS = (0.3, 0.995)  # share of frames that hold no symbol


def recognized(reference: Sequence[Outputs], facts: Facts, wanted: str = AUTO) -> Task | None:
    """The task of a model, or None where that is not sure.

    Args:
        reference: the float model's outputs, one mapping for each sample, without padding.
        facts: of the model.
        wanted: the name of a task, which the outputs must then allow; ``auto``, or ``none``.

    Raises:
        UsageError: the outputs are none of ``wanted``.
    """
    if wanted == NONE or not reference:
        return None
    if wanted != AUTO:
        found = _WANTED[wanted](reference, facts)
        if found is None:
            held = ", ".join(f"{name} {list(y.shape)}" for name, y in reference[0].items())
            raise UsageError(f"--task {wanted}: {_NEEDED[wanted]}, and the outputs are {held}; give --task none")
        return found
    layout = layout_of(reference, facts)
    if layout is not None:
        return tasks.detector(layout)
    return _of_outputs(reference, facts)


def task_of(samples: Samples, reference: Sequence[Outputs], wanted: str = AUTO) -> Task | None:
    """The same of a model's samples: nothing where they are random, whose outputs show nothing of a task."""
    return None if samples.kind == "random" else recognized(reference, Facts.of(samples), wanted)


def _of_outputs(reference: Sequence[Outputs], facts: Facts) -> Task | None:
    """The one task that all outputs speak for."""
    names = compared(reference)
    if not names:
        return _of_decisions(reference)
    kinds = {_kind(name, [y[name] for y in reference if name in y], facts) for name in names}
    if len(kinds) != 1 or (kind := kinds.pop()) is None:
        return None
    return _MADE[kind](reference, facts) if len(names) == 1 or kind in ("embedding", "masks", "sound") else None


def _kind(name: str, each: Sequence[np.ndarray], facts: Facts) -> str | None:
    """What one output looks like; None where that is not sure."""
    first, ends = each[0], facts.ends.computed.get(name, frozenset())
    if any(y.ndim != first.ndim or not y.size or not np.isfinite(y).all() for y in each):
        return None
    if _is_sound(name, each, ends):
        return "sound"
    if any(y.shape[-1] != first.shape[-1] for y in each):  # nothing that is counted along it is of one kind
        return None
    if first.ndim == 2 and first.shape[1] > 1:
        return _kind_of_rows(name, each, ends)
    if first.ndim == 3:
        return _kind_of_positions(name, each, ends, facts)
    if first.ndim == 4 and _mask_axis(each, ends, facts) is not None:
        return "masks"
    return None


def _kind_of_rows(name: str, each: Sequence[np.ndarray], ends: frozenset[str]) -> str | None:
    if _excludes(each, 1) or (ends <= {"LogSoftmax"} and ends):
        return "classifier"
    if _VECTORS.search(name):
        return "embedding" if each[0].shape[1] >= _LEAST_VECTOR else None
    if ends <= _LINEAR and ends and (_SCORES.search(name) or _stands_out(each)):
        return "classifier"
    rows = np.concatenate(each)
    alike = np.abs(np.linalg.norm(rows.astype(np.float64), axis=1) - 1.0).max() < 1e-3
    return "embedding" if alike and rows.shape[1] >= _LEAST_VECTOR and not _is_probable(each) else None


def _kind_of_positions(name: str, each: Sequence[np.ndarray], ends: frozenset[str], facts: Facts) -> str | None:
    first, of_tokens = each[0], _reads_tokens(facts)
    symbols = first.shape[2]
    exclusive = _excludes(each, 2) or (bool(ends) and ends <= {"LogSoftmax"})
    named = ends <= _LINEAR and bool(ends) and (bool(_SCORES.search(name)) or symbols >= _VOCABULARY)
    if of_tokens:
        if _VECTORS.search(name):
            return "embedding" if symbols >= _LEAST_VECTOR else None
        return "tokens" if exclusive or named else None
    if symbols >= _LEAST_SYMBOLS and (exclusive or named) and _blank(each) is not None:
        return "text"
    if ends == {"Sigmoid"} and first.shape[1] >= _LEAST_SIDE and symbols >= _LEAST_SIDE:
        return "masks"
    return None


def _of_decisions(reference: Sequence[Outputs]) -> Task | None:
    """Models that give integers alone: written tokens, or the class of each pixel."""
    named = [n for n, y in reference[0].items() if y.dtype.kind in "iu"]
    if len(named) != 1 or len(reference[0]) != 1:
        return None
    first = reference[0][named[0]]
    if first.ndim in (1, 2) and first.size > 1 and _TEXT.search(named[0]):
        return tasks.tokens(named[0], written=True)
    if first.ndim in (3, 4) and min(first.shape[-2:]) >= _LEAST_SIDE and first.min() >= 0:
        most = max(int(y[named[0]].max(initial=0)) for y in reference)
        return tasks.masks(_whole, named, most + 1) if 0 < most < _MOST_CLASSES else None
    return None


def _mask_axis(each: Sequence[np.ndarray], ends: frozenset[str], facts: Facts) -> int | None:
    """Which axis of masks counts classes; None where it is not sure that there are masks."""
    first = each[0]
    if ends == {"Sigmoid"}:
        return 1 if min(first.shape[2:]) >= _LEAST_SIDE or min(first.shape[1:3]) >= _LEAST_SIDE else None
    for axis in (1, 3):
        sides = [size for i, size in enumerate(first.shape) if i not in (0, axis)]
        classes = first.shape[axis]
        if min(sides) < _LEAST_SIDE or not 2 <= classes <= _MOST_CLASSES:
            continue
        if _excludes(each, axis):
            return axis
        if ends <= _LINEAR and ends and classes not in (2, 3, 4) and facts.image == tuple(sides):
            return axis
    return None


def _excludes(each: Sequence[np.ndarray], axis: int) -> bool:
    """Whether the numbers along an axis are probabilities of classes that exclude each other."""
    return (
        each[0].shape[axis] > 1
        and _is_probable(each)
        and all(np.abs(y.sum(axis=axis, dtype=np.float64) - 1.0).max() < 1e-2 for y in each)
    )


def _is_probable(each: Sequence[np.ndarray]) -> bool:
    return all(y.size and float(y.min()) >= 0.0 and float(y.max()) <= 1.0 + 1e-3 for y in each)


def _stands_out(each: Sequence[np.ndarray]) -> bool:
    """Whether one number of each row stands out as that of a class does, and not the same one in nearly all rows."""
    rows = np.concatenate(each).astype(np.float64)
    if rows.shape[1] < 2 or len(rows) < 8:
        return False
    shares = np.exp(rows - rows.max(axis=1, keepdims=True))
    peaks = (1.0 / shares.sum(axis=1)).mean()
    counts = np.bincount(rows.argmax(axis=1), minlength=rows.shape[1])
    several = np.count_nonzero(counts) >= min(3, rows.shape[1]) and counts.max() <= 0.9 * len(rows)
    return bool(peaks > 0.5 and several)


def _blank(each: Sequence[np.ndarray]) -> int | None:
    """The first or last symbol where it is the most frequent one, as that which stands for none is; else None."""
    best = np.concatenate([y.argmax(axis=-1).ravel() for y in each])
    counts = np.bincount(best, minlength=each[0].shape[-1])
    most = int(counts.argmax())
    share = counts[most] / max(best.size, 1)
    return most if most in (0, len(counts) - 1) and _BLANKS[0] <= share <= _BLANKS[1] else None


def _is_sound(name: str, each: Sequence[np.ndarray], ends: frozenset[str]) -> bool:
    first = each[0]
    long = first.size == max(first.shape) >= _LEAST_SOUND or (first.ndim == 2 and first.shape[1] >= _LEAST_SOUND)
    if not long or max(float(np.abs(y).max()) for y in each) > 1.5:
        return False
    centered = max(abs(float(y.mean())) for y in each) < 0.1
    return centered and (ends == {"Tanh"} or bool(_SOUND.search(name)))


def _reads_tokens(facts: Facts) -> bool:
    """Whether the model is given integers alone."""
    return bool(facts.feeds) and all(a.dtype.kind in "iub" for a in facts.feeds[0].values())


def _whole(pixels: np.ndarray) -> np.ndarray:
    return np.maximum(pixels, 0).astype(np.int64)


def _above(pixels: np.ndarray) -> np.ndarray:
    return (pixels >= THRESHOLD).astype(np.int64)


def _make_masks(reference: Sequence[Outputs], facts: Facts) -> Task | None:
    names = compared(reference)
    ends = facts.ends.computed.get(names[0], frozenset())
    if ends == {"Sigmoid"}:
        return tasks.masks(_above, names, 2)
    each = [y[names[0]] for y in reference]
    axis = _mask_axis(each, ends, facts) if each[0].ndim == 4 and len(names) == 1 else None
    return None if axis is None else _masks_along(axis, names[0], each[0])


def _masks_along(axis: int, name: str, first: np.ndarray) -> Task:
    """Masks by the largest score along an axis."""
    return tasks.masks(lambda pixels: np.asarray(pixels.argmax(axis=axis)), [name], first.shape[axis])


def _make_text(reference: Sequence[Outputs], _: Facts) -> Task | None:
    name = next(iter(compared(reference)), "")
    each = [y[name] for y in reference if name in y]
    if not each or each[0].ndim != 3 or len({y.shape[2:] for y in each}) > 1 or not all(y.size for y in each):
        return None
    blank = _blank(each)
    time_axis = 0 if each[0].shape[1] == 1 < each[0].shape[0] else 1
    return None if blank is None else tasks.text(name, time_axis, blank)


def _make_embedding(reference: Sequence[Outputs], _: Facts) -> Task | None:
    floats = [n for n in compared(reference) if reference[0][n].ndim in (2, 3) and reference[0][n].size]
    return tasks.embedding(floats[-1]) if floats else None


def _make_classifier(reference: Sequence[Outputs], _: Facts) -> Task | None:
    name = next(iter(compared(reference)), None)
    first = None if name is None else reference[0][name]
    return None if first is None or first.ndim < 2 or first.size < 2 else tasks.classifier(first[0].size)


def _make_tokens(reference: Sequence[Outputs], _: Facts) -> Task | None:
    floats = compared(reference)
    if floats:
        return tasks.tokens(floats[0], written=False) if reference[0][floats[0]].ndim > 1 else None
    ints = [n for n, y in reference[0].items() if y.dtype.kind in "iu" and y.ndim]
    return tasks.tokens(ints[0], written=True) if ints else None


def _make_detector(reference: Sequence[Outputs], facts: Facts) -> Task | None:
    layout = layout_of(reference, facts, sure=False)
    return None if layout is None else tasks.detector(layout)


def _make_sound(reference: Sequence[Outputs], _: Facts) -> Task | None:
    floats = [n for n in compared(reference) if reference[0][n].size >= 64]
    return tasks.sound(floats) if floats else None


_MADE: dict[str, Callable[[Sequence[Outputs], Facts], Task | None]] = {
    "detector": _make_detector,
    "classifier": _make_classifier,
    "text": _make_text,
    "tokens": _make_tokens,
    "embedding": _make_embedding,
    "masks": _make_masks,
    "sound": _make_sound,
}


def _any_masks(reference: Sequence[Outputs], facts: Facts) -> Task | None:
    """Masks that were asked for: of classes along the axis that is no side of the image, or of numbers above a half."""
    names = compared(reference)
    found = _make_masks(reference, facts) if names else _of_decisions(reference)
    if found is not None and found.name == "masks":
        return found
    if not names:
        return None
    name, first = names[0], reference[0][names[0]]
    if first.ndim == 4 and min(first.shape[1], first.shape[3]) >= 2:
        return _masks_along(1 if first.shape[1] <= first.shape[3] else 3, name, first)
    return tasks.masks(_above, [name], 2) if _is_probable([y[name] for y in reference]) else None


_WANTED: dict[str, Callable[[Sequence[Outputs], Facts], Task | None]] = {**_MADE, "masks": _any_masks}
_NEEDED: dict[str, str] = {
    "detector": "boxes of four numbers beside scores are needed",
    "classifier": "scores of classes are needed, shape (batch, classes)",
    "text": "scores of symbols are needed, shape (batch, frames, symbols), whose first or last stands for none",
    "tokens": "scores of tokens are needed, shape (batch, positions, tokens), or integers",
    "embedding": "vectors are needed, shape (batch, numbers) or (batch, positions, numbers)",
    "masks": "classes of pixels are needed, or their probabilities",
    "sound": "waves are needed",
}
