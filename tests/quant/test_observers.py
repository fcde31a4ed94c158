"""Streaming histograms: any cut of a stream gives the same counts, and no float breaks them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from inlay.quant.observers import BINS, HEADROOM_DEVIATIONS, MAX_HEADROOM, METHODS, Histogram, Method, Range

NARROW = [m for m in METHODS if m != "headroom"]
finite = st.floats(-(2.0**100), 2.0**100, width=32)


def histogram(*parts: np.ndarray) -> Histogram:
    made = Histogram()
    for part in parts:
        made.update(part)
    return made


@given(arrays(np.float32, st.integers(1, 60), elements=finite), st.data())
def test_a_stream_in_pieces_is_the_stream_in_one(x: np.ndarray, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, x.size))
    pieces, whole = histogram(x[:cut], x[cut:]), histogram(x)
    assert (pieces.low, pieces.high) == (whole.low, whole.high) == (x.min(), x.max())
    assert pieces.counts.sum() == whole.counts.sum() == x.size
    assert pieces.range("minmax") == whole.range("minmax")
    if pieces.limit == whole.limit and _sorted_into_bins(x, pieces.limit):
        assert np.array_equal(pieces.counts, whole.counts)


@given(st.lists(arrays(np.float32, 8, elements=st.integers(-2000, 2000).map(float)), min_size=1, max_size=6))
def test_doubling_merges_bins_exactly(parts: list[np.ndarray]) -> None:
    """On whole numbers, the bins' edges are met exactly however often the range was doubled on the way."""
    pieces, whole = histogram(*parts), histogram(np.concatenate(parts))
    if pieces.limit == whole.limit:
        assert np.array_equal(pieces.counts, whole.counts)
    assert pieces.counts.sum() == whole.counts.sum()


whole_numbers = st.integers(-2000, 2000).map(float)


@given(st.lists(arrays(np.float32, st.integers(0, 30), elements=whole_numbers), max_size=4), st.data())
def test_merged_histograms_are_that_of_both_streams(parts: list[np.ndarray], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(parts)))
    merged, whole = histogram(*parts[:cut]) | histogram(*parts[cut:]), histogram(*parts)
    assert (merged.low, merged.high, merged.zeros) == (whole.low, whole.high, whole.zeros)
    assert merged.counts.sum() == whole.counts.sum() == sum(p.size for p in parts)
    if merged.limit == whole.limit:
        assert merged.digest == whole.digest
    assert (merged.lows, merged.highs) == (whole.lows, whole.highs)
    assert merged.range("headroom") == whole.range("headroom")


def test_merging_leaves_both_as_they_were() -> None:
    small, large = histogram(np.ones(3, np.float32)), histogram(np.full(3, 1000.0, np.float32))
    digests = small.digest, large.digest
    assert (small | large).high == 1000.0
    assert (small.digest, large.digest) == digests


def test_headroom_is_what_arrays_differ_by() -> None:
    steady = histogram(*(np.array([-1.0, 6.0], np.float32) for _ in range(5)))
    assert steady.range("headroom") == steady.range("minmax") == Range(-1.0, 6.0)
    varied = histogram(*(np.array([0.0, high], np.float32) for high in (8.0, 10.0, 9.0, 10.0)))
    expected = HEADROOM_DEVIATIONS * np.std([8.0, 10.0, 9.0, 10.0])
    found = varied.range("headroom")
    assert found.low == 0.0
    assert found.high == pytest.approx(10.0 + expected)
    wild = histogram(*(np.array([-high, 1.0], np.float32) for high in (0.1, 10.0, 0.1)))
    assert wild.range("headroom") == Range(-10.0 * (1.0 + MAX_HEADROOM), 1.0 + MAX_HEADROOM)


@given(arrays(np.float32, st.integers(1, 200), elements=finite))
def test_ranges_contain_zero_and_lie_within_the_extremes(x: np.ndarray) -> None:
    made = histogram(x)
    for method in NARROW:
        found = made.range(method)
        assert min(0.0, float(x.min())) <= found.low <= 0.0 <= found.high <= max(0.0, float(x.max()))
    assert made.range("minmax") == Range(min(0.0, float(x.min())), max(0.0, float(x.max())))


