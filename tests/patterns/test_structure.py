"""The structural tier: what stays the same when a network is built for another resolution, width or batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from benchmarks.generated_graphs import FAMILIES, GraphBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.patterns.cache import PatternCache
from inlay.patterns.config import Config
from inlay.patterns.evolve import Evolve
from inlay.patterns.known import CACHED, RELATED, KnownSchemes, find_structures
from inlay.patterns.schemes import InsertionScheme
from inlay.patterns.search_space import RegionPattern, SearchSpace, find_search_space
from inlay.targets.onnxruntime.rules import rules_for
from inlay.types import Port

RULES = rules_for("x86_64", frozenset({"avx512_vnni"}))
Build = Callable[[GraphBuilder], None]


def network(
    *, side: int = 16, width: int = 8, batch: int = 1, kernel: int = 3, op: str = "Add", depthwise: bool = True
) -> Build:
    """A stem, two residual blocks that differ in their kernel, a depthwise Conv, a Concat of two branches."""

    def build(b: GraphBuilder) -> None:
        x = b.relu(b.conv(b.input((batch, 3, side, side)), width, kernel))
        for inner in (3, 1):
            y = b.conv(b.relu(b.conv(x, width, inner)), width, inner)
            x = b.relu(b.node(op, [x, y]))
        groups, weight = (width, b.const((width, 1, 3, 3))) if depthwise else (1, b.const((width, width, 3, 3)))
        x = b.relu(b.node("Conv", [x, weight], group=groups, kernel_shape=(3, 3), pads=(1, 1, 1, 1)))
        left, right = b.relu(b.conv(x, width, 1)), b.relu(b.conv(x, 2 * width, 3))
        x = b.node("Concat", [left, right], axis=1)
        b.relu(b.conv(x, width, 1))

    return build


def space_of(build: Build) -> SearchSpace:
    b = GraphBuilder()
    build(b)
    return find_search_space(b.graph(), RULES)


def structures_of(build: Build) -> list[str]:
    space = space_of(build)
    found = find_structures(space)
    return [found[p.signature].signature for p in space.in_search_order()]


@pytest.mark.parametrize("other", [{"side": 24}, {"width": 16}, {"batch": 4}, {"side": 10, "width": 12, "batch": 2}])
def test_sizes_are_no_part_of_a_structure(other: dict[str, int]) -> None:
    one, two = space_of(network()), space_of(network(**other))  # type: ignore[arg-type]
    shared = set(one.patterns) & set(two.patterns)
    assert not any(one.patterns[s].points for s in shared), "their exact patterns differ"
    assert sorted(structures_of(network())) == sorted(structures_of(network(**other)))  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [network(kernel=5), network(op="Mul"), network(depthwise=False)])
def test_attributes_that_matter_and_operators_are(other: Build) -> None:
    assert sorted(structures_of(network())) != sorted(structures_of(other))


def test_a_scheme_goes_to_the_structure_and_back() -> None:
    space = space_of(network())
    found = find_structures(space)
    for pattern in space.in_search_order():
        structure = found[pattern.signature]
        assert set(structure.points) == set(pattern.points)
        assert len(set(structure.points.values())) == len(pattern.points), "points stay apart"
        for scheme in _schemes(pattern):
            assert structure.specialized(structure.generalized(scheme)) == scheme


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_generated_family_has_structures(name: str) -> None:
    space = find_search_space(FAMILIES[name](60), RULES)
    found = find_structures(space)
    for pattern in space.in_search_order():
        assert set(found[pattern.signature].points) == set(pattern.points)


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10_000))
def test_what_was_learned_at_one_size_is_known_at_another(seed: int) -> None:
    """The ports that a scheme of the source sets are those that its image sets: node names are equal in both."""
    source, other = space_of(network()), space_of(network(side=24, width=16))
    learned, wanted = _learned(source, seed)
    known = KnownSchemes(other, PatternCache.from_data(learned.to_data()))
    coverage = known.coverage
    assert (coverage.known, coverage.related) == (coverage.total, coverage.total)
    assert str(coverage) == f"{coverage.total} of {coverage.total} patterns known, {coverage.total} by structure"
    assert known.together(frozenset()) == wanted


def test_exact_schemes_come_before_those_of_relatives() -> None:
    source, other = space_of(network()), space_of(network(side=24))
    cache = _learned(source, 1)[0]
    cache.merge(_learned(other, 2)[0])
    known = KnownSchemes(other, cache)
    for pattern in other.in_search_order():
        hows = [how for _, how in known.schemes(pattern)]
        assert hows[0] == CACHED
        assert hows == sorted(hows, key=[CACHED, RELATED].index)
    assert known.coverage.related == 0


def test_of_relatives_the_one_at_the_same_depth_is_first() -> None:
    """Equal structures in one network: each finds its own counterpart at the other resolution."""

    def build(side: int) -> Build:
        def make(b: GraphBuilder) -> None:
            x = b.input((1, 8, side, side))
            for width in range(8, 48):  # many leaves, of which no two have the same sizes
                x = b.relu(b.conv(x, width, 3))

        return make

    source, other = space_of(build(16)), space_of(build(32))
    learned, wanted = _learned(source, 5)
    assert len({s.signature for s in find_structures(source).values()}) < len(source.patterns)
    assert KnownSchemes(other, learned).together(frozenset()) == wanted


def test_points_that_are_not_legal_here_are_dropped() -> None:
    source = space_of(network())
    cache = PatternCache(minimum_distance=1)
    known = KnownSchemes(source, None)
    every = {p.signature: [(InsertionScheme(frozenset(p.points)), 1.5)] for p in source.in_search_order()}
    cache.merge(known.learned(every, Config()))
    b = GraphBuilder()
    network(side=24)(b)
    graph = b.graph()
    some = frozenset(n.name for n in graph.nodes if n.op_type == "Conv")
    other = find_search_space(graph, RULES, allowed=some)
    restricted = KnownSchemes(other, cache)
    for pattern in other.in_search_order():
        for scheme, _ in restricted.schemes(pattern):
            assert scheme.points <= set(pattern.points)
    assert restricted.coverage.related == restricted.coverage.total


def test_merging_keeps_what_has_no_match() -> None:
    one, two = _learned(space_of(network()), 1)[0], _learned(space_of(network(op="Mul", side=20)), 2)[0]
    signatures = {*one, *two}
    before = {s: two.kinship(s) for s in two}
    one.merge(two)
    assert set(one) == signatures
    assert all(one.kinship(s) == kin for s, kin in before.items())
    assert PatternCache.from_data(one.to_data()) == one


def test_caches_of_earlier_versions_are_known_exactly() -> None:
    source = space_of(network())
    data = _learned(source, 1)[0].to_data()
    for held in data["patterns"].values():
        del held["structure"], held["depth"]
        for scheme in held["schemes"]:
            del scheme["general"]
    old = PatternCache.from_data(data)
    assert KnownSchemes(source, old).coverage.known == len(source.in_search_order())
    assert KnownSchemes(space_of(network(side=24)), old).coverage.known == 0


def test_evolution_begins_with_what_is_known_and_measures_it_again() -> None:
    source, other = space_of(network()), space_of(network(side=24))
    learned, wanted = _learned(source, 3)
    evolve = Evolve(other, config=Config(schemes_per_region=4), cache=learned)
    first = evolve.ask()
    assert first is not None
    assert "cached" in first.origin
    assert wanted <= {p for p, _ in first.placement}
    search = Evolve(other, cache=learned).search_of(other.in_search_order()[0])
    assert search.queue[-1][1] == RELATED


def _schemes(pattern: RegionPattern) -> Iterator[InsertionScheme]:
    yield InsertionScheme(frozenset(pattern.points))
    for point in pattern.points:
        yield InsertionScheme(frozenset({point}))


def _learned(space: SearchSpace, seed: int) -> tuple[PatternCache, frozenset[Port]]:
    """A cache with one scheme of every pattern, and the ports that all of them together set."""
    rng = np.random.default_rng(seed)
    known = KnownSchemes(space, None)
    measured = {}
    for pattern in space.in_search_order():
        chosen = frozenset(p for p in pattern.points if rng.random() < 0.5)
        measured[pattern.signature] = [(InsertionScheme(chosen), 1.2)]
    learned = known.learned(measured, Config())
    return learned, KnownSchemes(space, learned).together(frozenset())


def test_learned_depth_is_that_of_the_model() -> None:
    space = space_of(network())
    depths = [s.depth for s in find_structures(space).values()]
    assert min(depths) == 0.0
    assert 0.5 < max(depths) < 1.0
