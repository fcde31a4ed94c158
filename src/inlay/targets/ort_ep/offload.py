"""How much of a model stays on an NPU: a cost in points where there are no times.

A point is a byte that an integer operator on the NPU reads or writes, in the type that its Q/DQ nodes say. What runs
on the host or in float, and each way between host and NPU, costs points that say in which order placements are
preferred, and nothing about seconds: first all that can be integer on the NPU is, then there are few partitions, then
few bytes are converted there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from google.protobuf.message import DecodeError, EncodeError

from inlay.targets.base import QDQ_KINDS, KernelTime

_Q, _DQ = "QuantizeLinear", "DequantizeLinear"
_ABSORBED = frozenset({"Relu", "Clip"})

_UNKNOWN_SHAPES = onnx.shape_inference.InferenceError, RuntimeError, ValueError, DecodeError, EncodeError
"""What shape inference raises on models that it does not understand, or that are too large."""
HOST_BYTE = 16.0
"""Points of a byte on the host or in float: of 32 bits each, 64 times those of an integer of 8 bits on the NPU, so that
few float operators outweigh many conversions."""
HOST_NODE = 4096.0  # points of an operator on the host besides: small ones cost a call all the same
CROSSING = 65536.0  # points of a partition on the NPU, for the way there and back
UNIT = "million points"
MEASURES = "bytes of integers on the NPU, more for what is not; they are not milliseconds, whatever a key is called"


@dataclass(frozen=True)
class Offload:
    """Where the operators of one model run."""

    kernels: tuple[KernelTime, ...]  # each operator, conversion and partition with its points
    host: Mapping[str, str]  # operators on the host by name, with their types
    host_bytes: int  # that these read and write
    partitions: int  # parts of the model on the NPU
    floats: int  # operators that compute in float, which the NPU has no 32-bit units for: they cost as on the host

    @property
    def points(self) -> int:
        """The cost of the model."""
        return max(1, round(sum(k.ns for k in self.kernels)))


def offload(proto: onnx.ModelProto, host: Collection[str], partitions: int) -> Offload:
    """The cost of a model with fixed shapes.

    Args:
        host: names of the nodes that run on the host.
    """
    graph = proto.graph
    sizes = _elements(proto)
    producers = {v: n for n in graph.node for v in n.output}
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for value in node.input:
            readers[value].append(node)
    outputs = {v.name for v in graph.output}
    constants = {t.name for t in graph.initializer}
    for node in graph.node:
        if node.op_type in ("Constant", _DQ) and all(v in constants for v in node.input if v):
            constants.update(node.output)  # also a weight behind its DQ: it is part of the program

    def written(value: str) -> onnx.NodeProto | None:
        """The Q that alone decides the type of a value, behind activations that its operator absorbs."""
        after = readers[value]
        if value in outputs or not after or any(n.op_type != after[0].op_type for n in after):
            return None
        if after[0].op_type == _Q:
            return after[0]
        if len(after) == 1 and after[0].op_type in _ABSORBED:
            return written(after[0].output[0])
        return None

    def reads_integers(value: str) -> bool:
        node = producers.get(value)
        if node is not None and node.op_type in _ABSORBED:
            return reads_integers(node.input[0]) or is_integer(node)
        return node is not None and node.op_type == _DQ

    def is_integer(node: onnx.NodeProto) -> bool:
        data = [v for v in node.input if v and v not in constants and v in sizes.floats]
        before = producers.get(data[0]) if data and node.op_type in _ABSORBED else None
        inputs = before is not None and before.op_type not in (_DQ, _Q) and is_integer(before)  # which clamps
        return (inputs or all(reads_integers(v) for v in data)) and all(
            written(v) is not None for v in node.output if v
        )

    def integer_bytes(value: str) -> int:
        """What an integer operator reads or writes of a float value: as many bytes as the Q/DQ node there says."""
        before, after = producers.get(value), written(value)
        if before is not None and before.op_type == _DQ:
            return sizes.bytes(before.input[0])
        return sizes.elements(value) if after is None else sizes.bytes(after.output[0])

    kernels: list[KernelTime] = []
    on_host: dict[str, str] = {}
    host_bytes = floats = 0
    for node in graph.node:
        if node.op_type == "Constant" or all(v in constants for v in node.output):
            continue
        values = [v for v in (*node.input, *node.output) if v and v not in constants]
        conversion = node.op_type in (_Q, _DQ)
        if node.name in host:
            size = sum(sizes.bytes(v) for v in values)
            host_bytes += size
            on_host[node.name] = node.op_type
            kernels.append(_kernel(node, HOST_NODE + HOST_BYTE * size, "float32"))
        elif conversion:
            beside = producers.get(node.input[0]) if node.op_type == _Q else None
            others = [beside] if beside is not None else readers[node.output[0]] if node.op_type == _DQ else []
            fused = bool(others) and all(n is not None and n.op_type not in (_Q, _DQ) and is_integer(n) for n in others)
            kernels.append(_kernel(node, 0.0 if fused else float(sum(sizes.bytes(v) for v in values)), ""))
        else:
            whole = is_integer(node)
            floats += not whole
            size = sum(integer_bytes(v) if whole and v in sizes.floats else sizes.bytes(v) for v in values)
            points = float(size) if whole else HOST_NODE + HOST_BYTE * size
            kernels.append(_kernel(node, points, "int8" if whole else "float32"))
    crossings = [KernelTime(f"partition {i}", "partition", CROSSING, kind="layout") for i in range(partitions)]
    return Offload((*kernels, *crossings), on_host, host_bytes, partitions, floats)


def _kernel(node: onnx.NodeProto, points: float, precision: str) -> KernelTime:
    kind = QDQ_KINDS.get(node.op_type, "compute")
    values = () if kind == "compute" else ((node.input if kind == "quantize" else node.output)[0],)
    return KernelTime(node.name, node.op_type, points, precision, (node.name,), values, kind)


@dataclass(frozen=True)
class _Sizes:
    """Elements of each value, and which of them are floats."""

    counts: Mapping[str, int]
    width: Mapping[str, int]
    floats: frozenset[str]

    def elements(self, value: str) -> int:
        return self.counts.get(value, 0)

    def bytes(self, value: str) -> int:
        return self.counts.get(value, 0) * self.width.get(value, 4)


def _elements(proto: onnx.ModelProto) -> _Sizes:
    try:
        graph = onnx.shape_inference.infer_shapes(proto).graph
    except _UNKNOWN_SHAPES:  # a value whose shape is not known counts as empty
        graph = proto.graph
    counts, width, floats = {}, {}, set()
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        counts[value.name] = int(np.prod([max(1, d.dim_value) for d in tensor.shape.dim], dtype=np.int64))
        width[value.name] = max(1, np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)).itemsize)
        if tensor.elem_type == onnx.TensorProto.FLOAT:
            floats.add(value.name)
    return _Sizes(counts, width, frozenset(floats))
