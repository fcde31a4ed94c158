"""Bias correction: against a direct computation, what it gains, and what it must leave alone."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from inlay.calibrate.bias import weight_error_means
from inlay.calibrate.tables import CalibrationChoice
from inlay.model.reference import Session
from inlay.quant.fake_quant import SWITCHES, fake_quantized, find_switches
from inlay.quant.qparams import QParamsTable, dequantize, quantize
from inlay.testing import run_reference
from inlay.types import Placement, Port, QType
from tests.support.fixtures import MakeWorkspace
from tests.support.onnx_queries import constants, producers
from tests.support.workspace import Workspace

CHANNELS = 300  # a bias of more than a kilobyte lies in the store of weights


def model(opset: int = 17) -> onnx.ModelProto:
    """Conv with padding, Relu, Conv, Gemm; the first two share a bias, which also reaches an output by itself."""
    rng = np.random.default_rng(3)

    def tensor(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.normal(0, 0.4, shape) ** 3).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w0", "b"], ["c0"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"], "relu"),
        helper.make_node("Conv", ["r0", "w1", "b"], ["c1"], "second", pads=[2, 2, 0, 0], dilations=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c1"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "w2", "b2"], ["y"], "head", transB=1, alpha=0.5),
        helper.make_node("Gemm", ["flat", "w2"], ["u"], "twin", transB=1),  # so that the factor stays
        helper.make_node("Tanh", ["b"], ["t"], "alone"),
    ]
    tensors = [tensor("w0", 8, 4, 3, 3), tensor("w1", 8, 8, 3, 3), tensor("b", 8), tensor("w2", CHANNELS, 8)]
    tensors.append(tensor("b2", CHANNELS))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 9, 9])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "t", "u")],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def feeds(count: int = 5) -> tuple[dict[str, np.ndarray], ...]:
    rng = np.random.default_rng(0)
    return tuple({"x": rng.uniform(0, 2, (1, 4, 9, 9)).astype(np.float32)} for _ in range(count))


@pytest.fixture
def space(workspace: MakeWorkspace) -> Workspace:
    return workspace(model(), feeds=feeds())


def errors(space: Workspace) -> dict[str, np.ndarray]:
    feeds = [dict(feed) for feed in space.feeds]
    return weight_error_means(space.prepared, space.prepared.units, space.table, feeds)


def given_bias(space: Workspace) -> np.ndarray:
    bias = space.graph.constant("b")
    assert bias is not None
    return bias


def corrected(space: Workspace) -> QParamsTable:
    means = {node: tuple(mean.tolist()) for node, mean in errors(space).items()}
    return CalibrationChoice("minmax", weight_error_means=means).table(space.prepared, space.observed)


def rounded(space: Workspace, weight: str) -> np.ndarray:
    array = space.graph.constant(weight)
    params = space.table.params(weight, QType.INT8)
    assert array is not None
    return dequantize(quantize(array, params), params)


def direct(space: Workspace, made: onnx.ModelProto, weight: str, value: str) -> np.ndarray:
    """Mean of ``value`` per channel with ``weight`` rounded, less the mean without: two whole runs for each sample."""
    probe = onnx.ModelProto()
    probe.CopyFrom(made)
    del probe.graph.output[:]
    probe.graph.output.add(name=value)
    exact = onnx.ModelProto()
    exact.CopyFrom(probe)
    for tensor in probe.graph.initializer:
        if tensor.name == weight:
            tensor.CopyFrom(numpy_helper.from_array(rounded(space, weight), weight))
    total = 0.0
    for feed in space.feeds:
        got, want = (run_reference(m, feed)[value].astype(np.float64) for m in (probe, exact))
        total += (got - want).mean(axis=tuple(i for i in range(got.ndim) if i != 1)) / len(space.feeds)
    return np.asarray(total)


@pytest.mark.parametrize("opset", [13, 18])
def test_errors_are_those_of_a_direct_computation(workspace: MakeWorkspace, opset: int) -> None:
    made = model(opset)
    space = workspace(made, feeds=feeds())
    found = errors(space)
    assert set(found) == {"first", "second", "head"}
    for node, weight, value in (("first", "w0", "c0"), ("second", "w1", "c1"), ("head", "w2", "y")):
        want = direct(space, made, weight, value)
        np.testing.assert_allclose(found[node], want, rtol=1e-3, atol=1e-6)
        assert np.abs(want).max() > 1e-4  # there is something to find


def test_padding_counts(workspace: MakeWorkspace) -> None:
    """Without padding the mean is another one: the agreement above is not for lack of a difference."""
    space = workspace(model(), feeds=feeds())
    inner = sum(f["x"].mean(axis=(0, 2, 3)) for f in space.feeds) / len(space.feeds)
    difference = rounded(space, "w0") - space.graph.constant("w0")
    unpadded = difference.sum(axis=(2, 3)) @ inner
    assert np.abs(errors(space)["first"] - unpadded).max() > 0.02 * np.abs(unpadded).max()


def test_the_corrected_mean_is_closer_on_the_calibration_data(space: Workspace) -> None:
    """Each unit alone in low precision, as it is delivered, against float."""
    tables = (space.table, corrected(space))
    for node, value in (("first", "c0"), ("second", "c1"), ("head", "y")):
        # what it reads is quantized, what it hands out is not
        placement = Placement((p, q) for p, q in space.label(node) if p.node == node)
        want = _means(space, space.emit(Placement()), value)
        plain, better = (_means(space, space.emit(placement, table), value) for table in tables)
        assert np.abs(better - want).mean() < 0.5 * np.abs(plain - want).mean()


def _means(space: Workspace, made: onnx.ModelProto, value: str) -> np.ndarray:
    probe = onnx.ModelProto()
    probe.CopyFrom(made)
    del probe.graph.output[:]
    probe.graph.output.add(name=value)
    runs = [run_reference(probe, f)[value].astype(np.float64) for f in space.feeds]
    return np.asarray(np.mean([r.mean(axis=tuple(i for i in range(r.ndim) if i != 1)) for r in runs], axis=0))


def test_only_quantized_biases_are_corrected(space: Workspace) -> None:
    table = corrected(space)
    full = space.emit(space.full(), table)
    made, known = producers(full), constants(full)
    for node, factor in (("first", "w0"), ("second", "w1")):
        conv = next(n for n in full.graph.node if n.name == node)
        dq = made[conv.input[2]]
        bias = known[dq.input[0]] * known[dq.input[1]].astype(np.float64)
        want = given_bias(space) - errors(space)[node]
        np.testing.assert_allclose(bias, want, atol=float(known[dq.input[1]].max()), err_msg=factor)
    alone = next(n for n in full.graph.node if n.name == "alone")
    assert np.array_equal(known[alone.input[0]], given_bias(space))
    # and where the conv stays float, it reads the original too
    partly = space.emit(space.label("second"), table)
    first = next(n for n in partly.graph.node if n.name == "first")
    assert np.array_equal(constants(partly)[first.input[2]], given_bias(space))


def test_the_empty_placement_is_the_identity(space: Workspace) -> None:
    empty = Placement()
    assert space.emit(empty, corrected(space)).SerializeToString() == space.emit(empty).SerializeToString()


def test_large_biases_of_two_tables_are_kept_apart(space: Workspace) -> None:
    """They lie in one store, under keys that must tell them from each other."""
    plain, better = space.emit(space.full()), space.emit(space.full(), corrected(space))
    found = []
    for made in (plain, better):
        head = next(n for n in made.graph.node if n.name == "head")
        found.append(constants(made)[producers(made)[head.input[2]].input[0]])
    assert found[0].size == CHANNELS
    assert not np.array_equal(found[0], found[1])


def test_extraction_finds_the_same_placement_and_qparams(space: Workspace) -> None:
    table, full = corrected(space), space.full()
    found = space.extract(space.emit(full, table))
    assert found.leftovers == ()
    assert found.placement == full
    for (value, qtype), params in found.qparams.items():
        if space.table.knows(value):
            assert params == table.params(value, qtype)


def test_a_table_survives_json(space: Workspace) -> None:
    table = corrected(space)
    again = QParamsTable.from_json(space.graph, space.prepared.rules, json.loads(json.dumps(table.as_json())))
    full = space.full()
    assert space.emit(full, again).SerializeToString() == space.emit(full, table).SerializeToString()


def test_weights_in_another_type_are_not_corrected(space: Workspace) -> None:
    """The error is known for the target's own type of weights alone."""
    table, port = corrected(space), Port("first", 2)
    other = Placement([(Port("first", 1), QType.UINT8), (Port("first", 0), QType.UINT8)])
    biases = table.bias(port, other), table.bias(port, space.full())
    assert biases[0] is not None
    assert biases[1] is not None
    assert np.array_equal(biases[0], given_bias(space))
    assert not np.array_equal(biases[1], given_bias(space))


