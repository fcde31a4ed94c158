"""Runs a lowered model exactly: TOSA partitions on the reference model or in numpy, host partitions in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime as ort

from inlay.errors import DataError, RunFailed
from inlay.model.libraries import silence
from inlay.tosa import ir, oracle
from inlay.tosa.emitter import TosaTensor
from inlay.tosa.extras import require
from inlay.tosa.ir import Array, Executor
from inlay.tosa.lowering import Lowered
from inlay.tosa.serialize import TosaBinary


def run_tosa(binary: TosaBinary, values: Sequence[Array]) -> list[Array]:
    """Run one flatbuffer; its inputs and outputs are in flatbuffer order, and in ONNX's axis order.

    Raises:
        RunFailed: the reference model refuses the graph or finds its behaviour unpredictable.
        UsageError: the extra ``arm`` is not installed.
    """
    model = require("tosa_reference_model")
    stored = [_store(port, value) for port, value in zip(binary.inputs, values, strict=True)]
    try:
        with silence():  # it warns about every TOSA 1.0 file that it is older than the reference model
            results, status = model.run(binary.data, stored, verbosity="NONE")
    except (ValueError, RuntimeError) as error:
        raise RunFailed(f"the TOSA reference model: {error}") from error
    if status != model.GraphStatus.TOSA_VALID:
        raise RunFailed(f"the TOSA reference model: {status}")
    return [_load(port, value) for port, value in zip(binary.outputs, results, strict=True)]


def _store(port: TosaTensor, value: Array) -> Array:
    stored = np.ascontiguousarray(np.asarray(value, port.dtype).transpose(port.permutation))
    return stored.view(np.int8) if port.dtype == "uint8" else stored


def _load(port: TosaTensor, value: Array) -> Array:
    typed = np.frombuffer(np.ascontiguousarray(value).tobytes(), port.dtype).reshape(port.shape)
    return typed.transpose(np.argsort(port.permutation))


class LoweredRunner:
    """A lowered model, ready to run; sessions of the host partitions are created once.

    Args:
        in_numpy: compute TOSA partitions by :mod:`inlay.tosa.oracle`, about ten times as fast as the reference
            model. Integers agree bit for bit; floats (profile ``INT+FP``) may differ in their last bits.

    Raises:
        RunFailed: ONNX Runtime refuses a host partition.
    """

    def __init__(self, lowered: Lowered, in_numpy: bool = False) -> None:
        self.lowered = lowered
        self.in_numpy = in_numpy
        self._sessions = [None if part.host is None else _session(part.host) for part in lowered.partitions]

    def run(self, feed: Mapping[str, Array]) -> list[Array]:
        """The model's outputs, in order, for one set of inputs as the ONNX model takes them.

        Raises:
            DataError: an input is missing or has another shape or type.
            RunFailed: a partition cannot be run.
        """
        graph = self.lowered.graph
        values: dict[str, Array] = dict(graph.constants)
        for interface in graph.inputs:
            values[interface.tensor] = self._input(interface, feed)
        by_caller = [op for op in graph.ops if op.executor is Executor.CALLER]
        oracle.compute([op for op in by_caller if isinstance(op, ir.Quantize)], values, graph.tensors)
        for part, session in zip(self.lowered.partitions, self._sessions, strict=True):
            inputs = {name: values[name] for name in part.subgraph.inputs}
            if session is not None:
                results = _run(session, part.subgraph.outputs, inputs)
            elif part.tosa is not None and not self.in_numpy:
                results = run_tosa(part.tosa, list(inputs.values()))
            else:
                inner = {**graph.constants, **inputs}
                oracle.compute(part.subgraph.ops, inner, graph.tensors)
                results = [inner[name] for name in part.subgraph.outputs]
            values.update(zip(part.subgraph.outputs, results, strict=True))
        oracle.compute([op for op in by_caller if isinstance(op, ir.Dequantize)], values, graph.tensors)
        return [values[i.tensor] for i in graph.outputs]

    def _input(self, interface: ir.Interface, feed: Mapping[str, Array]) -> Array:
        if interface.name not in feed:
            raise DataError(f"no array for input {interface.name!r}")
        value = np.asarray(feed[interface.name])
        shape = self.lowered.graph.tensors[interface.tensor].shape
        if value.dtype.name != interface.dtype or (shape is not None and value.shape != shape):
            raise DataError(
                f"input {interface.name!r} is {value.dtype.name}{list(value.shape)}, "
                f"the model takes {interface.dtype}{list(shape or ())}"
            )
        return value


def _session(host: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(host.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's own exceptions share no base class
        raise RunFailed(f"ONNX Runtime refuses a host partition: {error}") from error


def _run(session: ort.InferenceSession, outputs: Sequence[str], inputs: Mapping[str, Array]) -> list[Array]:
    try:
        return list(session.run(list(outputs), dict(inputs)))
    except Exception as error:  # as above
        raise RunFailed(f"ONNX Runtime on a host partition: {error}") from error
