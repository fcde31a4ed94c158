"""Evolution on graphs with a planted optimum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from benchmarks.generated_graphs import GraphBuilder, residual

from inlay.errors import UsageError
from inlay.model.graph import Graph
from inlay.patterns.cache import CacheEntry, PatternCache
from inlay.patterns.config import Config
from inlay.patterns.evolve import Evolve
from inlay.patterns.sampling import SchemeSampler
from inlay.patterns.schemes import InsertionScheme, NodeInputInsertionPoint
from inlay.patterns.search_space import SearchSpace, find_search_space
from inlay.patterns.tree import RegionType
from inlay.targets.onnxruntime.rules import rules_for
from inlay.trial import Failed, Proposal, Trial
from inlay.types import Placement, Port, QType
from tests.support.light_graphs import LIGHT, light_graph
from tests.support.planted import Kind, PlantedEvaluator, drive, planted_latency

RULES = rules_for("x86_64", frozenset({"avx512_vnni"}))


def evolve(graph: Graph, seed: int = 0, space: SearchSpace | None = None, **more: object) -> Evolve:
    space = space or find_search_space(graph, RULES)
    return Evolve(space, rng=np.random.default_rng(seed), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["plain", "mixed", "paired"])
@pytest.mark.parametrize("name", LIGHT)
@pytest.mark.matrix
def test_planted_optimum_is_found_with_thirty_schemes_per_region(name: str, kind: Kind) -> None:
    graph = light_graph(name)
    space = find_search_space(graph, RULES)
    evaluator = PlantedEvaluator(planted_latency(space, kind))
    assert evaluator.latency(Placement()) == 100
    strategy = evolve(graph, space=space, config=Config(schemes_per_region=30))
    drive(strategy, evaluator)
    assert evaluator.best <= 50.5
    assert evaluator.latency(strategy.incumbent) == evaluator.best


def test_the_oracle_is_not_solved_by_the_first_guess() -> None:
    """Negative control: with one scheme per region (all points) the mixed landscape is not solved."""
    graph = light_graph("resnet50")
    space = find_search_space(graph, RULES)
    evaluator = PlantedEvaluator(planted_latency(space, "mixed"))
    drive(evolve(graph, space=space, config=Config(schemes_per_region=1)), evaluator)
    assert evaluator.best > 50.5


def test_full_coverage_costs_fifty_in_the_plain_landscape() -> None:
    graph = light_graph("squeezenet")
    space = find_search_space(graph, RULES)
    everything = Placement((p, QType.UINT8) for p, r in space.rejections.ports.items() if r is None)
    assert planted_latency(space, "plain")(everything) == pytest.approx(50)


def test_no_placement_is_asked_twice() -> None:
    graph = residual(60)
    space = find_search_space(graph, RULES)
    evaluator = PlantedEvaluator(planted_latency(space, "mixed"))
    strategy = evolve(graph, space=space)
    seen = set()
    while (proposal := strategy.ask()) is not None:
        assert proposal.placement not in seen
        assert len(proposal.placement)
        seen.add(proposal.placement)
        strategy.tell(evaluator(proposal))
    assert len(seen) > 50


def test_what_comes_next_is_drawn_without_drawing() -> None:
    """Guesses are right where nothing is accepted meanwhile, and the search goes the same way without them."""
    space = find_search_space(residual(60), RULES)

    def asked(guess: bool) -> tuple[list[str], int]:
        evaluator, strategy = PlantedEvaluator(planted_latency(space, "mixed")), evolve(space.graph, space=space)
        digests, right, likely = list[str](), 0, list[str]()
        while (proposal := strategy.ask()) is not None:
            digests.append(proposal.placement.digest)
            right += digests[-1] in likely
            likely = [p.digest for p in strategy.upcoming(4)] if guess else []
            strategy.tell(evaluator(proposal))
        return digests, right

    (plain, none), (guessed, right) = asked(False), asked(True)
    assert guessed == plain
    assert none == 0 < len(plain) // 3 < right


def test_same_seed_asks_the_same_and_another_seed_does_not() -> None:
    graph = residual(60)

    def asked(seed: int) -> list[str]:
        space = find_search_space(graph, RULES)
        evaluator, strategy, digests = (
            PlantedEvaluator(planted_latency(space, "mixed")),
            evolve(graph, seed, space=space),
            [],
        )
        while (proposal := strategy.ask()) is not None:
            digests.append(proposal.placement.digest)
            strategy.tell(evaluator(proposal))
        return digests

    assert asked(1) == asked(1)
    assert asked(1) != asked(2)


def test_leaves_come_first_then_composites_by_height_then_the_root() -> None:
    patterns = evolve(residual(200)).patterns()
    heights = [p.instances[0].region.level for p in patterns]
    assert heights == sorted(heights)
    assert patterns[-1].type is RegionType.ROOT
    assert all(p.points for p in patterns)


def test_all_regions_of_a_pattern_change_together() -> None:
    graph = residual(100)
    strategy = evolve(graph)
    pattern = max(strategy.patterns(), key=lambda p: len(p.instances))
    point = next(p for p in pattern.points if isinstance(p, NodeInputInsertionPoint))
    ports = strategy.resolve(pattern, InsertionScheme(frozenset({point})))
    assert len(pattern.instances) > 5
    assert len(ports) == len(pattern.instances)


def test_composites_start_from_what_their_leaves_found() -> None:
    """A leaf's choice survives every composite scheme that is not measured to be faster."""
    graph = residual(60)
    space = find_search_space(graph, RULES)
    wanted = {p for p, r in space.rejections.ports.items() if r is None and graph.node(p.node).op_type == "Conv"}

    def latency(placement: Placement) -> float:
        return 100 - 50 * sum(p in placement for p in wanted) / len(wanted)

    evaluator, strategy = PlantedEvaluator(latency), evolve(graph, space=space)
    before: set[Port] = set()
    composites = 0
    while (proposal := strategy.ask()) is not None:
        if proposal.origin == "evolve: all points":  # which would leave nothing to find
            strategy.tell(Trial(proposal, Failed("compile", "not now")))
            continue
        composite = "leaf" not in proposal.origin
        if composite and not before:
            before = {p for p, _ in strategy.incumbent}
            assert wanted <= before
        composites += composite
        strategy.tell(evaluator(proposal))
        if composite:
            assert wanted <= {p for p, _ in strategy.incumbent}
    assert composites > 10
    assert evaluator.best == pytest.approx(50)


