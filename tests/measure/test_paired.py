"""Readings in blocks and their ratios: estimates and intervals against brute force and by simulation."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import wilcoxon

from inlay.measure.paired import MIN_PAIRS, Series, Timing, hodges_lehmann, joined, read_again, speedup
from inlay.trial import Interval

numbers = arrays(np.float64, st.integers(1, 25), elements=st.floats(-100, 100))


@given(numbers)
def test_the_estimate_is_the_median_of_walsh_averages(d: np.ndarray) -> None:
    walsh = [(a + b) / 2 for a, b in itertools.combinations_with_replacement(d.tolist(), 2)]
    found = hodges_lehmann(d)
    assert found.value == pytest.approx(np.median(walsh))
    assert found.low <= found.value <= found.high
    assert (found.low == -np.inf) == (d.size < MIN_PAIRS)


@given(numbers, st.floats(-50, 50), st.floats(0.1, 10))
def test_it_moves_and_scales_with_the_data(d: np.ndarray, shift: float, scale: float) -> None:
    plain, moved = hodges_lehmann(d), hodges_lehmann(d * scale + shift)
    for a, b in zip((plain.value, plain.low, plain.high), (moved.value, moved.low, moved.high), strict=True):
        assert b == pytest.approx(a * scale + shift, abs=1e-6)


@given(numbers)
def test_order_does_not_matter_and_signs_mirror(d: np.ndarray) -> None:
    plain, mirrored = hodges_lehmann(d), hodges_lehmann(-d[::-1])
    assert mirrored.value == pytest.approx(-plain.value)
    assert (mirrored.low, mirrored.high) == pytest.approx((-plain.high, -plain.low))


@pytest.mark.parametrize("n", [6, 7, 10, 15, 24, 40])
def test_the_interval_is_the_wilcoxon_test_turned_round(n: int) -> None:
    """A shift lies inside the 95 % interval exactly when the exact two-sided signed-rank test keeps it at 5 %."""
    rng = np.random.default_rng(n)
    for _ in range(5):
        d = rng.standard_normal(n)
        found = hodges_lehmann(d)
        width = found.high - found.low
        for shift, inside in (
            (found.low + 1e-9 * width, True),
            (found.low - 1e-9 * width, False),
            (found.high - 1e-9 * width, True),
            (found.high + 1e-9 * width, False),
        ):
            kept = wilcoxon(d - shift, method="exact").pvalue > 0.05
            assert kept == inside


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("n", [6, 8, 12, 24, 60])
@pytest.mark.parametrize("draw", ["normal", "laplace", "bursts"])
def test_the_interval_covers_the_truth_as_often_as_it_says(n: int, draw: str) -> None:
    rng = np.random.default_rng(5)
    rounds, truth = 3000, 0.02
    covered = 0
    for _ in range(rounds):
        noise = rng.laplace(0, 0.01, n) if draw == "laplace" else rng.normal(0, 0.01, n)
        if draw == "bursts":
            noise += np.where(rng.random(n) < 0.1, 0.4, 0.0) * rng.choice([-1, 1], n)
        found = hodges_lehmann(truth + noise)
        covered += found.low <= truth <= found.high
    # two and a half standard errors of a binomial share at 95 %: six pairs off by one rank (93.75 %) would fail
    assert covered / rounds >= 0.95 - 2.5 * np.sqrt(0.95 * 0.05 / rounds)


def test_speedup_of_known_ratios() -> None:
    base = np.array([100.0, 110.0, 90.0, 105.0, 95.0, 100.0, 102.0])
    found = speedup(Series(base), Series(base / 2.0))
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    assert found.shows_gain()
    assert not found.excludes_gain()
    slower = speedup(Series(base), Series(base * 1.25))
    assert slower.value == pytest.approx(0.8)
    assert slower.excludes_gain()
    few = speedup(Series(base[:3]), Series(base[:3] / 2.0))
    assert (few.low, few.high) == (0.0, np.inf)
    assert not few.shows_gain(), "three pairs show nothing"


def test_no_data_shows_nothing() -> None:
    found = hodges_lehmann(np.empty(0))
    assert (found.low, found.high) == (-np.inf, np.inf)


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("pairs", [6, 7, 8, 9])
def test_a_clear_case_is_clear_from_few_pairs_and_chance_is_not(pairs: int) -> None:
    """At a level that ranks of so few cannot reach; also with interruptions in one reading of ten."""
    rng = np.random.default_rng(pairs)
    level, runs = 0.998, 4000
    noise = rng.normal(0.0, 0.02, (runs, pairs)) + np.where(rng.random((runs, pairs)) < 0.1, 0.2, 0.0)
    noise -= rng.normal(0.0, 0.02, (runs, pairs)) + np.where(rng.random((runs, pairs)) < 0.1, 0.2, 0.0)
    found = [hodges_lehmann(each, level) for each in noise]
    assert np.mean([i.low > 0.0 for i in found]) <= 2.0 * (1.0 - level) / 2.0
    assert np.mean([i.low <= 0.0 <= i.high for i in found]) >= level - 0.002
    clear = [hodges_lehmann(each + np.log(2.0), level) for each in noise[:500]]
    assert np.mean([i.low > 0.0 for i in clear]) > 0.9


def _covers(processes: int, between: float, told: bool, runs: int = 300) -> float:
    """How often the interval holds the truth, where processes of eight blocks differ by ``between``, blocks by 1 %."""
    rng, found = np.random.default_rng(0), 0
    numbers = np.repeat(np.arange(processes), 8)
    for _ in range(runs):
        logs = rng.normal(0.0, between, processes)[numbers] + rng.normal(0.0, 0.01, len(numbers))
        gain = speedup(Series(np.exp(logs), processes=numbers if told else None), Series(np.ones(len(logs))))
        found += gain.low <= 1.0 <= gain.high
    return found / runs


@pytest.mark.parametrize("processes", [3, 6])
def test_blocks_of_one_process_are_not_so_many_readings(processes: int) -> None:
    """What a process drew once is in all of its blocks."""
    assert _covers(processes, 0.01, told=False) < 0.8, "negative control: as if every block were a reading of its own"
    assert _covers(processes, 0.01, told=True) >= 0.9
    assert _covers(processes, 0.0, told=True) >= 0.93


def _with_earlier(between: float, moments: float, told: bool) -> tuple[float, float]:
    """Of three processes of eight blocks behind three others at another moment: how often the truth is covered, width.

    Processes differ by ``between``, moments by ``moments``, blocks by 1 %; the truth is the mean of all moments.
    """
    rng, numbers, even = np.random.default_rng(1), np.repeat(np.arange(3), 8), Series(np.ones(24))
    found, widths, runs = 0, 0.0, 300
    for _ in range(runs):
        drawn = rng.normal(0.0, moments, 2)[:, None] + rng.normal(0.0, between, (2, 3))[:, numbers]
        before, now = np.exp(drawn + rng.normal(0.0, 0.01, (2, 24)))
        series = Series(now, processes=numbers)
        if told:
            series, even = series.after(Series(before, processes=numbers)), even.after(Series(np.ones(24)))
        gain = speedup(series, even)
        found += gain.low <= 1.0 <= gain.high
        widths += math.log(gain.high / gain.low) / runs
    return found / runs, widths


def test_earlier_processes_tell_how_processes_and_moments_differ() -> None:
    """Six processes tell more of that than three: wider where moments differ, and no wider where they do not."""
    _, alone_width = _with_earlier(0.01, 0.0, told=False)
    both, both_width = _with_earlier(0.01, 0.0, told=True)
    assert both >= 0.92
    assert both_width < alone_width
    assert _with_earlier(0.0, 0.02, told=False)[0] < 0.5, "negative control: one moment tells nothing of others"
    assert _with_earlier(0.0, 0.02, told=True)[0] > 0.5


def test_beside_other_processes_moments_differ_by_more_than_a_moment_tells() -> None:
    """Where moments differ by what was seen beside load, the interval of one covers that of all; quiet ones stay."""
    rng, numbers, even, runs = np.random.default_rng(3), np.repeat(np.arange(3), 8), Series(np.ones(24)), 300
    found = {True: 0, False: 0}
    for _ in range(runs):
        series = Series(np.exp(rng.normal(0.0, 0.027) + rng.normal(0.0, 0.06, 24)), processes=numbers)
        for busy in found:
            gain = speedup(replace(series, busy=busy), even)
            found[busy] += gain.low <= 1.0 <= gain.high
    assert found[False] / runs < 0.9, "negative control: as if one moment were all"
    assert found[True] / runs >= 0.95


@pytest.mark.parametrize(("hit", "busy"), [(0.0, False), (0.5, True)])
def test_models_know_whether_others_computed_beside_many_blocks(hit: float, busy: bool) -> None:
    ns = np.ones((8, 2))
    timing = Timing(ns, np.zeros(8), np.zeros((8, 2)), np.full((8, 2), hit), processes=np.zeros(8, int))
    assert [model.busy for model in timing.models] == [busy, busy]
    assert timing.models[0].behind(Series(np.ones(8))).busy is busy


def test_earlier_readings_change_no_figure_and_count_only_where_both_have_them() -> None:
    rng, numbers = np.random.default_rng(2), np.repeat(np.arange(3), 8)
    first, now = (Series(np.exp(rng.normal(0.0, 0.01, 24)), processes=numbers) for _ in range(2))
    even, other = Series(np.ones(24), processes=numbers), Series(np.full(24, 3.0), processes=numbers)
    plain = speedup(now, even)
    assert speedup(now.after(first), even) == plain
    assert speedup(now.after(first), even.after(Series(np.empty(0)))) == plain
    told = speedup(now.after(first), even.after(other))
    assert told.value == plain.value
    assert told.low < plain.low, "three times as fast before, as fast now"
    again = now.behind(now.after(first))
    assert again.earlier is first, "a second look at one moment is no earlier one"
    assert len(again) == 48


def test_an_interval_grows_with_what_processes_differ_by_and_its_estimate_stays() -> None:
    rng, numbers, even = np.random.default_rng(0), np.repeat(np.arange(3), 8), Series(np.ones(24))
    noise, drawn = rng.normal(0.0, 0.005, 24), rng.normal(0.0, 1.0, 3)
    drawn -= drawn.mean()
    widths = []
    for between in (0.0, 0.01, 0.03, 0.1):
        logs = between * drawn[numbers] + noise
        gain = speedup(Series(np.exp(logs), processes=numbers), even)
        alone = speedup(Series(np.exp(logs)), even)
        assert gain.value == alone.value
        assert gain.low <= alone.low
        assert gain.high >= alone.high
        widths.append(gain.high - gain.low)
    assert widths == sorted(widths)
    one = speedup(Series(np.exp(noise), processes=np.zeros(24, int)), even)
    assert one == speedup(Series(np.exp(noise)), even), "of one process nothing is known of others"


def test_parts_of_processes_of_their_own_are_told_apart() -> None:
    one, two = (Timing(np.ones((n, 1)), np.zeros(n), np.zeros((n, 1)), np.zeros((n, 1))) for n in (2, 3))
    both = joined([joined([one, two], apart=True), one], apart=True)
    assert both.processes is not None
    assert both.processes.tolist() == [0, 0, 1, 1, 1, 2, 2]
    (series,) = both.models
    behind = series.behind(series).processes
    assert behind is not None
    assert behind.tolist() == [0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 4, 5, 5]
    assert joined([one, two]).processes is None


def test_readings_without_noise_have_the_ratio_of_one_pair_and_a_model_that_of_1_to_itself() -> None:
    given, other = (Series(np.array([ns]), exact=True) for ns in (3.0, 2.0))
    assert speedup(given, other) == Interval.exactly(1.5)
    noisy = Series(np.array([3.0]))
    assert not speedup(noisy, other).is_told, "the control: one of the two has noise"
    busy = Series(np.array([3.0, 4.0]), np.array([0.5, 0.0]))
    assert speedup(busy, busy) == Interval.exactly(1.0), "whatever others took of its readings"


def blocks(*hit: tuple[float, float], exact: np.ndarray | bool = False) -> Timing:
    """Readings of two models, of which others took these shares; the first model's tell the blocks apart."""
    taken = np.array(hit)
    ns = np.stack([1.0 + np.arange(len(hit)), np.full(len(hit), 9.0)], axis=1)
    return Timing(ns, np.zeros(len(hit)), taken, taken, exact=exact)


