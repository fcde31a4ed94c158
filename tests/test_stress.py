"""Plausible variations of samples: they keep what an input is, and are equal for equal seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.data import InputSpec, Samples, StressSet, stress_set, with_unnoticed_noise
from inlay.data.stress import kind_of
from inlay.errors import DataError, UsageError
from tests.support.examples import examples

Arrays = Mapping[str, np.ndarray]


def samples(*feeds: Arrays, kind: str = "npz") -> Samples:
    return Samples(tuple(map(dict, feeds)), kind, "test")


def specs(feed: Arrays, **dims: tuple[int | str, ...]) -> list[InputSpec]:
    return [InputSpec(n, a.dtype, dims.get(n, a.shape)) for n, a in feed.items()]


def varied(given: Samples, augment: str = "auto", most: int = 99, seed: int = 0, **dims: Any) -> StressSet:
    return stress_set(given, specs(given.feeds[0], **dims), augment, np.random.default_rng(seed), 2, most)


def photos(
    count: int, shape: tuple[int, ...], scale: float = 255.0, offset: float = 0.0, dtype: Any = np.float32
) -> Samples:
    rng = np.random.default_rng(1)
    return samples(*({"x": (rng.random(shape) * scale + offset).astype(dtype)} for _ in range(count)))


@settings(max_examples=examples(30), deadline=None)
@given(
    st.sampled_from([(1, 3, 16, 12), (1, 16, 12, 3), (2, 1, 9, 9), (1, 8, 8, 4), (1, 40, 16, 12)]),
    st.sampled_from([(1.0, 0.0), (2.0, -1.0), (255.0, 0.0), (3.7, -2.2)]),
    st.sampled_from([np.float32, np.float16, np.uint8]),
    st.integers(1, 5),
)
def test_images_stay_images(shape: tuple[int, ...], span: tuple[float, float], dtype: Any, count: int) -> None:
    if dtype is np.uint8:
        span = (255.0, 0.0)
    given = photos(count, shape, *span, dtype=dtype)
    found, again, other = varied(given), varied(given), varied(given, seed=1)
    colors = dtype is not np.uint8 or 40 not in shape
    assert bool(found.variations) == colors
    low, high = min(f["x"].min() for f in given.feeds), max(f["x"].max() for f in given.feeds)
    ends = next(
        ((a, b) for a, b in ((0, 1), (-1, 1), (0, 255)) if a <= low and high <= b and high - low >= (b - a) / 2),
        (low, high),
    )
    for variation in found.variations:
        x = variation.feed["x"]
        assert (x.shape, x.dtype) == (shape, dtype)
        assert ends[0] <= x.min() <= x.max() <= ends[1]
        assert all(not np.array_equal(x, f["x"]) for f in given.feeds), variation.name
    for one, same in zip(found.variations, again.variations, strict=True):
        assert (one.name, one.half) == (same.name, same.half)
        np.testing.assert_array_equal(one.feed["x"], same.feed["x"])
    noises = [next((v.feed["x"] for v in s.variations if "noise" in v.name), None) for s in (found, other)]
    assert noises[0] is None or noises[1] is None or not np.array_equal(noises[0], noises[1])


def test_black_is_the_low_end_whatever_the_normalization() -> None:
    plain = photos(4, (1, 3, 16, 16), 1.0)
    moved = samples(*({"x": 2.0 * f["x"] - 1.0} for f in plain.feeds))
    for a, b in zip(varied(plain).variations, varied(moved).variations, strict=True):
        assert a.name == b.name
        if "noise" not in a.name and "offset" not in a.name:
            np.testing.assert_allclose(2.0 * a.feed["x"] - 1.0, b.feed["x"], atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_one_percent_of_noise_is_that_of_a_good_photograph(dtype: Any) -> None:
    """A PSNR of 40 dB; what holds ids or a mask stays."""
    rest = {"ids": np.arange(12)[None] % 7, "mask": np.ones((1, 12), np.int64)}
    given = samples(*({**feed, **rest} for feed in photos(3, (1, 3, 48, 48), dtype=dtype).feeds))
    found, again = (with_unnoticed_noise(given, np.random.default_rng(0)) for _ in range(2))
    for noisy, same, clean in zip(found, again, given.feeds, strict=True):
        lost = noisy["x"].astype(np.float64) - clean["x"].astype(np.float64)
        assert noisy["x"].dtype == dtype
        assert 20.0 * np.log10(255.0 / lost.std()) == pytest.approx(40.0, abs=0.5)
        assert all(np.array_equal(noisy[name], clean[name]) for name in rest)
        assert all(np.array_equal(noisy[name], same[name]) for name in noisy)
    assert with_unnoticed_noise(samples(rest), np.random.default_rng(0)) == ()


def test_noise_beside_a_signal_goes_by_the_signal() -> None:
    """40 dB below it, however large a single peak is."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((1, 4000)).astype(np.float32)
    x[0, 7] = 300.0
    (noisy,) = with_unnoticed_noise(samples({"x": x}), np.random.default_rng(0))
    assert 20.0 * np.log10(x.std() / np.delete(noisy["x"] - x, 7).std()) == pytest.approx(40.0, abs=0.5)