def test_what_lies_outside_a_pattern_is_not_touched() -> None:
    graph = residual(60)
    everything = frozenset(p for p, r in find_search_space(graph, RULES).rejections.ports.items() if r is None)
    strategy = evolve(graph, base=Placement((p, QType.UINT8) for p in everything))
    for pattern in strategy.patterns():
        own = {p for i in pattern.instances for ports in strategy.space.tables[i.region.id].values() for p in ports}
        assert everything - own <= strategy.resolve(pattern, InsertionScheme())
        if len(pattern.instances) == 1:
            assert strategy.resolve(pattern, strategy.current(pattern)) == everything


def test_base_placement_is_asked_for_first() -> None:
    graph = residual(20)
    base = Placement([(Port("n0", 0), QType.UINT8)])
    strategy = evolve(graph, base=base)
    first = strategy.ask()
    assert first is not None
    assert first.placement == base


def test_failed_trials_never_become_the_incumbent() -> None:
    strategy = evolve(residual(40))
    while (proposal := strategy.ask()) is not None:
        strategy.tell(Trial(proposal, Failed("compile", "no"), accepted=False))
    assert strategy.incumbent == Placement()


def test_threshold_decides() -> None:
    graph = residual(40)
    space = find_search_space(graph, RULES)
    low, high = (
        evolve(graph, space=space, config=Config(performance_threshold=t, schemes_per_region=8)) for t in (1.0, 2.5)
    )
    drive(low, PlantedEvaluator(planted_latency(space, "plain")))
    drive(high, PlantedEvaluator(planted_latency(space, "plain")))
    assert len(low.incumbent) > 0
    assert len(high.incumbent) == 0


