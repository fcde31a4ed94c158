"""What the user's own evaluation says of a whole model: scores by name, and how much worse than float's they may be.

A score is one number, or the mean of one number for each sample: then the same samples of two models are compared in
pairs, and what they say of new ones is an interval (:mod:`inlay.quant.metric_limits`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inlay.errors import DataError, UsageError
from inlay.quant.bound import DEFAULT_DROP, EvaluationBound
from inlay.quant.metric_limits import Pairs
from inlay.trial import plain

_LARGER = frozenset(
    {
        *("accuracy", "acc", "agreement", "ap", "auc", "auprc", "auroc", "bleu", "chrf", "cosine", "dice", "f1"),
        *("fscore", "hits", "iou", "kappa", "map", "mcc", "meteor", "miou", "mrr", "ndcg", "pearson", "pesq"),
        *("precision", "psnr", "recall", "rocauc", "rouge", "rougel", "sisdr", "spearman", "ssim", "stoi", "top"),
    }
)
"""Names of scores of which larger ones are better, without digits at the end (top1, mAP50, recall@10)."""
_SMALLER = frozenset(
    {
        *("cer", "der", "eer", "error", "errorrate", "errors", "fid", "kl", "loss", "mae", "mape", "mcd", "mse"),
        *("nll", "per", "perplexity", "ppl", "rmse", "ter", "wer"),
    }
)
"""The same where smaller ones are."""
_MOST_NAMES = 64
_MOST_SAMPLES = 10_000_000
_MEAN_DIFFERS = 1e-4
"""Relative difference of a value from the mean of its samples beyond which it is another figure: people round."""
_LINES = 200  # from the end of what a program printed, among which its answer is looked for
_SHOWN = 60


@dataclass(frozen=True, eq=False)
class Score:
    """One score of a model."""

    value: float  # the score
    each: np.ndarray | None = None  # of each sample, shape (samples,); None where only the value was told
    # of each sample in the mean, such as its words, shape (samples,); None where all count alike
    weights: np.ndarray | None = None
    higher_is_better: bool | None = None  # None where that was not told with it


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The scores of one model."""

    scores: Mapping[str, Score]  # by name, at least one
    seconds: float = 0.0  # that finding them took
    remark: str = ""  # what the user should know of the evaluation, if anything

    def as_json(self) -> dict[str, Any]:
        """As plain data; see :meth:`from_json`."""
        told = {
            name: {
                "value": s.value,
                "per_sample": None if s.each is None else s.each.tolist(),
                "weights": None if s.weights is None else s.weights.tolist(),
                "higher_is_better": s.higher_is_better,
            }
            for name, s in self.scores.items()
        }
        return {"scores": told, "seconds": self.seconds, "remark": self.remark}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Evaluation:
        """The evaluation that gave ``data``."""
        told = {
            name: {key: value for key, value in score.items() if value is not None}
            for name, score in data["scores"].items()
        }
        return cls(read_scores(told, "the journal", ""), float(data["seconds"]), str(data["remark"]))


def read_scores(found: Any, who: str, name: str) -> dict[str, Score]:
    """What an evaluation returned, as scores by name.

    Args:
        found: a number; numbers, one for each sample; or a mapping from names to these, or to a mapping with ``value``
            and ``per_sample`` (at least one of both), ``weights`` and ``higher_is_better``.
        name: of a score that comes without one.

    Raises:
        DataError: it is something else, or holds a number that is not finite.
    """
    if not isinstance(found, Mapping):
        return {name: _score(found, who, name)}
    if not found or len(found) > _MOST_NAMES:
        raise DataError(f"{who} returned {len(found)} scores: give at least one, and at most {_MOST_NAMES}")
    wrong = next((key for key in found if not isinstance(key, str) or not key.strip()), None)
    if wrong is not None:
        raise DataError(f"{who} returned a score under {wrong!r:.{_SHOWN}}: names are text")
    return {key: _score(value, who, key) for key, value in found.items()}


