"""Weights that have one set of scales, operators of one family, and states in the scale of data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inlay.model.graph import Graph, Node
from inlay.space.rules import Condition, Needs, OpRule, Recurrence
from inlay.targets.onnxruntime.target import capabilities_for
from inlay.testing import Builder
from inlay.types import QType
from tests.support.workspace import Workspace

LENGTH, WIDTH, HIDDEN = 5, 6, 8
ROWS = 4 * HIDDEN
LIMIT = 127  # of weights where products do not saturate
SMALL = 0.05  # what the data of the first layer reach up to


def space_of(folder: Path, conditions: tuple[Condition, ...] = (), **scales: Any) -> Workspace:
    """Two LSTMs of one size, whose data and weights are of very different ones, on a target with such a row."""
    b = Builder(opset=17)
    x = b.node("tanh", "Tanh", [b.input("x", (LENGTH, 1, WIDTH))])
    for name, size in (("first", SMALL), ("second", 3.0)):
        data = b.node(f"{name}_data", "Mul", [x, b.constant(f"{name}_size", np.float32(size))])
        shapes = {"w": (1, ROWS, WIDTH), "r": (1, ROWS, HIDDEN)}
        weights = [b.constant(f"{name}_{k}", b.rng.normal(0, size, s).astype(np.float32)) for k, s in shapes.items()]
        b.output(b.node(name, "LSTM", [data, *weights], hidden_size=HIDDEN))
    own = capabilities_for("x86_64", frozenset({"avx2", "avx512_vnni"}))
    recurrence = Recurrence(further_weights=(2,), **scales)
    rule = OpRule("LSTM", weight=1, recurrence=recurrence, output=Needs.EITHER, conditions=conditions)
    return Workspace(b.model(), folder, replace(own, rules=replace(own.rules, ops={"LSTM": rule})))


def largest(space: Workspace, *names: str) -> np.ndarray:
    """Of each row in all of these weights."""
    arrays = [space.graph.constant(name) for name in names]
    return np.asarray(np.max([np.abs(np.asarray(a)).max(axis=(0, 2)) for a in arrays], axis=0))


def scales(space: Workspace, name: str) -> np.ndarray:
    return np.asarray(space.table.params(name, QType.INT8).scale, np.float64)


def test_both_weights_have_the_scales_of_the_larger_one_in_each_row(tmp_path: Path) -> None:
    space = space_of(tmp_path)
    for node in ("first", "second"):
        assert scales(space, f"{node}_w") == pytest.approx(largest(space, f"{node}_w", f"{node}_r") / LIMIT)
        assert np.array_equal(scales(space, f"{node}_w"), scales(space, f"{node}_r"))
    assert not np.array_equal(scales(space, "first_w"), scales(space, "second_w"))
    unit = next(u for u in space.prepared.units if u.name == "first")
    assert [p.slot for p in unit.weights] == [1, 2]
    stored = {t.name for t in space.emit(space.label("first")).graph.initializer}
    assert {"first_w_quantized", "first_r_quantized"} <= stored


def test_rows_of_one_group_have_one_scale(tmp_path: Path) -> None:
    groups = np.arange(ROWS) // 2
    space = space_of(tmp_path, scale_groups=lambda graph, node: groups)
    of_rows = largest(space, "first_w", "first_r").reshape(-1, 2).max(axis=1)
    assert scales(space, "first_r") == pytest.approx(np.repeat(of_rows, 2) / LIMIT)


def _size(graph: Graph, node: Node) -> tuple[int | None, ...]:
    return tuple(graph.shape(node.inputs[1]) or ())


def test_a_family_has_one_range_of_data_and_one_set_of_scales(tmp_path: Path) -> None:
    alone, space = space_of(tmp_path / "alone"), space_of(tmp_path / "family", family=_size)
    data = [each.table.params(f"{n}_data_out", QType.UINT8) for each in (alone, space) for n in ("first", "second")]
    assert data[0] != data[1] == data[2] == data[3]
    together = largest(space, "first_w", "first_r", "second_w", "second_r") / LIMIT
    for name in ("first_w", "first_r", "second_w", "second_r"):
        assert scales(space, name) == pytest.approx(together)


def test_what_cannot_be_quantized_is_in_no_family(tmp_path: Path) -> None:
    space = space_of(tmp_path, family=_size, conditions=(lambda g, n: "no" if n.name == "second" else None,))
    assert scales(space, "first_w") == pytest.approx(largest(space, "first_w", "first_r") / LIMIT)


@pytest.mark.parametrize("state", [0.0, 1.0])
def test_the_range_of_data_reaches_as_far_as_the_state(state: float, tmp_path: Path) -> None:
    space = space_of(tmp_path, state=state)
    small = space.table.params("first_data_out", QType.UINT8).scale[0] * 255
    assert small == pytest.approx(2.0) if state else small < 2 * SMALL
    assert space.table.params("second_data_out", QType.UINT8).scale[0] * 255 > 2.0


def test_one_scale_for_a_weight_is_one_for_all_that_it_shares_with(tmp_path: Path) -> None:
    space = space_of(tmp_path)
    table = type(space.table)(space.graph, space.prepared.rules, {}, per_tensor=frozenset({"first_w"}))
    found = {name: table.params(name, QType.INT8) for name in ("first_w", "first_r")}
    assert found["first_w"] == found["first_r"]
    assert found["first_r"].scale == pytest.approx((largest(space, "first_w", "first_r").max() / LIMIT,))
