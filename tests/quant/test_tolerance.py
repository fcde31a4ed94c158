"""Limits for new samples hold as often as they say, whatever the distribution where they say so."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from inlay.quant.tolerance import samples_needed, state

DRAWS = 1000
Draw = Callable[[np.random.Generator, int], np.ndarray]


def normal(rng: np.random.Generator, n: int) -> np.ndarray:
    """SQNR of samples that differ a little."""
    return rng.normal(25.0, 2.0, n)


def heavy(rng: np.random.Generator, n: int) -> np.ndarray:
    """Student's t of two degrees of freedom, skewed to the bad side."""
    t = rng.standard_t(2.0, n)
    return 25.0 + np.where(t < 0.0, 3.0 * t, t)


def clustered(rng: np.random.Generator, n: int) -> np.ndarray:
    """One scene in six is far worse than the others."""
    return np.where(rng.random(n) < 1 / 6, 10.0, 40.0) + rng.normal(0.0, 0.5, n)


def broken(draw: Draw, n: int, seed: int = 0) -> float:
    """How often fewer new samples than stated keep the limit."""
    rng = np.random.default_rng(seed)
    tenth = np.quantile(draw(rng, 400_000), 0.1)
    limits = [state([float(x) for x in draw(rng, n)]).limit_db for _ in range(DRAWS)]
    return float(np.mean([limit is not None and limit > tenth for limit in limits]))


@pytest.mark.parametrize("draw", [normal, heavy, clustered])
@pytest.mark.parametrize("n", [29, 46, 64])
def test_enough_samples_make_a_limit_of_any_distribution(draw: Draw, n: int) -> None:
    """Broken in at most 5 % of all draws, within 3 standard errors."""
    assert state([0.0] * n).assumption == "distribution-free"
    assert broken(draw, n) <= 0.05 + 3.0 * np.sqrt(0.05 * 0.95 / DRAWS)


