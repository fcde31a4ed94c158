"""Scales and zero points are constants wherever they stand: as initializers, as nodes, or computed from a weight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from inlay.model.load import load
from inlay.model.passes.constants import with_constants
from inlay.model.reference import ConstantEvaluator
from inlay.prepare.strip_qdq import strip_qdq
from inlay.quant.extract import Extraction, extract
from inlay.tosa.lowering import lower

CHANNELS = 8
node = helper.make_node


class Fake:
    """A network with fake quantization, as exporters of quantization-aware training write it; few nodes have names."""

    def __init__(self, kind: str) -> None:
        self.kind, self.nodes, self.held = kind, list[onnx.NodeProto](), dict[str, np.ndarray]()

    def constant(self, name: str, array: np.ndarray) -> str:
        if self.kind == "initializers":
            self.held[name] = array
        else:
            self.nodes.append(node("Constant", [], [name], value=numpy_helper.from_array(array)))
        return name

    def pair(self, x: str, y: str, scale: str, zero: str, **axis: Any) -> str:
        self.nodes.append(node("QuantizeLinear", [x, scale, zero], [f"{y}_q"], f"{y}_Q", **axis))
        self.nodes.append(node("DequantizeLinear", [f"{y}_q", scale, zero], [y], f"{y}_DQ", **axis))
        return y

    def activation(self, x: str, y: str, scale: float, zero: int) -> str:
        number, at = self.constant(f"{y}_s", np.array(scale, np.float32)), np.array(zero, np.uint8)
        if self.kind != "computed":
            return self.pair(x, y, number, self.constant(f"{y}_z", at))
        limits = [self.constant(f"{y}_{what}", np.array(n, np.float32)) for what, n in (("low", 0), ("high", 255))]
        self.constant(f"{y}_at", np.array(zero + 0.3, np.float32))
        self.nodes += [
            node("Round", [f"{y}_at"], [f"{y}_whole"]),
            node("Clip", [f"{y}_whole", *limits], [f"{y}_held"]),
            node("Cast", [f"{y}_held"], [f"{y}_z"], to=TensorProto.UINT8),
        ]
        return self.pair(x, y, number, f"{y}_z")

    def weight(self, name: str, array: np.ndarray) -> str:
        """By channel, in a scale of its largest number."""
        self.held[name] = array
        if self.kind == "computed":
            shape = self.constant(f"{name}_shape", np.array([CHANNELS]))
            zero = numpy_helper.from_array(np.zeros(1, np.int8))
            self.nodes += [
                node("Abs", [name], [f"{name}_abs"]),
                node("ReduceMax", [f"{name}_abs"], [f"{name}_max"], axes=[1, 2, 3], keepdims=1),
                node("Div", [f"{name}_max", self.constant(f"{name}_127", np.array(127, np.float32))], [f"{name}_wide"]),
                node("Reshape", [f"{name}_wide", shape], [f"{name}_s"]),
                node("ConstantOfShape", [shape], [f"{name}_z"], value=zero),
            ]
        else:
            self.constant(f"{name}_s", (np.abs(array).max((1, 2, 3)) / np.float32(127)).astype(np.float32))
            self.constant(f"{name}_z", np.zeros(CHANNELS, np.int8))
        return self.pair(name, f"{name}_fake", f"{name}_s", f"{name}_z", axis=0)

    def model(self, output: str) -> onnx.ModelProto:
        values = [(v, [1, c, 12, 12]) for v, c in (("x", 3), (output, CHANNELS))]
        inputs, outputs = ([helper.make_tensor_value_info(v, TensorProto.FLOAT, s)] for v, s in values)
        tensors = [numpy_helper.from_array(array, name) for name, array in self.held.items()]
        graph = helper.make_graph(self.nodes, "fake", inputs, outputs, tensors)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(made, full_check=True)
        return made


def fake_quantized(kind: str) -> onnx.ModelProto:
    rng, made = np.random.default_rng(0), Fake(kind)
    x = made.activation("x", "given", 6 / 255, 128)
    for layer, inputs in ((1, 3), (2, CHANNELS)):
        w = made.weight(f"w{layer}", rng.normal(0, 0.2, (CHANNELS, inputs, 3, 3)).astype(np.float32))
        made.nodes.append(node("Conv", [x, w], [f"c{layer}"], f"conv{layer}", pads=[1] * 4))
        made.nodes.append(node("Relu", [f"c{layer}"], [f"r{layer}"], f"relu{layer}"))
        x = made.activation(f"r{layer}", f"y{layer}", 4 / 255, 0)
    return made.model(x)


def _feeds() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(0, 1, (1, 3, 12, 12)).astype(np.float32)} for _ in range(4)]


def _apart(kind: str, folder: Path) -> Extraction:
    path = folder / f"{kind}.onnx"
    onnx.save(fake_quantized(kind), path)
    found = strip_qdq(load(path), _feeds(), folder)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["nodes", "computed"])
def test_what_is_taken_over_is_the_same(kind: str, tmp_path: Path) -> None:
    want, got = _apart("initializers", tmp_path), _apart(kind, tmp_path)
    assert want.leftovers == got.leftovers == ()
    assert len(got.placement) == 5, "two activations, two weights, the output"
    assert got.placement == want.placement
    assert got.qparams == want.qparams
    assert [n.op_type for n in got.model.graph] == [n.op_type for n in want.model.graph]


def test_lowering_reads_them_too() -> None:
    lowered = [lower(fake_quantized(kind)) for kind in ("initializers", "nodes", "computed")]
    assert [len(each.not_lowered) for each in lowered] == [0, 0, 0]


def _scale_of_the_input(made: Fake) -> None:
    made.nodes.append(node("ReduceMax", ["x"], ["s"], keepdims=0))


def _another_reader(made: Fake) -> None:
    made.nodes.append(node("Cast", ["y_q"], ["other"], "reader", to=TensorProto.FLOAT))


@pytest.mark.parametrize(
    ("add", "reasons"),
    [
        (_scale_of_the_input, {"y_DQ": "its scale is computed at run time", "y_Q": "its DequantizeLinear stays"}),
        (_another_reader, {"y_Q": "its integers are read by Cast reader"}),
    ],
)
def test_what_is_no_constant_is_told_as_what_it_is(
    add: Callable[[Fake], None], reasons: dict[str, str], tmp_path: Path
) -> None:
    made = Fake("nodes")
    if add is not _scale_of_the_input:
        made.constant("s", np.array(0.02, np.float32))
    else:
        add(made)
    made.pair("x", "y", "s", made.constant("z", np.array(128, np.uint8)))
    if add is _another_reader:
        add(made)
        made.nodes.append(node("Add", ["y", "other"], ["sum"]))
    weight = made.weight("w", np.ones((CHANNELS, 3, 1, 1), np.float32))
    made.nodes.append(node("Conv", ["sum" if add is _another_reader else "y", weight], ["z_out"], "conv"))
    path = tmp_path / "model.onnx"
    onnx.save(made.model("z_out"), path)
    found = extract(with_constants(load(path).model, ConstantEvaluator(tmp_path)))
    assert {left.node: left.reason for left in found.leftovers} == reasons
