"""Switches off, a probe model is the model; on, it is the written Q/DQ model. Probes go where the noise is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from inlay.calibrate.observe import observe
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import Samples
from inlay.model.load import load
from inlay.model.reference import Session
from inlay.prepare.model import PreparedModel, prepare
from inlay.quant.fake_quant import SWITCHES, NoiseProbe, Switch, fake_quantized, find_switches
from inlay.quant.qparams import QParamsTable
from inlay.quant.sensitivity import sensitivity, units_within
from inlay.space.units import Unit
from inlay.targets.onnxruntime.rules import precedes
from inlay.targets.onnxruntime.target import capabilities_for
from inlay.types import Placement, Port, QType


def _prepared(folder: Path) -> tuple[PreparedModel, list[dict[str, np.ndarray]], QParamsTable]:
    """Three convolutions; the value between the first two is read by an Add and a graph output as well."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(0, 0.3, (8, 8, 3, 3)).astype(np.float32), f"w{i}") for i in range(3)]
    nodes = [
        helper.make_node("Conv", [f"v{i}" if i else "x", f"w{i}"], [f"v{i + 1}"], f"c{i}", pads=[1, 1, 1, 1])
        for i in range(3)
    ]
    nodes += [helper.make_node("Add", ["v1", "v3"], ["y"], "add"), helper.make_node("Sin", ["v1"], ["z"], "sin")]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8, 6, 6]) for n in ("x", "y", "z", "v1")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "m.onnx")
    feeds = [{"x": rng.normal(0, 1, (1, 8, 6, 6)).astype(np.float32)} for _ in range(6)]
    prepared = prepare(load(folder / "m.onnx"), capabilities_for(), feeds[0], folder)
    table = CalibrationChoice("minmax").table(prepared, observe(prepared, Samples(tuple(feeds), "feeds", "test")))
    return prepared, feeds, table


@pytest.mark.parametrize("low", [(), ("c0",), ("c1",), ("c0", "c1"), ("add",), ("c0", "c1", "c2", "add")])
def test_the_probe_computes_what_the_written_model_does(tmp_path: Path, low: tuple[str, ...]) -> None:
    prepared, feeds, table = _prepared(tmp_path)
    switches = find_switches(prepared.graph, prepared.units, prepared.rules, table)
    session = Session(fake_quantized(prepared.emitter.base, prepared.graph, switches, table), prepared.store)
    placement = prepared.label(frozenset(low))
    on = np.array([s.ports[0] in placement for s in switches])
    assert on.any() == bool(low)
    got = session.run({**feeds[0], SWITCHES: on})
    want = Session(prepared.emitter.emit(placement, table), prepared.store).run(feeds[0])
    assert got.keys() == want.keys()
    for name in want:
        step = np.abs(want[name]).max() / 100  # a value on the brink between two steps of the grid may fall either way
        assert np.abs(got[name] - want[name]).max() <= (step if low else 1e-5)
        assert np.mean(np.abs(got[name] - want[name]) > 1e-4) < 0.05