def printed_scores(text: str, who: str, name: str) -> dict[str, Score]:
    """The same of what a program printed: the last number, or JSON object, that stands on lines of its own.

    Raises:
        DataError: there is none among the last lines, or it is no score.
    """
    lines = text.splitlines()[-_LINES:]
    for end in range(len(lines) - 1, -1, -1):
        line = lines[end].strip()
        if not line.endswith("}"):
            number = _number(line)
            if number is not None:
                return read_scores(number, who, name)
            continue
        for start in range(end, -1, -1):
            if lines[start].lstrip().startswith("{"):
                try:
                    found = json.loads("\n".join(lines[start : end + 1]))
                except (ValueError, RecursionError):
                    continue
                if isinstance(found, dict):
                    return read_scores(found, who, name)
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    shown = f"not {last[:_SHOWN]!r}" if last else "but it printed nothing"
    raise DataError(f"{who} must print a number or a JSON object on the last line of its standard output, {shown}")


def is_better_higher(name: str) -> bool | None:
    """Whether larger scores of a known name are better; None where the name is not known."""
    plain = re.sub(r"@.*$", "", name.lower())
    words = [w for w in re.split(r"[^a-z0-9]+", plain) if w]
    for known in ("".join(words), "".join(words[-2:]), *words[-1:]):
        for each in (known, known.rstrip("0123456789")):
            if each in _LARGER or each in _SMALLER:
                return each in _LARGER
    return None


@dataclass(frozen=True)
class Allowed:
    """How far one score may be from float's."""

    name: str  # of the score
    higher_is_better: bool  # or smaller
    value: float  # float's
    drop: float | None  # most that it may get worse, in its own units; None where it is told only

    def loss(self, value: float) -> float:
        """How much worse than float's a value is; negative where it is better."""
        return self.value - value if self.higher_is_better else value - self.value


def allowed(bound: EvaluationBound, found: Evaluation, spread: Mapping[str, float]) -> tuple[Allowed, ...]:
    """What the scores of the given model, and what was asked for, allow others; scores without a direction not.

    Args:
        spread: of each score between two calls with the same model, by which it may fall less.

    Raises:
        UsageError: the given model itself is outside the bound, a name is unknown, or no score has a direction; or the
            scores differ from call to call by more than they may fall.
    """
    least, most, who = dict(bound.least), dict(bound.most), f"--evaluate {bound.evaluator}"
    for option, limits in (("--min", least), ("--max", most)):
        unknown = next((name for name in limits if name not in found.scores), None)
        if unknown is not None:
            raise UsageError(f"{option} {unknown}: {who} returns no such score, but {', '.join(found.scores)}")
    result = []
    for name, score in found.scores.items():
        higher = True if name in least else False if name in most else _direction(name, score, bound)
        if higher is None:
            continue
        drop = None if bound.is_free else _drop(bound, name, score.value, higher)
        differs = spread.get(name, 0.0)
        if drop is not None and differs > drop:
            raise UsageError(
                f"{who} gives {name} values that differ by {plain(spread[name])} for one and the same model, more than "
                f"the {plain(drop)} that it may get worse: fix its seeds, or allow more by --max-drop"
            )
        result.append(Allowed(name, higher, score.value, None if drop is None else drop - differs))
    if not result:
        raise UsageError(
            f"{who} returns {', '.join(found.scores)}: say whether that is better by --higher-is-better or "
            "--lower-is-better"
        )
    return tuple(result)


def _drop(bound: EvaluationBound, name: str, value: float, higher: bool) -> float | None:
    limit = dict(bound.least if higher else bound.most).get(name)
    drops = []
    if limit is not None:
        spare = value - limit if higher else limit - value
        if spare < 0.0:
            option = "--min" if higher else "--max"
            raise UsageError(f"{option} {name}={limit:g}: the given model itself has {plain(value, 6)}")
        drops.append(spare)
    if bound.max_drop is not None:
        if higher and 0.0 <= value <= bound.max_drop:
            raise UsageError(f"--max-drop {bound.max_drop:g} bounds nothing: the given model's {name} is {value:g}")
        drops.append(bound.max_drop)
    elif not bound.least and not bound.most:
        drops.append(DEFAULT_DROP * max(1.0, abs(value)))
    return min(drops, default=None)


