"""Three computations of one model: numpy oracle, TOSA reference model, ONNX Runtime."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from inlay.tosa import ir, oracle
from inlay.tosa.ir import Array
from inlay.tosa.lowering import Lowered, lower
from inlay.tosa.reference import LoweredRunner
from tests.tosa.nets import Net


def run_ort(model: onnx.ModelProto, feed: Mapping[str, Array], integer_kernels: bool = False) -> list[Array]:
    """Outputs by ONNX Runtime: every node as written, in float; or fused into its integer kernels."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if not integer_kernels:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(v) for v in session.run(None, dict(feed))]


@functools.cache
def exact_weight_limit() -> int:
    """Largest weight magnitude at which ONNX Runtime's integer kernels are exact on this processor: 127 or 63.

    On x86 without VNNI they add pairs of 8-bit products in 16 bits (VPMADDUBSW), which saturates for weights that use
    all 8 bits. The known remedy is ``reduce_range``: 7-bit weights. Measured, not derived from the processor's flags: a
    convolution whose every product is the largest one.
    """
    net = Net(qtype="uint8")
    x = net.qdq(net.input([1, 32, 4, 4]), 1.0, 0)
    weight = net.weight(np.full((8, 32, 1, 1), 127, np.int8), 1.0)
    net.output(net.qdq(net.op("Conv", [x, weight]), float(32 * 127), 0))
    model, feed = net.model(), {"in1": np.full((1, 32, 4, 4), 255, np.float32)}
    exact = np.array_equal(run_ort(model, feed, integer_kernels=True)[0], run_ort(model, feed)[0])
    return 127 if exact else 63


def three_ways(
    model: onnx.ModelProto, feed: Mapping[str, Array], profile: str = "INT", lsb: float = 1.0, limit: float = 1.0
) -> None:
    """Oracle == TOSA reference model bit for bit, and both within ``limit`` steps of ONNX Runtime's float kernels.

    ``lsb`` is the size of a step of the (float) outputs.
    """
    lowered = lower(model, profile)
    types = {n: t.dtype for n, t in lowered.graph.tensors.items()}
    rescales = {(types[op.inputs[0]], types[op.out]) for op in lowered.graph.ops if isinstance(op, ir.Rescale)}
    assert ("int32", "int32") not in rescales  # not every compiler supports that
    reference = LoweredRunner(lowered).run(feed)
    assert_equal(reference, by_oracle(lowered.graph, feed, host_by_ort(lowered)))
    for ours, theirs in zip(reference, run_ort(model, feed), strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        distance = float(np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max(initial=0.0)) / lsb
        assert distance <= limit + 1e-3, f"{distance} steps away from ONNX Runtime"


def by_oracle(
    graph: ir.IntegerGraph,
    feed: Mapping[str, Array],
    host: Callable[[ir.Host, Sequence[Array]], Sequence[Array]] | None = None,
) -> list[Array]:
    """A whole integer graph, one operator after the other, in numpy; its outputs, in order."""
    values = dict(graph.constants) | {i.tensor: np.asarray(feed[i.name]) for i in graph.inputs}
    for op in graph.ops:
        if isinstance(op, ir.Host):
            assert host is not None, f"{op.source} stays on the host"
            args = [values[name] if name else np.empty(0) for name in op.inputs]
            values.update(zip(op.outputs, host(op, args), strict=True))
        else:
            oracle.compute([op], values, graph.tensors)
    return [values[i.tensor] for i in graph.outputs]


def assert_equal(ours: Sequence[Array], theirs: Sequence[Array]) -> None:
    """All outputs of two runs, bit for bit."""
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def host_by_ort(lowered: Lowered) -> Callable[[ir.Host, Sequence[Array]], Sequence[Array]]:
    """Computes host nodes for the oracle, one at a time."""

    def run(op: ir.Host, args: Sequence[Array]) -> Sequence[Array]:
        given = {name: value for name, value in zip(op.node.input, args, strict=True) if name}
        types = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in given.items()}
        graph = helper.make_graph(
            [op.node],
            "one",
            [helper.make_tensor_value_info(n, types[n], a.shape) for n, a in given.items()],
            [onnx.ValueInfoProto(name=n) for n in op.node.output],
        )
        opsets = next(p.host.opset_import for p in lowered.partitions if p.host is not None)
        return run_ort(helper.make_model(graph, opset_imports=opsets, ir_version=8), given)

    return run


def output_steps(graph: ir.IntegerGraph) -> list[float]:
    """Size of a step of each (dequantized) output."""
    producers = {name: op for op in graph.ops for name in op.outputs}
    steps = []
    for interface in graph.outputs:
        op = producers[interface.tensor]
        assert isinstance(op, ir.Dequantize)
        qparams = graph.tensors[op.inputs[0]].qparams
        assert qparams is not None
        steps.append(qparams.scale[0])
    return steps
