"""Concat groups: atomic, always possible, and found in time."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.generated_graphs import GraphBuilder

from inlay.model.graph import Graph
from inlay.patterns.config import Config
from inlay.patterns.evolve import Evolve
from inlay.patterns.sampling import SchemeSampler
from inlay.patterns.schemes import ConcatGroup, InsertionScheme, NodeInputInsertionPoint
from inlay.patterns.search_space import find_search_space
from inlay.targets.onnxruntime.rules import rules_for
from inlay.types import Placement, Port
from tests.support.planted import PlantedEvaluator
from tests.support.region_graphs import ports_of

RULES = rules_for("x86_64", frozenset({"avx512_vnni"}))
SEEDS = 100


def model(branches: int = 2) -> Graph:
    """Conv→Relu on each branch, Concat, Conv→Relu."""
    b = GraphBuilder()
    x = b.input((1, 8, 4, 4))
    parts = [b.relu(b.conv(x, 8 + i)) for i in range(branches)]
    wide = sum(8 + i for i in range(branches))
    b.relu(b.conv(b.node("Concat", parts, (1, wide, 4, 4), name="cat", axis=1), 8))
    return b.graph()


def concat_ports(graph: Graph) -> list[Port]:
    return [p for p, _ in graph.node("cat").input_ports()]


@pytest.mark.parametrize("branches", [2, 4])
def test_all_inputs_of_the_concat_are_covered_within_thirty_samples(branches: int) -> None:
    """Nothing guides the search: every placement is slower than float."""
    graph = model(branches)
    space = find_search_space(graph, RULES)
    wanted = concat_ports(graph)
    found = 0
    for seed in range(SEEDS):
        strategy = Evolve(space, rng=np.random.default_rng(seed))
        evaluator = PlantedEvaluator(lambda p: 100.0 + len(p))
        for _ in range(30):
            proposal = strategy.ask()
            assert proposal is not None
            if all(p in proposal.placement for p in wanted):
                found += 1
                break
            strategy.tell(evaluator(proposal))
    assert found >= 99


def by_drawing(groups: bool, seed: int) -> bool:
    """Only drawn schemes, without the opening ones, from an empty incumbent that nothing beats."""
    graph = model(12)
    space = find_search_space(graph, RULES)
    leaf = space.tree.leaf_of["cat"]
    pattern = space.pattern_of[leaf.id]
    sampler = SchemeSampler(pattern.points, pattern.groups if groups else (), Config(), np.random.default_rng(seed))
    wanted = set(concat_ports(graph))
    seen = {InsertionScheme()}
    while len(seen) <= 30:
        scheme, how = sampler.draw(InsertionScheme(), [InsertionScheme()], len(seen) - 1)
        if scheme in seen:
            continue
        seen.add(scheme)
        sampler.record(how)
        if wanted <= ports_of(space, scheme, leaf.id):
            return True
    return False


def test_group_moves_alone_find_it_for_99_of_100_seeds() -> None:
    assert sum(by_drawing(True, seed) for seed in range(SEEDS)) >= 99


def test_without_group_moves_it_is_missed_often() -> None:
    """Negative control: single flips and mutations of at most three points seldom cover twelve inputs."""
    assert sum(by_drawing(False, seed) for seed in range(SEEDS)) < 80


POINTS = [NodeInputInsertionPoint(0, i) for i in range(4)]
GROUP = ConcatGroup("cat", frozenset(POINTS[:3]))


def moves(seed_scheme: InsertionScheme, count: int = 200) -> set[InsertionScheme]:
    sampler = SchemeSampler(POINTS, (GROUP,), Config(concat_group_min_samples=30), np.random.default_rng(0))
    drawn = [sampler.draw(seed_scheme, [seed_scheme], 0) for _ in range(count)]
    assert all(how == "Concat group" for _, how in drawn)
    return {scheme for scheme, _ in drawn}


def test_groups_move_as_one_and_only_where_that_changes_something() -> None:
    empty, full = InsertionScheme(), InsertionScheme(GROUP.points)
    part = InsertionScheme(frozenset(POINTS[:1]) | {POINTS[3]})
    assert moves(empty) == {full}
    assert moves(full) == {empty}
    assert moves(part) == {InsertionScheme(frozenset(POINTS)), InsertionScheme(frozenset({POINTS[3]}))}


def test_probability_adapts_and_is_clamped() -> None:
    config = Config(schemes_per_region=30, concat_group_min_samples=3)
    sampler = SchemeSampler(POINTS, (GROUP,), config, np.random.default_rng(0))
    assert sampler.group_probability(0) == pytest.approx(0.1)
    assert sampler.group_probability(20) == pytest.approx(0.3)
    assert sampler.group_probability(28) == 1.0
    for _ in range(3):
        sampler.record("Concat group")
    sampler.record("flip")
    assert sampler.group_samples == 3
    assert sampler.group_probability(0) == 0.05
    assert SchemeSampler(POINTS, (), config, np.random.default_rng(0)).group_probability(0) == 0.0


@pytest.mark.parametrize("least", [0, 3, 10])
def test_expected_number_of_group_samples_is_kept(least: int) -> None:
    """A mean over seeds, as documented: not a guarantee for each."""
    points = [NodeInputInsertionPoint(0, i) for i in range(30)]
    group = ConcatGroup("cat", frozenset(points[:20]))
    config = Config(schemes_per_region=30, concat_group_min_samples=least)
    counts = []
    for seed in range(60):
        sampler = SchemeSampler(points, (group,), config, np.random.default_rng(seed))
        for drawn in range(30):
            sampler.record(sampler.draw(InsertionScheme(), [InsertionScheme()], drawn)[1])
        counts.append(sampler.group_samples)
    assert np.mean(counts) >= least
    assert np.mean(counts) <= least + 3


def test_promotion_takes_the_concat_along() -> None:
    """A value that a Conv reads in low precision, and else only a Concat, is quantized for both."""
    b = GraphBuilder()
    x = b.relu(b.conv(b.input((1, 8, 4, 4)), 8))
    y = b.relu(b.conv(x, 8, 3))
    b.conv(b.node("Concat", [x, y], (1, 16, 4, 4), name="cat", axis=1), 8)
    graph = b.graph()
    space = find_search_space(graph, RULES)

    def latency(placement: Placement) -> float:
        return 100.0 - 10 * (Port("n2", 0) in placement) - 10 * (Port("cat", 0) in placement)

    evaluator = PlantedEvaluator(latency)
    strategy = Evolve(space, rng=np.random.default_rng(0))
    while (proposal := strategy.ask()) is not None:
        if Port("n2", 0) in proposal.placement:
            assert Port("cat", 0) in proposal.placement
        strategy.tell(evaluator(proposal))
    assert evaluator.best == 80
