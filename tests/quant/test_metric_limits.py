"""Limits of a metric's drop hold as often as they say, and what samples cannot show is said."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import binomtest

from inlay.data import Samples
from inlay.errors import DataError
from inlay.quant.accuracy import Bound, Judge, Outputs, find_metric
from inlay.quant.metric_limits import LEAST_RESAMPLED, Pairs, hits_needed, most_lost, state_metric
from inlay.quant.metrics import Metric
from tests.support.examples import examples


def clock() -> float:
    return 0.0


def judge(reference: Sequence[Outputs], bound: Bound, metric: Metric | None, labels: object = None) -> Judge:
    feeds = tuple({"x": np.zeros(1, np.float32)} for _ in reference)
    truth = None if labels is None else np.asarray(labels)
    return Judge(reference, Samples(feeds, "feeds", "", truth), bound, metric, confidence=None)


def scores(classes: Sequence[int], count: int = 4) -> list[Outputs]:
    return [{"y": np.eye(count, dtype=np.float32)[[c]]} for c in classes]


def resampled(difference: np.ndarray) -> Pairs:
    """A metric that is the mean of each sample's, lower by ``difference``."""
    mean = float(difference.mean())
    return Pairs(
        name="m",
        value=-mean,
        drop=mean,
        samples=difference.size,
        hits=None,
        is_agreement=False,
        drop_of=lambda i: float(difference[i].mean()),
    )


@pytest.mark.parametrize("rates", [(0.02, 0.01), (0.1, 0.1), (0.3, 0.0)])
def test_the_limit_of_counts_is_broken_in_at_most_its_share(rates: tuple[float, float]) -> None:
    """Float is right alone, the other alone, in so many of 200 samples."""
    lost, won = rates
    draws = np.random.default_rng(1).multinomial(200, [lost, won, 1.0 - lost - won], 400)
    held = [most_lost(int(a), int(b), 200) >= lost - won for a, b, _ in draws]
    assert np.mean(held) >= 0.93


@pytest.mark.parametrize("counts", [(0, 0), (3, 1), (10, 0), (0, 10)])
def test_limits_of_counts_are_those_of_scipy(counts: tuple[int, int]) -> None:
    """Clopper and Pearson's, at half the error each; all of it for an agreement, which wins nothing."""
    lost, won = (binomtest(k, 10).proportion_ci(0.95, "exact") for k in counts)
    assert most_lost(*counts, 10) == pytest.approx(lost.high - won.low)
    one_sided = binomtest(10 - counts[0], 10, alternative="greater").proportion_ci(0.95, "exact")
    assert most_lost(counts[0], 0, 10, is_agreement=True) == pytest.approx(1.0 - one_sided.low)


def test_the_number_needed_is_enough_and_the_one_before_is_not() -> None:
    assert hits_needed(0.0, 0.0, 0.01, is_agreement=True) == 299  # the first of 0.99^n below 0.05
    for lost in (0.0, 0.002, 0.005):
        n = hits_needed(lost, 0.0, 0.01, is_agreement=True)
        assert n is not None
        assert most_lost(int(np.ceil(lost * n)), 0, n, is_agreement=True) <= 0.01
    assert hits_needed(0.01, 0.0, 0.01, is_agreement=True) is None
    wanted = [hits_needed(f, 0.0, 0.05, is_agreement=False) or 0 for f in (0.0, 0.01, 0.02)]
    assert all(a < b for a, b in itertools.pairwise(wanted))


def test_an_agreement_is_told_as_a_count_with_its_exact_limit() -> None:
    classes = [i % 4 for i in range(64)]
    changed = [(c + 1) % 4 if i in (5, 40) else c for i, c in enumerate(classes)]
    bound = Bound(metric="top1-agreement", max_drop=0.1)
    pairs = judge(scores(classes), bound, find_metric("top1-agreement", None)).pairs(scores(changed))
    assert pairs is not None
    said = state_metric(pairs, bound.max_drop, np.random.default_rng(0), clock)
    assert said.hits == {"right": 62, "of": 64, "lost": 2}
    low = binomtest(62, 64, alternative="greater").proportion_ci(0.95, "exact").low
    assert said.most_drop == pytest.approx(1.0 - low)
    assert said.keeps_bound
    assert str(said) == "top1-agreement 62 of 64: at least 90.4 % of new ones, with 95% confidence"
    stricter = state_metric(pairs, 0.05, np.random.default_rng(0), clock)
    assert not stricter.keeps_bound
    assert f"{stricter.needed} would be needed to state a drop of at most 0.05" in str(stricter)