def test_each_way_comes_once_before_any_comes_twice_and_from_both_halves() -> None:
    given = photos(6, (1, 3, 16, 16))
    whole = varied(given)
    assert set(Counter(v.name for v in whole.variations).values()) == {2}
    for name in whole.names:
        assert {v.half for v in whole.variations if v.name == name} == {0, 1}
    count = len(whole.names)
    assert varied(given, most=count).names == whole.names
    assert len(varied(given, most=count).variations) == count
    assert {v.half for v in varied(given, most=4).variations} == {0, 1}
    assert not varied(given, "none").variations
    assert not varied(Samples(given.feeds, "random", "random")).variations


def test_masks_stay_and_what_cannot_be_told_is_left_alone() -> None:
    rng = np.random.default_rng(0)
    feeds = [
        {
            "image": rng.random((1, 3, 16, 16)).astype(np.float32),
            "place": (rng.random((1, 1, 16, 16)) > 0.5).astype(np.float32),
            "on": np.array([True, False]),
            "features": rng.random((1, 24)).astype(np.float32),
            "steps": np.arange(8, dtype=np.int64)[None],
        }
        for _ in range(4)
    ]
    found = varied(samples(*feeds))
    assert [text.split()[1] for text in found.left_alone] == ["features", "steps"]
    assert not {"a mirror image", "a shift by 10 %", "a mixture of two samples"} & set(found.names)
    assert "0.8x brightness" in found.names
    for variation in found.variations:
        (same,) = [f for f in feeds if np.array_equal(f["features"], variation.feed["features"])]
        assert all(np.array_equal(same[n], variation.feed[n]) for n in ("place", "on", "steps"))


@given(st.lists(st.lists(st.integers(2, 30), min_size=6, max_size=12), min_size=2, max_size=4), st.booleans())
def test_ids_are_never_invented(texts: list[list[int]], masked: bool) -> None:
    """Between the first and the last one they change places; padding and what is masked stay."""
    feeds = []
    for text in texts:
        ids = np.array([[101, *text, 102] + [0] * (14 - len(text))])
        feeds.append({"ids": ids, **({"mask": (ids != 0).astype(np.int64)} if masked else {})})
    found = varied(samples(*feeds), ids=(1, "length"), mask=(1, "length"))
    lengths = set()
    for variation in found.variations:
        ids = variation.feed["ids"]
        lengths.add(ids.shape[1])
        if masked:
            assert variation.feed["mask"].shape == ids.shape
        if variation.name == "another order":
            given = [f for f in feeds if sorted(f["ids"][0]) == sorted(ids[0])]
            ends = [0, *np.flatnonzero(ids[0] == 102), *np.flatnonzero(ids[0] == 0)]
            assert any(np.array_equal(f["ids"][0, ends], ids[0, ends]) for f in given)
        else:
            assert any(np.array_equal(f["ids"][:, : ids.shape[1]], ids) for f in feeds)
    assert 12 in lengths
    fixed = varied(samples(*feeds))
    assert {v.feed["ids"].shape[1] for v in fixed.variations} <= {16}


def test_two_texts_are_one_as_long_as_the_longest_sample() -> None:
    """A text goes on with the next one, without its first id; masks go along, and no length is beyond those given."""
    rng = np.random.default_rng(0)
    ids = [np.array([[101, *rng.integers(200, 900, n), 102]]) for n in (6, 14, 8, 7, 5, 9)]
    feeds = [{"ids": i, "mask": np.ones_like(i), "x": np.array([float(i.size)], np.float32)} for i in ids]
    found = varied(samples(*feeds), ids=(1, "length"), mask=(1, "length"))
    joined = [v.feed for v in found.variations if v.name == "two texts as one"]
    assert joined
    for feed in joined:
        (number,) = [n for n, f in enumerate(feeds) if np.array_equal(f["x"], feed["x"])]
        text = np.concatenate([ids[number], ids[(number + 1) % len(ids)][:, 1:]], axis=1)[:, :16]
        np.testing.assert_array_equal(feed["ids"], text)
        assert ids[number].size < feed["ids"].size <= 16
        assert feed["mask"].shape == feed["ids"].shape


