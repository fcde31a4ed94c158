"""Which weights of a model are rounded by what reads them, and that it lessens the error of their operators."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from inlay.calibrate.gptq import readers_of, round_weights, weights_alone
from inlay.calibrate.tables import CalibrationChoice
from inlay.deadline import Deadline
from inlay.model.pool import pooled
from inlay.quant.gptq import Rounding
from inlay.quant.padding_propagation import Positions
from inlay.quant.qparams import dequantize, quantize
from inlay.types import QType
from tests.support.fixtures import MakeWorkspace
from tests.support.pool import PoolHere
from tests.support.workspace import Workspace

LONG = 100.0  # seconds of a usual processor
PLAIN = ("usual", "shown", "same", "product", "large", "turned")  # names of weights that can be rounded


def model() -> onnx.ModelProto:
    """Weights in many positions, of inputs whose elements are alike."""
    rng = np.random.default_rng(5)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        array = rng.normal(0, 0.4, shape)
        if name == "sparse":
            array *= rng.uniform(size=shape) < 0.5
        return numpy_helper.from_array(array.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "usual"], ["a"], "a", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "shown"], ["b"], "b"),
        helper.make_node("Conv", ["b", "same"], ["c"], "c", auto_pad="SAME_UPPER"),
        helper.make_node("Conv", ["c", "sparse"], ["d"], "d"),
        helper.make_node("GlobalAveragePool", ["d"], ["e"], "e"),
        helper.make_node("Flatten", ["e"], ["f"], "f"),
        helper.make_node("MatMul", ["f", "product"], ["g"], "g"),
        helper.make_node("MatMul", ["g", "large"], ["l"], "l"),
        helper.make_node("Gemm", ["l", "turned"], ["h"], "h", transB=1),
        helper.make_node("Gemm", ["h", "mixed"], ["i"], "i", transB=1),
        helper.make_node("MatMul", ["i", "mixed"], ["y"], "j"),
        helper.make_node("Identity", ["shown"], ["w"], "k"),
    ]
    shapes: dict[str, tuple[int, ...]] = {
        "usual": (8, 4, 3, 3),
        "shown": (8, 8, 1, 1),
        "same": (8, 8, 3, 3),
        "sparse": (8, 8, 1, 1),
    }
    shapes |= {"product": (8, 128), "turned": (16, 128), "mixed": (16, 16), "large": (128, 128)}
    outputs = {"y": None, "w": [8, 8, 1, 1], "product": [8, 128]}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 9, 9])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in outputs.items()],
        [weight(name, *shape) for name, shape in shapes.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def space(workspace: MakeWorkspace) -> Workspace:
    rng = np.random.default_rng(0)
    common = [rng.normal(size=(1, 1, 9, 9)) for _ in range(8)]
    feeds = tuple({"x": (c + 0.2 * rng.normal(size=(1, 4, 9, 9))).astype(np.float32)} for c in common)
    return workspace(model(), feeds=feeds)


def found(space: Workspace, seconds: float = LONG) -> Rounding:
    return round_weights(space.prepared, space.table, [dict(f) for f in space.feeds], Positions(), seconds).rounding


def test_only_weights_whose_readers_are_of_a_known_kind(space: Workspace) -> None:
    """Not one that a Gemm reads by rows and a MatMul by columns."""
    assert {*readers_of(space.graph, space.prepared.units)} == {*PLAIN, "sparse"}
    assert {v for v, _ in found(space).steps} <= {*PLAIN}, "zeros of a sparse one stay zeros: it is left alone"


def test_the_outputs_of_operators_come_nearer(space: Workspace) -> None:
    """The first Conv reads the model's input: its error is computed directly, with and without the steps."""
    steps = found(space).steps["usual", QType.INT8]
    array, params = space.graph.constant("usual"), space.table.params("usual", QType.INT8)
    assert array is not None
    nearest = dequantize(quantize(array, params), params)
    scale = np.asarray(params.scale).reshape(-1, 1, 1, 1)
    rounded = nearest + steps.delta * scale
    assert np.abs(steps.delta).max() <= 2

    def error(weight: np.ndarray) -> float:
        total = 0.0
        for feed in space.feeds:
            padded = np.pad(feed["x"].astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
            windows = np.stack([padded[:, :, i : i + 9, j : j + 9] for i in range(3) for j in range(3)], axis=-1)
            total += np.square(
                np.einsum("nchwk,ock->nohw", windows, (weight - array.astype(np.float64)).reshape(8, 4, 9))
            ).sum()
        return total

    assert error(rounded) < 0.7 * error(nearest)


def test_what_there_is_no_time_for_stays_as_it_is(space: Workspace) -> None:
    assert found(space, seconds=0.0).steps == {}


@pytest.mark.exhaustive
def test_the_usual_type_comes_first_where_time_runs_out(space: Workspace) -> None:
    """As many weights as there is time for; of other types all or none. The clock advances with each look at it."""
    every = round_weights(space.prepared, space.table, [dict(f) for f in space.feeds], Positions(), LONG)
    types = {t for _, t in every.rounding.steps}
    assert every.in_time
    assert len(types) > 1
    seen = []
    for seconds in range(30):
        until = Deadline(float(seconds), itertools.count().__next__)
        found = round_weights(space.prepared, space.table, [dict(f) for f in space.feeds], Positions(), LONG, until)
        assert found.rounding.steps.keys() <= every.rounding.steps.keys()
        kept = {t: {k for k in found.rounding.steps if k[1] is t} for t in types}
        whole = {t: {k for k in every.rounding.steps if k[1] is t} for t in types}
        seen.append(len(kept[QType.INT8]))
        others = [t for t in types if t is not QType.INT8 and kept[t]]
        assert all(kept[t] == whole[t] for t in [*others, *([QType.INT8] if others else [])])
        assert found.in_time == (kept == whole)
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert len({*seen}) > 2, "also some of the usual type"


def test_several_hands_round_as_one_does(space: Workspace) -> None:
    """Each takes weights that take about as long; those with the same readers stay together."""
    pool, alone = PoolHere(3), found(space)
    with pooled(pool.open_pool, 1e9):
        assert found(space).digest == alone.digest
    assert alone.steps
    assert pool.asked["_rounded"] == 3


def test_a_model_holds_the_steps_of_its_own_table(space: Workspace) -> None:
    """Tables of one model share the scales of weights, and one emitter writes for all of them."""
    rounding = found(space)
    value, qtype = next((v, t) for v, t in rounding.steps if t.block)
    nearest, placement = CalibrationChoice("minmax"), weights_alone(space.prepared, qtype)
    kept, written = [], list[bytes]()  # tables are kept, as ids of what is gone are given again
    for choice in (nearest, nearest.rounding_by(rounding), nearest):
        kept.append(choice.table(space.prepared, space.observed))
        model, store = space.prepared.emitter.emit(placement, kept[-1]), space.prepared.store
        stored = next(t for t in model.graph.initializer if t.name == f"{value}_quantized")
        written.append(store.read(stored) if stored.external_data else stored.raw_data)
    assert (kept[0].quantized(value, qtype) != kept[1].quantized(value, qtype)).any()
    assert written[0] == written[2] != written[1]
