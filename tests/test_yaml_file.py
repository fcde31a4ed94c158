"""YAML from strangers: plain data or one error, in every file that is YAML, whatever it holds."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from inlay.autotune.state_file import read_state
from inlay.errors import InlayError, NoSuchFile, UsageError
from inlay.model.graph import Graph
from inlay.patterns.cache import PatternCache, merge_files
from inlay.portfolio.plan import read_plan
from inlay.space.recipe_file import find_recipe, load_recipe
from inlay.yaml_file import read_yaml

LAUGHS = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else '1'}]" for i in range(12))
BAD = {
    "nested lists": "[" * 3000 + "]" * 3000,
    "nested mappings": "{a: " * 3000 + "1" + "}" * 3000,
    "nested blocks": "\n".join("  " * i + "a:" for i in range(300)),
    "a number of 5,000 digits": "inlay_pattern_cache: " + "9" * 5000,
    "an impossible date": "inlay_pattern_cache: 2024-13-45",
    "a timestamp that is none": "inlay_pattern_cache: !!timestamp soon",
    "an unknown tag": "inlay_pattern_cache: !!python/object/apply:os.getcwd []",
    "a key that cannot be one": "? [a, b]\n: 1",
    "aliases of aliases": LAUGHS,
    "an alias of itself": "a: &a [*a]",
    "no such alias": "a: *b",
    "not text": "\udcff\udcfe",
    "a control character": "a: \x07",
    "an open quote": "a: 'b",
}
READERS: dict[str, Callable[[Path], object]] = {
    "recipe": load_recipe,
    "cache": PatternCache.load,
    "fleet": read_plan,
    "state": lambda path: read_state(path, "0" * 64, cast(Graph, None)),
}


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", BAD)
def test_bad_files(name: str, reader: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(BAD[name], errors="surrogateescape")
    with pytest.raises(UsageError, match=r"bad\.yaml is not"):
        READERS[reader](path)


@pytest.mark.parametrize("reader", READERS)
def test_files_that_are_not_there_or_too_large(reader: str, tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match=r"missing\.yaml: no such file"):
        READERS[reader](tmp_path / "missing.yaml")
    large = tmp_path / "large.yaml"
    with large.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(UsageError, match="larger than 16 MB"):
        READERS[reader](large)
    with pytest.raises(UsageError, match="cannot be read"):
        READERS[reader](tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "minimum_distance: .inf",
        "minimum_distance: .nan",
        "max_entries_per_pattern: [1]",
        "max_entries_per_pattern: -1",
        "patterns: 5",
        "patterns: {a: 5}",
        "patterns: {a: {schemes: 5}}",
        "patterns: {a: {schemes: [{speedup: .inf, points: []}]}}",
        "patterns: {a: {schemes: [{speedup: .nan, points: []}]}}",
        "patterns: {a: {schemes: [{speedup: -1, points: []}]}}",
        f"patterns: {{a: {{schemes: [{{speedup: {'9' * 400}, points: []}}]}}}}",
        "patterns: {a: {schemes: [{speedup: 1, points: [[[], 0]]}]}}",
        "patterns: {a: {schemes: [{speedup: 1, points: [[node_input, -1, 0]]}]}}",
    ],
)
def test_caches_with_numbers_that_are_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cache.yaml"
    path.write_text(f"inlay_pattern_cache: 1\n{text}\n")
    with pytest.raises(UsageError, match="cache"):
        PatternCache.load(path)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_plain_data_comes_back(tmp_path_factory: pytest.TempPathFactory, data: object) -> None:
    path = tmp_path_factory.getbasetemp() / "plain.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf8")
    assert read_yaml(path) == data


def test_anchors_of_moderate_size_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        textwrap.dedent("""\
            inlay-recipe: 1
            rules:
              - {name: a, config: &c {activation: int8}}
              - {name: b, config: *c}
        """)
    )
    first, second = load_recipe(path).rules
    assert first.config == second.config


def test_a_merged_cache_never_replaces_one_that_it_is_made_of(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    PatternCache().save(first)
    PatternCache().save(second)
    (tmp_path / "link.yaml").symlink_to(second)
    (tmp_path / "hard.yaml").hardlink_to(second)
    for out in (first, second, tmp_path / "link.yaml", tmp_path / "hard.yaml", tmp_path / "x" / ".." / "a.yaml"):
        (tmp_path / "x").mkdir(exist_ok=True)
        with pytest.raises(UsageError, match="would overwrite"):
            merge_files([first, second], out)
    merge_files([first, second], tmp_path / "new.yaml")


def test_a_name_that_is_no_recipe_says_which_there_are() -> None:
    with pytest.raises(UsageError, match="give full-int8, conv-matmul, dynamic, weight-only, or a file"):
        find_recipe("full-int9")
    with pytest.raises(InlayError):
        find_recipe("full-int9.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", r"line 3 has the key a again, which stands in line 1"),
        ("x:\n  - {k: 1, k: 1}\n", r"line 2 has the key k again"),
    ],
)
def test_a_key_that_stands_twice_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(UsageError, match=said):
        read_yaml(tmp_path / "f.yaml")


def test_the_same_key_in_two_places_is_in_order(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("a: &x {k: 1}\nb: {k: 2}\nc: {<<: *x, k: 3}\n'1': 1\n1: 2\n")
    assert read_yaml(tmp_path / "f.yaml") == {"a": {"k": 1}, "b": {"k": 2}, "c": {"k": 3}, "1": 1, 1: 2}