@pytest.mark.parametrize(
    ("extra", "dims"),
    [
        ({}, {}),  # the model fixes the length
        ({"pos": np.arange(8)[None]}, {"ids": (1, "length"), "pos": (1, "length")}),  # positions would begin again
    ],
)
def test_what_cannot_be_longer_stays_as_it_is(extra: dict[str, np.ndarray], dims: dict[str, Any]) -> None:
    feeds = [{"ids": np.array([[1, 9, 7, 5, 3, 8, 6, 2]]) + i, **extra} for i in range(4)]
    longer = {"ids": np.arange(30, 10, -1)[None], **{n: np.arange(20)[None] for n in extra}}
    found = varied(samples(*feeds, longer), **dims)
    assert "another order" in found.names
    assert "two texts as one" not in found.names


@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        ((1, 43844, 1), np.float32, "signal"),
        ((1, 16000), np.float32, "signal"),
        ((1, 512), np.float32, ""),
        ((1, 80, 400), np.float32, "signal"),
        ((1, 128, 768), np.float32, "signal"),
        ((1, 128, 200), np.float32, ""),
        ((1, 3, 4, 4), np.float32, "field"),
        ((1, 400), np.uint8, "tokens"),
        ((1, 2), np.int64, ""),
        ((), np.float32, ""),
    ],
)
def test_kinds(shape: tuple[int, ...], dtype: Any, kind: str) -> None:
    rng = np.random.default_rng(0)
    arrays = [np.asarray(rng.integers(0, 100, shape) + (0 if dtype != np.float32 else rng.random(shape))).astype(dtype)]
    assert kind_of(InputSpec("x", np.dtype(dtype), shape), arrays) == kind


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("past_key_0", (1, 3, 48, 64), ""),
        ("cache_v", (1, 3, 48, 64), ""),
        ("state", (2, 1, 128), ""),
        ("h0", (2, 1, 128), ""),
        ("keys", (1, 3, 48, 64), "image"),
        ("slate", (2, 1, 128), "signal"),
    ],
)
def test_what_the_model_gave_before_is_not_varied(name: str, shape: tuple[int, ...], kind: str) -> None:
    rng = np.random.default_rng(0)
    spec, array = InputSpec(name, np.dtype(np.float32), shape), rng.standard_normal(shape).astype(np.float32)
    assert kind_of(spec, [array]) == kind
    found = stress_set(samples({name: array}, {name: array}), [spec], "auto", rng, each=1, most=8)
    assert bool(found.feeds) is bool(kind)
    assert [line for line in found.left_alone if "the model gave it at the step before" in line] or kind


def test_series() -> None:
    rng = np.random.default_rng(0)
    given = samples(
        *({"x": (0.4 * rng.standard_normal((1, 4000, 1))).clip(-1, 1).astype(np.float32)} for _ in range(4))
    )
    found = {v.name: v for v in varied(given).variations}
    sources = [f["x"] for f in given.feeds]
    assert any(np.allclose(found["0.5x gain"].feed["x"], 0.5 * s) for s in sources)
    assert any(np.array_equal(np.sort(found["a shift by 10 %"].feed["x"], axis=1), np.sort(s, axis=1)) for s in sources)
    assert max(np.abs(v.feed["x"]).max() for v in found.values()) <= 1.0


MODULE = """
import numpy as np

def darker(sample, rng):
    sample["x"] *= 0.5
    return {"darker": sample, "noisy": {"x": sample["x"] + rng.standard_normal(sample["x"].shape)}}

def broken(sample, rng):
    raise ValueError("no")

def wrong(sample, rng):
    return {"cropped": {"x": sample["x"][..., 1:]}}
"""


def test_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_variations.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    given = photos(4, (1, 3, 16, 16), 1.0)
    before = [f["x"].copy() for f in given.feeds]
    found = varied(given, "own_variations:darker")
    assert [(v.name, v.half) for v in found.variations] == [("darker", 0), ("noisy", 0), ("darker", 1), ("noisy", 1)]
    np.testing.assert_array_equal(found.variations[0].feed["x"], 0.5 * before[0])
    assert all(v.feed["x"].dtype == np.float32 for v in found.variations)
    for f, x in zip(given.feeds, before, strict=True):
        np.testing.assert_array_equal(f["x"], x)
    with pytest.raises(DataError, match="--augment own_variations:broken failed: ValueError: no"):
        varied(given, "own_variations:broken")
    with pytest.raises(DataError, match=r"--augment own_variations:wrong.*shape"):
        varied(given, "own_variations:wrong")
    with pytest.raises(UsageError, match="--augment"):
        varied(given, "own_variations:missing")
