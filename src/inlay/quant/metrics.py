"""Metrics that are known by name: of labelled classes, and of how far a model agrees with the float model.

What a decoder keeps for later tokens (outputs ``present*`` and ``past*``) is compared by the SQNR, not by a metric.
A metric may also be the caller's own, which may do anything.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from inlay.errors import DataError, InlayError, UsageError, near
from inlay.model.user_code import TRAVELS, user_function
from inlay.quant.bound import Bound

_ROUNDING = 1e-12  # of a metric of the same outputs
Outputs = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Agreement:
    """A metric that compares with the float model in place of labels."""

    # takes every sample's outputs, and those of the float model, both without padding; 1 for the same ones, or what is
    # best where it is no share
    of: Callable[[Sequence[Outputs], Sequence[Outputs]], float]
    # takes the same where `of` is the mean of independent hits, and gives these, shape (hits,); else None
    hits: Callable[[Sequence[Outputs], Sequence[Outputs]], np.ndarray] | None = None
    # takes the same where `of` is a share, and gives how many it counts and of how many; else None
    counts: Callable[[Sequence[Outputs], Sequence[Outputs]], tuple[int, int]] | None = None
    # takes the same where `of` is the least of some ratios, and gives what adds up, sample by sample: of each ratio the
    # numerator and the denominator, shape (ratios, 2); else None
    sums: Callable[[Sequence[Outputs], Sequence[Outputs]], np.ndarray] | None = None

    @classmethod
    def of_counts(cls, counts: Callable[[Sequence[Outputs], Sequence[Outputs]], tuple[int, int]]) -> Agreement:
        """The share of what is counted; 1 where there is nothing to count."""
        return replace(cls.of_sums(lambda *of: np.array([counts(*of)])), counts=counts)

    @classmethod
    def of_sums(cls, sums: Callable[[Sequence[Outputs], Sequence[Outputs]], np.ndarray]) -> Agreement:
        """The least ratio of what adds up over samples; 1 where there is nothing."""
        return cls(lambda *of: least_ratio(sums(*of)), sums=sums)


def least_ratio(sums: np.ndarray) -> float:
    """The least of some ratios, each of a numerator and a denominator, shape (ratios, 2); 1 where all of it is 0."""
    parts, of = sums[:, 0], sums[:, 1]
    return float(np.divide(parts, of, out=np.ones(len(sums)), where=of != 0.0).min(initial=1.0))


Metric = Callable[[Sequence[Outputs], np.ndarray | None], float] | Agreement
"""Takes every sample's outputs by name, and the labels (or None); larger is better."""

_CACHES = ("present", "past")
_NAMES = "iuU"  # kinds of arrays that may name classes: whole numbers and text


def top1(outputs: Sequence[Outputs], labels: np.ndarray | None) -> float:
    """Share of rows whose class is the label: the largest score in the first output, (batch, classes).

    Where that output names a class for each row, (batch,), as scikit-learn's do, it is that one.
    """
    return float(np.mean([hits.mean() for hits in _top1_hits(outputs, labels)]))


def hits_of(
    metric: Metric, outputs: Sequence[Outputs], reference: Sequence[Outputs], labels: np.ndarray | None
) -> np.ndarray | None:
    """What a metric counts of ``outputs``: one boolean for each row, shape (rows,); None where it counts nothing.

    Rows of a batch count as independent; positions of a text do not.

    Args:
        metric: of the outputs.
        outputs: of each sample, as the metric takes them.
        reference: the float model's, likewise.
        labels: one for each sample, or each row of it.
    """
    if isinstance(metric, Agreement):
        return None if metric.hits is None else metric.hits(outputs, reference)
    return np.concatenate(_top1_hits(outputs, labels)) if metric is top1 else None


def _top1_hits(outputs: Sequence[Outputs], labels: np.ndarray | None) -> list[np.ndarray]:
    assert labels is not None
    hits = []
    for sample, label in zip(outputs, labels, strict=True):
        scores, wanted = next(iter(sample.values())), np.asarray(label).reshape(-1)
        rows = _rows(scores)
        if scores.dtype.kind in _NAMES and scores.size == len(wanted):
            hits.append(scores.reshape(-1) == wanted.astype(scores.dtype if scores.dtype.kind == "U" else wanted.dtype))
        elif len(rows) == len(wanted) and rows.size:
            hits.append(rows.argmax(axis=1) == wanted)
        else:
            hits.append(np.zeros(len(wanted), bool))
    return hits


