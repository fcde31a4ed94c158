"""Real networks of the ``onnx`` package, as graphs."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import onnx
import onnx_ir as ir

from inlay.model.graph import Graph, build_graph
from inlay.model.load import load
from inlay.model.normalize import normalize
from inlay.model.reference import ConstantEvaluator

LIGHT = ("squeezenet", "inception_v1", "inception_v2", "resnet50", "shufflenet", "densenet121")


@functools.cache
def light_graph(name: str) -> Graph:
    """A network with its weights replaced by constants there; normalized."""
    path = Path(onnx.__file__).parent / "backend/test/data/light" / f"light_{name}.onnx"
    with tempfile.TemporaryDirectory() as folder:
        model: ir.Model = normalize(load(path).model, ConstantEvaluator(Path(folder)), None).model
        inferred = onnx.shape_inference.infer_shapes(ir.to_proto(model))
    return build_graph(ir.from_proto(inferred))
