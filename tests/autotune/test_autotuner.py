"""The step-by-step API: published semantics, on the same core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from inlay.autotune import (
    Config,
    InsertionScheme,
    PatternCache,
    QDQAutotuner,
    Region,
    RegionType,
    region_pattern_autotuning_workflow,
)
from inlay.errors import JournalError, UsageError
from inlay.model.reference import Session
from inlay.model.store import WeightStore
from inlay.testing import Builder
from inlay.types import Port, QType
from tests.support.branches import branches
from tests.support.runtime import check_and_load

FAST = Config(schemes_per_region=8, confirmations=0)


def pairs(data: bytes | Path) -> int:
    model = onnx.load_from_string(data) if isinstance(data, bytes) else onnx.load(data)
    return sum(n.op_type == "DequantizeLinear" for n in model.graph.node)


def faster_with_pairs(path: Path) -> float:
    """Each dequantized tensor saves a little."""
    return 10.0 - 0.1 * pairs(path)


@pytest.fixture
def tuner() -> QDQAutotuner:
    made = QDQAutotuner(branches())
    made.initialize(FAST)
    return made


def noisy(rng: np.random.Generator) -> Callable[[bytes], float]:
    """10 ms whatever the model, with 2 % noise."""
    return lambda _: 10.0 * float(np.exp(0.02 * rng.standard_normal()))


def profile(tuner: QDQAutotuner, region: Region, measure: Callable[[bytes], float], commit: bool = True) -> list[int]:
    tuner.set_profile_region(region)
    indices = []
    while (index := tuner.generate()) is not None:
        indices.append(index)
        tuner.submit(measure(tuner.export_onnx()))
    tuner.set_profile_region(None, commit)
    return indices


def test_regions_come_leaves_first_and_one_for_each_pattern(tuner: QDQAutotuner) -> None:
    kinds = [r.type for r in tuner.regions]
    assert kinds == sorted(kinds, key=[RegionType.LEAF, RegionType.COMPOSITE, RegionType.ROOT].index)
    signatures = [tuner.pattern_of(r).signature for r in tuner.regions]
    assert len(set(signatures)) == len(signatures)
    assert {tuner.pattern_of(r).signature for r in tuner.all_regions} >= set(signatures)


def test_the_loop_of_the_documentation(tuner: QDQAutotuner, tmp_path: Path) -> None:
    best, candidate = tmp_path / "best.onnx", tmp_path / "candidate.onnx"
    tuner.export_onnx(tmp_path / "float.onnx", insert_qdq=False)
    tuner.submit(faster_with_pairs(tmp_path / "float.onnx"))
    for region in tuner.regions:
        tuner.set_profile_region(region)
        while tuner.generate() is not None:
            tuner.export_onnx(candidate)
            tuner.submit(faster_with_pairs(candidate))
    tuner.set_profile_region(None)
    tuner.export_onnx(best)
    assert tuner.baseline_latency_ms == 10.0
    assert pairs(best) == max(pairs(best), pairs(candidate)) > 10
    onnx.checker.check_model(onnx.load(best), full_check=True)


def test_exported_models_run_and_stay_close_to_float(tuner: QDQAutotuner, tmp_path: Path) -> None:
    float_model = onnx.load_from_string(tuner.export_onnx(insert_qdq=False))
    assert pairs(tuner.export_onnx(insert_qdq=False)) == 0
    tuner.submit(10.0)
    for region in tuner.regions:
        profile(tuner, region, lambda data: 10.0 - 0.1 * pairs(data))
    feed = {"x": np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)}
    store = WeightStore(tmp_path)
    want = Session(float_model, store).run(feed)["y"]
    got = Session(onnx.load_from_string(tuner.export_onnx()), store).run(feed)["y"]
    noise = float(np.square(want - got).sum())
    assert 0 < noise < 0.01 * float(np.square(want).sum())


def test_exported_file_holds_the_returned_bytes(tuner: QDQAutotuner, tmp_path: Path) -> None:
    data = tuner.export_onnx(tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == data


def test_indices_count_up_and_end_with_none(tuner: QDQAutotuner) -> None:
    tuner.submit(10.0)
    indices = profile(tuner, tuner.regions[0], lambda _: 11.0)
    assert indices == list(range(1, len(indices) + 1))
    assert len(indices) <= FAST.schemes_per_region


def test_a_failed_scheme_is_never_committed(tuner: QDQAutotuner) -> None:
    tuner.submit(10.0)
    tuner.set_profile_region(tuner.regions[0])
    while tuner.generate() is not None:
        tuner.submit(0.001, success=False)
    assert all(r.failed for r in tuner.records[1:])
    tuner.set_profile_region(None)
    assert len(tuner.best_placement) == 0


def test_without_commit_the_placement_returns(tuner: QDQAutotuner) -> None:
    tuner.submit(10.0)
    profile(tuner, tuner.regions[0], lambda data: 10.0 - pairs(data) / 100, commit=False)
    assert len(tuner.best_placement) == 0
    profile(tuner, tuner.regions[1], lambda data: 10.0 - pairs(data) / 100)
    assert len(tuner.best_placement) > 0


def test_threshold_decides(tmp_path: Path) -> None:
    found = {}
    for threshold in (1.0, 2.0):
        tuner = QDQAutotuner(branches())
        tuner.initialize(Config(schemes_per_region=5, confirmations=0, performance_threshold=threshold))
        tuner.submit(10.0)
        for region in tuner.regions:
            profile(tuner, region, lambda data: 10.0 - 0.1 * pairs(data))
        found[threshold] = len(tuner.best_placement)
    assert found[1.0] > 0
    assert found[2.0] == 0


def test_calls_out_of_order_are_refused_with_what_to_do(tuner: QDQAutotuner) -> None:
    with pytest.raises(UsageError, match="set_profile_region first"):
        tuner.generate()
    with pytest.raises(UsageError, match="float model first"):
        tuner.set_profile_region(tuner.regions[0])
    with pytest.raises(UsageError, match="float model must run"):
        tuner.submit(1.0, success=False)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="positive number"):
            tuner.submit(wrong)
    tuner.submit(10.0)
    with pytest.raises(UsageError, match="generate a scheme first"):
        tuner.submit(9.0)
    tuner.set_profile_region(tuner.regions[0])
    assert tuner.generate() is not None
    with pytest.raises(UsageError, match="submit the latency"):
        tuner.generate()
    with pytest.raises(UsageError, match="submit the latency"):
        tuner.set_profile_region(None)
    with pytest.raises(UsageError, match="initialize first"):
        _ = QDQAutotuner(branches()).regions


def test_regions_of_another_model_are_refused(tuner: QDQAutotuner) -> None:
    other = QDQAutotuner(branches())
    other.initialize(FAST)
    tuner.submit(10.0)
    with pytest.raises(UsageError, match="not one of this model's"):
        tuner.set_profile_region(other.regions[0])


def test_state_goes_on_where_it_was(tuner: QDQAutotuner, tmp_path: Path) -> None:
    tuner.submit(10.0)
    profile(tuner, tuner.regions[0], lambda data: 10.0 - 0.1 * pairs(data))
    tuner.save_state(tmp_path / "state.yaml")
    other = QDQAutotuner(branches())
    other.initialize(FAST)
    other.load_state(tmp_path / "state.yaml")
    assert other.best_placement == tuner.best_placement
    assert other.baseline_latency_ms == 10.0
    assert other.profiled_patterns == tuner.profiled_patterns
    assert other.export_onnx() == tuner.export_onnx()


def test_state_of_another_model_is_refused(tuner: QDQAutotuner, tmp_path: Path) -> None:
    tuner.save_state(tmp_path / "state.yaml")
    other = QDQAutotuner(branches(channels=16))
    other.initialize(FAST)
    with pytest.raises(JournalError, match="another model"):
        other.load_state(tmp_path / "state.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a saved state"),
        ("a: [", "not YAML"),
        ("inlay_autotuner_state: 9", "version 9"),
        ("- 1", "not a saved"),
    ],
)
def test_damaged_states_are_refused(tuner: QDQAutotuner, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "state.yaml").write_text(text)
    with pytest.raises(UsageError, match=words):
        tuner.load_state(tmp_path / "state.yaml")


def test_state_cut_short_is_refused(tuner: QDQAutotuner, tmp_path: Path) -> None:
    path = tmp_path / "state.yaml"
    tuner.save_state(path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:2]))
    with pytest.raises(UsageError, match="damaged"):
        tuner.load_state(path)


def test_import_by_value_names_seeds_every_pattern(tuner: QDQAutotuner) -> None:
    graph_values = ["stem.y", "cat", "nowhere"]
    report = tuner.import_insertion_points(graph_values)
    assert report.sites == len(report.points) + len(report.implied) + len(report.kept) + len(report.unknown)
    assert [str(p.node) for p, _ in report.unknown] == ["nowhere"]
    assert {p.node for p in report.points} == {"left", "right", "add", "after"}
    assert any(s != InsertionScheme() for s in report.schemes.values())
    tuner.submit(10.0)
    tuner.set_profile_region(tuner.regions[0])
    tuner.generate()
    signature = tuner.pattern_of(tuner.regions[0]).signature
    assert tuner.records[1].scheme in (
        report.schemes[signature],
        InsertionScheme(frozenset(tuner.pattern_of(tuner.regions[0]).points)),
    )


def test_qtype_of_imports_is_kept(tuner: QDQAutotuner) -> None:
    report = tuner.import_insertion_points(["cat"], QType.INT8)
    assert {q for _, q in report.placement} == {QType.INT8}


def test_workflow_writes_model_state_and_cache_and_resumes(tmp_path: Path) -> None:
    asked = []

    def measure(path: Path) -> float:
        asked.append(path)
        return faster_with_pairs(path)

    first = region_pattern_autotuning_workflow(branches(), tmp_path, measure, config=FAST)
    assert pairs(tmp_path / "model.onnx") == pairs(first.export_onnx()) > 10
    assert len(PatternCache.load(tmp_path / "pattern_cache.yaml")) > 0
    files = ["model.onnx", "pattern_cache.yaml", "state.calibration.npz", "state.yaml"]
    assert sorted(p.name for p in tmp_path.iterdir()) == files
    count = len(asked)
    again = region_pattern_autotuning_workflow(branches(), tmp_path, measure, config=FAST)
    assert len(asked) == count
    assert again.best_placement == first.best_placement


def test_workflow_survives_failures_and_interruption(tmp_path: Path) -> None:
    calls = 0

    def measure(path: Path) -> float:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise RuntimeError("the runtime crashed")
        if calls == 20:
            raise KeyboardInterrupt
        return faster_with_pairs(path)

    with pytest.raises(KeyboardInterrupt):
        region_pattern_autotuning_workflow(branches(), tmp_path, measure, config=FAST)
    saved = pairs(tmp_path / "model.onnx")
    assert saved > 0
    assert len(PatternCache.load(tmp_path / "pattern_cache.yaml")) > 0
    with pytest.warns(UserWarning, match="RuntimeError: the runtime crashed"):
        tuner = region_pattern_autotuning_workflow(branches(), tmp_path, measure, config=FAST)
    assert pairs(tuner.export_onnx()) >= saved


@pytest.mark.exhaustive
def test_noise_without_effect_is_hardly_ever_committed() -> None:
    """2 % noise, nothing to gain. Single readings commit something on nearly every run; turns do not."""
    committed = {}
    for confirmations in (0, 5):
        count = 0
        for seed in range(5):
            rng = np.random.default_rng(seed)
            tuner = QDQAutotuner(branches())
            tuner.initialize(Config(schemes_per_region=10, confirmations=confirmations, seed=seed))
            tuner.submit(10.0)
            for region in tuner.regions:
                profile(tuner, region, noisy(rng))
            count += len(tuner.best_placement) > 0
        committed[confirmations] = count
    assert committed[0] == 5
    assert committed[5] <= 1


def test_a_true_gain_is_believed_in_spite_of_noise() -> None:
    rng = np.random.default_rng(3)
    tuner = QDQAutotuner(branches())
    tuner.initialize(Config(schemes_per_region=8, confirmations=5))
    tuner.submit(10.0)
    for region in tuner.regions:
        profile(tuner, region, lambda d: (10 - 0.25 * pairs(d)) * float(np.exp(0.01 * rng.standard_normal())))
    assert pairs(tuner.export_onnx()) > 10


def test_restriction_to_nodes() -> None:
    tuner = QDQAutotuner(branches())
    tuner.initialize(FAST, nodes=["left*"])
    reached = {p.node for r in tuner.regions for p in _ports(tuner, r)}
    assert reached == {"left", "concat"}  # the region's own output is read by the Concat
    with pytest.raises(UsageError, match=r"'nothing\.\*'"):
        tuner.initialize(FAST, nodes=["left*", "nothing.*"])


def _ports(tuner: QDQAutotuner, region: Region) -> set[Port]:
    space = tuner._core.space
    return {p for ports in space.tables[region.id].values() for p in ports}


def test_a_model_with_dynamic_dimensions() -> None:
    """Their sizes come from samples, or are given."""
    b = Builder()
    b.output(b.conv("conv", b.input("x", ("N", 3, "H", "H")), 8, relu=True))
    model = b.model()
    with pytest.raises(UsageError, match="dynamic dimensions without a size: H"):
        QDQAutotuner(model)
    samples = [{"x": np.zeros((2, 3, 16, 16), np.float32)}]
    for made in (QDQAutotuner(model, bind={"H": 16}), QDQAutotuner(model, samples=samples)):
        made.initialize(FAST)
        made.submit(10.0)
        profile(made, made.regions[0], lambda data: 10.0 - 0.1 * pairs(data))
        assert pairs(made.export_onnx()) > 0


def test_a_model_in_memory_whose_weights_are_in_a_file(tmp_path: Path) -> None:
    ir.save(ir.from_proto(branches()), tmp_path / "model.onnx", external_data="weights.bin", size_threshold_bytes=0)
    made = QDQAutotuner(ir.load(tmp_path / "model.onnx"))
    made.initialize(FAST)
    check_and_load(onnx.load_from_string(made.export_onnx()))
