"""The pattern cache: what it keeps, what it writes, what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.errors import NoSuchFile, UsageError
from inlay.patterns.cache import CacheEntry, PatternCache, merge_files, show
from inlay.patterns.schemes import InsertionScheme, NodeInputInsertionPoint

POINTS = [NodeInputInsertionPoint(0, i) for i in range(10)]


def scheme(*indices: int) -> InsertionScheme:
    return InsertionScheme(frozenset(POINTS[i] for i in indices))


def entry(speedup: float, *indices: int) -> CacheEntry:
    return CacheEntry(scheme(*indices), speedup)


ENTRIES = st.builds(
    lambda indices, speedup: entry(speedup, *indices),
    st.sets(st.integers(0, 9)),
    st.floats(0, 4).map(lambda x: round(x, 4)),
)


def test_best_schemes_come_first_and_their_number_is_bounded() -> None:
    cache = PatternCache(minimum_distance=1, max_entries_per_pattern=3)
    cache.add("p", "Conv", [entry(s, i) for i, s in enumerate((1.0, 1.4, 1.2, 1.3, 1.1))])
    assert [e.speedup for e in cache.entries("p")] == [1.4, 1.3, 1.2]


def test_of_two_close_schemes_the_faster_one_stays() -> None:
    cache = PatternCache(minimum_distance=3)
    cache.add("p", "", [entry(1.1, 0, 1, 2), entry(1.2, 0, 1), entry(1.0, 5, 6, 7)])
    assert [e.scheme for e in cache.entries("p")] == [scheme(0, 1), scheme(5, 6, 7)]
    cache.add("p", "", [entry(1.3, 0)])
    assert cache.entries("p")[0] == entry(1.3, 0)
    assert scheme(0, 1) not in [e.scheme for e in cache.entries("p")]


def test_equal_schemes_are_kept_once_even_without_a_distance() -> None:
    cache = PatternCache(minimum_distance=0)
    cache.add("p", "", [entry(1.1, 0), entry(1.3, 0), entry(1.2, 0)])
    assert cache.entries("p") == (entry(1.3, 0),)


@settings(deadline=None)
@given(st.lists(ENTRIES, max_size=12), st.integers(0, 5), st.integers(1, 6))
def test_entries_are_ranked_bounded_and_apart(entries: list[CacheEntry], distance: int, most: int) -> None:
    cache = PatternCache(distance, most)
    cache.add("p", "", entries)
    kept = cache.entries("p")
    assert len(kept) <= most
    assert [e.speedup for e in kept] == sorted((e.speedup for e in kept), reverse=True)
    assert all(a.scheme.distance(b.scheme) >= max(1, distance) for i, a in enumerate(kept) for b in kept[:i])
    if entries:
        assert kept[0].speedup == max(e.speedup for e in entries)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), st.lists(ENTRIES, min_size=1, max_size=5)))
def test_file_gives_the_cache_back(held: dict[str, list[CacheEntry]]) -> None:
    cache = PatternCache(2, 4)
    for signature, entries in held.items():
        cache.add(signature, f"summary of {signature}", entries)
    assert PatternCache.from_data(yaml.safe_load(yaml.safe_dump(cache.to_data()))) == cache


def test_merge_keeps_the_best_of_both() -> None:
    one, two = PatternCache(1, 2), PatternCache(1, 2)
    one.add("p", "Conv", [entry(1.1, 0), entry(1.3, 1)])
    two.add("p", "", [entry(1.2, 2)])
    two.add("q", "Add", [entry(1.0)])
    one.merge(two)
    assert [e.speedup for e in one.entries("p")] == [1.3, 1.2]
    assert one.summary("p") == "Conv"
    assert list(one) == ["p", "q"]


def test_merge_of_files(tmp_path: Path) -> None:
    for name, speedup in (("a", 1.1), ("b", 1.5)):
        cache = PatternCache(1)
        cache.add("p", "Conv", [entry(speedup, int(speedup * 10) - 10)])
        cache.save(tmp_path / f"{name}.yaml")
    merged = merge_files([tmp_path / "a.yaml", tmp_path / "b.yaml"], tmp_path / "out.yaml")
    assert PatternCache.load(tmp_path / "out.yaml") == merged
    assert [e.speedup for e in merged.entries("p")] == [1.5, 1.1]
    with pytest.raises(UsageError, match="at least one"):
        merge_files([], tmp_path / "out.yaml")


def test_file_is_readable_by_people(tmp_path: Path) -> None:
    cache = PatternCache()
    cache.add("0f3a", "Conv→Relu", [entry(1.31, 0)])
    cache.save(tmp_path / "c.yaml")
    text = (tmp_path / "c.yaml").read_text(encoding="utf8")
    assert "inlay_pattern_cache: 1" in text
    assert "summary: Conv→Relu" in text
    assert "[node_input, 0, 0]" in text


def test_show_names_patterns_schemes_and_speedups() -> None:
    cache = PatternCache()
    cache.add("0f3a", "Conv→Relu", [entry(1.31, 0), entry(1.0)])
    cache.add("beef", "Add", [entry(1.0)])
    text = "\n".join(show(cache))
    assert text.splitlines()[0] == "2 patterns, 2 schemes"
    assert "1.310x  node 0 input 0" in text
    assert "1.000x  float" in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not an Inlay pattern cache"),
        ("- 1\n", "not an Inlay pattern cache"),
        ("patterns: {}\n", "not an Inlay pattern cache"),
        ("inlay_pattern_cache: 2\n", "version 2"),
        ("inlay_pattern_cache: 1\npatterns: [1]\n", "damaged"),
        ("inlay_pattern_cache: 1\npatterns: {a: {}}\n", "no entry 'schemes'"),
        ("inlay_pattern_cache: 1\npatterns: {a: {schemes: [{speedup: 1}]}}\n", "no entry 'points'"),
        ("inlay_pattern_cache: 1\npatterns: {a: {schemes: [{speedup: .nan, points: []}]}}\n", "not a speedup"),
        ("inlay_pattern_cache: 1\npatterns: {a: {schemes: [{speedup: 1, points: [[x, 0, 0]]}]}}\n", "not an insertion"),
        ("inlay_pattern_cache: 1\nminimum_distance: -3\n", "minimum distance"),
        ("a: [", "not YAML"),
        ("!!python/object/apply:os.getcwd []", "not YAML"),
    ],
)
def test_bad_files_are_rejected_in_words(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        PatternCache.load(path)


def test_missing_and_binary_files_are_rejected_in_words(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match=r"none\.yaml: no such file"):
        PatternCache.load(tmp_path / "none.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not text"):
        PatternCache.load(tmp_path / "b.yaml")


def test_file_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        PatternCache().save(tmp_path / "no folder" / "c.yaml")


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.yaml"
    PatternCache().save(path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    cache = PatternCache()
    cache.add("p", "", [entry(1.0, 1)])
    with pytest.raises(UsageError, match="No space left"):
        cache.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["c.yaml"]
