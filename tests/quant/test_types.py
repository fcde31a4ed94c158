"""Placements with several static types: integers of 8 and 16 bits, floats of 8."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import inlay
from inlay.errors import UsageError
from inlay.quant.observers import Range
from inlay.quant.qparams import activation_params, dequantize, quantize
from inlay.quant.weight_scales import weight_params
from inlay.space.recipe import OpConfig, Recipe
from inlay.space.recipe_file import from_data, to_data
from inlay.space.resolve import recipe_of, resolve
from inlay.space.units import find_units, placement_from_precisions
from inlay.targets.base import TargetSpec
from inlay.testing import Builder, random_feed, run_reference, small_model, sqnr, upsampling_model
from inlay.types import GRAPH_OUTPUT, Placement, Port, PortRewrite, QParams, QType
from tests.support.examples import examples
from tests.support.fixtures import MakeWorkspace
from tests.support.float_models import graphs
from tests.support.runtime import check_and_load
from tests.support.workspace import Workspace
from tests.targets.onnxruntime.test_space_to_depth import stem

STATIC = (QType.UINT8, QType.INT8, QType.INT16, QType.UINT16, QType.FP8)
WIDE = {QType.INT16, QType.UINT16}
MANY = settings(max_examples=examples(20))


@contextmanager
def drawn(data: st.DataObject) -> Iterator[tuple[Workspace, Placement]]:
    """A random model, and some of its units in random types by a recipe."""
    with tempfile.TemporaryDirectory() as folder:
        space = Workspace(data.draw(graphs()), Path(folder))
        recipe = Recipe().set_name("*", None)
        for unit in space.prepared.selectable:
            qtype = data.draw(st.sampled_from([None, *STATIC]))
            recipe = recipe.set_name(unit.name, None if qtype is None else OpConfig(qtype))
        yield space, resolve(recipe, space.graph, space.prepared.units, space.prepared.rules).placement


@MANY
@given(st.data())
def test_mixed_types_come_back_and_run(data: st.DataObject) -> None:
    with drawn(data) as (space, placement):
        proto = space.emit(placement)
        check_and_load(proto)
        found = space.extract(proto)
        assert found.placement == placement
        assert found.leftovers == ()
        assert all(params == space.table.params(v, t) for (v, t), params in found.qparams.items())
        types = {t for _, t in placement}
        opset = proto.opset_import[0].version
        assert opset == max(space.graph.opset, 21 if types & WIDE else 19 if QType.FP8 in types else 0)
        rules, units = space.prepared.rules, space.prepared.units
        recipe = from_data(to_data(recipe_of(placement, space.graph, units, rules)))
        assert resolve(recipe, space.graph, units, rules).placement == placement


@MANY
@given(st.data())
def test_the_runtime_computes_what_rounding_by_hand_does(data: st.DataObject) -> None:
    with drawn(data) as (space, placement):
        want = _by_hand(space, placement)
        got = run_reference(space.emit(placement), space.feeds[0])
        for name, expected in want.items():
            if np.abs(expected).max(initial=0.0) > 0.0:
                assert sqnr(expected, got[name]) > 35.0  # rounding of sums may tip an element over to the next step


def _by_hand(space: Workspace, placement: Placement) -> dict[str, np.ndarray]:
    """The outputs, node by node in float, with each port's value rounded by numpy alone."""
    base = onnx.ModelProto()
    base.CopyFrom(space.emit(Placement()))
    known = dict(space.feeds[0]) | {t.name: onnx.numpy_helper.to_array(t) for t in base.graph.initializer}

    def read(port: Port, value: str) -> np.ndarray:
        qtype = placement.qtype(port)
        if qtype is None:
            return np.asarray(known[value])
        bias = qtype is QType.INT32
        return _rounded(
            known[value],
            space.table.bias_params(port, placement) if bias else space.table.params(value, qtype),
        )

    for node in base.graph.node:
        names = [f"i{slot}" if value else "" for slot, value in enumerate(node.input)]
        feed = {f"i{s}": read(Port(node.name, s), v) for s, v in enumerate(node.input) if v}
        alone = onnx.NodeProto()
        alone.CopyFrom(node)
        alone.input[:] = names
        inputs = [
            onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in feed.items()
        ]
        outputs = [onnx.helper.make_empty_tensor_value_info(v) for v in node.output if v]
        graph = onnx.helper.make_graph([alone], "one", inputs, outputs)
        model = onnx.helper.make_model(graph, opset_imports=base.opset_import, ir_version=base.ir_version)
        known.update(run_reference(model, feed))
    return {o.name: read(Port(GRAPH_OUTPUT, i), o.name) for i, o in enumerate(base.graph.output)}


