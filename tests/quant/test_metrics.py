"""Metrics of agreement with the float model: what they count, what they leave out, and that a bound on them holds."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from inlay.data import Feed, Samples
from inlay.errors import UsageError
from inlay.quant.accuracy import Bound, Judge, find_metric
from inlay.quant.metrics import top1
from tests.support.texts import text

Sample = dict[str, np.ndarray]


def judge(name: str, reference: list[Sample], feeds: list[Feed] | None = None, drop: float = 0.2) -> Judge:
    samples = Samples(tuple(feeds or [{"x": np.zeros(1)}] * len(reference)), "feeds", "test")
    return Judge(reference, samples, Bound(metric=name, max_drop=drop), find_metric(name, None))


def test_classes_agree_where_the_largest_score_is_the_same_one() -> None:
    reference = [{"scores": np.eye(4)[[k]]} for k in (0, 1, 2, 3)]
    judged = judge("top1-agreement", reference)
    assert judged.float_metric == 1.0
    other = [{"scores": np.eye(4)[[k]]} for k in (0, 1, 2, 0)]
    found = judged.judge(other)
    assert (found.metric, found.drop, found.feasible) == (0.75, 0.25, False)
    assert judged.judge([{"scores": 3 * s["scores"] + 1} for s in reference]).metric == 1.0, "whatever the scale"
    assert judged.judge([{"scores": np.zeros((1, 5))} for _ in reference]).metric == 0.0, "another shape agrees nowhere"


def test_float_s_class_is_among_the_first_five() -> None:
    """By a sorted list, ties in order: equal numbers, or none, put no class in front."""
    rng = np.random.default_rng(0)
    reference = [{"scores": rng.standard_normal((1, 12))} for _ in range(40)]
    other = [{"scores": rng.integers(0, 4, (1, 12)).astype(float)} for _ in reference]
    best = [int(y["scores"].argmax()) for y in reference]
    hits = [k in sorted(range(12), key=lambda i: (-y["scores"][0, i], i))[:5] for k, y in zip(best, other, strict=True)]
    judged = judge("top5-agreement", reference)
    assert judged.judge(other).metric == np.mean(hits)
    assert 0.0 < np.mean(hits) < 1.0
    for nothing in (0.0, np.nan):
        found = judged.judge([{"scores": np.full((1, 12), nothing)} for _ in reference])
        assert found.metric == np.mean([k < 5 for k in best])


def test_tokens_agree_position_by_position_and_caches_do_not_count() -> None:
    rng = np.random.default_rng(0)
    reference = [
        {"present.0.key": rng.standard_normal((1, 2, 5, 3)), "logits": rng.standard_normal((1, 5, 9))} for _ in range(2)
    ]
    other = [{n: y.copy() for n, y in s.items()} for s in reference]
    other[0]["present.0.key"] += 100.0
    judged = judge("token-agreement", reference)
    assert judged.judge(other).metric == 1.0
    at = int(other[1]["logits"][0, 2].argmax())
    other[1]["logits"][0, 2, at] = -100.0
    found = judged.judge(other)
    assert found.metric == 0.9
    assert found.feasible


def test_vectors_are_compared_by_their_angle_in_the_worst_output() -> None:
    reference = [{"first": np.array([[1.0, 0.0]]), "second": np.array([[0.0, 0.0]])}]
    judged = judge("cosine", reference)
    assert judged.judge([{"first": np.array([[5.0, 0.0]]), "second": np.zeros((1, 2))}]).metric == 1.0
    found = judged.judge([{"first": np.array([[1.0, 1.0]]), "second": np.zeros((1, 2))}])
    assert found.metric == pytest.approx(np.sqrt(0.5))
    assert judged.judge([{"first": np.array([[np.nan, 1.0]]), "second": np.zeros((1, 2))}]).metric == -1.0


@pytest.mark.parametrize("name", ["token-agreement", "cosine"])
def test_padding_does_not_count(name: str) -> None:
    rng = np.random.default_rng(0)
    feeds = [text(rng, 4, 9)]
    reference = [{"logits": rng.standard_normal((1, 9, 5))}]
    in_padding, in_text = (reference[0]["logits"].copy() for _ in range(2))
    in_padding[:, 4:] *= -1
    in_text[:, :2] *= -1
    judged = judge(name, reference, feeds)
    assert judged.judge([{"logits": in_padding}]).metric == pytest.approx(1.0)
    assert judged.judge([{"logits": in_text}]).metric == pytest.approx(0.5 if name == "token-agreement" else 0.0)


def test_names_that_are_none_are_listed() -> None:
    with pytest.raises(
        UsageError, match="give top1, top1-agreement, top5-agreement, token-agreement, cosine, sqnr, or module:function"
    ):
        find_metric("accuracy", None)


@pytest.mark.parametrize("kind", ["int64", "str"])
def test_a_model_that_names_classes_is_judged_by_these(kind: str) -> None:
    """As scikit-learn's classifiers do, whose classes need not count from 0; scores stand behind them."""
    classes, wanted = np.array([3, 9, 5, 9]), np.array([3, 9, 5, 7])
    outputs = [{"label": np.array([k]).astype(kind), "scores": np.eye(10)[[0]]} for k in classes]
    assert top1(outputs, wanted.astype(kind)) == 0.75
    assert top1([{"label": classes.astype(kind)}], wanted.astype(kind)[None]) == 0.75, "and so in a batch"
    assert top1([{"scores": np.eye(10)[[k]]} for k in classes], wanted) == 0.75, "of scores, the largest"
    assert top1([{"scores": 9 * np.eye(10, dtype=np.uint8)[[k]]} for k in classes], wanted) == 0.75, "in integers, too"


@pytest.mark.parametrize("name", ["top1", "top1-agreement", "top5-agreement"])
def test_one_score_for_each_row_is_no_classification(name: str) -> None:
    """The first of one is the largest, whatever a model makes of it."""
    labels = np.zeros(4, np.int64)
    samples = Samples(({"x": np.zeros(1)},) * 4, "feeds", "test", labels)
    metric = find_metric(name, labels)
    for width, refused in ((1, True), (2, False)):
        reference = [{"y": np.full((1, width), 0.3)} for _ in labels]
        judged = Judge(reference, samples, Bound(metric=name, max_drop=0.2), metric)
        with (
            pytest.raises(UsageError, match=f"--metric {name}: output y holds one number")
            if refused
            else contextlib.nullcontext()
        ):
            judged.refuse_idle_bound()
