"""What runs in the guarded process: sessions of the runtime, and compiled functions of the ``onnx`` package.

Every command waits for that process to start, so this file imports next to nothing: ``onnx_ir`` alone, with the algebra
package that it brings, would take twice as long as all the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from inlay.errors import CompileFailed, RunFailed
from inlay.model.guard import answer_calls


def main() -> None:
    """The program of the guarded process."""
    import onnxruntime  # noqa: F401  (loading it takes longer than a small model does)

    answer_calls()


def runtime_message(error: BaseException) -> str:
    """A runtime's error message in one line, without its error-code prefix."""
    text = " ".join(str(error).split())
    return text.split(" : ", 2)[-1] if text.startswith("[ONNXRuntimeError]") else text


class Runs(Protocol):
    """Whatever computes values by name from a feed."""

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The values. Raises RunFailed."""


class NativeSession:
    """One session of the runtime, in the process that calls it.

    Args:
        model: a file, or a model that holds its weights itself.
        optimize, fuse_qdq: as of :class:`Session`.
        threads: of one inference; 0 for as many as the runtime likes.

    Attributes:
        outputs: names of the outputs.
        types: type of each output in ONNX Runtime's notation, by name.
    """

    def __init__(self, model: str | bytes, optimize: bool, fuse_qdq: bool, threads: int) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        if not fuse_qdq:
            options.add_session_config_entry("session.disable_quant_qdq", "1")
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_ENABLE_BASIC
        try:
            self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the binding raises several unrelated types
            raise CompileFailed(f"ONNX Runtime cannot build the model: {runtime_message(error)}") from error
        self.outputs = [o.name for o in self._session.get_outputs()]
        self.types = {o.name: o.type for o in self._session.get_outputs()}

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every output by name. Raises RunFailed if the runtime fails."""
        try:
            return dict(zip(self.outputs, self._session.run(None, dict(feed)), strict=True))
        except Exception as error:  # as above
            raise RunFailed(f"ONNX Runtime cannot run the model: {runtime_message(error)}") from error


def signature(session: NativeSession) -> tuple[list[str], dict[str, str]]:
    """Names of the outputs, and their types."""
    return session.outputs, session.types


def shapes_of(session: Runs, feed: Mapping[str, np.ndarray]) -> dict[str, tuple[int | None, ...]]:
    """Shapes of the values that are arrays."""
    return {v: tuple(a.shape) for v, a in session.run(feed).items() if isinstance(a, np.ndarray)}


def run_whole(data: bytes, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of a serialized model."""
    return NativeSession(data, optimize=True, fuse_qdq=True, threads=1).run(feed)


def convert(data: bytes, version: int) -> bytes:
    """A serialized model in another opset."""
    import onnx
    from onnx import version_converter

    converted: onnx.ModelProto = version_converter.convert_version(onnx.ModelProto.FromString(data), version)
    return converted.SerializeToString()


def check(data: bytes) -> bytes:
    """Nothing; raises where a serialized model breaks a rule of ONNX."""
    import onnx

    onnx.checker.check_model(data)
    return b""


def infer(data: bytes, strict: bool) -> bytes:
    """A serialized model with the types and shapes that ONNX's rules give; ``strict``: every operator keeps them."""
    import onnx

    model = onnx.ModelProto.FromString(data)
    inferred = onnx.shape_inference.infer_shapes(model, check_type=strict, strict_mode=strict, data_prop=True)
    return inferred.SerializeToString()
