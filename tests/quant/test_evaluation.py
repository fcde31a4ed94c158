"""Scores come in many forms and are one value each; what they may be follows from the given model's and the options."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from inlay.errors import DataError, UsageError
from inlay.quant.bound import Bound, EvaluationBound
from inlay.quant.evaluation import (
    Allowed,
    Evaluation,
    Score,
    allowed,
    is_better_higher,
    paired,
    printed_scores,
    read_scores,
)
from inlay.quant.metric_limits import state_metric


def of(found: Any) -> Evaluation:
    return Evaluation(read_scores(found, "mine", "score"))


@pytest.mark.parametrize(
    ("found", "value"),
    [
        (0.5, 0.5),
        (np.float32(0.5), 0.5),
        (np.array(0.5), 0.5),
        ([1, 0, 1, 0], 0.5),
        (np.array([True, False]), 0.5),
        ({"score": 0.5}, 0.5),
        ({"score": {"per_sample": [0.25, 0.75]}}, 0.5),
        ({"score": {"value": 0.5, "higher_is_better": False}}, 0.5),
        ({"score": {"per_sample": [1.0, 0.0], "weights": [1, 3]}}, 0.25),
    ],
)
def test_a_score_in_any_form(found: Any, value: float) -> None:
    scores = read_scores(found, "mine", "score")
    assert [*scores] == ["score"]
    assert scores["score"].value == pytest.approx(value)
    again = Evaluation.from_json(json.loads(json.dumps(Evaluation(scores, 2.0, "so").as_json())))
    assert again.scores["score"].value == pytest.approx(value)
    assert (again.seconds, again.remark) == (2.0, "so")
    assert (again.scores["score"].each is None) is (scores["score"].each is None)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ("0.5", "'0.5'"),
        (None, "None"),
        (True, "True"),
        (float("nan"), "finite"),
        (10**400, "finite"),
        ([1.0, float("inf")], "finite"),
        ([], "one number for each sample"),
        ([[1.0], [2.0]], "one number for each sample"),
        (["a"], "one number for each sample"),
        (object(), "of type object"),
        ({}, "0 scores"),
        ({1: 2.0}, "names are text"),
        ({"a": {"mean": 1.0}}, "give value or per_sample"),
        ({"a": {"value": 0.9, "per_sample": [0.5, 0.5]}}, "the mean of per_sample is 0.5"),
        ({"a": {"per_sample": [0.5, 0.5], "weights": [1]}}, "weights"),
        ({"a": {"value": 0.9, "higher_is_better": "yes"}}, "true or false"),
    ],
)
def test_what_is_no_score_is_said(found: Any, why: str) -> None:
    with pytest.raises(DataError, match=why) as error:
        read_scores(found, "mine", "score")
    assert str(error.value).startswith("mine")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.25\n", 0.25),
        ("loading\n 0.25 \n\n", 0.25),
        ('epoch 3\n{"score": 0.25}\n', 0.25),
        ('{\n  "score": {\n    "value": 0.25\n  }\n}\n', 0.25),
        ('{"score": 0.5}\n{"score": 0.25}\nbye\n', 0.25),
    ],
)
def test_what_a_program_prints_last_counts(text: str, value: float) -> None:
    assert printed_scores(text, "mine", "score")["score"].value == value


@pytest.mark.parametrize(
    ("text", "why"), [("", "printed nothing"), ("accuracy: 0.9\n", "not 'accuracy: 0.9'"), ("nan\n", "finite")]
)
def test_a_program_that_prints_no_score(text: str, why: str) -> None:
    with pytest.raises(DataError, match=why):
        printed_scores(text, "mine", "score")


@pytest.mark.parametrize("name", ["top1", "mAP50-95", "mAP@0.5", "NDCG@10", "val/F1", "ROC_AUC", "accuracy"])
def test_larger_is_better(name: str) -> None:
    assert is_better_higher(name) is True


@pytest.mark.parametrize("name", ["WER", "CER", "val_loss", "word_error_rate", "top5_error", "PER"])
def test_smaller_is_better(name: str) -> None:
    assert is_better_higher(name) is False


@pytest.mark.parametrize("name", ["score", "", "latency_ms", "goodness"])
def test_of_others_nobody_knows(name: str) -> None:
    assert is_better_higher(name) is None


def test_what_a_score_may_lose() -> None:
    found = of({"WER": 0.1, "top1": 0.9, "seconds": 3.0})
    by_drop = {a.name: a for a in allowed(EvaluationBound("mine", 0.02), found, {})}
    assert by_drop.keys() == {"WER", "top1"}, "the third is told only"
    assert by_drop["WER"].loss(0.13) == pytest.approx(0.03)
    assert by_drop["top1"].loss(0.87) == pytest.approx(0.03)
    assert {a.drop for a in by_drop.values()} == {0.02}
    by_limit = {a.name: a.drop for a in allowed(EvaluationBound("mine", None, (("top1", 0.85),)), found, {})}
    assert by_limit == {"WER": None, "top1": pytest.approx(0.05)}
    assert [a.drop for a in allowed(EvaluationBound("mine"), of({"mAP": 40.0}), {})] == [pytest.approx(0.4)], "1 %"
    assert all(a.drop is None for a in allowed(EvaluationBound("mine", is_free=True), found, {}))


@pytest.mark.parametrize(
    ("bound", "found", "why"),
    [
        (EvaluationBound("mine"), {"score": 1.0}, "--higher-is-better or --lower-is-better"),
        (EvaluationBound("mine", None, (("top1", 0.95),)), {"top1": 0.9}, "the given model itself has 0.9"),
        (EvaluationBound("mine", None, (), (("WER", 0.05),)), {"WER": 0.1}, "the given model itself has 0.1"),
        (EvaluationBound("mine", None, (("top5", 0.5),)), {"top1": 0.9}, "no such score, but top1"),
        (EvaluationBound("mine", 0.95), {"top1": 0.9}, "bounds nothing"),
    ],
)
def test_what_cannot_be_bounded_is_refused(bound: EvaluationBound, found: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        allowed(bound, of(found), {})


def test_an_evaluation_that_changes_its_mind_by_more_than_is_allowed_decides_nothing() -> None:
    found = of({"top1": 0.9})
    with pytest.raises(UsageError, match=r"differ by 0\.02 for one and the same model"):
        allowed(EvaluationBound("mine", 0.01), found, {"top1": 0.02})
    assert allowed(EvaluationBound("mine", 0.03), found, {"top1": 0.02})[0].drop == pytest.approx(0.01)


@pytest.mark.parametrize("higher", [True, False])
def test_counts_of_either_direction_have_one_limit(higher: bool) -> None:
    """Accuracy and error rate of the same answers say the same."""
    rng = np.random.default_rng(0)
    ours = rng.random(300) < 0.95
    theirs = ours & (rng.random(300) < 0.99)
    each = [y.astype(float) if higher else 1.0 - y for y in (ours, theirs)]
    scores = [Score(float(y.mean()), y) for y in each]
    pairs = paired(Allowed("s", higher, scores[0].value, 0.1), *scores)
    assert pairs is not None
    said = state_metric(pairs, 0.1, rng, lambda: 0.0)
    lost = int((ours & ~theirs).sum())
    assert (said.method, said.keeps_bound) == ("exact", True)
    assert said.drop == pytest.approx(lost / 300)
    assert said.hits is not None
    assert (said.hits["lost"], said.hits["won"]) == (lost, 0)
    assert ("below float" in str(said)) is higher
    assert ("above float" in str(said)) is not higher


def test_means_have_a_bootstrap_of_pairs_that_holds_as_often_as_it_says() -> None:
    """Of word error rates, weighted by words, whose true rise is known."""
    held, rng = [], np.random.default_rng(1)
    for _ in range(60):
        words = rng.integers(3, 20, 80).astype(float)
        ours = rng.random(80) * 0.2
        theirs = ours + rng.exponential(0.02, 80)
        scores = [Score(float(np.average(y, weights=words)), y, words) for y in (ours, theirs)]
        pairs = paired(Allowed("WER", False, scores[0].value, None), *scores)
        assert pairs is not None
        said = state_metric(pairs, None, rng, lambda: 0.0)
        assert said.most_drop is not None
        held.append(said.most_drop >= 0.02)
    assert np.mean(held) >= 0.85


def test_the_bound_in_words() -> None:
    assert str(Bound(evaluation=EvaluationBound("mine", 0.01))) == "scores worse than float by 0.01 at most, by mine"
    assert str(Bound(evaluation=EvaluationBound("mine", None, (("top1", 0.9),)))) == "top1 at least 0.9, by mine"
    assert Bound(evaluation=EvaluationBound("mine", is_free=True)).is_none
