"""Sequences between tensors become Split and Concat, or stay: the runtime computes the same in either case."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.fixtures import NormalizeModel
from tests.support.normalizing import no_roll_backs

SEQUENCES = {"SplitToSequence", "SequenceAt", "SequenceConstruct", "ConcatFromSequence", "SequenceInsert"}
node = helper.make_node


def _model(nodes: list[onnx.NodeProto], rank: int = 3, **held: Any) -> onnx.ModelProto:
    """From x, [2, 6, 8], to y, a product in between; nothing is said of other values."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)
    weight = np.random.default_rng(0).normal(0, 0.3, (8, 8)).astype(np.float32)
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in {"w": weight, **held}.items()]
    graph = helper.make_graph([node("MatMul", ["x", "w"], ["h"]), *nodes], "sequences", [x], [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def _at(position: int, **split: Any) -> onnx.ModelProto:
    """One element of what is split, doubled."""
    given = ["h", "split"] if "split" in split else ["h"]
    attributes = {k: v for k, v in split.items() if k != "split"}
    held = {k: np.array(v, np.int64) for k, v in split.items() if k == "split"}
    nodes = [
        node("SplitToSequence", given, ["parts"], "split", **attributes),
        node("SequenceAt", ["parts", "at"], ["e"]),
        node("Add", ["e", "e"], ["y"]),
    ]
    squeezed = len(given) == 1 and attributes.get("keepdims", 1) == 0
    return _model(nodes, 2 if squeezed else 3, at=np.array(position, np.int64), **held)


FOLDED = {
    "of one each": _at(1, axis=1),
    "of one each, squeezed": _at(-1, axis=1, keepdims=0),
    "of four, the last shorter": _at(1, axis=1, split=4),
    "of stated sizes": _at(2, axis=-1, split=[1, 2, 5]),
    "joined again": _model(
        [
            node("SplitToSequence", ["h", "split"], ["parts"], axis=2),
            node("ConcatFromSequence", ["parts"], ["y"], axis=1),
        ],
        split=np.array(2, np.int64),
    ),
    "stacked": _model(
        [
            node("Relu", ["h"], ["r"]),
            node("SequenceConstruct", ["h", "r"], ["parts"]),
            node("ConcatFromSequence", ["parts"], ["y"], axis=1, new_axis=1),
        ],
        4,
    ),
    "handed out": _model(
        [node("SequenceConstruct", ["h", "x"], ["parts"]), node("SequenceAt", ["parts", "at"], ["y"])], at=np.array(0)
    ),
}


@pytest.mark.parametrize("name", FOLDED)
def test_known_elements(name: str, normalized: NormalizeModel) -> None:
    proto, done = normalized(FOLDED[name])
    assert no_roll_backs(done)
    assert not SEQUENCES & {n.op_type for n in proto.graph.node}


def _index_of_the_run() -> onnx.ModelProto:
    nodes = [
        node("SplitToSequence", ["h"], ["parts"], axis=1, keepdims=0),
        node("ArgMax", ["x"], ["best"], axis=1, keepdims=0),
        node("ReduceMin", ["best"], ["at"], keepdims=0),
        node("SequenceAt", ["parts", "at"], ["y"]),
    ]
    return _model(nodes, 2)


def _longer() -> onnx.ModelProto:
    nodes = [
        node("SequenceConstruct", ["h", "x"], ["parts"]),
        node("SequenceInsert", ["parts", "h"], ["more"]),
        node("ConcatFromSequence", ["more"], ["y"], axis=2),
    ]
    return _model(nodes)


def _beyond() -> onnx.ModelProto:
    """Its own sequence is read twice: by a constant, and by a position of the run."""
    nodes = [
        node("SplitToSequence", ["h"], ["parts"], axis=1),
        node("SequenceAt", ["parts", "one"], ["e"]),
        node("SequenceLength", ["parts"], ["n"]),
        node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["e", "f"], ["y"]),
    ]
    return _model(nodes, one=np.array(1))


@pytest.mark.parametrize("model", [_index_of_the_run(), _longer(), _beyond()], ids=["index", "inserted", "length"])
def test_other_sequences_stay(model: onnx.ModelProto, normalized: NormalizeModel) -> None:
    proto, done = normalized(model)
    assert no_roll_backs(done)
    left = [n.op_type for n in model.graph.node if n.op_type in SEQUENCES]
    assert [n.op_type for n in proto.graph.node if n.op_type in SEQUENCES] == left