def _rounded(array: np.ndarray, params: QParams) -> np.ndarray:
    shape = [1] * array.ndim
    if params.axis is not None:
        shape[params.axis] = -1
    scale = np.array(params.scale, np.float32).reshape(shape)
    if params.qtype is QType.FP8:
        steps = np.clip(array / scale, -448.0, 448.0).astype(ml_dtypes.float8_e4m3fn)
        return np.asarray(steps.astype(np.float32) * scale, np.float32)
    zero = np.array(params.zero_point).reshape(shape)
    info = np.iinfo(params.qtype.element)
    steps = np.clip(np.rint(array.astype(np.float64) / scale) + zero, info.min, info.max)
    return np.asarray((steps - zero) * scale, np.float32)


def test_a_value_read_in_two_types_has_two_pairs(workspace: MakeWorkspace) -> None:
    space = workspace(small_model())
    forks = [v for n in space.graph.nodes for v in n.outputs if len(space.graph.consumers(v)) > 1]
    first, second, *_ = space.graph.consumers(forks[0])
    placement = Placement([(first, QType.INT8), (second, QType.UINT16)])
    proto = space.emit(placement)
    kinds = {t.name: t.data_type for t in proto.graph.initializer}
    pairs = [n for n in proto.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == forks[0]]
    assert {kinds[n.input[2]] for n in pairs} == {onnx.TensorProto.INT8, onnx.TensorProto.UINT16}
    assert space.extract(proto).placement == placement


def test_floats_of_8_bits_saturate_and_round_to_even() -> None:
    params = activation_params(Range(-3.0, 448.0), QType.FP8)
    assert (params.scale, params.zero_point) == ((1.0,), (0,))
    given = np.array([1.0, 17.0, 19.0, -1e9, 448.0, 1e9, 2.0**-10, 2.0**-11], np.float32)
    got = dequantize(quantize(given, params), params)
    assert got.tolist() == [1.0, 16.0, 20.0, -448.0, 448.0, 448.0, 0.0, 0.0]
    weight = np.array([[0.5, -2.0], [0.0, 0.0]], np.float32)
    of_channels = weight_params(weight, 0, QType.FP8.qmax, qtype=QType.FP8)
    assert np.array_equal(dequantize(quantize(weight, of_channels), of_channels), weight)


def test_biases_stay_float_beside_floating_types_alone(workspace: MakeWorkspace) -> None:
    space = workspace(small_model())
    rules, units = space.prepared.rules, space.prepared.units
    for qtype in STATIC:
        placement = resolve(Recipe().set_global(OpConfig(qtype)), space.graph, units, rules).placement
        assert any(t is QType.INT32 for _, t in placement) == (qtype is not QType.FP8)
        weights = {placement.qtype(p) for u in space.prepared.selectable for p in u.weights}
        assert weights == {QType.FP8 if qtype is QType.FP8 else QType.INT8}