def paired(allowed: Allowed, float_score: Score, score: Score) -> Pairs | None:
    """A score of float and of another model on the same samples; None without values of each."""
    if float_score.each is None or score.each is None or float_score.each.size != score.each.size:
        return None
    sign = 1.0 if allowed.higher_is_better else -1.0
    ours, theirs = float_score.each, score.each
    weights = score.weights if score.weights is not None else np.ones(theirs.size)
    differences = sign * (ours - theirs)
    counts = score.weights is None and all(np.isin(y, (0.0, 1.0)).all() for y in (ours, theirs))
    right = 1.0 if allowed.higher_is_better else 0.0
    return Pairs(
        name=allowed.name,
        value=score.value,
        drop=allowed.loss(score.value),
        samples=theirs.size,
        hits=(ours == right, theirs == right) if counts else None,
        is_agreement=False,
        drop_of=lambda chosen: _mean(differences[chosen], weights[chosen]),
        higher_is_better=allowed.higher_is_better,
    )


def _direction(name: str, score: Score, bound: EvaluationBound) -> bool | None:
    if score.higher_is_better is not None:
        return score.higher_is_better
    known = is_better_higher(name)
    return bound.higher_is_better if known is None else known


def _score(found: Any, who: str, name: str) -> Score:
    if not isinstance(found, Mapping):
        value, each = _value_or_each(found, who, name)
        return Score(value, each)
    known = {"value", "per_sample", "weights", "higher_is_better"}
    if not known & {"value", "per_sample"} & found.keys() or not found.keys() <= known:
        raise DataError(f"{who} returned {name} with {', '.join(map(str, found))}: give value or per_sample")
    higher = found.get("higher_is_better")
    if higher is not None and not isinstance(higher, bool | np.bool_):
        raise DataError(f"{who}: higher_is_better of {name} is true or false, not {higher!r:.{_SHOWN}}")
    each = weights = None
    if found.get("per_sample") is not None:
        each = _array(found["per_sample"], who, f"{name}, per_sample")
        if found.get("weights") is not None:
            weights = _array(found["weights"], who, f"{name}, weights")
            if weights.shape != each.shape or not (weights >= 0.0).all() or not weights.any():
                raise DataError(f"{who}: weights of {name} are one for each sample, and not negative")
    mean = None if each is None else _mean(each, np.ones(each.size) if weights is None else weights)
    if found.get("value") is None:
        assert mean is not None, "one of both is there"
        return Score(mean, each, weights, None if higher is None else bool(higher))
    value, _ = _value_or_each(found["value"], who, name)
    if mean is not None and abs(value - mean) > _MEAN_DIFFERS * max(1.0, abs(mean)):
        raise DataError(
            f"{who}: the value of {name} is {plain(value, 6)}, but the mean of per_sample is {plain(mean, 6)}; "
            "give weights if samples count differently, or leave one of both away"
        )
    return Score(value, each, weights, None if higher is None else bool(higher))


def _value_or_each(found: Any, who: str, name: str) -> tuple[float, np.ndarray | None]:
    if isinstance(found, str | bytes | bool | type(None)):
        raise DataError(f"{who} must return numbers, but {name} is {found!r:.{_SHOWN}}")
    if isinstance(found, Sequence) or getattr(found, "ndim", None):
        each = _array(found, who, name)
        return float(each.mean()), each
    try:
        value = float(found)
    except OverflowError:
        value = math.inf
    except Exception:  # an object of any library
        raise DataError(f"{who} must return numbers, but {name} is of type {type(found).__name__}") from None
    if not math.isfinite(value):
        raise DataError(f"{who}: {name} is {value}; it must be a finite number")
    return value, None


def _array(found: Any, who: str, name: str) -> np.ndarray:
    wrong = DataError(f"{who}: {name} must be one number for each sample")
    try:
        each = np.asarray(found, np.float64)
    except Exception:  # an object of any library
        raise wrong from None
    if each.ndim != 1 or not 0 < each.size <= _MOST_SAMPLES:
        raise wrong
    if not np.isfinite(each).all():
        raise DataError(f"{who}: {name} holds {each[~np.isfinite(each)][0]}; every number must be finite")
    return each


def _number(line: str) -> float | None:
    try:
        return float(line)
    except ValueError:
        return None


def _mean(values: np.ndarray, weights: np.ndarray) -> float:
    total = float(weights.sum())
    return float((values * weights).sum() / total) if total else 0.0