def test_probes_of_sensitivity_see_corrected_biases(space: Workspace) -> None:
    """Weights rounded, activations exact: the mean of the output is off without the correction, and right with it."""
    p = space.prepared
    off: list[np.ndarray] = []
    means: list[np.ndarray] = []
    for table in (space.table, corrected(space)):
        switches = find_switches(p.graph, p.units, p.rules, table)
        probe = fake_quantized(p.emitter.base, p.graph, switches, table)
        mine = np.array([s.constant and s.ports[0].node == "second" for s in switches])
        del probe.graph.output[:]
        probe.graph.output.extend([helper.make_empty_tensor_value_info("c1")])
        session = Session(probe, p.store)
        for switch, kept in ((False, off), (True, means)):
            runs = [session.run({**f, SWITCHES: mine & switch})["c1"] for f in space.feeds]
            kept.append(np.mean(runs, axis=(0, 1, 3, 4)))
    assert np.array_equal(off[0], off[1])
    plain, better = (np.abs(m - off[0]).max() for m in means)
    assert better < 0.05 * plain


def test_padding_of_texts_has_no_share_in_the_means(workspace: MakeWorkspace) -> None:
    """Against the means over the rows that count alone."""
    rng = np.random.default_rng(5)
    weight, bias = rng.normal(0, 1, (6, 9)).astype(np.float32), np.zeros(9, np.float32)
    nodes = [
        helper.make_node("Reshape", ["x", "sizes"], ["rows"], "reshape"),
        helper.make_node("Gemm", ["rows", "w", "b"], ["y"], "gemm"),
        helper.make_node("Reshape", ["y", "back"], ["z"], "reshape_back"),
    ]
    arrays = {"w": weight, "b": bias, "sizes": np.array([5, 6]), "back": np.array([1, 5, 9])}
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 5, 6]),
        helper.make_tensor_value_info("mask", TensorProto.INT64, [1, 5]),
    ]
    output = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "g", inputs, [output], tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    lengths = (2, 4)
    samples: tuple[dict[str, np.ndarray], ...] = tuple(
        {"x": rng.uniform(0, 2, (1, 5, 6)).astype(np.float32), "mask": (np.arange(5) < n).astype(np.int64)[None]}
        for n in lengths
    )
    space = workspace(proto, feeds=samples)
    units = [u for u in space.prepared.units if u.biases]
    assert units
    params = space.table.params("w", space.prepared.rules.weight)
    error = dequantize(quantize(weight, params), params) - weight
    wanted = np.mean([(f["x"][0, :n] @ error).mean(axis=0) for n, f in zip(lengths, samples, strict=True)], axis=0)
    found = weight_error_means(space.prepared, units, space.table, samples, space.observed.positions)
    np.testing.assert_allclose(found["gemm"], wanted, rtol=1e-4, atol=1e-6)
    counted = weight_error_means(space.prepared, units, space.table, samples)
    assert not np.allclose(counted["gemm"], wanted, rtol=1e-2)