def test_seeds_from_elsewhere_are_tried_before_anything_is_drawn() -> None:
    graph = residual(40)
    space = find_search_space(graph, RULES)
    strategy = evolve(
        graph, space=space, seeds=[Placement([(Port("n0", 0), QType.UINT8), (Port("n0", 1), QType.INT8)])]
    )
    evaluator = PlantedEvaluator(planted_latency(space, "plain"))
    origins = []
    while (proposal := strategy.ask()) is not None:
        origins.append(proposal.origin)
        strategy.tell(evaluator(proposal))
    assert any("imported" in o for o in origins)


def test_telling_of_something_else_is_noticed() -> None:
    strategy = evolve(residual(20))
    asked = strategy.ask()
    assert asked is not None
    other = Proposal(Placement([(Port("n0", 0), QType.UINT8), (Port("n2", 0), QType.UINT8)]), "other")
    with pytest.raises(AssertionError):
        strategy.tell(Trial(other, Failed("compile", "")))


@pytest.mark.parametrize("kind", ["plain", "mixed", "paired"])
def test_own_cache_brings_the_result_back_in_a_fifth_of_the_measurements(kind: Kind) -> None:
    graph = light_graph("squeezenet")
    space = find_search_space(graph, RULES)
    cold, evaluator = evolve(graph, space=space), PlantedEvaluator(planted_latency(space, kind))
    course = drive(cold, evaluator)
    cache = PatternCache.from_data(cold.learned().to_data())
    warm = evolve(graph, seed=1, space=find_search_space(graph, RULES), cache=cache)
    again = drive(warm, PlantedEvaluator(planted_latency(space, kind)))
    reached = next(i for i, ms in enumerate(again, 1) if ms <= course[-1] + 1e-9)
    needed = next(i for i, ms in enumerate(course, 1) if ms <= course[-1] + 1e-9)
    assert reached <= len(course) / 5
    assert reached <= max(1, needed / 5)


def test_cached_schemes_are_measured_not_believed() -> None:
    graph = residual(40)
    space = find_search_space(graph, RULES)
    good = evolve(graph, space=space)
    drive(good, PlantedEvaluator(planted_latency(space, "plain")))
    warm = evolve(graph, space=space, cache=good.learned())
    drive(warm, PlantedEvaluator(lambda p: 100.0 + len(p)))  # on this target every pair costs
    assert warm.incumbent == Placement()


def test_cache_of_other_models_is_harmless() -> None:
    graph = residual(40)
    space = find_search_space(graph, RULES)
    other = evolve(light_graph("squeezenet"))
    drive(other, PlantedEvaluator(planted_latency(other.space, "plain")), limit=50)
    warm = evolve(graph, space=space, cache=other.learned())
    evaluator = PlantedEvaluator(planted_latency(space, "plain"))
    drive(warm, evaluator)
    assert evaluator.best <= 50.5


def test_mutations_start_from_the_top_and_change_at_most_so_many_points() -> None:
    points = [NodeInputInsertionPoint(0, i) for i in range(40)]
    config = Config(maximum_mutations=2, minimum_schemes_to_mutate=3, top_percent_to_mutate=0.1)
    sampler = SchemeSampler(points, (), config, np.random.default_rng(0))
    ranked = [InsertionScheme(frozenset(points[: 2 * i])) for i in range(20)]
    incumbent = ranked[0]
    distances = set()
    for _ in range(300):
        scheme, how = sampler.draw(incumbent, ranked, 0)
        if how == "mutation":
            distance = min(scheme.distance(r) for r in ranked[:3])
            assert distance <= 2
            distances.add(min(scheme.distance(r) for r in ranked[:3]))
        if how == "flip":
            assert scheme.distance(incumbent) == 1
    assert distances == {0, 1, 2} or distances == {1, 2}


