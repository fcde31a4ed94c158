"""uint8 inputs and outputs around operators that only move elements: quantized, the model is integer throughout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tosa_serializer")

import inlay
from inlay.tosa.lowering import lower

OPS = ("Concat", "Slice", "Reshape", "Split")


def boundary(op: str) -> onnx.ModelProto:
    arrays: dict[str, Any] = {
        "s": np.float32(0.05),
        "z": np.uint8(128),
        "from": np.array([0, 1], np.int64),
        "to": np.array([1, 3], np.int64),
        "axes": np.array([1, 2], np.int64),
        "shape": np.array([1, 2, 16, 8], np.int64),
    }
    reads = {
        "Concat": ["xf", "xf"],
        "Slice": ["xf", "from", "to", "axes"],
        "Reshape": ["xf", "shape"],
        "Split": ["xf"],
    }[op]
    writes = ["yf", "other"] if op == "Split" else ["yf"]
    attributes: dict[str, Any] = {"Concat": {"axis": 1}, "Split": {"axis": 1}}.get(op, {})
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["xf"], "dq"),
        helper.make_node(op, reads, writes, "op", **attributes),
        helper.make_node("QuantizeLinear", ["yf", "s", "z"], ["y"], "q"),
    ]
    if op == "Split":
        nodes.append(helper.make_node("QuantizeLinear", ["other", "s", "z"], ["y2"], "q2"))
    shapes = {"Concat": [1, 8, 8, 8], "Slice": [1, 1, 2, 8], "Reshape": [1, 2, 16, 8], "Split": [1, 2, 8, 8]}
    outputs = ["y", "y2"] if op == "Split" else ["y"]
    graph = helper.make_graph(
        nodes,
        op,
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 4, 8, 8])],
        [helper.make_tensor_value_info(v, TensorProto.UINT8, shapes[op]) for v in outputs],
        [numpy_helper.from_array(a, n) for n, a in arrays.items() if n in ("s", "z", *reads)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.exhaustive
def test_uint8_boundary_stays_integer(tmp_path: Path, op: str) -> None:
    onnx.save(boundary(op), tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    data = [{"x": rng.integers(0, 256, (1, 4, 8, 8)).astype(np.uint8)} for _ in range(4)]
    done = inlay.quantize(
        tmp_path / "m.onnx", tmp_path / "q.onnx", target="ethos-u55-128", data=data, recipe="full-int8"
    )
    rows = {d.node: d for d in done.decisions}
    assert rows["op"].precision == "int8"
    assert done.accuracy is not None
    assert done.accuracy.sqnr_db > 40
    lowered = lower(onnx.load(tmp_path / "q.onnx"))
    assert [p.kind for p in lowered.partitions] == ["tosa"]
    assert not lowered.not_lowered
