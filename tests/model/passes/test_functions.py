"""Local functions become part of the graph, and the runtime computes the same of what comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from inlay.model.load import load
from inlay.model.serialize import to_proto
from inlay.testing import run_reference
from tests.support.runtime import check_and_load

SHAPE, OPSET = [2, 3, 4], 17
node, of = helper.make_node, helper.make_opsetid


def _function(
    name: str, nodes: Sequence[onnx.NodeProto], opset: int = OPSET, inputs: Sequence[str] = ("a",), **kinds: Any
) -> onnx.FunctionProto:
    return helper.make_function("own", name, inputs, ["b"], nodes, [of("", opset), of("own", 1)], **kinds)


def _model(nodes: Sequence[onnx.NodeProto], functions: Sequence[onnx.FunctionProto]) -> onnx.ModelProto:
    """From x to y; constants ``t`` (true) and ``w``."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xy")
    tensors = [
        helper.make_tensor("t", TensorProto.BOOL, [], [True]),
        helper.make_tensor("w", TensorProto.FLOAT, [4], [1.0, -2.0, 3.0, 0.5]),
    ]
    graph = helper.make_graph(list(nodes), "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[of("", OPSET), of("own", 1)], functions=functions, ir_version=10)


def _call(name: str, inputs: Sequence[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return node(name, inputs, [output], f"call_{output}", domain="own", **attributes)


def _reference(op_type: str, inputs: Sequence[str], output: str, name: str, kind: int) -> onnx.NodeProto:
    made = node(op_type, inputs, [output])
    made.attribute.append(onnx.AttributeProto(name=name, ref_attr_name=name, type=kind))  # type: ignore[arg-type]
    return made


def _branch(nodes: Sequence[onnx.NodeProto], output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)])


TWICE = _function("Twice", [node("Add", ["a", "a"], ["m"]), node("Tanh", ["m"], ["b"])])
ALPHA = _reference("LeakyRelu", ["a"], "b", "alpha", onnx.AttributeProto.FLOAT)


def _nested() -> onnx.ModelProto:
    outer = _function("Outer", [_call("Twice", ["a"], "m"), _call("Twice", ["m"], "n"), node("Mul", ["n", "a"], ["b"])])
    return _model([_call("Outer", ["x"], "m"), _call("Outer", ["m"], "y")], [outer, TWICE])


def _attributes() -> onnx.ModelProto:
    steep = _function("Steep", [ALPHA], attributes=["alpha"])
    usual = _function("Usual", [ALPHA], attribute_protos=[helper.make_attribute("alpha", 0.3)])
    calls = [_call("Steep", ["x"], "m", alpha=0.7), _call("Usual", ["m"], "n"), _call("Usual", ["n"], "y", alpha=0.5)]
    return _model(calls, [steep, usual])


def _in_a_body() -> onnx.ModelProto:
    """``m`` is a value of the function, of a branch, and of the graph around it."""
    then = _branch([_call("Twice", ["m"], "n"), node("Neg", ["n"], ["o"])], "o")
    branches = {"then_branch": then, "else_branch": _branch([node("Relu", ["m"], ["p"])], "p")}
    return _model([_call("Twice", ["x"], "m"), node("If", ["t"], ["y"], "if", **branches)], [TWICE])  # type: ignore[arg-type]


def _with_a_body() -> onnx.ModelProto:
    """The body of the function's own If has values that are called like those of the graph."""
    branches = {
        "then_branch": _branch([node("Exp", ["a"], ["h"]), node("Neg", ["h"], ["i"])], "i"),
        "else_branch": _branch([node("Relu", ["a"], ["h"])], "h"),
    }
    choose = node("If", ["flag"], ["b"], "if", **branches)  # type: ignore[arg-type]
    function = _function("Choose", [choose], inputs=["a", "flag"])
    calls = [_call("Choose", ["x", "t"], "h"), _call("Choose", ["h", "t"], "i"), node("Add", ["h", "i"], ["y"])]
    return _model(calls, [function])


def _absent_input() -> onnx.ModelProto:
    clip = _function("Bounded", [node("Clip", ["a", "low", "high"], ["b"])], inputs=["a", "low", "high"])
    bounds = [node("Constant", [], [name], value_float=at) for name, at in (("low", 0.1), ("high", 0.9))]
    return _model([*bounds, _call("Bounded", ["x", "low"], "m"), _call("Bounded", ["m", "", "high"], "y")], [clip])


def _older_but_the_same() -> onnx.ModelProto:
    """Relu of opset 15 is that of 17."""
    return _model([_call("Old", ["x"], "y")], [_function("Old", [node("Relu", ["a"], ["b"])], opset=15)])


def _called_often() -> onnx.ModelProto:
    """8192 times, by functions that call each other twice: names of their own for all must not take minutes."""
    steps = [_function(f"F{i}", [_call(f"F{i + 1}", ["a"], "m"), _call(f"F{i + 1}", ["m"], "b")]) for i in range(12)]
    last = _function("F12", [node("Neg", ["a"], ["m"]), node("Neg", ["m"], ["b"])])
    return _model([_call("F0", ["x"], "y")], [*steps, last])


def _unused_and_large() -> onnx.ModelProto:
    """What nothing calls is not expanded, however often it calls."""
    calls = [[_call(f"F{i + 1}", ["a"], "m"), _call(f"F{i + 1}", ["m"], "b")] for i in range(40)]
    steps = [_function(f"F{i}", nodes) for i, nodes in enumerate(calls)]
    last = _function("F40", [node("Neg", ["a"], ["b"])])
    return _model([node("Relu", ["x"], ["y"])], [*steps, last])


def _unused() -> onnx.ModelProto:
    return _model([node("Relu", ["x"], ["y"])], [TWICE])


MODELS = [
    _nested,
    _attributes,
    _in_a_body,
    _with_a_body,
    _absent_input,
    _older_but_the_same,
    _unused,
    _called_often,
    _unused_and_large,
]


@pytest.mark.parametrize("make", MODELS, ids=lambda make: str(make.__name__).strip("_"))
@pytest.mark.exhaustive
def test_inlined_the_runtime_computes_the_same(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    model = make()
    file = load(_saved(model, tmp_path))
    assert file.notes == ()
    written = to_proto(file.model)
    assert not written.functions
    assert all(n.domain == "" for n in written.graph.node)
    check_and_load(written)
    feed = {"x": np.random.default_rng(0).normal(0, 1, SHAPE).astype(np.float32)}
    want, got = run_reference(model, feed), run_reference(written, feed)
    np.testing.assert_array_equal(got["y"], want["y"])
    assert np.ptp(got["y"]) > 0


def _recursive() -> onnx.ModelProto:
    return _model([_call("Endless", ["x"], "y")], [_function("Endless", [_call("Endless", ["a"], "b")])])


def _older_and_different() -> onnx.ModelProto:
    """Softmax of opset 11 is another operator than that of 13: runtimes take the model's, ONNX the function's."""
    return _model([_call("Old", ["x"], "y")], [_function("Old", [node("Softmax", ["a"], ["b"])], opset=11)])


def _too_many_inputs() -> onnx.ModelProto:
    return _model([_call("Twice", ["x", "w"], "y")], [TWICE])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_recursive, "function Endless calls itself"),
        (_older_and_different, "function Old is written for opset 11 of ai.onnx, the model for 17, and Softmax"),
        (_too_many_inputs, "2 inputs"),
    ],
)
def test_what_cannot_be_inlined_stays_and_is_told(
    make: Callable[[], onnx.ModelProto], words: str, tmp_path: Path
) -> None:
    file = load(_saved(make(), tmp_path))
    (note,) = file.notes
    assert words in note
    assert note.endswith("calls stay as they are, and nothing inside is quantized")
    assert file.model.functions
    assert {n.domain for n in file.model.graph} == {"own"}


def _saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path