@pytest.mark.parametrize("qtype", [QType.UINT8, QType.UINT16])
def test_biases_fit_32_bits_beside_any_activations(qtype: QType, workspace: MakeWorkspace) -> None:
    """With small weights, a bias of ordinary size is no 32-bit number of steps of a product of 16-bit activations."""
    model = small_model()
    weights = {n.input[1] for n in model.graph.node if n.op_type == "Conv"}
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            array = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(array * 1e-4, np.float32), tensor.name))
    space = workspace(model)
    rules, units = space.prepared.rules, space.prepared.units
    placement = resolve(Recipe().set_global(OpConfig(qtype)), space.graph, units, rules).placement
    finer = 0
    for port in (p for p, t in placement if t is QType.INT32):
        bias = space.table.bias(port)
        assert bias is not None
        params = space.table.bias_params(port, placement)
        data, weight = (space.graph.value_of(Port(port.node, slot)) for slot in (0, 1))
        unit = np.asarray(space.table.params(data, qtype).scale) * space.table.params(weight, QType.INT8).scale
        finer += bool((np.abs(bias) > 2.0**31 * unit).any())
        error = np.abs(dequantize(quantize(bias, params), params) - bias)
        assert (error <= 0.5 * np.asarray(params.scale) + 1e-6 * np.abs(bias)).all()
    assert (finer > 0) == (qtype is QType.UINT16), "without another scale some would be cut off"


def test_digests_of_placements_in_journals_and_caches_stay() -> None:
    sites = [
        (Port("conv1", 0), QType.UINT8),
        (Port("conv1", 1), QType.INT8),
        (Port("conv1", 2), QType.INT32),
        (Port(GRAPH_OUTPUT, 0), QType.INT8),
        (Port("fc", 0), QType.DYNAMIC),
        (Port("fc", 1), QType.INT4_32),
        (Port("w", 0), QType.INT16),
    ]
    placement = Placement(sites, [PortRewrite(Port("conv1", 1), "off zero")])
    assert placement.digest == "4d7995ae7aaf5e78"
    mixed = Placement([*placement, (Port("w", 1), QType.FP8)], placement.rewrites)
    assert Placement.from_json(mixed.as_json()) == mixed
    assert mixed.digest != placement.digest


def sensitive_model() -> onnx.ModelProto:
    """Convolutions, then one whose input has a channel 400 times as large as those that its output is made of."""
    b = Builder(seed=3)
    x = b.input("x", (1, 4, 12, 12))
    x = b.conv("body", b.conv("stem", x, 8, 3, relu=True), 8, 3)
    gains = np.ones((1, 8, 1, 1), np.float32)
    gains[0, 0] = 400.0
    x = b.node("gain", "Mul", [x, b.constant("gains", gains)])
    weight = b.rng.normal(0.0, 0.3, (4, 8, 1, 1)).astype(np.float32)
    weight[:, 0] = 1e-4
    b.output(b.node("tail", "Conv", [x, b.constant("tail_w", weight)], channels=4))
    return b.model()


@pytest.fixture
def sensitive(workspace: MakeWorkspace) -> Workspace:
    """The sensitive model, prepared."""
    return workspace(sensitive_model())


def test_16_bits_at_one_unit_keep_a_bound_that_8_bits_break(sensitive: Workspace) -> None:
    rules, units = sensitive.prepared.rules, sensitive.prepared.units

    def decibels(recipe: Recipe) -> float:
        placement = resolve(recipe, sensitive.graph, units, rules).placement
        feed = sensitive.feeds[0]
        got, want = run_reference(sensitive.emit(placement), feed), run_reference(sensitive.emit(Placement()), feed)
        return min(sqnr(want[k], got[k]) for k in want)

    narrow = Recipe().set_global(OpConfig())
    wide = from_data(
        {
            "inlay-recipe": 1,
            "rules": [
                {"global": "int"},
                {"name": "tail", "config": {"activation": "uint16", "weight": "int8"}},
            ],
        }
    )
    assert decibels(narrow) < 20.0
    assert decibels(wide) > 25.0


