"""The numeric oracle: run a graph in this process with ONNX Runtime's CPU provider, as written, without rewrites.

Used for numbers (calibration, constants, the gate of normalization), never for time. Models are handed over as small
files that refer to a shared :class:`~inlay.model.store.WeightStore`.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from inlay.errors import CompileFailed, RunFailed
from inlay.model.store import WeightStore, skeleton


def runtime_message(error: BaseException) -> str:
    """A runtime's message without its line breaks and error-code decoration."""
    text = " ".join(str(error).split())
    return text.split(" : ", 2)[-1] if text.startswith("[ONNXRuntimeError]") else text


class Session:
    """One ONNX Runtime session on a proto. ``outputs`` may name any value of the main graph.

    Args:
        proto: the model; its weights may lie in ``store``.
        store: the folder from which external weights are read.
        optimize: let the runtime fuse and rewrite.
        fuse_qdq: with ``optimize``: operators between Q and DQ nodes become integer kernels; else the nodes round
            numbers and all else is float.
    """

    def __init__(
        self, proto: onnx.ModelProto, store: WeightStore, optimize: bool = False, fuse_qdq: bool = True
    ) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = _usable_cores()  # its own count forgets that a process may be pinned
        if not fuse_qdq:
            options.add_session_config_entry("session.disable_quant_qdq", "1")
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_ENABLE_BASIC
        path = store.folder / f"reference-{uuid.uuid4().hex}.onnx"
        path.write_bytes(proto.SerializeToString())
        try:
            self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the binding raises bare exceptions of several types
            raise CompileFailed(f"ONNX Runtime cannot build the model: {runtime_message(error)}") from error
        finally:
            path.unlink()
        self.outputs = [o.name for o in self._session.get_outputs()]
        self.types = {o.name: o.type for o in self._session.get_outputs()}

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every output by name. Raises RunFailed."""
        try:
            return dict(zip(self.outputs, self._session.run(None, dict(feed)), strict=True))
        except Exception as error:  # as above
            raise RunFailed(f"ONNX Runtime cannot run the model: {runtime_message(error)}") from error


def _usable_cores() -> int:
    """Cores that this process may run on; 0 (the runtime's own choice) where the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0


def run_model(model: ir.Model, store: WeightStore, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of ``model`` on ``feed``. Raises CompileFailed or RunFailed."""
    return Session(skeleton(model, store), store).run(feed)


class ConstantEvaluator:
    """Runs a model without inputs and returns the named values."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, model: ir.Model, names: list[str]) -> dict[str, np.ndarray]:
        """The numbers of ``names``."""
        inner = self._folder / f"constants-{uuid.uuid4().hex}"
        inner.mkdir()
        try:
            store = WeightStore(inner)
            outputs = Session(skeleton(model, store), store).run({})
        finally:
            with contextlib.suppress(OSError):
                for file in inner.iterdir():
                    file.unlink()
                inner.rmdir()
        return {name: outputs[name] for name in names}


def with_outputs(proto: onnx.ModelProto, values: Sequence[str]) -> onnx.ModelProto:
    """A copy of ``proto`` whose outputs are ``values``; their types are left for the runtime to infer."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.output[:]
    for value in values:
        copy.graph.output.add(name=value)
    return copy


def in_batches(values: Sequence[str], sizes: Mapping[str, int], limit: int) -> Iterator[list[str]]:
    """Split ``values`` into lists whose sizes in bytes add up to at most ``limit`` (or that hold one value)."""
    batch: list[str] = []
    total = 0
    for value in values:
        size = sizes.get(value, 0)
        if batch and total + size > limit:
            yield batch
            batch, total = [], 0
        batch.append(value)
        total += size
    if batch:
        yield batch