def _dense(folder: Path) -> tuple[PreparedModel, list[dict[str, np.ndarray]], QParamsTable]:
    """Two products that read one value, and a third behind them."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(0, 0.3, (128, 128)).astype(np.float32), f"w{i}") for i in range(3)]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], "p0"),
        helper.make_node("MatMul", ["x", "w1"], ["b"], "p1"),
        helper.make_node("Mul", ["a", "b"], ["v"], "mul"),
        helper.make_node("MatMul", ["v", "w2"], ["y"], "p2"),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 6, 128]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "m.onnx")
    feeds = [{"x": rng.normal(0, 1, (1, 6, 128)).astype(np.float32)} for _ in range(4)]
    prepared = prepare(load(folder / "m.onnx"), capabilities_for(), feeds[0], folder)
    table = CalibrationChoice("minmax").table(prepared, observe(prepared, Samples(tuple(feeds), "feeds", "test")))
    return prepared, feeds, table


@pytest.mark.parametrize(
    "precisions",
    [
        {"p0": "dynamic"},
        {"p0": "dynamic", "p1": "static"},
        {"p0": "dynamic", "p1": "dynamic", "mul": "static", "p2": "dynamic"},
        {"p0": "weight-only int8/128", "p1": "dynamic", "p2": "weight-only int4/128"},
        {"p0": "weight-only int8/128", "p1": "weight-only int8/128", "p2": "weight-only int8/128"},
        {"p0": "weight-only int4/128", "p1": "weight-only int4/128", "mul": "static", "p2": "weight-only int4/128"},
    ],
)
def test_the_probe_computes_products_as_they_are_written(tmp_path: Path, precisions: dict[str, str]) -> None:
    if precedes(ort.__version__, 25) and any("int8/" in p for p in precisions.values()):
        pytest.skip("before 1.25 no kernel of the runtime reads weights of 8 bits, and none rounds their data")
    prepared, feeds, table = _dense(tmp_path)
    probe = NoiseProbe(prepared.emitter.base, prepared.store, prepared.graph, prepared.units, prepared.rules, table)
    probe.use(feeds)
    placement = prepared.label(precisions)
    exact, written = (
        [Session(prepared.emitter.emit(p, table), prepared.store, optimize=True).run(f)["y"] for f in feeds]
        for p in (Placement(), placement)
    )
    error = np.stack(written).astype(np.float64) - np.stack(exact)
    noise = float((error**2).sum() / (np.stack(exact).astype(np.float64) ** 2).sum())
    assert probe.noise(placement)[0] == pytest.approx(noise, rel=0.1)
    assert noise > 1e-6


def test_without_samples_there_is_no_noise(tmp_path: Path) -> None:
    prepared, _, table = _prepared(tmp_path)
    probe = NoiseProbe(prepared.emitter.base, prepared.store, prepared.graph, prepared.units, prepared.rules, table)
    assert [*probe.noises([Placement()] * 2)] == [(0.0,) * len(probe.outputs)] * 2


def test_each_form_has_a_noise_of_its_own(tmp_path: Path) -> None:
    prepared, feeds, table = _dense(tmp_path)
    probe = NoiseProbe(prepared.emitter.base, prepared.store, prepared.graph, prepared.units, prepared.rules, table)
    probe.use(feeds)
    for most in (3, 100):  # grouped, and each alone
        found = sensitivity(probe.switches, prepared.units, probe.noises, most)
        assert found.forms.keys() == {
            "dynamic",
            "weight-only int8/32",
            "weight-only int8/128",
            "weight-only int4/128",
        }
        assert found.forms["dynamic"].keys() == {"p0", "p1", "p2"}
    alone = probe.noise(prepared.label({"p2": "dynamic"}))
    assert found.forms["dynamic"]["p2"] == pytest.approx(alone)
    bits8, bits4 = (found.forms[f]["p2"][0] for f in ("weight-only int8/128", "weight-only int4/128"))
    assert 50 * bits8 < bits4 < 1000 * bits8


def test_noise_alone_adds_up_to_noise_together(tmp_path: Path) -> None:
    prepared, feeds, table = _prepared(tmp_path)
    probe = NoiseProbe(prepared.emitter.base, prepared.store, prepared.graph, prepared.units, prepared.rules, table)
    probe.use(feeds[:3])
    units = [u for u in prepared.units if u.selectable]
    found = sensitivity(probe.switches, units, probe.noises, most=100)
    assert set(found.values) >= {"x", "v1", "v2", "v3", "y"}
    assert set(found.constants) == {"c0", "c1", "c2"}
    at = probe.outputs.index("y")
    everything = probe.noise(Placement((p, s.qtype) for s in probe.switches for p in s.ports))
    predicted = sum(n[at] for n in (*found.values.values(), *found.constants.values()))
    assert 0.4 < everything[at] / predicted < 2.5
    assert max(probe.noise(Placement())) < 1e-9


def test_one_sample_stands_for_all_by_its_share_of_the_noise(tmp_path: Path) -> None:
    """Noise is relative to the signal of all samples, and the sample that makes most of it is asked first."""
    prepared, feeds, table = _prepared(tmp_path)
    faint = [{k: v * 0.05 for k, v in feed.items()} for feed in feeds[:3]]
    probe = NoiseProbe(prepared.emitter.base, prepared.store, prepared.graph, prepared.units, prepared.rules, table)
    everything = Placement((p, s.qtype) for s in probe.switches for p in s.ports)
    probe.use([*faint, feeds[3]])
    whole, one = np.array(probe.noise(everything)), np.array(probe.noise(everything, samples=1))
    np.testing.assert_allclose(one, whole, rtol=1e-6)
    probe.use([feeds[3], *faint])
    np.testing.assert_allclose(probe.noise(everything), whole, rtol=1e-6)
    np.testing.assert_allclose(
        probe.noise(prepared.label(frozenset({"c0"})), samples=1),
        np.array(probe.noise(prepared.label(frozenset({"c0"})))),
        rtol=0.5,
    )
    probe.use(faint)
    assert max(probe.noise(everything)) > 2.0 * max(whole), "alone, faint samples look worse than they matter"


class _Planted:
    """A hundred values, of which three make all the noise; counts the questions."""

    def __init__(self) -> None:
        self.loud = {17: 5.0, 18: 1.0, 80: 2.0}
        self.switches = [Switch(value=f"v{i}", ports=(Port(f"n{i}", 0),), qtype=QType.UINT8) for i in range(100)]
        self.units: list[Unit] = []
        self.asked = 0

    def ask(self, placements: Iterable[Placement]) -> Iterator[tuple[float, ...]]:
        for placement in placements:
            self.asked += 1
            yield (sum(self.loud.get(int(port.node[1:]), 1e-6) for port, _ in placement),)


def test_few_questions_find_the_values_that_matter() -> None:
    planted = _Planted()
    found = sensitivity(planted.switches, planted.units, planted.ask, most=45)
    assert planted.asked <= 45 + 4
    for i, noise in planted.loud.items():
        assert found.values[f"v{i}"] == pytest.approx((noise,), rel=1e-3)
    assert max(found.values[f"v{i}"][0] for i in range(100) if i not in planted.loud) < 1e-3
    assert len(found.values) == 100


def test_with_time_enough_every_value_is_asked_alone() -> None:
    planted = _Planted()
    found = sensitivity(planted.switches, planted.units, planted.ask, most=100)
    assert planted.asked == 100
    assert found.values["v3"] == (1e-6,)


def test_the_loudest_units_are_left_out_until_the_rest_keeps_the_limit(tmp_path: Path) -> None:
    prepared, _, _ = _prepared(tmp_path)
    units = [u for u in prepared.selectable if u.name != "add"]
    noise = {"x": (0.001,), "v1": (0.002,), "v2": (0.5,), "v3": (0.001,)}
    assert units_within(prepared.graph, units, noise, 1.0) == {"c0", "c1", "c2"}
    assert units_within(prepared.graph, units, noise, 0.01) == {"c0"}  # both units around v2 go
    assert units_within(prepared.graph, units, noise, 0.0) == frozenset()
    two = {**dict.fromkeys(noise, (0.0, 0.0)), "v1": (0.0, 0.3)}
    assert units_within(prepared.graph, units, two, 0.1) == {"c2"}  # every output counts


def test_units_that_matter_are_asked_about_apart_from_their_neighbours() -> None:
    """With few questions the neighbour of a loud value gets a part of its noise; asked about apart, only its own."""
    grouped, apart = _Planted(), _Planted()
    few = sensitivity(grouped.switches, grouped.units, grouped.ask, most=8)
    found = sensitivity(apart.switches, apart.units, apart.ask, most=8, apart=("n81", "n3"))
    assert few.values["v81"][0] > 1e-2
    assert found.values["v81"] == found.values["v3"] == (1e-6,)
    assert apart.asked <= grouped.asked + 2
    assert found.values.keys() == few.values.keys()


def test_all_units_may_be_asked_about_apart() -> None:
    planted = _Planted()
    found = sensitivity(planted.switches, planted.units, planted.ask, most=8, apart=[f"n{i}" for i in range(100)])
    assert planted.asked == 100
    assert found.values["v80"] == (2.0,)
