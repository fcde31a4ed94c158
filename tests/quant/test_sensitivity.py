"""One session answers every probe: off it is the model, and what values add alone foretells what they add together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from inlay.data import Samples
from inlay.model.load import load
from inlay.model.reference import Session
from inlay.quant.sensitivity import SWITCHES, probe_model, quiet_units, sensitivity
from inlay.search.structure import build_structure
from inlay.targets.onnxruntime.rules import rules_for
from inlay.workbench import Prepared, observe, prepare, table_from


def _prepared(folder: Path) -> tuple[Prepared, list[dict[str, np.ndarray]]]:
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(0, 0.3, (8, 8, 3, 3)).astype(np.float32), f"w{i}") for i in range(3)]
    nodes = [
        helper.make_node("Conv", [f"v{i}" if i else "x", f"w{i}"], [f"v{i + 1}"], f"c{i}", pads=[1, 1, 1, 1])
        for i in range(3)
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8, 6, 6]) for n in ("x", "v3")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "m.onnx")
    feeds = [{"x": rng.normal(0, 1, (1, 8, 6, 6)).astype(np.float32)} for _ in range(6)]
    return prepare(load(folder / "m.onnx"), rules_for(), feeds[0], folder), feeds


def test_noise_alone_adds_up_to_noise_together(tmp_path: Path) -> None:
    prepared, feeds = _prepared(tmp_path)
    table = table_from(prepared, observe(prepared, Samples(tuple(feeds), "feeds", "test")), "minmax")
    values = [e.value for e in build_structure(prepared.graph, prepared.units).edges]
    model = probe_model(prepared.emitter.base, prepared.graph, prepared.units, values, prepared.rules, table)
    session = Session(model, prepared.store)
    off = np.zeros(len(values), bool)
    plain = Session(prepared.emitter.base, prepared.store).run(feeds[0])["v3"]
    np.testing.assert_allclose(session.run({**feeds[0], SWITCHES: off})["v3"], plain, rtol=1e-5, atol=1e-6)

    alone = sensitivity(
        prepared.emitter.base,
        prepared.store,
        prepared.graph,
        prepared.units,
        values,
        prepared.rules,
        table,
        feeds,
        seconds=5.0,
    )
    assert set(alone) == {"x", "v1", "v2", "v3"}
    assert all(noise[0] > 0.0 for noise in alone.values())
    together = session.run({**feeds[0], SWITCHES: ~off})["v3"]
    measured = float(((together - plain) ** 2).sum() / (plain**2).sum())
    predicted = sum(noise[0] for noise in alone.values())
    assert 0.4 < measured / predicted < 2.5


def test_probes_are_grouped_when_time_is_short(tmp_path: Path) -> None:
    prepared, feeds = _prepared(tmp_path)
    table = table_from(prepared, observe(prepared, Samples(tuple(feeds), "feeds", "test")), "minmax")
    ticks = iter(range(1000))  # a clock on which each call takes a second
    found = sensitivity(
        prepared.emitter.base,
        prepared.store,
        prepared.graph,
        prepared.units,
        ["x", "v1", "v2", "v3"],
        prepared.rules,
        table,
        feeds,
        seconds=2.0,
        clock=lambda: float(next(ticks)),
    )
    assert found["x"] == found["v1"]
    assert found["v2"] == found["v3"]
    assert found["x"] != found["v2"]


def test_the_loudest_units_are_left_out_until_the_rest_keeps_the_limit(tmp_path: Path) -> None:
    prepared, _ = _prepared(tmp_path)
    units = prepared.selectable
    noise = {"x": (0.001,), "v1": (0.002,), "v2": (0.5,), "v3": (0.001,)}
    assert quiet_units(prepared.graph, units, noise, 1.0) == {"c0", "c1", "c2"}
    assert quiet_units(prepared.graph, units, noise, 0.01) == {"c0"}  # both units around v2 go
    assert quiet_units(prepared.graph, units, noise, 0.0) == frozenset()
    two = {**dict.fromkeys(noise, (0.0, 0.0)), "v1": (0.0, 0.3)}
    assert quiet_units(prepared.graph, units, two, 0.1) == {"c2"}  # every output counts
