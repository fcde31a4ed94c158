"""Text that models write: how many edits (Levenshtein 1966) lead from the float model's to another one's.

A recognizer's frames are decoded greedily by connectionist temporal classification (CTC, Graves et al. 2006): the
likeliest symbol of each frame, repetitions once, without blanks. Texts may differ in length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from inlay.quant.metrics import Agreement, Outputs

_MOST_EDITED = 4000  # symbols of one text: the edits of longer ones take seconds


def decoded(frames: np.ndarray, blank: int) -> np.ndarray:
    """Symbols from the scores of each frame, shape (frames, symbols)."""
    if not frames.size:
        return np.empty(0, np.int64)
    best = frames.argmax(axis=-1)
    first = np.concatenate([[True], best[1:] != best[:-1]])
    return np.asarray(best[first & (best != blank)])


def edits(ours: np.ndarray, theirs: np.ndarray) -> int:
    """The fewest symbols to insert, delete or replace."""
    same = 0
    while same < min(len(ours), len(theirs)) and ours[same] == theirs[same]:
        same += 1
    ours, theirs = ours[same:], theirs[same:]
    if not len(ours) or not len(theirs):
        return max(len(ours), len(theirs))
    before = np.arange(len(theirs) + 1)
    steps = np.arange(len(theirs) + 1)
    for i, symbol in enumerate(ours, 1):
        least = np.minimum(before[:-1] + (theirs != symbol), before[1:] + 1)
        row = np.concatenate([[i], least])
        before = np.minimum.accumulate(row - steps) + steps  # what insertions leave
    return int(before[-1])


def ctc(output: str, time_axis: int, blank: int) -> Agreement:
    """One less the error of decoded text, by the symbols of the float model's.

    Args:
        output: of scores, whose last axis is symbols.
        time_axis: 0 or 1, which counts frames; the other one counts texts.
        blank: the symbol that stands for none.
    """

    def texts(outputs: Outputs) -> list[np.ndarray]:
        array = outputs.get(output)
        if array is None or array.ndim not in (2, 3):
            return []
        batch = array[None] if array.ndim == 2 else np.moveaxis(array, time_axis, 1)
        return [decoded(frames, blank) for frames in batch]

    return Agreement.of_counts(_counts(texts))


def token_edits(output: str) -> Agreement:
    """One less the edits of written tokens, by the number of the float model's. Integers, shape (..., tokens)."""

    def texts(outputs: Outputs) -> list[np.ndarray]:
        array = outputs.get(output)
        return [] if array is None or not array.ndim else [*array.reshape(-1, array.shape[-1])] if array.size else []

    return Agreement.of_counts(_counts(texts))


def _counts(texts: Callable[[Outputs], list[np.ndarray]]) -> Callable[..., tuple[int, int]]:
    def counts(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> tuple[int, int]:
        wrong = of = 0
        for got, want in zip(outputs, reference, strict=True):
            wanted, found = texts(want), texts(got)
            found += [np.empty(0, np.int64)] * (len(wanted) - len(found))
            of += sum(map(len, wanted))
            wrong += sum(edits(a[:_MOST_EDITED], b[:_MOST_EDITED]) for a, b in zip(wanted, found, strict=False))
        return max(0, of - wrong), of

    return counts