def test_preempted_blocks_are_read_again_and_count_only_where_too_few_others_remain() -> None:
    asked = list[int]()

    def again(first: Timing, more: Timing) -> list[float]:
        def read(count: int) -> Timing:
            asked.append(count)
            return joined([first, more])

        return list(read_again(first, 3, read).ns[:, 0].tolist())

    first = blocks((0.0, 0.5), (0.0, 0.0), (0.3, 0.0))
    assert again(first, blocks((0.0, 0.0), (0.0, 0.0))) == [2.0, 1.0, 2.0]
    assert again(first, blocks((0.9, 0.0), (0.0, 0.0))) == [2.0, 3.0, 2.0], "the least disturbed of those that were"
    assert asked == [2, 2]
    assert again(blocks(*[(0.0, 0.01)] * 3), first) == [1.0, 2.0, 3.0]
    assert again(blocks(*[(0.0, 0.5)] * 3, exact=np.array([False, True])), first) == [1.0, 2.0, 3.0]
    assert asked == [2, 2], "nothing was disturbed that has noise"


def test_models_keep_their_readings_where_others_are_left_out_or_change_places() -> None:
    rng = np.random.default_rng(0)
    ns, hit, by_feed = rng.random((4, 3)), rng.random((4, 3)), rng.random((4, 3, 2))
    whole = Timing(ns, np.zeros(4), hit / 2, hit, by_feed, np.array([True, False, False]))
    for part, kept in ((whole.only([2, 0]), (2, 0)), (whole.without([1]), (0, 2)), (joined([whole]), (0, 1, 2))):
        for model, i in zip(part.models, kept, strict=True):
            assert model.by_feed is not None
            np.testing.assert_array_equal(model.ns, ns[:, i])
            np.testing.assert_array_equal(model.taken, hit[:, i] / 2)
            np.testing.assert_array_equal(model.by_feed, by_feed[:, i])
            assert model.exact == (i == 0)