def broken_by_as_many(draw: Draw, n: int, seed: int = 0) -> float:
    """How often fewer than nine in ten of ``n`` new samples keep the limit of ``n``."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(DRAWS):
        limit = state([float(x) for x in draw(rng, n)]).limit_db
        assert limit is not None
        found.append(np.mean(draw(rng, n) >= limit) < 0.9)
    return float(np.mean(found))


@pytest.mark.parametrize("draw", [normal, heavy, clustered])
@pytest.mark.parametrize("n", [40, 64, 93])
def test_who_counts_as_many_new_samples_finds_it_true(draw: Draw, n: int) -> None:
    """From 40 samples on, of any distribution: few new ones scatter as much as those that the limit is of."""
    assert broken_by_as_many(draw, n) <= 0.05 + 3.0 * np.sqrt(0.05 * 0.95 / DRAWS)


def test_a_higher_limit_would_be_broken_by_as_many() -> None:
    """The control: the third of 64 is a limit of the kind, and 8 % of draws of 64 others do not bear it out."""
    rng = np.random.default_rng(1)
    third = [np.mean(normal(rng, 64) >= np.sort(normal(rng, 64))[2]) < 0.9 for _ in range(DRAWS)]
    assert np.mean(third) > 0.05 + 2.0 * np.sqrt(0.05 * 0.95 / DRAWS)


@pytest.mark.parametrize("n", [40, 64, 93, 400])
def test_a_limit_gives_no_accuracy_away(n: int) -> None:
    """The next higher order statistic would break its share, of the kind or of as many new ones, by exact counting."""
    from scipy import stats

    rank = int(state([float(x) for x in range(n)]).limit_db or 0.0) + 1

    def kept(k: int) -> bool:
        old_ahead = stats.hypergeom(2 * n, n, k + int(0.1 * n + 1e-9))  # of the first values of both
        return bool(stats.binom(n, 0.1).sf(k - 1) >= 0.95 and old_ahead.cdf(k - 1) <= 0.05)

    assert kept(rank)
    assert not kept(rank + 1)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_few_samples_make_an_exact_limit_of_normal_ones(n: int) -> None:
    """Broken in 5 % of all draws: no more, and no less, which would give accuracy away."""
    assert state([20.0] * n).assumption == "normal"
    assert broken(normal, n) == pytest.approx(0.05, abs=3.0 * np.sqrt(0.05 * 0.95 / DRAWS))


def test_the_assumption_is_one() -> None:
    """Where samples are of two kinds, a few of them break the limit far too often: why the assumption is told."""
    assert broken(clustered, 4) > 0.3


@pytest.mark.parametrize("draw", [normal, heavy, clustered])
@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_what_is_said_without_the_assumption_holds_without_it(draw: Draw, n: int) -> None:
    """The share of new samples that keeps the worst is as stated in 95 % of all draws, of any distribution."""
    rng = np.random.default_rng(3)
    kind = np.sort(draw(rng, 400_000))
    held = []
    for _ in range(DRAWS):
        said = state([float(x) for x in draw(rng, n)])
        assert said.least_db is not None
        held.append(1.0 - np.searchsorted(kind, said.least_db) / kind.size >= said.share_of_least)
    assert np.mean(held) == pytest.approx(0.95, abs=3.0 * np.sqrt(0.05 * 0.95 / DRAWS))


@pytest.mark.parametrize("draw", [normal, heavy, clustered])
@pytest.mark.parametrize("n", [2, 8, 16, 28])
def test_a_limit_is_never_above_what_was_judged(draw: Draw, n: int) -> None:
    """28 samples say no more than 29 would, of which the worst is the limit: broken as often as no bad one is seen."""
    rng = np.random.default_rng(4)
    for _ in range(50):
        db = [float(x) for x in draw(rng, n)]
        found = state(db).limit_db
        assert found is not None
        assert found <= min(db)
    assert broken(clustered, 28) <= 0.06


def test_samples_that_agree_by_chance_are_no_proof() -> None:
    """Two of one SQNR, of which an outlier in seven is missed."""
    found = state([48.1, 48.1]).limit_db
    assert found is not None
    assert found < 46.1


def test_few_samples_tell_both_what_is_assumed_and_what_is_not() -> None:
    assert "if their dB are normally distributed; whatever their distribution, 47% keep 25.0 dB, the worst of 4" in str(
        state([25.0, 26.0, 27.0, 28.0])
    )


def test_one_sample_says_nothing_but_how_many_would() -> None:
    """However good it is."""
    found = state([41.2], 20.0)
    assert (found.limit_db, found.assumption, found.keeps_bound, found.needed) == (None, "none", False, 29)
    assert str(found) == (
        "nothing can be said of new samples: 1 sample judged; "
        "29 samples would be needed to state 20 dB without an assumption"
    )


def test_samples_below_the_bound_ask_for_more_until_no_number_helps() -> None:
    """With a tenth of them below the bound, nine in ten can never be shown to keep it."""
    wanted = [samples_needed(failing=f) for f in (0.0, 0.02, 0.05)]
    assert wanted[0] == 29
    assert all(a is not None and b is not None and a < b for a, b in itertools.pairwise(wanted))
    assert samples_needed(failing=0.1) is None
    assert "more samples would not show 20 dB" in str(state([30.0, 31.0, 30.5, 11.4], 20.0))


def test_the_needed_number_is_enough_and_one_less_is_not() -> None:
    """29 samples, none below: 1 - 0.9^29 is the first that is 0.95."""
    assert state([25.0] * 29, 20.0).keeps_bound
    assert state([25.0] * 28).assumption == "normal"


def test_exact_outputs_do_not_spread() -> None:
    """A sample whose outputs equal float's has no more weight than rounding."""
    assert state([300.0, 120.0, 130.0]).limit_db == pytest.approx(120.0, abs=1.0)


def test_a_rank_takes_no_library_of_distributions() -> None:
    """It is needed at the start of every run, where loading that library costs seconds on a busy machine."""
    code = (
        "import sys; from inlay.quant import tolerance; tolerance.samples_needed(); print('scipy.stats' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_limit_below_all_signal_is_not_said() -> None:
    """It holds, and tells nobody anything: two samples may differ by chance."""
    found = state([28.0, 45.0], bound_db=20.0)
    assert found.limit_db is not None
    assert found.limit_db < 0.0
    assert str(found).startswith(
        "nothing can be said of new samples: 2 samples judged, too few for how much they differ;"
    )
    assert str(found).endswith("29 samples would be needed to state 20 dB without an assumption")
    assert "keep -3.0 dB" in str(state([-3.0] * 40)), "what has none is told so"
