"""A placement without measurements follows the cost table and keeps the bound; calibrating a machine gives a table."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest

from inlay import api
from inlay.cli.quantized import quantized
from inlay.errors import Crashed, ModelError, UsageError
from inlay.measure import lab
from inlay.measure.client import Worker
from inlay.measure.lab import Lab
from inlay.measure.paired import Timing
from inlay.measure.readings import Reading
from inlay.model.load import ModelFile
from inlay.quant.accuracy import Outputs
from inlay.quant.sensitivity import Sensitivity
from inlay.run.instant import by_costs, proposal
from inlay.run.instant import calibrate_machine as calibration
from inlay.run.instant import quantize as quantizing
from inlay.run.instant.proposal import Instant
from inlay.run.instant.quantize import Quantized
from inlay.run.machine_costs import _load, read_costs, write_costs
from inlay.run.reference import RunFiles, in_reference
from inlay.search import policy
from inlay.search.cost_table import CostTable, Fit
from inlay.search.workload import Workload
from inlay.targets.base import Artifact, KernelTime, TargetSpec
from inlay.targets.onnxruntime import target as target_module
from inlay.targets.onnxruntime.target import OrtCpuTarget
from inlay.testing import Builder
from inlay.testing.models import random_feed, residual_model, run_reference

SPEC = TargetSpec("ort-cpu", {"threads": 1})
GIVEN = "model.onnx"
FIRST_BLOCKS = 8


def _priced(float_ns: float, low_ns: float, boundary_ns: float = 0.0) -> CostTable:
    """Every multiply-accumulate costs so much in float and in low precision; every conversion the same."""

    def fit(call: float, product: float) -> Fit:
        return Fit((call, product, 0.0, 0.0), 0.0, 10)

    costs = {"float": (0.0, float_ns), "low": (0.0, low_ns)}
    table = {(kind, state): fit(*ns) for kind in ("compute", "elements") for state, ns in costs.items()}
    states = {"float": 0.0, "low": 0.0, "quantize": boundary_ns, "dequantize": boundary_ns}
    return CostTable({**table, **{("value", state): fit(ns, 0.0) for state, ns in states.items()}})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INLAY_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


class _Machine(Worker):
    """Times by the number of Q/DQ nodes, whatever the processor: each makes a model slower by ``per_node``.

    The given model takes 1, and without these nodes it takes ``rewritten``.
    """

    per_node = 0.0
    rewritten = 1.0
    timed: ClassVar[list[int]] = []

    def time(
        self,
        artifacts: Sequence[Artifact],
        feed: Path,
        blocks: int,
        slot_ns: int,
        seed: int,
        left_s: Callable[[], float] = lambda: math.inf,
        reading: Reading | None = None,
    ) -> Timing:
        protos = [onnx.load(a.path, load_external_data=False) for a in artifacts]
        counts = [sum("Linear" in n.op_type for n in proto.graph.node) for proto in protos]
        self.timed.extend(counts)
        times = [self.rewritten + self.per_node * n for n in counts]
        times = [1.0 if a.path.name == GIVEN else time for a, time in zip(artifacts, times, strict=True)]
        ns = np.tile([1e6 * time for time in times], (blocks, 1))
        return Timing(ns, np.zeros(blocks), np.zeros_like(ns), np.zeros_like(ns))

    def profile(self, artifact: Artifact, feed: Path, repeats: int) -> list[KernelTime]:
        return []


def _machine(monkeypatch: pytest.MonkeyPatch, per_node: float, rewritten: float = 1.0) -> type[_Machine]:
    """One of which ``quantize`` has a table, and times of its own."""
    machine = type("Machine", (_Machine,), {"per_node": per_node, "rewritten": rewritten, "timed": []})
    monkeypatch.setattr(lab, "HERE", Lab(machine))
    return machine


@pytest.fixture
def as_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantized models are faster."""
    _machine(monkeypatch, -0.005)


def _quantize(
    tmp_path: Path, table: CostTable | None, min_sqnr: float | None = 20.0, samples: int = 6
) -> tuple[Quantized, int]:
    """With samples where there is a bound."""
    if table is not None:
        write_costs(OrtCpuTarget().fingerprint(), table)
    model, out = tmp_path / GIVEN, tmp_path / "out.onnx"
    onnx.save(residual_model(), model)
    feeds = [random_feed(model, seed) for seed in range(samples)]
    done = api.quantize(model, out) if min_sqnr is None else api.quantize(model, out, data=feeds, min_sqnr=min_sqnr)
    return done, sum(n.op_type == "QuantizeLinear" for n in onnx.load(out).graph.node)