def test_top_percent_widens_the_seeds() -> None:
    points = [NodeInputInsertionPoint(0, i) for i in range(60)]
    ranked = [InsertionScheme(frozenset(points[i : i + 20])) for i in range(40)]
    used = set()
    config = Config(maximum_mutations=1, minimum_schemes_to_mutate=1, top_percent_to_mutate=0.5)
    sampler = SchemeSampler(points, (), config, np.random.default_rng(0))
    for _ in range(2000):
        scheme, how = sampler.draw(InsertionScheme(), ranked, 0)
        if how == "mutation":
            used.add(min(range(40), key=lambda i: scheme.distance(ranked[i])))
    assert used == set(range(20))


def test_flips_take_turns() -> None:
    points = [NodeInputInsertionPoint(0, i) for i in range(12)]
    sampler = SchemeSampler(points, (), Config(), np.random.default_rng(0))
    flipped: list[object] = []
    while len(flipped) < 12:
        scheme, how = sampler.draw(InsertionScheme(), [], 0)
        if how == "flip":
            flipped.append(next(iter(scheme.points)))
    assert len(flipped) == len(set(flipped))
    assert set(flipped) == set(points)


def test_a_pattern_with_few_schemes_is_searched_through_and_left() -> None:
    b = GraphBuilder()
    b.node("Sigmoid", [b.input((1, 8))])
    graph = b.graph()
    strategy = evolve(graph)
    assert len(drive(strategy, PlantedEvaluator(lambda p: 100.0 + len(p)))) <= 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"schemes_per_region": 0},
        {"maximum_mutations": 0},
        {"maximum_generation_attempts": 0},
        {"top_percent_to_mutate": 1.5},
        {"performance_threshold": 0.9},
        {"performance_threshold": float("nan")},
        {"concat_group_min_samples": -1},
        {"confirmations": -1},
    ],
)
def test_settings_out_of_range_are_rejected_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        replace(Config(), **wrong)


def test_defaults_are_the_published_ones() -> None:
    config = Config()
    assert config.top_percent_to_mutate == 0.1
    assert config.minimum_schemes_to_mutate == 10
    assert config.maximum_mutations == 3
    assert config.maximum_generation_attempts == 100
    assert config.schemes_per_region == 30


def test_what_is_drawn_far_away_is_as_far_from_all_known_as_a_cache_wants() -> None:
    """So the schemes of a pattern are diverse when they are generated, and a cache keeps several of them."""
    points = [NodeInputInsertionPoint(i, 0) for i in range(16)]
    sampler = SchemeSampler(points, (), Config(), np.random.default_rng(0))
    known = [InsertionScheme()]
    far = []
    for _ in range(120):
        scheme, how = sampler.draw(known[0], known, len(known))
        if how == "far":
            far.append(min(scheme.distance(k) for k in known))
            known.append(scheme)
    assert len(far) > 8
    assert min(far[:6]) >= Config().pattern_cache_minimum_distance
    cache = PatternCache()
    cache.add("p", "", [CacheEntry(s, 1.0) for s in known])
    assert len(cache.entries("p")) >= 7


def test_of_few_points_half_are_far() -> None:
    points = [NodeInputInsertionPoint(i, 0) for i in range(3)]
    sampler = SchemeSampler(points, (), Config(), np.random.default_rng(0))
    drawn = [sampler.draw(InsertionScheme(), [InsertionScheme()], 1) for _ in range(60)]
    far = [s for s, how in drawn if how == "far"]
    assert far
    assert all(len(s.points) >= 2 for s in far)