def test_the_probe_knows_the_noise_of_every_type(sensitive: Workspace) -> None:
    """Fast kernels for a further type make it a label of each unit, whose noise is probed as it runs."""
    prepared = sensitive.prepared
    fast = {QType.UINT16: frozenset({"Conv"}), QType.FP8: frozenset({"Conv"})}
    rules = replace(prepared.rules, fast=fast)
    wide = replace(prepared, rules=rules, units=find_units(prepared.graph, rules))
    probe = wide.probe(sensitive.table)
    probe.use([dict(feed) for feed in sensitive.feeds])
    reference = [run_reference(sensitive.emit(Placement()), feed) for feed in sensitive.feeds]
    for precision in ("static", "uint16", "fp8"):
        labels = {"body": "static", "tail": precision}
        placement = placement_from_precisions(prepared.graph, wide.units, rules, labels)
        errors, signal = 0.0, 0.0
        for feed, want in zip(sensitive.feeds, reference, strict=True):
            got = run_reference(sensitive.emit(placement), feed)
            errors += sum(float(np.square(got[k] - want[k]).sum()) for k in want)
            signal += sum(float(np.square(want[k]).sum()) for k in want)
        assert probe.noise(placement)[0] == pytest.approx(errors / signal, rel=0.2)


@pytest.mark.exhaustive
def test_a_search_takes_16_bits_where_8_break_the_bound(tmp_path: Path) -> None:
    """At known costs: 8 bits gain more, but the last unit keeps the bound in 16 alone."""
    model = sensitive_model()
    onnx.save(model, tmp_path / "model.onnx")
    feeds = [random_feed(model, seed) for seed in range(6)]
    options: dict[str, Any] = {"min_sqnr": 20.0, "budget": None, "max_measurements": 8, "cost_db": False}
    spec = TargetSpec("null", {"wide": True})
    result = inlay.tune(tmp_path / "model.onnx", target=spec, data=feeds, out=tmp_path / "out", **options)
    assert result.best.selection.sqnr_db >= 20.0
    rules = yaml.safe_load((tmp_path / "out" / "recipe.yaml").read_text(encoding="utf8"))["rules"]
    precisions = {rule["name"]: rule["config"] for rule in rules if "name" in rule}
    assert (precisions["stem"], precisions["tail"]) == ("uint8", "uint16")


def test_a_type_can_be_the_default_of_a_command(tmp_path: Path) -> None:
    onnx.save(small_model(), tmp_path / "model.onnx")
    recipe = Recipe().set_name("left", OpConfig(QType.INT8))
    inlay.quantize(tmp_path / "model.onnx", tmp_path / "out.onnx", recipe=recipe, quant_type="uint16")
    model = onnx.load(tmp_path / "out.onnx")
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    types = [kinds[n.input[2]] for n in model.graph.node if n.op_type == "QuantizeLinear"]
    assert set(types) == {onnx.TensorProto.INT8, onnx.TensorProto.UINT16}
    with pytest.raises(UsageError, match="--quant-type int4: activations of this target are fp8, int16, int8, uint"):
        inlay.quantize(tmp_path / "model.onnx", tmp_path / "out.onnx", quant_type="int4")


@pytest.mark.parametrize("model", [stem(False, 32), upsampling_model()], ids=["blocks of pixels", "transposed"])
def test_rewrites_for_integer_kernels_leave_16_bits_alone(workspace: MakeWorkspace, model: onnx.ModelProto) -> None:
    """The runtime moves bytes from depth to space and back, but not 16 bits: it did not load such a model."""
    space = workspace(model)
    rules = space.prepared.rules
    placement = resolve(Recipe().set_global(OpConfig(QType.UINT16)), space.graph, space.prepared.units, rules).placement
    assert len(placement)
    written = space.emit(placement)
    session = ort.InferenceSession(written.SerializeToString(), providers=["CPUExecutionProvider"])
    want = run_reference(written, space.feeds[0])
    for name, got in zip(want, session.run(list(want), dict(space.feeds[0])), strict=True):
        assert sqnr(want[name], got) > 60.0