def test_labelled_hits_are_paired() -> None:
    """What both models have wrong has no share in the drop: ten of these narrow nothing and widen nothing."""
    labels = [0] * 40
    ours, theirs = [0] * 28 + [1] * 12, [1, 1] + [0] * 27 + [1] * 11
    bound = Bound(metric="top1", max_drop=0.2)
    pairs = judge(scores(ours), bound, find_metric("top1", np.array(labels)), labels).pairs(scores(theirs))
    assert pairs is not None
    said = state_metric(pairs, bound.max_drop, np.random.default_rng(0), clock)
    assert said.hits == {"right": 27, "of": 40, "lost": 2, "won": 1}
    assert said.most_drop == pytest.approx(most_lost(2, 1, 40))
    assert said.drop == pytest.approx(1 / 40)
    assert str(said).startswith("top1 27 of 40 (2 lost, 1 won): at most 0.1")


@pytest.mark.exhaustive
def test_a_bootstrap_holds_the_true_drop_and_keeps_pairs_together() -> None:
    rng, held, margins = np.random.default_rng(2), [], []
    for _ in range(examples(60)):
        difference = rng.exponential(1.0, 60)
        common = rng.normal(0.0, 10.0, 60)
        labels = np.arange(60)
        reference = [{"y": np.array([v])} for v in common]
        outputs = [{"y": np.array([v])} for v in common - difference]
        bound = Bound(metric="mean", max_drop=2.0)
        metric: Metric = lambda y, _: float(np.mean([each["y"][0] for each in y]))  # noqa: E731
        pairs = judge(reference, bound, metric, labels).pairs(outputs)
        assert pairs is not None
        said = state_metric(pairs, bound.max_drop, rng, clock)
        assert said.most_drop is not None
        held.append(said.most_drop >= 1.0)
        margins.append(said.most_drop - said.drop)
    assert np.mean(held) >= 0.85
    assert np.median(margins) < 0.5  # 10 / sqrt(60) apart


def test_too_few_samples_say_how_many_a_bootstrap_takes() -> None:
    said = state_metric(resampled(np.arange(5.0)), 2.5, np.random.default_rng(0), clock)
    assert (said.most_drop, said.needed, said.method, said.keeps_bound) == (None, LEAST_RESAMPLED, "none", False)
    assert "a bootstrap takes 20" in str(said)


def test_no_change_in_any_sample_is_no_proof() -> None:
    """Draws of zeros are all zero, which says nothing of what is rarer: 1 - 0.05^(1/30) of new ones may change it."""
    said = state_metric(resampled(np.zeros(30)), 0.5, np.random.default_rng(0), clock)
    assert said.most_drop is None
    assert "none of them changes it; at most 9.5 % of new ones would" in str(said)


def test_a_metric_that_has_no_value_of_drawn_samples_is_told() -> None:
    def fails(chosen: np.ndarray) -> float:
        if np.unique(chosen).size < chosen.size:
            raise DataError("one class only")
        return 0.1

    said = state_metric(
        Pairs(name="auc", value=0.8, drop=0.1, samples=30, hits=None, is_agreement=False, drop_of=fails),
        0.5,
        np.random.default_rng(0),
        clock,
    )
    assert "one class only" in str(said)


def test_a_slow_metric_has_no_bootstrap() -> None:
    seconds = itertools.count(0.0, 1.0)
    said = state_metric(resampled(np.arange(30.0)), None, np.random.default_rng(0), lambda: next(seconds))
    assert "the metric takes 1 s" in str(said)