def refuse_lone_scores(metric: Metric | None, outputs: Sequence[Outputs]) -> None:
    """Raise UsageError where a metric of classes finds one score in each row, which is the largest whatever it is."""
    said = "top1" if metric is top1 else next((n for n, each in AGREEMENTS.items() if each is metric), "")
    if metric is top1:
        name = next(iter(outputs[0]), None) if outputs else None
        names_classes = name is not None and outputs[0][name].dtype.kind in _NAMES
    else:
        name, names_classes = next(iter(compared(outputs)), None), False
    if (
        said.startswith("top")
        and name
        and not names_classes
        and all(_rows(each[name]).shape[1] == 1 for each in outputs)
    ):
        raise UsageError(
            f"--metric {said}: output {name} holds one number for each row, not a score for each class: give "
            "module:function, which may compare it with a threshold"
        )


def top1_agreement(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> float:
    """Share of rows of the first output whose largest score is the float model's. Outputs: (batch, classes)."""
    return _share(_top1_same(outputs, reference))


def _top1_same(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> np.ndarray:
    return _agreeing(outputs, reference, _rows)


def _same_tokens(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> np.ndarray:
    """At how many positions greedy decoding chooses the float model's token, and of how many, shape (1, 2).

    By the first output that is no cache, (..., vocabulary). Every position counts by itself: the tokens before it are
    those of the samples.
    """
    same = _agreeing(outputs, reference, _vectors)
    return np.array([[np.count_nonzero(same), same.size]])


def _cosines(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> np.ndarray:
    """Of each output the sum of cosines between vectors and the float model's, and of how many, shape (outputs, 2).

    Outputs: (..., vector).
    """
    return np.array([_cosine(outputs, reference, name) for name in compared(reference)]).reshape(-1, 2)


def _top5_same(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> np.ndarray:
    """Whether the float model's class is among the first five of each row."""
    return _agreeing(outputs, reference, _rows, _first_five)


def _largest(scores: np.ndarray) -> np.ndarray:
    return np.asarray(scores.argmax(axis=-1)[..., None])


def _first_five(scores: np.ndarray) -> np.ndarray:
    """Of equal scores the first ones, as the largest is; what is no number comes last."""
    return np.argsort(-scores, axis=-1, kind="stable")[..., :5]


AGREEMENTS: Mapping[str, Agreement] = {
    "top1-agreement": Agreement(top1_agreement, _top1_same),
    "top5-agreement": Agreement(lambda outputs, reference: _share(_top5_same(outputs, reference)), _top5_same),
    "token-agreement": Agreement.of_sums(_same_tokens),
    "cosine": Agreement.of_sums(_cosines),
}
"""Metrics that need no labels, by name."""


def compared(reference: Sequence[Outputs]) -> list[str]:
    """Outputs of floats that are no cache."""
    first = reference[0] if reference else {}
    return [n for n, y in first.items() if y.dtype.kind == "f" and y.ndim and not n.lower().startswith(_CACHES)]


def _agreeing(
    outputs: Sequence[Outputs],
    reference: Sequence[Outputs],
    rows: Callable[[np.ndarray], np.ndarray],
    chosen: Callable[[np.ndarray], np.ndarray] = _largest,
) -> np.ndarray:
    """Whether what is ``chosen`` of each row holds the float model's largest score, shape (rows,)."""
    name = next(iter(compared(reference)), None)
    if name is None:
        raise ValueError("no output holds scores")
    same = [np.empty(0, bool)]
    for got, want in zip(outputs, reference, strict=True):
        wanted, found = rows(want[name]), got.get(name)
        alike = found is not None and found.shape == want[name].shape
        if found is not None and alike and wanted.size:
            same.append((chosen(rows(found)) == _largest(wanted)).any(axis=-1))
        elif found is not None and found.size and wanted.size and _is_longer_text(want[name], found):
            ours, theirs = on_common_part(want[name], found)  # what only one of them has agrees with nothing
            agreeing = (chosen(rows(theirs)) == _largest(rows(ours))).any(axis=-1)
            missing = max(len(wanted), len(rows(found))) - len(agreeing)
            same.append(np.concatenate([agreeing, np.zeros(missing, bool)]))
        else:  # nothing was found, which both agree on or not
            same.append(np.full(max(1, len(wanted)), alike))
    return np.concatenate(same)


def _is_longer_text(want: np.ndarray, got: np.ndarray) -> bool:
    """Whether both have the same classes, for another number of positions."""
    return is_longer(want, got) and want.ndim > 1 and want.shape[-1] == got.shape[-1]


def _rows(array: np.ndarray) -> np.ndarray:
    """One row for each entry of the first axis; a vector is one. An array that holds nothing has no shape to infer."""
    count = array.shape[0] if array.ndim > 1 else 1
    return array.reshape(count, array.size // max(1, count))


def _vectors(array: np.ndarray) -> np.ndarray:
    """The vectors along the last axis, in rows."""
    width = array.shape[-1]
    return array.reshape(array.size // max(1, width), width)


def _share(hits: np.ndarray) -> float:
    return float(hits.mean()) if hits.size else 1.0


def _cosine(outputs: Sequence[Outputs], reference: Sequence[Outputs], name: str) -> tuple[float, float]:
    found: list[np.ndarray] = []
    for got, want in zip(outputs, reference, strict=True):
        a = _vectors(want[name].astype(np.float64))
        y = got.get(name)
        if y is None or y.shape != want[name].shape:
            found.append(np.full(max(1, len(a)), -1.0))
            continue
        b = y.astype(np.float64).reshape(a.shape)
        norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        alike = (a == b).all(axis=1)  # of vectors of zeros, too
        found.append(np.where(alike, 1.0, (a * b).sum(axis=1) / np.maximum(norms, 1e-300)))
    joined = np.concatenate(found) if found else np.empty(0)
    return float(np.nan_to_num(joined, nan=-1.0).sum()), float(joined.size)


def is_longer(want: np.ndarray, got: np.ndarray) -> bool:
    """Whether an output differs from the float model's in the length of one axis alone.

    Then there is a common part: tokens, rows or frames of which one has more than the other.
    """
    differing = [i for i, (a, b) in enumerate(zip(want.shape, got.shape, strict=False)) if a != b]
    return want.ndim == got.ndim and len(differing) == 1


def on_common_part(want: np.ndarray, got: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as far as they have the same length."""
    where = tuple(slice(min(a, b)) for a, b in zip(want.shape, got.shape, strict=True))
    return want[where], got[where]


def energies(want: np.ndarray, got: np.ndarray | None) -> tuple[float, float, float, float]:
    """Signal energy, noise energy, inner product and energy of the other, where the reference is finite.

    The noise is infinite where the reference is, unless the other lies beyond all its finite numbers there: a clipped
    infinity is no error, and one that became the largest of all logits is.
    """
    if got is not None and is_longer(want, got):  # what only one of them has is noise as a whole
        ours, theirs = on_common_part(want, got)
        signal, noise, dot, other = energies(ours, theirs)
        missing, added = max(0.0, power(want) - power(ours)), max(0.0, power(got) - power(theirs))
        return signal + missing, noise + missing + added, dot, other + added
    if got is None or got.shape != want.shape:
        return 0.0, np.inf, 0.0, 0.0
    finite = np.isfinite(want)
    whole = finite.all()
    if not whole:
        inside = want[finite] if finite.any() else np.zeros(1, want.dtype)
        if not (np.all(got[want == np.inf] >= inside.max()) and np.all(got[want == -np.inf] <= inside.min())):
            return 0.0, np.inf, 0.0, 0.0
    a, b = ((x.ravel() if whole else x[finite]).astype(np.float64) for x in (want, got))
    difference = a - b
    signal, noise = float(a @ a), float(difference @ difference)
    return signal, noise if np.isfinite(noise) else np.inf, float(a @ b), float(b @ b)


def power(array: np.ndarray) -> float:
    """Energy of the elements that are finite."""
    finite = array[np.isfinite(array)].astype(np.float64)
    return float(finite @ finite)


def difference(want: np.ndarray, got: np.ndarray) -> float:
    """Energy of the difference where ``want`` is finite; infinite where ``got`` is not, or has another shape."""
    if want.shape != got.shape:
        return np.inf
    found = np.subtract(want, got, dtype=np.float64).ravel()
    energy = float(found @ found)
    if not np.isfinite(energy):  # rarely
        found = found[np.isfinite(want).ravel()]
        energy = float(found @ found)
    return energy if np.isfinite(energy) else np.inf


def changes(want: np.ndarray, got: np.ndarray | None) -> tuple[float, float, float, float]:
    """The same for decisions: their number, how many differ, how many agree, their number."""
    if got is not None and is_longer(want, got):
        ours, theirs = on_common_part(want, got)
        same = float(np.count_nonzero(ours == theirs))
        most = float(max(want.size, got.size))
        return most, most - same, same, float(got.size)
    if got is None or got.shape != want.shape:
        return 0.0, np.inf, 0.0, 0.0
    same = float(np.count_nonzero(want == got))
    return float(want.size), want.size - same, same, float(want.size)


def find_metric(name: str | Metric | None, labels: np.ndarray | None) -> Metric | None:
    """The metric called ``name``, ``module:function``, a function itself, or None for the SQNR alone.

    Raises:
        UsageError: no such metric, or it needs labels and there are none.
    """
    if name is None or name == "sqnr":
        return None
    if not isinstance(name, str):
        return name
    if name == "top1":
        if labels is None:
            raise UsageError("--metric top1 needs --labels FILE")
        return top1
    if name in AGREEMENTS:
        return AGREEMENTS[name]
    if ":" in name:
        return user_function(name, "--metric", partial(_one_number, f"--metric {name}"))
    known = ("top1", *AGREEMENTS, "sqnr")
    raise UsageError(f"--metric {name}: give {', '.join(known)}, or module:function{near(name, known)}")


def value_of(
    metric: Metric, outputs: Sequence[Outputs], reference: Sequence[Outputs], labels: np.ndarray | None
) -> float:
    """A metric of ``outputs``. Raises DataError where it fails, or is no finite number."""
    try:
        if isinstance(metric, Agreement):
            found = metric.of(outputs, reference)
        elif getattr(metric, TRAVELS, False):
            found = metric(outputs, labels)
        else:  # what it changes must not change what others are judged by
            found = metric(copy.deepcopy(outputs), copy.copy(labels))
        return _one_number("the metric", found)
    except InlayError:
        raise
    except (Exception, SystemExit) as error:  # the user's own code
        raise DataError(f"the metric failed: {type(error).__name__}: {error}") from error


def unsure(metric: Metric, bound: Bound, first: float, again: Callable[[], float | None]) -> tuple[Bound, str]:
    """A bound that is narrower by how far two values of the user's own metric differ, and that they do, for people.

    Args:
        metric: known ones give one value.
        bound: of it.
        first: its value of some outputs.
        again: gives the value of the same once more.

    Raises:
        DataError: they differ by more than may be lost.
    """
    most = bound.max_drop
    if most is None or metric is top1 or isinstance(metric, Agreement):
        return bound, ""
    second = again()
    spread = 0.0 if second is None else abs(second - first)
    if spread <= _ROUNDING:
        return bound, ""
    said = f"--metric {bound.metric} changes its mind: of the same outputs it gave {first:g} and {second:g}"
    if spread > most:
        raise DataError(f"{said}, which is more than the {most:g} that may be lost: let it draw the same numbers")
    return replace(bound, max_drop=most - spread), f"{said}, by which its bound was made narrower"


def _one_number(who: str, found: Any) -> float:
    """What a metric of the user returned. Raises DataError where it is no finite number, or several."""
    try:
        value = float(found)
    except OverflowError:
        value = math.inf
    except Exception:  # an array of any library
        shape = getattr(found, "shape", None)
        given = f"{type(found).__name__}" + (f" of shape {tuple(shape)}" if isinstance(shape, tuple) else "")
        raise DataError(f"{who} must return one number, not {given}") from None
    if not math.isfinite(value):
        raise DataError(f"{who} gave {value}: it must be a finite number")
    return value
