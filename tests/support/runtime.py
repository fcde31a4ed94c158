"""ONNX Runtime as the judge of a written model: does it load, and what does it make of it?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

VERSION = tuple(map(int, ort.__version__.split(".")[:2]))
# The last one with wheels for Python 3.10 is 1.23. Inlay builds in processes that may end, and a failure is a trial's.
CAN_MOVE_8_BITS = pytest.mark.skipif(VERSION < (1, 28), reason="ONNX Runtime has no SpaceToDepth of 8 bits before 1.28")
CAN_TAKE_BODIES = pytest.mark.skipif(VERSION < (1, 24), reason="ONNX Runtime 1.23 fails on, or 1.22 ends with, bodies")


def check_and_load(model: onnx.ModelProto) -> ort.InferenceSession:
    """A session of the model, once it has passed ONNX's full checker (with type and shape inference)."""
    onnx.checker.check_model(model, full_check=True)
    return _session(model, ort.SessionOptions())


def passes_checker(model: onnx.ModelProto) -> bool:
    """Whether ONNX's full checker takes it."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def optimized(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """The graph as ONNX Runtime rewrites it for this CPU."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    _session(model, options)
    return onnx.load(folder / "optimized.onnx")


def run_plain(model: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of the model with each node run as it is written."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    names = [output.name for output in model.graph.output]
    return dict(zip(names, _session(model, options).run(names, dict(feed)), strict=True))


def _session(model: onnx.ModelProto, options: ort.SessionOptions) -> ort.InferenceSession:
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
