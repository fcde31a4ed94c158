"""Runs that reports are made of: seconds each, made once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import inlay

HOSTILE = (
    '</script><script>alert("1")</script>',
    "<img src=x onerror=alert(2)>",
    "c2' onmouseover='alert(3)",
    "{{ 7 * 7 }}",
)
"""Names of nodes that would run as code where they are taken for markup."""


def chain_model(path: Path, channels: int = 8, count: int = 6) -> Path:
    """Convolutions in a row with Relus, and a skip connection; the first nodes have hostile names."""
    rng = np.random.default_rng(0)
    shape = (channels, channels, 3, 3)
    weights = [numpy_helper.from_array(rng.normal(0, 0.1, shape).astype(np.float32), f"w{i}") for i in range(count)]
    nodes = []
    for i in range(count):
        name = HOSTILE[i] if i < len(HOSTILE) else f"conv{i}"
        nodes.append(helper.make_node("Conv", [f"r{i}", f"w{i}"], [f"c{i + 1}"], name, pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{i + 1}"], [f"r{i + 1}"], f"relu{i}"))
    nodes.append(helper.make_node("Add", [f"r{count}", "r2"], ["y"], "skip"))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, channels, 16, 16]) for n in ("r0", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def feeds(count: int = 24, channels: int = 8) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"r0": rng.normal(0, 1, (1, channels, 16, 16)).astype(np.float32)} for _ in range(count)]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on the null target, whose costs are known, of a model with hostile names."""
    folder = tmp_path_factory.mktemp("report")
    model = chain_model(folder / "m.onnx")
    out = folder / "out"
    inlay.tune(model, out=out, target="null", data=feeds(), min_sqnr=20, max_measurements=8, cost_db=False, budget=None)
    return out
