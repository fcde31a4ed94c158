"""HardSigmoid as saturation: the integers of the float kernel within rounding, and the same placement read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import inlay
from inlay.quant.extract import extract
from inlay.testing import Builder, random_feed, run_reference
from tests.support.workspace import Workspace


def gate(alpha: float = 1 / 6, beta: float = 0.5) -> onnx.ModelProto:
    """A hard swish between convolutions, with inputs on both sides of the line."""
    b = Builder()
    x = b.conv("stem", b.input("x", (1, 3, 12, 12)), 8)
    wide = b.node("wide", "Mul", [x, b.constant("by", np.float32(4.0))])
    share = b.node("hard", "HardSigmoid", [wide], alpha=alpha, beta=beta)
    b.output(b.conv("last", b.node("swish", "Mul", [wide, share]), 4, kernel=1))
    return b.model()


def shares(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """What goes into the function, and what comes out of it as integers."""
    model = onnx.shape_inference.infer_shapes(model)
    node = next(n for n in model.graph.node if n.name == "hard")
    integers = next(
        n.output[0] for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == node.output[0]
    )
    known = {v.name: v for v in model.graph.value_info}
    for name, kind in ((node.input[0], onnx.TensorProto.FLOAT), (integers, onnx.TensorProto.UINT8)):
        shown = known.get(name) or onnx.helper.make_tensor_value_info(name, kind, None)
        shown.type.tensor_type.elem_type = kind
        model.graph.output.append(shown)
    found = run_reference(model, feed)
    return found[node.input[0]], found[integers].astype(int)


@pytest.mark.parametrize("alpha", [1 / 6, 0.2, 0.31])
@pytest.mark.parametrize("beta", [0.5, 0.3])
def test_the_integers_are_those_of_the_function_within_rounding(alpha: float, beta: float, tmp_path: Path) -> None:
    space = Workspace(gate(alpha, beta), tmp_path)
    model = space.emit(space.full())
    assert "HardSigmoid" not in {n.op_type for n in model.graph.node}
    x, integers = shares(model, dict(space.feeds[0]))
    steps = np.ceil(255 * beta - 1e-3)
    want = np.minimum(steps / beta * np.clip(alpha * x + beta, 0, 1), 255)
    assert 0 < np.mean(want == 0) < 0.9, "the line is cut off"
    assert 0 < np.mean(want == 255) < 0.9
    assert np.abs(integers - want).max() <= 0.501
    assert np.abs(integers - want)[(want == 0) | (want == 255)].max() == 0


def test_it_is_undone_to_the_same_placement_and_function(tmp_path: Path) -> None:
    space = Workspace(gate(), tmp_path)
    found = extract(ir.from_proto(space.emit(space.full())))
    assert found.placement == space.full()
    (node,) = [n for n in found.model.graph if n.op_type == "HardSigmoid"]
    assert node.name == "hard"
    assert node.attributes["alpha"].as_float() == pytest.approx(1 / 6, rel=1e-7)
    assert node.attributes["beta"].as_float() == 0.5


@pytest.mark.parametrize("read", ["by another", "outside"])
def test_what_is_read_in_float_stays_in_float(read: str, tmp_path: Path) -> None:
    model = gate()
    if read == "outside":
        model.graph.output.append(onnx.helper.make_tensor_value_info("hard_out", onnx.TensorProto.FLOAT, None))
    else:
        node = onnx.helper.make_node("Tanh", ["hard_out"], ["tanh_out"], "tanh")
        model.graph.node.append(node)
        model.graph.output.append(onnx.helper.make_tensor_value_info("tanh_out", onnx.TensorProto.FLOAT, None))
    space = Workspace(model, tmp_path)
    emitted = space.emit(space.label("hard"))
    run_reference(emitted, dict(space.feeds[0]))
    kinds = [n.op_type for n in emitted.graph.node]
    assert ("LeakyRelu" in kinds) != ("HardSigmoid" in kinds)


@pytest.mark.parametrize("op_type", ["Flatten", "Concat"])
def test_a_scale_that_is_handed_on_is_not_changed(op_type: str, tmp_path: Path) -> None:
    """Both sides of what only moves elements must have one scale, or it runs in float."""
    b = Builder()
    count = 2 if op_type == "Concat" else 1
    stems = [b.conv(f"stem{i}", b.input(f"x{i}", (1, 3, 8, 8)), 8) for i in range(count)]
    moved = b.node("moved", op_type, [b.node(f"hard{i}", "HardSigmoid", [x]) for i, x in enumerate(stems)], axis=1)
    b.output(b.node("last", "Mul", [moved, moved]))
    space = Workspace(b.model(), tmp_path)
    graph = space.emit(space.full()).graph
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    nodes = graph.node
    made = {name: n for n in nodes for name in n.output}
    (node,) = [n for n in nodes if n.name == "moved"]
    (behind,) = [n for n in nodes if n.input[0] == node.output[0]]
    before = made[made[node.input[0]].input[0]]
    assert behind.op_type == before.op_type == "QuantizeLinear"
    assert all(constants[a] == constants[b] for a, b in zip(before.input[1:], behind.input[1:], strict=True))
    assert not any(n.name.endswith("_saturates") for n in nodes)


@pytest.mark.exhaustive
def test_a_file_written_so_is_taken_apart_again(tmp_path: Path) -> None:
    """Its scale is no power of two: what is read back must compute what the file computes."""
    onnx.save(gate(), tmp_path / "m.onnx")
    data = [random_feed(gate(), seed) for seed in range(6)]
    inlay.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data=data, recipe="full-int8")
    written = onnx.load(tmp_path / "q.onnx")
    assert "LeakyRelu" in {n.op_type for n in written.graph.node}
    read = {v for n in written.graph.node for v in n.input}
    assert {t.name for t in written.graph.initializer} <= read, "nothing is left over"
    inlay.quantize(tmp_path / "q.onnx", tmp_path / "again.onnx", data=data, recipe="full-int8")
    feed = dict(data[0])
    first, second = (run_reference(m, feed).values() for m in (written, onnx.load(tmp_path / "again.onnx")))
    for a, b in zip(first, second, strict=True):
        assert np.abs(a - b).max() <= 0.05 * np.abs(a).max()
