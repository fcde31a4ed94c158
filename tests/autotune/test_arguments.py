"""What the step-by-step interface takes: samples, bounds, quantized models, settings of the classic tuner, regions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from inlay.autotune import (
    Bound,
    Config,
    QDQAutotuner,
    RegionGroup,
    RegionPattern,
    RegionType,
    placement_of,
    region_pattern_autotuning_workflow,
)
from inlay.errors import InlayError, ModelError, UsageError
from inlay.model.graph import Graph
from inlay.testing import random_feed, run_reference, sqnr
from tests.autotune.test_classic_loop import pairs
from tests.support.branches import branches

FAST = Config(schemes_per_region=4, confirmations=0)


def feeds(count: int = 6) -> list[dict[str, np.ndarray]]:
    return [dict(random_feed(branches(), seed)) for seed in range(count)]


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self._left = feeds(2)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self._left.pop() if self._left else None


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``branches`` as the runtime's own quantizer writes it."""
    folder = tmp_path_factory.mktemp("quantized")
    onnx.save(branches(), folder / "float.onnx")
    quantize_static(folder / "float.onnx", folder / "qdq.onnx", Reader(), QuantFormat.QDQ, per_channel=True)
    return folder / "qdq.onnx"


def begun(**arguments: object) -> QDQAutotuner:
    tuner = QDQAutotuner(branches(), **arguments)  # type: ignore[arg-type]
    tuner.initialize(FAST)
    return tuner


def test_without_samples_it_warns_that_ranges_are_random() -> None:
    with pytest.warns(UserWarning, match="random data"):
        QDQAutotuner(branches())


@pytest.mark.parametrize("given", ["path", "string", "model"])
def test_a_quantized_model_is_a_seed_whatever_form_it_has(given: str, quantized: Path) -> None:
    """A path used to be read letter by letter, as names of values."""
    forms = {"path": quantized, "string": str(quantized), "model": onnx.load(quantized)}
    report = begun().import_insertion_points(forms[given])  # type: ignore[arg-type]
    assert len(report.points) >= 6
    assert len(report.points) + len(report.implied) > 0.8 * report.sites
    assert "Q/DQ sites" in str(report)


def test_placement_of_a_quantized_model(quantized: Path) -> None:
    alone, on_float = placement_of(quantized), placement_of(quantized, branches())
    assert len(alone.placement) >= 16
    assert on_float.placement == alone.placement


def test_what_is_no_quantized_model_is_refused(tmp_path: Path) -> None:
    tuner = begun()
    with pytest.raises(ModelError, match=r"nowhere\.onnx"):
        tuner.import_insertion_points("nowhere.onnx")
    with pytest.raises(UsageError, match="no QuantizeLinear"):
        tuner.import_insertion_points(branches())


def test_names_of_values_are_a_seed_too() -> None:
    assert begun().import_insertion_points(iter(["stem.y", "cat"])).points


def test_the_workflow_takes_a_file_as_baseline(quantized: Path, tmp_path: Path) -> None:
    hows = []

    def measure(path: Path) -> float:
        hows.append(path)
        return 10.0 - 0.1 * pairs(path.read_bytes())

    tuner = region_pattern_autotuning_workflow(
        branches(), tmp_path, measure, config=FAST, qdq_baseline=str(quantized), samples=feeds(3)
    )
    assert tuner.speedup is not None
    assert tuner.speedup == pytest.approx(10.0 / (tuner.latency_ms or 0))


def test_nothing_outside_the_bound_is_handed_out() -> None:
    tuner = begun(samples=feeds(), bound=200.0)  # no placement of 8 bits reaches 200 dB
    tuner.submit(10.0)
    tuner.set_profile_region(tuner.regions[0])
    assert tuner.generate() is None
    assert len(tuner.records) > 1
    assert all("dB required: 200 dB and a margin" in r.reason and r.latency_ms is None for r in tuner.records[1:])
    tuner.set_profile_region(None)
    assert len(tuner.best_placement) == 0


def test_a_bound_that_is_kept_lets_schemes_pass() -> None:
    tuner = begun(samples=feeds(), bound=Bound(min_sqnr_db=5.0))
    tuner.submit(10.0)
    tuner.set_profile_region(tuner.regions[0])
    assert tuner.generate() == 1


def test_a_bound_needs_samples() -> None:
    with pytest.raises(UsageError, match="without samples"):
        QDQAutotuner(branches(), bound=20.0)


@pytest.mark.parametrize("knob", ["default_q_scale", "default_q_zero_point", "default_dq_dtype"])
def test_settings_without_a_meaning_are_refused_with_the_reason(knob: str) -> None:
    with pytest.raises(UsageError, match=f"{knob}: .* (samples|float32)"):
        Config(**{knob: 0.1})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["uint8", "int8", "uint16", "int16", "fp8"])
def test_every_type_is_exported_with_and_without_pairs(name: str) -> None:
    model = branches()
    tuner = QDQAutotuner(model)
    tuner.initialize(Config(schemes_per_region=4, confirmations=0, default_quant_type=name))
    tuner.submit(10.0)
    tuner.set_profile_region(tuner.regions[0])
    tuner.generate()
    feed = random_feed(model)
    want = run_reference(model, feed)
    for written in (True, False):
        exported = onnx.load_from_string(tuner.export_onnx(insert_qdq=written))
        session = ort.InferenceSession(exported.SerializeToString(), providers=["CPUExecutionProvider"])
        got = dict(zip(want, session.run(list(want), feed), strict=True))
        quantized = {t.data_type for t in exported.graph.initializer} & {
            int(getattr(onnx.TensorProto, kind)) for kind in ("UINT8", "INT8", "UINT16", "INT16", "FLOAT8E4M3FN")
        }
        assert bool(quantized) == written
        assert all(sqnr(want[v], got[v]) > (15.0 if written else 60.0) for v in want)