@pytest.mark.usefixtures("cache", "as_priced")
def test_what_is_faster_by_the_table_is_quantized(tmp_path: Path) -> None:
    done, pairs = _quantize(tmp_path, _priced(1.0, 0.25))
    assert done.by_costs is not None
    assert done.by_costs.kept
    assert done.by_costs.timed is not None
    assert done.by_costs.timed.low > 1.0
    assert pairs > 0
    assert done.by_costs.models <= 3


@pytest.mark.usefixtures("cache")
def test_where_nothing_is_timed_the_table_alone_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_time(self: Worker, *args: object, **kwargs: object) -> Timing:
        raise Crashed("it died")

    monkeypatch.setattr(Worker, "time", no_time)
    done, pairs = _quantize(tmp_path, _priced(1.0, 0.25))
    assert done.by_costs is not None
    assert done.by_costs.timed is None
    assert done.by_costs.speedup == pytest.approx(4.0, rel=0.01)
    assert pairs > 0


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("bounded", [True, False])
def test_where_nothing_in_low_precision_runs_float_is_delivered_and_the_reason_told(
    bounded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Worker.run

    def refuse(self: Worker, artifact: Artifact, *args: Any, **kwargs: Any) -> Any:
        if any(n.op_type == "QuantizeLinear" for n in onnx.load(artifact.path, load_external_data=False).graph.node):
            raise Crashed("it died")
        return real(self, artifact, *args, **kwargs)

    monkeypatch.setattr(Worker, "run", refuse)
    done, pairs = _quantize(tmp_path, _priced(1.0, 0.25), min_sqnr=20.0 if bounded else None)
    assert done.by_costs is not None
    assert done.by_costs.failed == "it died"
    assert not done.by_costs.kept
    assert pairs == 0
    assert "nothing in low precision ran" in "\n".join(quantized(done))


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("given_runs", [True, False])
def test_where_only_the_given_model_runs_it_is_delivered(
    given_runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Worker.run

    def refuse(self: Worker, artifact: Artifact, *args: Any, **kwargs: Any) -> Any:
        if artifact.path.name != GIVEN or not given_runs:
            raise Crashed("it died")
        return real(self, artifact, *args, **kwargs)

    monkeypatch.setattr(Worker, "run", refuse)
    if not given_runs:
        with pytest.raises(ModelError, match="does not run on ort-cpu: it died"):
            _quantize(tmp_path, _priced(1.0, 0.25))
        return
    done, _ = _quantize(tmp_path, _priced(1.0, 0.25))
    assert done.by_costs is not None
    assert done.by_costs.unchanged
    assert (tmp_path / "out.onnx").read_bytes() == (tmp_path / GIVEN).read_bytes()


class _Loaded(_Machine):
    """A busy machine: the few readings of a first comparison tell nothing."""

    per_node = -0.005

    def time(self, artifacts: Sequence[Artifact], feed: Path, blocks: int, *args: Any, **kwargs: Any) -> Timing:
        timing = super().time(artifacts, feed, blocks, *args, **kwargs)
        if len(artifacts) > 1 and blocks <= FIRST_BLOCKS:
            timing.ns[:, 2:] *= np.where(np.arange(blocks) % 2, 3.0, 0.6)[:, None]
        return timing


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("more", [40, FIRST_BLOCKS])
def test_what_a_comparison_cannot_tell_is_compared_longer(
    more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control is as short the second time."""
    monkeypatch.setattr(lab, "HERE", Lab(_Loaded))
    monkeypatch.setattr(by_costs, "_MORE_BLOCKS", more)
    done, pairs = _quantize(tmp_path, _priced(1.0, 0.25))
    assert (pairs > 0) == (more > FIRST_BLOCKS)
    assert done.by_costs is not None
    assert (done.by_costs.timed is not None) == (more > FIRST_BLOCKS)


@pytest.mark.usefixtures("cache")
def test_what_is_faster_by_the_table_alone_is_not_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _machine(monkeypatch, 0.01)
    done, pairs = _quantize(tmp_path, _priced(1.0, 0.25))
    assert pairs == 0
    assert max(machine.timed) > 0, "it was tried"
    assert done.by_costs is not None
    assert done.by_costs.kept
    assert done.by_costs.models <= 3
    assert done.by_costs.rejected is not None
    assert done.by_costs.rejected.high < 1.0


@pytest.mark.matrix(every=3)
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("per_node", "rewritten", "delivered"),
    [
        (0.01, 1.0, "given"), (0.01, 1.1, "given"), (0.01, 0.5, "float"), (-0.01, 1.0, "low"),
        (-0.001, 2.0, "given"),  # better than in float, and yet slower than what was given
    ],
)  # fmt: skip
def test_what_is_delivered_is_never_slower_than_the_given_model(
    per_node: float, rewritten: float, delivered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _machine(monkeypatch, per_node, rewritten)
    done, pairs = _quantize(tmp_path, _priced(1.0, 0.25))
    how = done.by_costs
    assert how is not None
    assert (pairs > 0) == (delivered == "low")
    assert how.unchanged == (delivered == "given")
    assert how.unchanged == ((tmp_path / "out.onnx").read_bytes() == (tmp_path / GIVEN).read_bytes())
    assert how.in_float is not None
    assert how.in_float.value == pytest.approx(1.0 / rewritten)
    assert (how.timed is not None) == (how.rejected is None) == (delivered == "low")


@pytest.mark.matrix(every=2)
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(("seconds", "per_node", "probed"), [(60.0, -1e-4, 1), (0.0, -1e-4, 0), (0.0, -0.02, 1)])
def test_when_the_time_is_over_noise_is_probed_for_much_speed_only(
    seconds: float, per_node: float, probed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _machine(monkeypatch, per_node)
    monkeypatch.setattr(quantizing, "INSTANT_S", seconds)
    missed = []
    monkeypatch.setattr(Instant, "missed", lambda self, labels, sqnr_db: missed.append(sqnr_db))
    done, _ = _quantize(tmp_path, _priced(1.0, 0.25), min_sqnr=90.0)
    assert len(missed) == probed
    assert done.by_costs is not None
    assert not done.by_costs.kept
    assert done.by_costs.tries == 1 + probed


@pytest.mark.matrix(every=2)
@pytest.mark.usefixtures("cache", "as_priced")
@pytest.mark.parametrize("patience_s", [proposal._PATIENCE_S, 0.0])
def test_where_questions_take_too_long_sources_are_not_probed(
    patience_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantizing, "INSTANT_S", 60.0)
    monkeypatch.setattr(proposal, "_PATIENCE_S", patience_s)
    probed, probe = list[bool](), Instant._sensitivity

    def watched(self: Instant) -> Sensitivity:
        probed.append(True)
        return probe(self)

    monkeypatch.setattr(Instant, "_sensitivity", watched)
    done, _ = _quantize(tmp_path, _priced(1.0, 0.25), min_sqnr=90.0)
    assert bool(probed) is (patience_s > 0.0)
    assert done.by_costs is not None
    assert not done.by_costs.kept


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("seconds", [60.0, 0.0])
def test_samples_and_variations_take_a_part_of_the_time(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _machine(monkeypatch, -0.005)
    monkeypatch.setattr(quantizing, "INSTANT_S", seconds)
    done, _ = _quantize(tmp_path, _priced(1.0, 0.25), min_sqnr=0.0, samples=16)
    assert done.accuracy is not None
    assert done.accuracy.samples == (8 if seconds else 4), "of half of them: the others make the ranges"
    assert done.robustness is not None
    assert len(done.robustness.varied_db) == 2 if not seconds else len(done.robustness.varied_db) > 2


@pytest.mark.parametrize("seconds", [600.0, 0.0])
def test_a_recipe_takes_the_time_that_there_is_and_says_what_it_left_out(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantizing, "BY_RULES_S", seconds)
    model, out = tmp_path / GIVEN, tmp_path / "out.onnx"
    onnx.save(residual_model(), model)
    feeds = [random_feed(model, seed) for seed in range(12)]
    done = api.quantize(model, out, data=feeds, recipe="full-int8")
    assert done.accuracy is not None
    assert done.accuracy.samples == (12 if seconds else 4)
    cut = [note for note in done.inputs if "cut short: 1 of 6 ways to choose ranges tried" in note]
    assert bool(cut) == (not seconds)
    assert any("QuantizeLinear" in n.op_type for n in onnx.load(out).graph.node)


def test_what_is_quantized_at_run_time_needs_no_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantizing, "choose_calibration", None)
    b = Builder()
    weight = b.constant("weight", np.random.default_rng(0).normal(size=(32, 16)))
    b.output(b.node("product", "MatMul", [b.input("x", (4, 32)), weight]))
    onnx.save(b.model(), model := tmp_path / GIVEN)
    done = api.quantize(model, tmp_path / "out.onnx", data=[random_feed(model, 0)] * 3, recipe="dynamic")
    assert done.ports
    assert "ranges" not in "\n".join(quantized(done))
    assert any(n.op_type == "DynamicQuantizeLinear" for n in onnx.load(done.path).graph.node)


@pytest.mark.usefixtures("cache")
def test_building_the_model_leaves_no_sample_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many are judged by follows from what an inference takes; the first one comes with building the model."""

    def slow_to_build(file: ModelFile) -> RunFiles:
        run, built = in_reference(file), list[bool]()

        def running(paths: Sequence[Path]) -> Sequence[Outputs]:
            time.sleep(0.0 if built else 0.5)
            built.append(True)
            return run(paths)

        return running

    _machine(monkeypatch, -0.005)
    monkeypatch.setattr(quantizing, "in_reference", slow_to_build)
    monkeypatch.setattr(quantizing, "INSTANT_S", 10.0)
    done, _ = _quantize(tmp_path, _priced(1.0, 0.25), min_sqnr=0.0, samples=16)
    assert done.accuracy is not None
    assert done.accuracy.samples == 8


@pytest.mark.usefixtures("cache")
def test_where_shapes_were_to_be_fixed_the_given_model_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _machine(monkeypatch, 0.01, rewritten=1.1)
    write_costs(OrtCpuTarget().fingerprint(), _priced(1.0, 0.25))
    model, out = residual_model(), tmp_path / "out.onnx"
    size = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, tmp_path / GIVEN)
    feeds = [random_feed(residual_model(), seed) for seed in range(6)]
    done = api.quantize(tmp_path / GIVEN, out, data=feeds, bind={"batch": size})
    assert done.by_costs is not None
    assert not done.by_costs.unchanged
    assert onnx.load(out).graph.input[0].type.tensor_type.shape.dim[0].dim_value == size


@pytest.mark.usefixtures("cache")
@pytest.mark.exhaustive
def test_what_is_hardly_slower_by_the_table_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, -0.005)
    monkeypatch.setattr(quantizing, "INSTANT_S", 3.0)
    assert _quantize(tmp_path, _priced(1.0, 1.1))[1] > 0
    machine = _machine(monkeypatch, -0.005)
    assert _quantize(tmp_path, _priced(1.0, 1.5 * policy.CHALLENGE))[1] == 0
    assert max(machine.timed) == 0, "what is expected to be much slower is not even built"
    monkeypatch.setattr(quantizing, "INSTANT_S", 60.0)
    _quantize(tmp_path, _priced(1.0, 1.5 * policy.CHALLENGE))
    assert max(machine.timed) > 0, "with time enough it is"


@pytest.mark.usefixtures("cache", "as_priced")
@pytest.mark.exhaustive
def test_an_anchor_that_is_hardly_slower_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call in low precision costs something, so that by the table alone the smallest units stay float."""
    table = _priced(1.0, 0.25)
    call = {(kind, "low"): Fit((3000.0, 0.25, 0.0, 0.0), 0.0, 10) for kind in ("compute", "elements")}
    pairs = {}
    for credit in (1.0, 1e6):
        monkeypatch.setattr(policy, "UNIFORM_CREDIT", credit)
        pairs[credit] = _quantize(tmp_path, CostTable({**table.fits, **call}))[1]
    feeds = [random_feed(residual_model(), seed) for seed in range(6)]
    anchors = set()
    for recipe in ("full-int8", "conv-matmul"):
        api.quantize(tmp_path / "model.onnx", tmp_path / "anchor.onnx", recipe=recipe, data=feeds)
        nodes = onnx.load(tmp_path / "anchor.onnx").graph.node
        anchors.add(sum(n.op_type == "QuantizeLinear" for n in nodes))
    assert pairs[1e6] in anchors
    assert pairs[1.0] not in {*anchors, 0}, "without the credit the best labeling is none of them"


@pytest.mark.usefixtures("cache")
def test_what_is_slower_by_the_table_stays_float(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, 0.005)
    done, pairs = _quantize(tmp_path, _priced(1.0, 1.5))
    assert (done.ports, pairs) == (0, 0)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(("ample_s", "tries"), [(0.0, 2), (math.inf, 0)])
def test_with_time_left_anchors_are_tried_whatever_the_table_says(
    ample_s: float, tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _machine(monkeypatch, 0.005)
    monkeypatch.setattr("inlay.run.instant.by_costs._AMPLE_S", ample_s)
    done, pairs = _quantize(tmp_path, _priced(1.0, 1.5))
    assert done.by_costs is not None
    assert (done.by_costs.tries, done.ports, pairs) == (tries, 0, 0)


@pytest.mark.usefixtures("cache")
def test_behind_a_try_that_keeps_the_bound_another_must_leave_time_to_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control is the test above, with two tries."""
    _machine(monkeypatch, 0.005)
    monkeypatch.setattr("inlay.run.instant.by_costs._AMPLE_S", 0.0)
    monkeypatch.setattr("inlay.run.instant.by_costs._RACE_S", (1e9, 1e9))
    done, _ = _quantize(tmp_path, _priced(1.0, 1.5))
    assert done.by_costs is not None
    assert done.by_costs.tries == 1


@pytest.mark.usefixtures("cache")
def test_conversions_that_cost_more_than_they_gain_are_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _machine(monkeypatch, 0.005)
    done, pairs = _quantize(tmp_path, _priced(1.0, 0.9, boundary_ns=1e12))
    assert (done.ports, pairs) == (0, 0)


@pytest.mark.usefixtures("cache", "as_priced")
def test_a_bound_that_no_placement_keeps_gives_the_float_model_and_says_so(tmp_path: Path) -> None:
    done, pairs = _quantize(tmp_path, _priced(1.0, 0.25), min_sqnr=90.0)
    assert pairs == 0
    assert done.accuracy is not None
    assert done.accuracy.sqnr_db > 90.0


@pytest.mark.exhaustive
def test_without_a_table_profiles_of_what_is_built_choose(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a processor that nothing is known of: the file is timed all the same, and what is slower is not written."""
    monkeypatch.setattr(OrtCpuTarget, "shipped_costs", lambda self: None, raising=False)
    done, _ = _quantize(tmp_path, None)
    assert not cache.exists()
    how = done.by_costs
    assert how is not None
    assert not how.priced
    assert "calibrate-machine" in how.source
    assert 1 <= how.tries < how.models <= 3
    assert (how.timed is None) == (done.ports == 0), "dynamic products have no pairs"
    assert (how.rejected is None) == (done.ports > 0)


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
@pytest.mark.exhaustive
def test_a_calibration_measures_float_against_low(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = OrtCpuTarget().micro_models()
    blocks = [m for m in models if m.graph.name.startswith("one row")][:count]
    assert len(blocks) == count
    monkeypatch.setattr(OrtCpuTarget, "micro_models", lambda self: blocks)
    done = calibration.calibrate_machine(SPEC, None, np.random.default_rng(0), folder=tmp_path)
    assert done.models == (len(blocks), len(blocks))
    assert done.failed == {}
    assert {state for kind, state in done.table.fits if kind == "Gemm"} >= {"float", "low"}
    assert read_costs(OrtCpuTarget(), done.fingerprint, tmp_path).table == done.table


def test_a_target_without_micro_models_cannot_be_calibrated() -> None:
    with pytest.raises(UsageError, match="null"):
        api.calibrate_machine(target="null")


@pytest.mark.exhaustive
def test_the_result_says_how_to_run_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines run as they stand, and give what the delivered file gives."""
    model = tmp_path / "model.onnx"
    onnx.save(residual_model(), model)
    feed = random_feed(model, 0)
    result = api.tune(model, out=tmp_path / "out", data=[feed] * 4, threads=2, strategy="anchors", budget=15)
    said = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf8"))["run_with"]
    assert said == result.run_with
    monkeypatch.chdir(tmp_path / "out")
    names: dict[str, object] = {"feed": feed}
    exec(said, names)
    options = names["session"].get_session_options()  # type: ignore[attr-defined]
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 1)
    assert options.get_session_config_entry("session.force_spinning_stop") == "1", "as it was measured"
    want = list(run_reference(tmp_path / "out" / "model.onnx", feed).values())
    got = names["outputs"]
    assert isinstance(got, list)
    np.testing.assert_allclose(got[0], want[0], rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    "path", sorted((Path(target_module.__file__).parent / "costs").glob("*.json")), ids=lambda p: p.stem
)
def test_shipped_tables_say_where_they_were_measured(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf8"))
    table, facts = _load(path)
    assert ("like" in content) == ("NOT MEASURED" in facts.get("priced by", "")) == (facts["machine"] == "aarch64")
    assert path.stem == "-".join([facts["machine"], *facts["isa"].split()])
    assert facts["threads"] == "1"
    assert table is not None
    for kind in ("Conv", "Conv 1x1", "MatMul"):
        work = Workload((kind,), 1e8, 1e6, 1e5)
        low, plain = table.ns(work, "low"), table.ns(work, "float")
        assert low is not None
        assert plain is not None
        assert 0.05 < low / plain < 1.0, "integer products of much data are faster there"
