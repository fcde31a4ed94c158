"""What moves elements to a body of an If stays float: ONNX Runtime crashes where it moves Q/DQ pairs there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from inlay.patterns.point_filters import FilterContext, find_rejections
from inlay.space.units import find_units
from inlay.targets.onnxruntime.target import capabilities_for
from inlay.testing import Builder
from inlay.types import Placement, QType
from tests.support.workspace import Workspace

OPS = ("MaxPool", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Slice")
LOAD = "import onnxruntime, sys; onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])"


def moved(b: Builder, op: str, x: str, name: str) -> str:
    ints = {"Reshape": [[1, 8, 1, -1]], "Squeeze": [[0]], "Unsqueeze": [[0]], "Slice": [[0], [4], [3]]}.get(op, [])
    inputs = [x, *(b.constant(f"{name}_{i}", np.array(given)) for i, given in enumerate(ints))]
    attributes: dict[str, dict[str, Any]] = {"MaxPool": {"kernel_shape": [1, 1]}, "Transpose": {"perm": [0, 1, 3, 2]}}
    return b.node(name, op, inputs, **attributes.get(op, {}))


def read_in_branches(ops: Sequence[str]) -> onnx.ModelProto:
    """A convolution, what moves its results, and an If whose branches read that."""
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 8, 8)), 8)
    for i, op in enumerate(ops):
        x = moved(b, op, x, f"move{i}")
    bodies = [
        helper.make_graph(
            [helper.make_node(op, [x], [f"{name}_y"], f"{name}_op")],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)],
        )
        for name, op in (("then", "Sin"), ("else", "Neg"))
    ]
    flag = b.input("flag", (), TensorProto.BOOL)
    b.output(b.node("choice", "If", [flag], then_branch=bodies[0], else_branch=bodies[1]))
    return b.model()


def placements_of(space: Workspace) -> Sequence[Placement]:
    """Every legal insertion point alone, as patterns place Q/DQ pairs."""
    rules = capabilities_for("x86_64").rules
    rejections = find_rejections(FilterContext(space.graph, rules, find_units(space.graph, rules)))
    legal = [port for port, why in rejections.ports.items() if why is None]
    return [Placement([(port, QType.UINT8)]) for port in legal]


@pytest.mark.parametrize(
    "ops", [*((op,) for op in OPS), ("Transpose", "Unsqueeze"), ("Reshape", "MaxPool")], ids="-".join
)
def test_they_stay_float(ops: tuple[str, ...], tmp_path: Path) -> None:
    model, rng = read_in_branches(ops), np.random.default_rng(0)
    data = [rng.standard_normal((1, 3, 8, 8)).astype(np.float32) for _ in range(2)]
    feeds = tuple({"x": x, "flag": np.array(i == 0)} for i, x in enumerate(data))
    space = Workspace(model, tmp_path, feeds=feeds)
    units = {u.name: u for u in find_units(space.graph, capabilities_for("x86_64").rules)}
    for i in range(len(ops)):
        assert units[f"move{i}"].rejection.startswith("a subgraph reads")
    assert units["conv"].quantizable
    by_patterns = placements_of(space)
    assert by_patterns
    for number, placement in enumerate((space.full(), *by_patterns)):
        file = tmp_path / f"{number}.onnx"
        file.write_bytes(space.emit(placement).SerializeToString())
        assert subprocess.run([sys.executable, "-c", LOAD, str(file)], check=False).returncode == 0


@pytest.mark.skipif(
    sys.platform != "linux" or not onnxruntime.__version__.startswith("1.31."),
    reason="what reads past the end of a vector ends a process of this build; of others nothing is known",
)
@pytest.mark.parametrize("op", OPS)
def test_the_runtime_crashes_on_them(op: str, tmp_path: Path) -> None:
    """The negative control: the rule is needed."""
    model = read_in_branches([op])
    nodes = list(model.graph.node)
    at = next(i for i, n in enumerate(nodes) if n.name == "move0")
    pair = [
        helper.make_node("QuantizeLinear", [nodes[at].input[0], "scale", "zero"], ["q"], "q"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["dq"], "dq"),
    ]
    nodes[at].input[0] = "dq"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0.1, np.float32), "scale"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(128, np.uint8), "zero"))
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:at], *pair, *nodes[at:]])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    done = subprocess.run([sys.executable, "-c", LOAD, str(tmp_path / "m.onnx")], capture_output=True, check=False)
    assert done.returncode < 0, "a signal: where a later version runs it, the rule may go"
