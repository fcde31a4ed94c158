"""Twelve things that an earlier tuner of this kind gets wrong, each as a test that it is right here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks.generated_graphs import FAMILIES, GraphBuilder

from inlay.autotune import Config, QDQAutotuner, region_pattern_autotuning_workflow
from inlay.errors import JournalError, UsageError
from inlay.model.graph import Graph
from inlay.model.reference import Session
from inlay.model.store import WeightStore
from inlay.patterns.evolve import Evolve
from inlay.patterns.fork_join import find_fork_joins
from inlay.patterns.schemes import InsertionScheme, NodeInputInsertionPoint, SchemeCompletion
from inlay.patterns.search_space import SearchSpace, find_search_space
from inlay.patterns.tree import Region, RegionType
from inlay.targets.onnxruntime.rules import rules_for
from inlay.types import Placement, Port, QType
from tests.support.branches import branches
from tests.support.light_graphs import LIGHT, light_graph
from tests.support.planted import PlantedEvaluator, drive, planted_latency
from tests.support.work import growth

RULES = rules_for("x86_64", frozenset({"avx512_vnni"}))
FAST = Config(schemes_per_region=6, confirmations=0)


def evolve(graph: Graph, space: SearchSpace | None = None, config: Config | None = None) -> Evolve:
    return Evolve(space or find_search_space(graph, RULES), rng=np.random.default_rng(0), config=config)


def pairs(data: bytes) -> int:
    return sum(n.op_type == "DequantizeLinear" for n in onnx.load_from_string(data).graph.node)


def test_01_composites_keep_what_leaves_found_resnet50_ends_at_its_optimum() -> None:
    space = find_search_space(light_graph("resnet50"), RULES)
    strategy, evaluator = evolve(space.graph, space=space), PlantedEvaluator(planted_latency(space, "plain"))
    levels: dict[str, float] = {}
    while (proposal := strategy.ask()) is not None:
        strategy.tell(evaluator(proposal))
        levels[proposal.origin.split()[1].replace("all", "leaf")] = evaluator.latency(strategy.incumbent)
    assert levels["leaf"] >= levels["composite"] >= levels["root"]
    assert levels["root"] <= 50.5


def test_02_what_is_returned_is_the_best_that_was_measured(tmp_path: Path) -> None:
    readings: dict[bytes, float] = {}

    def measure(path: Path) -> float:
        data = path.read_bytes()
        return readings.setdefault(data, 10 - 0.1 * pairs(data) + 0.3 * (pairs(data) % 3))

    region_pattern_autotuning_workflow(branches(), tmp_path, measure, config=FAST)
    assert readings[(tmp_path / "model.onnx").read_bytes()] == min(readings.values())


def test_03_noise_is_not_taken_for_gain() -> None:
    """2 % noise and nothing to gain: at most a few ports are committed, where single readings commit many."""
    committed = {}
    for confirmations in (0, 5):
        rng = np.random.default_rng(11)
        tuner = QDQAutotuner(branches())
        tuner.initialize(Config(schemes_per_region=15, confirmations=confirmations))
        tuner.submit(10.0)
        for region in tuner.regions:
            tuner.set_profile_region(region)
            while tuner.generate() is not None:
                tuner.submit(10.0 * float(np.exp(0.02 * rng.standard_normal())))
        tuner.set_profile_region(None)
        committed[confirmations] = len(tuner.best_placement)
    assert committed[0] >= 5
    assert committed[5] == 0


@pytest.mark.parametrize("name", ["squeezenet", "resnet50", "shufflenet"])
def test_04_no_model_is_measured_twice(name: str) -> None:
    space = find_search_space(light_graph(name), RULES)
    strategy = evolve(space.graph, space=space)
    evaluator = PlantedEvaluator(planted_latency(space, "mixed"))
    seen: Counter[str] = Counter()
    while (proposal := strategy.ask()) is not None:
        seen[proposal.placement.digest] += 1
        strategy.tell(evaluator(proposal))
    assert max(seen.values()) == 1
    assert Placement().digest not in seen


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("name", LIGHT)
def test_05_regions_are_a_partition_and_fork_join_blocks_are_found(name: str) -> None:
    space = find_search_space(light_graph(name), RULES)
    counted = Counter(n for r in space.tree.regions for n in r.direct_nodes)
    assert counted == Counter(n.name for n in space.graph.nodes)
    blocks = [r for r in space.tree.regions if r.type is RegionType.COMPOSITE]
    auxiliary = find_fork_joins(space.graph).auxiliary  # shape arithmetic and weights made at run time join nothing
    joins = [n for n in space.graph.nodes if len({p.name for p in space.graph.predecessors(n)} - auxiliary) > 1]
    inside = {n for r in blocks for n in r.nodes} & {n.name for n in joins}
    assert len(inside) >= 0.9 * len(joins) > 0


def test_05_discovery_of_split_concat_chains_is_not_exponential() -> None:
    def search_space(count: int) -> Callable[[], object]:
        graph = FAMILIES["split-concat"](count)
        return lambda: find_search_space(graph, RULES)

    assert growth(search_space, 50) < 2.2
    search_space(3000)()  # no recursion as deep as the graph


def test_06_slots_do_not_follow_the_names_of_tensors() -> None:
    """The same block twice, its tensors named so that alphabetical order differs: slots still agree."""
    b = GraphBuilder()
    x = b.relu(b.conv(b.input((1, 8, 4, 4)), 8))
    for left, right in (("a", "z"), ("z2", "a2")):
        one = b.node("Sigmoid", [x], name=left)
        two = b.node("LeakyRelu", [x], name=right)
        x = b.node("Add", [one, two] if left == "a" else [two, one])
    space = find_search_space(b.graph(), RULES)
    pattern = next(p for p in space.patterns.values() if p.type is RegionType.LEAF and p.summary == "Sigmoid")
    assert len(pattern.instances) == 2
    adds = [space.tree.leaf_of[n.name] for n in space.graph.nodes if n.op_type == "Add"]
    composites = [r for r in space.tree.regions if r.type is RegionType.COMPOSITE]
    assert len({space.pattern_of[r.id].signature for r in composites[:2]}) == 1
    for point in space.pattern_of[composites[0].id].points:
        first, second = (space.tables[r.id][point] for r in composites[:2])
        seen = [{_sight(space.graph, p, r) for p in t} for r, t in zip(composites, (first, second), strict=False)]
        assert seen[0] == seen[1]
    assert len(adds) == 2


def _sight(graph: Graph, port: Port, region: Region) -> tuple[str, str]:
    """The operator that reads, and the one that is read where it lies in the region."""
    producer = graph.producer(graph.value_of(port))
    reader = graph.node(port.node).op_type if port.node in region.nodes else "outside"
    return reader, producer.op_type if producer is not None and producer.name in region.nodes else "outside"


def test_07_blocks_of_other_sizes_have_other_patterns() -> None:
    space = find_search_space(light_graph("resnet50"), RULES)
    blocks = [p for p in space.patterns.values() if p.type is RegionType.COMPOSITE and "Add" in p.summary]
    shapes = [space.graph.shape(p.instances[0].region.outputs[0]) for p in blocks]
    assert len(set(shapes)) == 4
    assert sum(len(p.instances) for p in blocks) == 16


def test_07_layernorm_with_and_without_bias_are_told_apart() -> None:
    signatures = []
    for bias in (True, False):
        b = GraphBuilder()
        x = b.input((1, 4, 8))
        b.node("LayerNormalization", [x, b.const((8,)), *([b.const((8,))] if bias else [])])
        signatures.append(find_search_space(b.graph(), RULES).pattern_of[0].signature)
    assert len(set(signatures)) == 2


def test_08_concat_transpose_clip_and_slice_are_quantizable() -> None:
    b = GraphBuilder()
    x = b.relu(b.conv(b.input((1, 8, 4, 4)), 8))
    y = b.node("Concat", [x, b.conv(x, 8)], (1, 16, 4, 4), name="concat", axis=1)
    y = b.node("Transpose", [y], (1, 4, 4, 16), name="transpose", perm=(0, 2, 3, 1))
    y = b.node("Slice", [y, *(b.const((1,)) for _ in range(2))], (1, 4, 4, 8), name="slice")
    space = find_search_space(b.graph(), RULES)
    for name in ("concat", "transpose", "slice"):
        assert space.rejections.allows(Port(name, 0))
    # a Clip is folded into its Conv: covering the Conv's input and the Clip's output quantizes both
    b = GraphBuilder()
    b.node("Clip", [b.conv(b.input((1, 8, 4, 4)), 8)], name="clip")
    space = find_search_space(b.graph(), RULES)
    assert space.rejections.outputs["clip:0"] is None


def test_08_everything_at_once_is_among_the_first_guesses() -> None:
    strategy = evolve(FAMILIES["residual"](30))
    evaluator = PlantedEvaluator(planted_latency(strategy.space, "plain"))
    origins = []
    while (proposal := strategy.ask()) is not None:
        origins.append((proposal.origin, len(proposal.placement)))
        strategy.tell(evaluator(proposal))
    assert origins[0][0] == "evolve: all points"
    assert origins[0][1] > 3


def test_09_scales_are_calibrated_scalars_from_the_first_export_on(tmp_path: Path) -> None:
    tuner = QDQAutotuner(branches())
    tuner.initialize(FAST)
    tuner.submit(10.0)
    feed = {"x": np.random.default_rng(5).standard_normal((1, 3, 8, 8)).astype(np.float32)}
    store = WeightStore(tmp_path)
    want = Session(onnx.load_from_string(tuner.export_onnx(insert_qdq=False)), store).run(feed)["y"]
    tuner.set_profile_region(tuner.regions[-1])
    tuner.generate()
    model = onnx.load_from_string(tuner.export_onnx())
    scales = {n.input[1] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    tensors = {t.name: t for t in model.graph.initializer}
    assert scales
    assert all(list(tensors[s].dims) == [] for s in scales)
    got = Session(model, store).run(feed)["y"]
    assert 10 * np.log10(np.square(want).sum() / np.square(want - got).sum()) > 20


def test_10_baseline_import_yields_schemes_and_accounts_for_every_site() -> None:
    tuner = QDQAutotuner(branches())
    tuner.initialize(FAST)
    space = tuner._core.space
    completion = SchemeCompletion(space.graph, space.units, RULES)
    chosen = [p for p, r in space.rejections.ports.items() if r is None]
    report = tuner.import_insertion_points(completion.placement(chosen))
    assert report.sites == len(completion.placement(chosen))
    assert not report.kept
    assert not report.unknown
    assert sum(bool(s.points) for s in report.schemes.values()) == len(report.schemes)


def test_10_interruption_loses_no_finished_scheme(tmp_path: Path) -> None:
    calls = 0

    def measure(path: Path) -> float:
        nonlocal calls
        calls += 1
        if calls > 19:
            raise KeyboardInterrupt
        return 10 - 0.1 * pairs(path.read_bytes())

    with pytest.raises(KeyboardInterrupt):
        region_pattern_autotuning_workflow(branches(), tmp_path, measure, config=FAST)
    tuner = QDQAutotuner(branches())
    tuner.initialize(FAST)
    tuner.load_state(tmp_path / "state.yaml")
    assert len(tuner.best_placement) > 0
    assert (tmp_path / "pattern_cache.yaml").exists()


def test_10_state_of_another_model_is_refused_and_node_filters_work(tmp_path: Path) -> None:
    tuner = QDQAutotuner(branches(seed=0))
    tuner.initialize(FAST, nodes=["left", "right"])
    assert {p.node for p, r in tuner._core.space.rejections.ports.items() if r is None} == {"left", "right"}
    tuner.save_state(tmp_path / "state.yaml")
    other = QDQAutotuner(branches(seed=1))  # same structure, other weights
    other.initialize(FAST)
    with pytest.raises(JournalError):
        other.load_state(tmp_path / "state.yaml")
    with pytest.raises(UsageError):
        other.initialize(FAST, nodes=["*nothing*"])


def test_10_seeds_are_honoured() -> None:
    def asked(seed: int) -> list[object]:
        tuner = QDQAutotuner(branches())
        tuner.initialize(Config(schemes_per_region=12, confirmations=0, seed=seed))
        tuner.submit(10.0)
        found: list[object] = []
        for region in tuner.regions:
            tuner.set_profile_region(region)
            while tuner.generate() is not None:
                tuner.submit(11.0)
            found += [r.scheme.to_data() for r in tuner.records]
        tuner.set_profile_region(None)
        return found

    assert asked(1) == asked(1)
    assert asked(1) != asked(2)


def test_10_resolving_a_scheme_takes_linear_work() -> None:
    def resolve(count: int) -> Callable[[], Placement]:
        strategy = evolve(FAMILIES["residual"](count))
        pattern = max(strategy.patterns(), key=lambda p: len(p.instances))
        scheme = InsertionScheme(frozenset(pattern.points))
        return lambda: strategy._completion.placement(strategy.resolve(pattern, scheme))

    assert len(resolve(100)()) > len(resolve(50)()) > 0
    assert growth(resolve, 100) < 2.2
    assert len(resolve(4000)()) > 0  # no recursion as deep as the graph


def test_11_performance_threshold_is_read() -> None:
    space = find_search_space(FAMILIES["residual"](30), RULES)
    found = {}
    for threshold in (1.0, 3.0):
        config = Config(schemes_per_region=5, performance_threshold=threshold)
        strategy = evolve(space.graph, space=space, config=config)
        drive(strategy, PlantedEvaluator(planted_latency(space, "plain")))
        found[threshold] = len(strategy.incumbent)
    assert found[1.0] > 0 == found[3.0]


def test_12_the_placement_survives_calibration() -> None:
    """What is exported is what was searched: the same sites, whatever ranges calibration finds."""
    rng = np.random.default_rng(0)
    sites = []
    for scale in (1.0, 100.0):
        feeds = [{"x": (scale * rng.standard_normal((1, 3, 8, 8))).astype(np.float32)} for _ in range(3)]
        tuner = QDQAutotuner(branches(), samples=feeds)
        tuner.initialize(FAST)
        tuner.submit(10.0)
        tuner.set_profile_region(tuner.regions[-1])
        tuner.generate()
        model = onnx.load_from_string(tuner.export_onnx())
        sites.append(json.dumps(sorted((n.name, n.op_type, list(n.input)[:1]) for n in model.graph.node)))
    assert sites[0] == sites[1]


def test_types_of_points_are_exact() -> None:
    assert NodeInputInsertionPoint(1, 2) == NodeInputInsertionPoint(node_index=1, input_index=2)
    assert QType.UINT8 is RULES.activation
