"""Runs a lowered model exactly: TOSA partitions on the reference model or in numpy, host partitions in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime as ort

from inlay.errors import DataError, RunFailed
from inlay.model.silence import silence
from inlay.tosa import ir, oracle
from inlay.tosa.emitter import TosaTensor
from inlay.tosa.extras import require
from inlay.tosa.ir import Array, Executor
from inlay.tosa.lowering import Lowered, Partition
from inlay.tosa.serialize import TosaBinary


def run_tosa(binary: TosaBinary, values: Sequence[Array]) -> list[Array]:
    """Run one flatbuffer.

    Args:
        binary: the flatbuffer.
        values: one array per input, in flatbuffer order and in ONNX's axis order.

    Returns:
        One array per output, in flatbuffer order and in ONNX's axis order.

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
        lowered: the model.
        threads: of ONNX Runtime, for the host partitions.
        in_numpy: compute TOSA partitions by :mod:`inlay.tosa.oracle`, about ten times as fast as the reference
            model. Integers agree bit for bit; floats (profile ``INT+FP``) may differ in their last bits.
    """

    def __init__(self, lowered: Lowered, threads: int = 1, in_numpy: bool = False) -> None:
        self.lowered = lowered
        self.in_numpy = in_numpy
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._sessions: list[ort.InferenceSession | None] = []
        for part in lowered.partitions:
            if part.host is None:
                self._sessions.append(None)
                continue
            try:
                self._sessions.append(
                    ort.InferenceSession(part.host.SerializeToString(), options, providers=["CPUExecutionProvider"])
                )
            except Exception as error:  # ONNX Runtime's own exceptions share no base class
                raise RunFailed(f"ONNX Runtime refuses a host partition: {error}") from error

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
        for op in graph.ops:
            if op.executor is Executor.CALLER and isinstance(op, ir.Quantize):
                values[op.out] = oracle.evaluate(op, [values[op.inputs[0]]], graph.tensors)
        for part, session in zip(self.lowered.partitions, self._sessions, strict=True):
            inputs, outputs = part.subgraph.inputs, part.subgraph.outputs
            args = [values[n] for n in inputs]
            results: Sequence[Array]
            if part.tosa is not None:
                results = self._in_numpy(part, args) if self.in_numpy else run_tosa(part.tosa, args)
            else:
                assert session is not None
                try:
                    results = session.run(
                        list(part.subgraph.outputs), dict(zip(part.subgraph.inputs, args, strict=True))
                    )
                except Exception as error:  # ONNX Runtime's own exceptions share no base class
                    raise RunFailed(f"ONNX Runtime on a host partition: {error}") from error
            values.update(zip(outputs, results, strict=True))
        for op in graph.ops:
            if op.executor is Executor.CALLER and isinstance(op, ir.Dequantize):
                values[op.out] = oracle.evaluate(op, [values[op.inputs[0]]], graph.tensors)
        return [values[i.tensor] for i in graph.outputs]

    def _in_numpy(self, part: Partition, args: Sequence[Array]) -> list[Array]:
        graph = self.lowered.graph
        values = {**graph.constants, **dict(zip(part.subgraph.inputs, args, strict=True))}
        for op in part.subgraph.ops:
            values[op.out] = oracle.evaluate(op, [values[n] for n in op.inputs], graph.tensors)
        return [values[n] for n in part.subgraph.outputs]

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