@pytest.mark.parametrize("method", METHODS)
def test_constants(method: Method) -> None:
    assert histogram(np.zeros(10, np.float32)).range(method) == Range(0.0, 0.0)
    found = histogram(np.full(10, 3.0, np.float32)).range(method)
    assert found.low == 0.0
    assert 0.5 < found.high <= 3.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("magnitude", [1e-44, 1e-30, 1e30, 3.4e38])
def test_tiny_and_huge_numbers(method: Method, magnitude: float) -> None:
    x = (np.linspace(-1, 1, 1001) * magnitude).astype(np.float32)
    made = histogram(x[:300], x[300:])
    assert made.counts.sum() == x.size
    found = made.range(method)
    assert np.isfinite([found.low, found.high]).all()
    room = 1.0 + (MAX_HEADROOM if method == "headroom" else 0.0)
    assert float(x.min()) * room <= found.low <= 0.0 <= found.high <= float(x.max()) * room


def test_from_tiny_to_huge() -> None:
    made = histogram(np.full(3, 1e-40, np.float32), np.full(3, 3e38, np.float32), np.zeros(2, np.float32))
    assert made.counts.sum() == 8
    assert made.range("minmax").high == pytest.approx(3e38, rel=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_numbers_that_are_not_finite_are_counted_apart(method: Method) -> None:
    x = np.array([1.0, -2.0, np.nan, np.inf, -np.inf], np.float32)
    made = histogram(x)
    assert made.not_finite == 3
    assert made.counts.sum() == 2
    assert made.range(method).low >= -2.0
    nothing = histogram(np.array([np.nan, np.inf], np.float32), np.zeros(0, np.float32))
    assert nothing.not_finite == 2
    assert nothing.range(method) == Range(0.0, 0.0)


def test_percentile_leaves_outliers_out() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(60_000).astype(np.float32)
    x[0] = 1000.0
    made = histogram(x)
    assert made.range("minmax").high == 1000.0
    found = made.range("percentile")
    assert 3.0 < found.high < 10.0
    assert -6.0 < found.low < -3.0


@pytest.mark.parametrize("shape", ["laplace", "one-sided", "outliers"])
def test_mse_is_about_as_good_as_brute_force(shape: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.laplace(0.0, 1.0, 60_000).astype(np.float32)
    if shape == "one-sided":
        x = np.maximum(x, 0)
    if shape == "outliers":
        x[:2] = 100.0, -60.0
    made = histogram(x)

    def error(found: Range) -> float:
        scale = (found.high - found.low) / 15
        q = np.clip(np.rint((x - found.low) / scale), 0, 15)
        return float(np.mean((q * scale + found.low - x) ** 2))

    grid = np.linspace(0.03, 1.0, 40)
    low, high = float(x.min()), float(x.max())
    best = min(error(Range(low * a, high * b)) for a in grid for b in grid[::2])
    assert best < 0.8 * error(made.range("minmax")), "the case is worth something"
    assert error(made.range("mse", levels=16)) <= 1.25 * best


def test_digests_tell_streams_apart() -> None:
    x = np.arange(10, dtype=np.float32)
    assert histogram(x).digest == histogram(x.copy()).digest
    assert histogram(x).digest != histogram(x + 1).digest


def _sorted_into_bins(x: np.ndarray, limit: float) -> bool:
    """Whether no number lies so near to a bin's edge that rounding decides."""
    if limit == 0.0:
        return True
    place = x.astype(np.float64) * (BINS / 2 / limit)
    return bool((np.abs(place - np.rint(place)) > 1e-3).all())


def _kl_reference(x: np.ndarray, levels: int = 256, bins: int = 4096) -> float:
    """The upper end that Kullback-Leibler calibration chooses for numbers that are not negative.

    Written anew from the textbook form of the criterion: bin, clip, merge into levels, expand, compare.
    """
    x = x[x > 0]
    counts, edges = np.histogram(x, bins, (0.0, float(x.max())))
    results = []
    for last in range(levels, bins + 1, 8):
        p = counts[:last].astype(float)
        q = np.zeros(last)
        for part in np.array_split(np.arange(last), levels):
            filled = part[p[part] > 0]
            if filled.size:
                q[filled] = p[part].sum() / filled.size
        p[-1] += counts[last:].sum()
        q = np.maximum(q, 1e-9 * q.max())
        p, q = p / p.sum(), q / q.sum()
        seen = p > 0
        results.append((float((p[seen] * np.log(p[seen] / q[seen])).sum()), float(edges[last])))
    return min(results)[1]


@pytest.mark.parametrize("shape", ["half normal", "exponential", "uniform", "gamma"])
@pytest.mark.parametrize("zeros", [0.0, 0.7])
@pytest.mark.matrix
def test_entropy_agrees_with_another_form_of_the_criterion(shape: str, zeros: float) -> None:
    """A share of zeros, such as a Relu leaves, must not matter: they are represented exactly by any range."""
    rng = np.random.default_rng(0)
    draw: dict[str, Callable[[], np.ndarray]] = {
        "half normal": lambda: np.abs(rng.standard_normal(60_000)),
        "exponential": lambda: rng.exponential(size=60_000),
        "uniform": lambda: rng.uniform(0, 1, 60_000),
        "gamma": lambda: rng.gamma(2.0, size=60_000),
    }
    x = draw[shape]().astype(np.float32)
    x[rng.uniform(size=x.size) < zeros] = 0.0
    want = _kl_reference(x)
    found = histogram(x).range("entropy")
    assert found.low == 0.0
    assert found.high == pytest.approx(want, rel=0.3)


@pytest.mark.parametrize("method", ["mse", "entropy"])
def test_zeros_do_not_narrow_a_range(method: Method) -> None:
    x = np.abs(np.random.default_rng(0).standard_normal(20_000)).astype(np.float32)
    padded = np.concatenate([x, np.zeros(40_000, np.float32)])
    plain, with_zeros = histogram(x).range(method), histogram(padded).range(method)
    assert with_zeros.high == pytest.approx(plain.high, rel=0.05)


def test_noise_is_that_of_rounding_and_clipping() -> None:
    x = np.random.default_rng(0).standard_normal(50_000).astype(np.float32)
    for found in (Range(-5.0, 5.0), Range(-2.0, 2.5)):
        step = (found.high - found.low) / 255
        rounded = np.clip(np.rint(x / step) * step, found.low, found.high)
        want = float(((x - rounded) ** 2).mean() / (x**2).mean())
        assert histogram(x).noise(found) == pytest.approx(want, rel=0.1)


@pytest.mark.parametrize("seed", range(8))
def test_the_range_of_least_squared_error_is_that_of_a_search_over_all_bins(seed: int) -> None:
    """The same grids, with each error summed over the bins one by one."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(3 ** (seed + 1)) ** 3 * 10.0 ** rng.uniform(-20, 20)).astype(np.float32)
    made = histogram(np.maximum(x, 0) if seed % 3 == 0 else x)
    whole = made.range("minmax")
    centres = ((made.edges[:-1] + made.edges[1:]) / 2).clip(whole.low, whole.high)
    shares = made.rounded / max(1, made.rounded.sum())

    def error(low: float, high: float) -> float:
        step = (high - low) / 255
        return float(shares @ ((centres - centres.clip(low, high)) ** 2 + step * step / 12))

    best = max(np.linspace(0.2, 1.0, 81), key=lambda k: (-error(whole.low * k, whole.high * k), k))
    low, high = whole.low * best, whole.high * best
    low = min(np.linspace(whole.low, low * 0.5, 41), key=lambda e: (error(e, high), e))
    high = max(np.linspace(high * 0.5, whole.high, 41), key=lambda e: (-error(low, e), e))
    found = made.range("mse")
    if whole.low != whole.high:
        assert error(found.low, found.high) == pytest.approx(error(low, high), rel=1e-6)
        assert (found.low, found.high) == pytest.approx((min(0.0, low), max(0.0, high)), rel=1e-6)
