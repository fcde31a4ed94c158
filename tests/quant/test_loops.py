"""Bodies of Loops and Scans: ranges over all turns, what is quantized outside, and what they carry."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from inlay.model.flow import flattened
from inlay.model.nesting import nested
from inlay.model.pieces import PiecewiseSession
from inlay.model.store import WeightStore
from inlay.search.workload import unit_workload
from inlay.targets.base import Feed
from inlay.testing import run_reference, sqnr
from tests.quant.test_flow import bodies, run
from tests.support.control_flow import CHANNELS, SHAPE
from tests.support.runtime import check_and_load
from tests.support.workspace import Workspace

TURNS = 3
INT64, BOOL, FLOAT = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT


def tensor(name: str, dtype: int = FLOAT, shape: tuple[int | str | None, ...] | None = SHAPE) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(nodes: list[onnx.NodeProto], outputs: list[onnx.ValueInfoProto], **weights: np.ndarray) -> onnx.ModelProto:
    held = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "g", [tensor("x")], outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def looped(grows: float = 2.0) -> onnx.ModelProto:
    """``state = grows * relu(conv(x) + state)`` three times, with each turn's sum as a scan output.

    ``x`` is captured; ``steady``, a Relu of ``x`` and of it alone, is the same in each turn.
    """
    nodes = [
        helper.make_node("Identity", ["go"], ["on"], "go_on"),
        helper.make_node("Conv", ["x", "w", "b"], ["y"], "conv", kernel_shape=[1, 1]),
        helper.make_node("Add", ["y", "state"], ["sum"], "add"),
        helper.make_node("Relu", ["sum"], ["kept"], "relu"),
        helper.make_node("Mul", ["kept", "grows"], ["next"], "mul"),
    ]
    taken = [tensor("turn", INT64, ()), tensor("go", BOOL, ()), tensor("state")]
    body = helper.make_graph(nodes, "body", taken, [tensor("on", BOOL, ()), tensor("next"), tensor("sum")])
    loop = helper.make_node("Loop", ["times", "", "x"], ["last", "sums"], "loop", body=body)
    rng = np.random.default_rng(0)
    return model_of(
        [loop],
        [tensor("last"), tensor("sums", FLOAT, (TURNS, *SHAPE))],
        w=rng.standard_normal((CHANNELS, CHANNELS, 1, 1)).astype(np.float32),
        b=np.zeros(CHANNELS, np.float32),
        grows=np.array(grows, np.float32),
        times=np.array(TURNS, np.int64),
    )


def feeds(count: int) -> tuple[Feed, ...]:
    return tuple({"x": np.random.default_rng(n).standard_normal(SHAPE).astype(np.float32)} for n in range(count))


def test_ranges_are_those_of_all_turns(tmp_path: Path) -> None:
    given = feeds(4)
    space = Workspace(looped(), tmp_path, feeds=given)
    sums = [outputs[1] for outputs in run(looped(), given, 0)]
    seen = space.observed.histograms["sum"]
    assert seen.high == pytest.approx(max(s.max() for s in sums), rel=1e-5)
    assert seen.low == pytest.approx(min(s.min() for s in sums), rel=1e-5)
    assert seen.high > 2 * max(s[0].max() for s in sums), "the negative control: the first turn alone is smaller"
    assert len(seen.highs) == len(given), "the turns of one sample are one sample"
    units = {u.name: u for u in space.prepared.units}
    assert unit_workload(space.graph, units["conv"]).turns == TURNS


def test_operators_are_quantized_in_the_body_and_what_they_capture_outside(tmp_path: Path) -> None:
    space = Workspace(looped(), tmp_path, feeds=feeds(4))
    emitted = space.emit(space.label("conv", "add"))
    (body,) = bodies(emitted.graph)
    outside, inside = (Counter(n.op_type for n in g.node) for g in (emitted.graph, body))
    assert outside["QuantizeLinear"] == 1, "x, once for all turns"
    assert not outside["DequantizeLinear"], "runtimes fuse within one graph"
    assert inside["QuantizeLinear"] == 3, "what the Conv results in, the state, and the sum"
    assert inside["DequantizeLinear"] == 6, "and those of x, of weight and bias"
    assert [i.name for i in body.input] == ["turn", "go", "state"]
    assert [i.type.tensor_type.elem_type for i in body.input] == [INT64, BOOL, FLOAT], "what is carried is float"
    for outputs in zip(run(looped(), space.feeds, 0), run(emitted, space.feeds, 99), strict=True):
        assert all(sqnr(want, got) > 25.0 for want, got in zip(*outputs, strict=True))
    fused = _optimized(emitted, tmp_path)
    assert {"QLinearConv", "QLinearAdd"} <= {n.op_type for n in bodies(fused.graph)[0].node}


def _optimized(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(options.optimized_model_filepath)


def test_what_stands_before_a_loop_is_not_computed_in_each_turn(tmp_path: Path) -> None:
    """A Relu that the loop alone reads, and that float rewrites and Q/DQ are around, stays outside."""
    model = looped()
    model.graph.node.insert(0, helper.make_node("Tanh", ["x"], ["steady"], "steady"))
    body = next(a.g for a in model.graph.node[1].attribute)
    body.node[1].input[0] = "steady"
    space = Workspace(model, tmp_path, feeds=feeds(2))
    for placement in (space.label(), space.full()):
        emitted = space.emit(placement)
        assert [n.op_type for n in emitted.graph.node if n.op_type == "Tanh"] == ["Tanh"]


def test_a_body_that_never_runs_stays_float(tmp_path: Path) -> None:
    from inlay.prepare.model import where_taken

    model = looped()
    for tensor_ in model.graph.initializer:
        if tensor_.name == "times":
            tensor_.CopyFrom(numpy_helper.from_array(np.array(0, np.int64), "times"))
    del model.graph.output[1]
    space = Workspace(model, tmp_path, feeds=feeds(2))
    units = {u.name: u for u in where_taken(space.prepared, space.feeds).units}
    assert "no sample" in units["conv"].rejection


def test_a_loop_that_carries_sequences_stays_as_it_is(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Identity", ["go"], ["on"], "go_on"),
        helper.make_node("Conv", ["x", "w"], ["y"], "conv", kernel_shape=[1, 1]),
        helper.make_node("SequenceInsert", ["many", "y"], ["more"], "insert"),
    ]
    many, more = (helper.make_tensor_sequence_value_info(n, FLOAT, None) for n in ("many", "more"))
    taken = [tensor("turn", INT64, ()), tensor("go", BOOL, ()), many]
    body = helper.make_graph(nodes, "body", taken, [tensor("on", BOOL, ()), more])
    model = model_of(
        [
            helper.make_node("SequenceEmpty", [], ["none"], "none", dtype=FLOAT),
            helper.make_node("Loop", ["times", "", "none"], ["all"], "loop", body=body),
            helper.make_node("ConcatFromSequence", ["all"], ["out"], "concat", axis=0),
        ],
        [tensor("out", FLOAT, (None, *SHAPE[1:]))],
        w=np.ones((CHANNELS, CHANNELS, 1, 1), np.float32),
        times=np.array(TURNS, np.int64),
    )
    space = Workspace(model, tmp_path, feeds=feeds(2))
    reasons = {u.name: u.rejection for u in space.prepared.units}
    assert "something else than tensors" in reasons["loop"]
    check_and_load(space.emit(space.full()))


@pytest.mark.parametrize(
    ("axes", "backwards", "result"),
    [((0, 0), (0, 0), (0, 0)), ((1, -1), (0, 1), (2, 1)), ((2, 0), (1, 0), (-1, 0))],
    ids=["plain", "axes", "backwards"],
)
def test_watching_a_scan_changes_nothing(
    axes: tuple[int, int], backwards: tuple[int, int], result: tuple[int, int], tmp_path: Path
) -> None:
    """It is written as a Loop then; shapes of what is scanned differ by axis, so that a wrong one fails."""
    nodes = [
        helper.make_node("Add", ["state", "row"], ["sum"], "add"),
        helper.make_node("Mul", ["sum", "column"], ["product"], "mul"),
    ]
    small = (2, 3)
    body = helper.make_graph(
        nodes,
        "body",
        [tensor(n, FLOAT, small) for n in ("state", "row", "column")],
        [tensor("sum", FLOAT, small), tensor("product", FLOAT, small)],
    )

    def stacked(axis: int) -> tuple[int, ...]:
        return (*small[: axis % 3], 4, *small[axis % 3 :])

    scan = helper.make_node(
        "Scan",
        ["first", "x", "z"],
        ["last", "products"],
        "scan",
        body=body,
        num_scan_inputs=2,
        scan_input_axes=axes,
        scan_input_directions=backwards,
        scan_output_axes=result[:1],
        scan_output_directions=result[1:],
    )
    inputs = [tensor("first", FLOAT, small), *(tensor(n, FLOAT, stacked(a)) for n, a in zip("xz", axes, strict=True))]
    outputs = [tensor("last", FLOAT, small), tensor("products", FLOAT, stacked(result[0]))]
    graph = helper.make_graph([scan], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    rng = np.random.default_rng(0)
    feed = {i.name: rng.random([d.dim_value for d in i.type.tensor_type.shape.dim], np.float32) for i in inputs}
    flat = ir.to_proto(flattened(ir.from_proto(model)))
    want = run_reference(model, feed)
    watched = nested(flat, ["sum"])
    assert not any(n.op_type == "Scan" for n in watched.graph.node)
    for name, array in run_reference(watched, feed).items():
        np.testing.assert_array_equal(array, want[name])
    for name, array in run_reference(nested(flat), feed).items():
        np.testing.assert_array_equal(array, want[name])
    shown = PiecewiseSession(flat, WeightStore(tmp_path), ["sum", "row"])
    turns = turns_of(shown, feed)
    assert [a.shape for a in turns["sum"]] == [small] * 4
    np.testing.assert_array_equal(turns["sum"][-1], want["last"])
    first = np.take(feed["x"], -1 if backwards[0] else 0, axes[0])
    np.testing.assert_array_equal(turns["row"][0], first)


def turns_of(session: PiecewiseSession, feed: Feed) -> dict[str, list[np.ndarray]]:
    """What each watched value was, in order; a function of this module could not be imported where it is computed."""
    note: Any = list.append
    noted: Any = session.gather([feed], note, cast(Any, []), apart=True)
    return {name: [values[name] for values in noted if name in values] for name in {n for v in noted for n in v}}


def test_what_grows_and_what_no_turn_takes_is_watched(tmp_path: Path) -> None:
    """A state that is longer in each turn, an If in the loop, and a loop in that: all that was computed, in order."""
    inner = helper.make_graph(
        [
            helper.make_node("Identity", ["igo"], ["ion"], "igo_on"),
            helper.make_node("Mul", ["v", "grown"], ["squares"], "square"),
            helper.make_node("Identity", ["squares"], ["v_next"], "pass"),
        ],
        "inner",
        [tensor("iturn", INT64, ()), tensor("igo", BOOL, ()), tensor("v", FLOAT, None)],
        [tensor("ion", BOOL, ()), tensor("v_next", FLOAT, None)],
    )
    then = helper.make_graph(
        [helper.make_node("Loop", ["two", "", "grown"], ["t"], "inner", body=inner)],
        "then",
        [],
        [tensor("t", FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["grown"], ["e"], "neg")], "else", [], [tensor("e", FLOAT, None)]
    )
    nodes = [
        helper.make_node("Identity", ["go"], ["on"], "go_on"),
        helper.make_node("Concat", ["state", "one"], ["grown"], "concat", axis=0),
        helper.make_node("Equal", ["turn", "unit"], ["second"], "equal"),
        helper.make_node("If", ["second"], ["chosen"], "if", then_branch=then, else_branch=other),
        helper.make_node("ReduceSum", ["chosen"], ["sum"], "sum"),
    ]
    taken = [tensor("turn", INT64, ()), tensor("go", BOOL, ()), tensor("state", FLOAT, None)]
    body = helper.make_graph(
        nodes, "body", taken, [tensor("on", BOOL, ()), tensor("grown", FLOAT, None), tensor("sum", FLOAT, None)]
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["times", "", "x"], ["last", "sums"], "loop", body=body)],
        "g",
        [tensor("x", FLOAT, (1,))],
        [tensor("last", FLOAT, (None,)), tensor("sums", FLOAT, None)],
        [
            numpy_helper.from_array(np.array(TURNS, np.int64), "times"),
            numpy_helper.from_array(np.array([2.0], np.float32), "one"),
            numpy_helper.from_array(np.array(1, np.int64), "unit"),
            numpy_helper.from_array(np.array(2, np.int64), "two"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    flat = ir.to_proto(flattened(ir.from_proto(model)))
    session = PiecewiseSession(flat, WeightStore(tmp_path), ["grown", "e", "squares", "v"])
    turns = turns_of(session, {"x": np.array([3.0], np.float32)})
    grown = [[3, 2], [3, 2, 2], [3, 2, 2, 2]]
    assert [a.tolist() for a in turns["grown"]] == grown
    assert [a.tolist() for a in turns["e"]] == [[-3, -2], [-3, -2, -2, -2]], "the first and the last turn"
    assert [a.tolist() for a in turns["v"]] == [[3, 2, 2], [9, 4, 4]]
    assert [a.tolist() for a in turns["squares"]] == [[9, 4, 4], [27, 8, 8]]
