"""Which feeds are kept: a fair choice within limits, the same whether feeds came one by one or all at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.recording.hook.keep import FedModel, Kept, Limits, chosen

FEEDS = st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 4), st.integers(1, 9)), max_size=40)


def stream(drawn: list[tuple[int, int, int]]) -> list[Kept]:
    """Feeds in their order, of unlike ranks."""
    seen, found = set[int](), []
    for number, (rank, shape, size) in enumerate(drawn):
        found.append(Kept(rank * 64 + number, number, str(shape), shape not in seen, size))
        seen.add(shape)
    return found


@given(FEEDS, st.integers(1, 20), st.integers(1, 60))
def test_limits_hold_and_nothing_is_left_out_that_fits(
    drawn: list[tuple[int, int, int]], most: int, most_bytes: int
) -> None:
    feeds = stream(drawn)
    kept = chosen(feeds, most, most_bytes)
    assert len(set(kept)) == len(kept) <= most
    assert sum(each.size for each in kept) <= most_bytes
    left = sorted(set(feeds) - set(kept))
    if left and len(kept) < most:
        assert sum(each.size for each in kept) + left[0].size > most_bytes, "the next by rank would not fit"


@given(FEEDS, st.integers(1, 20), st.integers(1, 60))
def test_one_by_one_is_all_at_once(drawn: list[tuple[int, int, int]], most: int, count: int) -> None:
    """Of feeds of one size, where it is exact: what was left out once is never wanted again."""
    feeds = [each._replace(size=1) for each in stream(drawn)]
    kept: list[Kept] = []
    for each in feeds:
        kept = chosen([*kept, each], most, count)
    assert set(kept) == set(chosen(feeds, most, count))


@given(FEEDS, st.integers(1, 20), st.integers(1, 19))
def test_two_processes_are_as_one(drawn: list[tuple[int, int, int]], most: int, cut: int) -> None:
    feeds = [each._replace(size=1, first=False) for each in stream(drawn)]
    parts = [chosen(feeds[:cut], most, 99), chosen(feeds[cut:], most, 99)]
    assert set(chosen([*parts[0], *parts[1]], most, 99)) == set(chosen(feeds, most, 99))


@pytest.mark.exhaustive
def test_every_feed_is_as_likely_and_every_shape_is_there(tmp_path: Path) -> None:
    """Of 60 feeds 20 are kept. The first is always among them: it is the first of its shape; so is the odd one."""
    times = np.zeros(60)
    for seed in range(60):
        model = FedModel(str(tmp_path / str(seed)), {}, Limits(20, 1 << 20, seed), [seed])
        for number in range(60):
            model.take({"x": np.full(4 if number == 33 else 3, number)})
        files = {Kept.of(p.name): p for p in (tmp_path / str(seed)).glob("*.npz")}
        assert set(files) == set(model.feeds), "the files are those that were chosen"
        assert len(files) == 20
        for path in files.values():
            times[int(np.load(path)["arr_0"][0])] += 1
    assert times[0] == times[33] == 60
    others = np.delete(times, [0, 33])
    assert others.sum() == 60 * 18
    expected = 60 * 18 / 58
    assert np.abs(others - expected).max() < 4.5 * np.sqrt(expected * (1 - 18 / 58))
    assert abs(others[:29].mean() - others[29:].mean()) < 3, "early ones are no likelier than late ones"
