"""Files for a processor that is not here: its rules, costs and arithmetic decide, and no speed is told as measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from inlay import api
from inlay.cli.quantized import quantized
from inlay.errors import UsageError
from inlay.prepare.options import BY_COSTS
from inlay.run.instant.proposal import Instant
from inlay.run.instant.quantize import Quantized
from inlay.run.instant.several import Several
from inlay.run.instant.shapes import profiled_here
from inlay.run.machine_costs import carried, read_costs, write_table
from inlay.search.cost_model import CostModel
from inlay.search.cost_table import CostTable, Fit
from inlay.targets.base import Artifact, KernelTime, TargetSpec
from inlay.targets.onnxruntime.processors import PROCESSORS, exact_limit_of
from inlay.targets.onnxruntime.target import OrtCpuTarget
from inlay.testing.models import Builder, random_feed, residual_model, run_reference, sqnr
from inlay.types import QType
from tests.search.unit_graphs import chain

TABLE = CostTable({("Conv", "float"): Fit((1.0, 2.0, 3.0, 4.0), 0.1, 5)})


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_CACHE_DIR", str(tmp_path / "cache"))


def _quantize(tmp_path: Path, *processors: str, recipe: str = "full-int8") -> tuple[Quantized, onnx.ModelProto]:
    model, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(residual_model(), model)
    feeds = [random_feed(model, seed) for seed in range(2)]
    done = api.quantize(model, out, data=feeds, processors=processors, recipe=recipe)
    return done, onnx.load(out)


def _weights(model: onnx.ModelProto) -> list[np.ndarray]:
    """Integers of weights: of more than one element, read by a DequantizeLinear, and no biases."""
    read = {n.input[0] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    tensors = (t for t in model.graph.initializer if t.name in read and t.data_type == onnx.TensorProto.INT8)
    return [numpy_helper.to_array(t) for t in tensors]


def _zero_point_types(model: onnx.ModelProto) -> set[int]:
    zeros = {n.input[2] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    return {t.data_type for t in model.graph.initializer if t.name in zeros}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_rules_are_those_of_the_processor(processor: str) -> None:
    """Whatever processor this is: 7 bits where products saturate there, uint8 on x86 and int8 on ARM."""
    rules = OrtCpuTarget(processor=processor).rules()
    limit = {"avx2": 63, "armv8": 127}.get(processor, 128)
    assert (exact_limit_of(processor), rules.exact_limit, rules.weight_limit) == (limit, limit, min(limit, 127))
    assert rules.activation is (QType.INT8 if processor.startswith("arm") else QType.UINT8)


@pytest.mark.parametrize(
    "processor", ["avx2", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("amx", "armv8.2-dotprod"))]
)
def test_the_file_follows_these_rules(processor: str, tmp_path: Path) -> None:
    done, model = _quantize(tmp_path, processor)
    largest = max(int(np.abs(w.astype(int)).max()) for w in _weights(model))
    assert (largest <= 63) == (processor == "avx2")
    is_arm = processor.startswith("arm")
    assert _zero_point_types(model) == {onnx.TensorProto.INT8 if is_arm else onnx.TensorProto.UINT8}
    assert done.accuracy is not None
    assert done.accuracy.sqnr_db > 20.0


def test_accuracy_is_that_of_the_processors_arithmetic(tmp_path: Path) -> None:
    """The outputs that were judged are within rounding those of the file in float32 arithmetic between its pairs."""
    _quantize(tmp_path, "amx", recipe="conv-matmul")
    path = tmp_path / "out.onnx"
    feed = random_feed(tmp_path / "model.onnx", 9)
    there = OrtCpuTarget(processor="amx").compile(Artifact(path, "a")).run(feed)
    unfused = run_reference(path, feed)
    assert min(sqnr(unfused[name], there[name]) for name in there) > 40.0


@pytest.mark.parametrize(
    ("processor", "least", "told"), [("armv8", -128, True), ("armv8", -127, False), ("amx", -128, False)]
)
def test_integers_that_are_kept_and_do_not_fit_there_are_told(
    processor: str, least: int, told: bool, tmp_path: Path
) -> None:
    """Of a given model that cannot be taken apart: its sums are not scaled, and here they were judged as exact."""
    model, b = tmp_path / "model.onnx", Builder()
    weight = b.constant("w", np.full((16, 8), least, np.int8))
    zero = b.constant("zero", np.array(128, np.uint8))
    data = b.node("data", "QuantizeLinear", [b.input("x", (4, 16)), b.constant("s", np.array(0.1, np.float32)), zero])
    sums = b.node("sums", "Cast", [b.node("products", "MatMulInteger", [data, weight, zero])], to=1)
    b.output(b.node("y", "MatMul", [sums, b.constant("m", np.eye(8, dtype=np.float32))]))
    onnx.save(b.model(), model)
    feeds = [random_feed(model, seed) for seed in range(2)]
    done = api.quantize(model, tmp_path / "out.onnx", data=feeds, processors=[processor], recipe="full-int8")
    assert any("MatMulInteger" in left.reason or "MatMulInteger" in left.node for left in done.leftovers)
    assert ("do not fit beyond 127 on that processor" in done.warning) == told


def test_a_file_for_an_earlier_version_there_has_its_rules(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(residual_model(), model)
    feeds, there = [random_feed(model, seed) for seed in range(2)], ["processor=armv8.2-dotprod", "version=1.26.0"]
    api.quantize(model, tmp_path / "out.onnx", data=feeds, target_options=there, recipe="full-int8")
    assert api.check(tmp_path / "out.onnx").tuned_for["onnxruntime"] == "1.26.0"
    assert "DepthToSpace" not in OrtCpuTarget(processor="armv8.2-dotprod", version="1.26.0").rules().ops
    assert "DepthToSpace" in OrtCpuTarget(processor="armv8.2-dotprod", version="1.28.0").rules().ops
    for options in (["version=1.26.0"], ["processor=amx", "version=new"]):
        with pytest.raises(UsageError, match="name that with --for"):
            api.check(model, target_options=options)


def test_nothing_is_said_to_be_measured(tmp_path: Path) -> None:
    done, _ = _quantize(tmp_path, "amx", recipe=BY_COSTS)
    how = done.by_costs
    assert how is not None
    assert (how.elsewhere, how.timed, how.in_float) == ("amx", None, None)
    said = "\n".join(quantized(done))
    assert "SPEED WAS NOT MEASURED HERE" in said
    assert "Timed" not in said
    assert "amx_int8" in how.source


def test_a_processor_of_this_architecture_without_a_table_takes_the_nearest(tmp_path: Path) -> None:
    target = OrtCpuTarget(processor="avx-vnni")
    assert "(avx2)" in read_costs(target, target.fingerprint()).source


def test_prices_of_arm_say_that_they_are_not_measured() -> None:
    """By what instructions do: matrices take half as long as dot products, these half as long as neither."""
    names = ("armv8", "armv8.2-dotprod", "armv8.6-i8mm")
    targets = [OrtCpuTarget(processor=name) for name in names]
    known = [read_costs(target, target.fingerprint()) for target in targets]
    assert all("NOT MEASURED" in each.source for each in known)
    tables = [each.table.fits["Conv", "low"].ns[1] for each in known if each.table is not None]
    floats = [each.table.fits["Conv", "float"].ns[1] for each in known if each.table is not None]
    ratios = [each / low for each, low in zip(floats, tables, strict=True)]
    assert ratios == pytest.approx([2.0, 4.0, 8.0], rel=0.01), "as their sources say"


def test_one_file_for_several_suits_the_narrowest_and_tells_what_each_loses(tmp_path: Path) -> None:
    done, model = _quantize(tmp_path, "amx", "avx2", recipe=BY_COSTS)
    assert all(np.abs(w.astype(int)).max() <= 63 for w in _weights(model))
    assert done.by_costs is not None
    assert set(done.by_costs.several) == {"amx", "avx2"}
    assert all(speedup > 0.0 and regret >= 0.0 for speedup, regret in done.by_costs.several.values())
    if done.ports:
        assert "slower than the best for it alone" in "\n".join(quantized(done))


def test_x86_and_arm_together_have_types_that_both_run() -> None:
    rules = OrtCpuTarget(processor="armv8.2-dotprod+avx512-vnni").rules()
    assert (rules.activation, rules.weight_limit) == (QType.UINT8, 127)


def test_the_worst_regret_is_the_smallest_of_all_labelings() -> None:
    """By all 16 labelings of a chain: no other one has a smaller worst regret."""
    graph = chain(4)
    rng = np.random.default_rng(3)
    size = CostModel(graph).parameters.size
    prices = {name: rng.uniform(1e3, 20e3, size) for name in ("a", "b", "c")}
    several = Several(graph, prices)
    every = [np.array([number >> bit & 1 for bit in range(4)], np.int8) for number in range(16)]
    several.add(*every)
    models = {name: CostModel(graph, priced=each) for name, each in prices.items()}
    best = {name: min(model.predict(each).mean for each in every) for name, model in models.items()}
    worst = [max(models[n].predict(each).mean / best[n] - 1.0 for n in models) for each in every]
    chosen = several.by_regret()[0]
    assert max(several.regrets(chosen).values()) == pytest.approx(min(worst), abs=1e-9)
    assert min(worst) < max(worst)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"processors": ["z80"]}, "z80 is not known; known are avx2"),
        ({"processors": ["amx"], "target": "null"}, "is for the processor here"),
        ({"processors": ["amx"], "target_options": ["processor=avx2"]}, "give one of them"),
        ({"processors": ["amx"], "device": "ssh://nobody@localhost"}, "--device and --ray"),
        ({"costs": "absent.json"}, "there is no such file"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_in_one_line(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(residual_model(), model)
    with pytest.raises(UsageError, match=said) as refused:
        api.quantize(model, tmp_path / "out.onnx", **options)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out.onnx").exists()


def test_a_search_needs_the_processor_itself(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(residual_model(), model)
    with pytest.raises(UsageError, match="gives no latencies"):
        api.tune(model, out=tmp_path / "out", target_options=["processor=amx"])


def test_a_table_is_carried_to_a_machine_with_the_same_instructions(tmp_path: Path) -> None:
    there = OrtCpuTarget(processor="amx").fingerprint()
    path = tmp_path / "amx.json"
    write_table(path, there, TABLE)
    assert carried(path, there) == TABLE
    found = read_costs(OrtCpuTarget(processor="amx"), there, given=path)
    assert (found.table, found.own) == (TABLE, True)
    with pytest.raises(UsageError, match=r"isa .*amx_int8.*, not avx2"):
        carried(path, OrtCpuTarget(processor="avx2").fingerprint())
    path.write_text(json.dumps({"version": 1}), encoding="utf8")
    with pytest.raises(UsageError, match="does not say what it was measured on"):
        carried(path, there)


def test_quantize_and_tune_start_from_a_carried_table(tmp_path: Path) -> None:
    model, path = tmp_path / "model.onnx", tmp_path / "mine.json"
    onnx.save(residual_model(), model)
    write_table(path, OrtCpuTarget().fingerprint(), TABLE)
    feeds = [random_feed(model, seed) for seed in range(4)]
    done = api.quantize(model, tmp_path / "out.onnx", data=feeds, costs=path)
    assert done.by_costs is not None
    assert done.by_costs.source == str(path)
    write_table(path, OrtCpuTarget(processor="armv8").fingerprint(), TABLE)
    with pytest.raises(UsageError, match="machine aarch64, not"):
        api.tune(model, out=tmp_path / "run", data=feeds, costs=path, budget=60)


def _like_this_one() -> str:
    """A processor for which the same table ships as for this one; skips where there is none."""
    here = OrtCpuTarget().shipped_costs()
    alike = [name for name in PROCESSORS if here is not None and OrtCpuTarget(processor=name).shipped_costs() == here]
    if not alike:
        pytest.skip("no table ships for this processor")
    return alike[0]


def test_profiles_here_correct_the_table_of_a_processor_of_this_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that has the very table of this machine, so that what is expected there becomes what was timed here."""
    real, seen = Instant.learn_elsewhere, list[tuple[float, float, float]]()

    def spy(self: Instant, table: CostTable, labels: np.ndarray, kernels: Sequence[KernelTime], ns: float) -> None:
        before = self.expected(labels)
        real(self, table, labels, kernels, ns)
        seen.append((before, self.expected(labels), ns))

    monkeypatch.setattr(Instant, "learn_elsewhere", spy)
    _quantize(tmp_path, _like_this_one(), recipe=BY_COSTS)
    assert seen
    for before, after, ns in seen[:1]:
        assert abs(np.log(after / ns)) < max(0.5 * abs(np.log(before / ns)), 0.3)


def test_other_architectures_are_not_profiled_here(tmp_path: Path) -> None:
    here = OrtCpuTarget().fingerprint().facts["machine"]
    with profiled_here(TargetSpec("ort-cpu"), here, tmp_path) as found:
        assert found is None, "it is measured itself"
    with profiled_here(TargetSpec("ort-cpu", {"processor": "amx"}), "another", tmp_path) as found:
        assert found is None