def test_the_type_of_activations_is_a_setting() -> None:
    tuner = QDQAutotuner(branches())
    tuner.initialize(Config(schemes_per_region=4, confirmations=0, default_quant_type="int8"))
    tuner.submit(10.0)
    tuner.set_profile_region(tuner.regions[0])
    tuner.generate()
    model = onnx.load_from_string(tuner.export_onnx())
    types = {t.name: t.data_type for t in model.graph.initializer}
    zeros = {types[n.input[2]] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    assert zeros == {onnx.TensorProto.INT8}
    with pytest.raises(UsageError, match="activations of this target"):
        tuner.initialize(Config(default_quant_type="fp9"))


def test_a_verbose_tuner_says_what_it_does(caplog: pytest.LogCaptureFixture) -> None:
    for verbose in (False, True):
        caplog.clear()
        with caplog.at_level(logging.INFO, "inlay.autotune"):
            QDQAutotuner(branches()).initialize(Config(verbose=verbose))
        assert ("patterns with insertion points" in caplog.text) == verbose


@pytest.mark.parametrize(("against", "accepted"), [("incumbent", False), ("baseline", True)])
def test_the_threshold_is_against_the_incumbent_or_the_baseline(against: str, accepted: bool) -> None:
    tuner = QDQAutotuner(branches())
    tuner.initialize(Config(confirmations=0, performance_threshold=1.2, threshold_against=against))  # type: ignore[arg-type]
    tuner.submit(10.0)
    tuner.set_profile_region(tuner.regions[0])
    for latency in (7.0, 6.9):  # the second is 1.45 times as fast as float, but 1.01 times as fast as the first
        tuner.generate()
        tuner.submit(latency)
    assert tuner.records[2].accepted is accepted


def test_no_limit_of_cached_schemes() -> None:
    assert Config(pattern_cache_max_entries_per_pattern=0).pattern_cache_max_entries_per_pattern == 0


def own_regions(tuner: QDQAutotuner) -> list[RegionGroup]:
    names = [n.name for n in tuner.graph.nodes]
    return [[["stem", "stem.relu"], ["left", "left.relu"]], [n for n in names if n.startswith("after")]]


def test_own_regions() -> None:
    tuner = QDQAutotuner(branches())
    tuner.initialize(FAST, regions=own_regions(tuner))
    leaves = [set(r.direct_nodes) for r in tuner.all_regions if r.type is RegionType.LEAF]
    assert {"stem", "stem.relu"} in leaves
    assert {"left", "left.relu"} in leaves
    assert sorted(n for leaf in leaves for n in leaf) == sorted(n.name for n in tuner.graph.nodes)
    tuner.submit(10.0)
    for region in tuner.regions:
        tuner.set_profile_region(region)
        while tuner.generate() is not None:
            tuner.submit(10.0 - 0.1 * pairs(tuner.export_onnx()))
    assert (tuner.speedup or 0) > 1.0


def test_a_subclass_finds_regions_its_own_way() -> None:
    class Mine(QDQAutotuner):
        def find_groups(self, graph: Graph) -> Sequence[RegionGroup]:
            return [[n.name] for n in graph.nodes]

    tuner = Mine(branches())
    tuner.initialize(FAST)
    assert all(r.size == 1 for r in tuner.all_regions if r.type is RegionType.LEAF)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([["nowhere"]], "no node 'nowhere'"),
        ([["stem"], ["stem"]], "in two regions"),
        ([["stem", ["left"]]], "holds"),
        ([[]], "holds"),
    ],
)
def test_regions_that_are_none_are_refused(groups: list[RegionGroup], words: str) -> None:
    with pytest.raises(InlayError, match=words):
        QDQAutotuner(branches()).initialize(regions=groups)


def test_the_pattern_of_a_region_by_itself_is_that_of_the_tree() -> None:
    tuner = begun()
    for region in tuner.all_regions:
        alone, known = RegionPattern.from_region(region, tuner.graph, tuner.rules), tuner.pattern_of(region)
        assert alone.matches(known)
        assert alone.points == known.points


@pytest.mark.parametrize(
    "call",
    [
        lambda tuner: tuner.submit(10.0),
        lambda tuner: tuner.generate(),
        lambda tuner: tuner.set_profile_region(None),
        lambda tuner: tuner.import_insertion_points(["stem"]),
        lambda tuner: tuner.save_state("state.yaml"),
    ],
)
def test_nothing_is_taken_and_forgotten_before_initialize(call: Callable[[QDQAutotuner], object]) -> None:
    with pytest.raises(UsageError, match="call initialize first"):
        call(QDQAutotuner(branches()))


CLASSIC = {
    "verbose": False,
    "performance_threshold": 1.02,
    "default_quant_type": "int8",
    "maximum_sequence_region_size": 10,
    "minimum_topdown_search_size": 10,
    "top_percent_to_mutate": 0.1,
    "minimum_schemes_to_mutate": 10,
    "maximum_mutations": 3,
    "maximum_generation_attempts": 100,
    "pattern_cache_minimum_distance": 4,
    "pattern_cache_max_entries_per_pattern": 32,
}


def test_the_defaults_that_differ_from_the_classic_ones_are_those_that_are_told() -> None:
    differing = {name for name, value in CLASSIC.items() if getattr(Config(), name) != value}
    assert differing == {"performance_threshold", "default_quant_type"}
    told = (Config.__doc__ or "").partition("Attributes:")[0]
    assert {name for name in CLASSIC if f"``{name}``" in told} == differing
