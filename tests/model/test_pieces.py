"""Values computed piece by piece are those of one session."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from inlay.model import pieces
from inlay.model.pieces import PiecewiseSession
from inlay.model.reference import Session, with_outputs
from inlay.model.store import WeightStore
from inlay.testing import Builder, concat_model, random_feed, residual_model


def _computed(model: onnx.ModelProto) -> list[str]:
    return [v for n in model.graph.node for v in n.output if v]


def _body() -> onnx.ModelProto:
    """An If whose branches read values and a constant of the main graph; a part of dynamic size before it."""
    b = Builder()
    x = b.input("x", ("rows", 4))
    y = b.node("double", "Add", [x, x])
    z = b.node("shift", "Add", [y, b.constant("one", np.ones(4))])
    some = b.constant("condition", np.array(True))
    made = helper.make_tensor_value_info("made", TensorProto.FLOAT, None)
    first = helper.make_graph([helper.make_node("Mul", ["double_out", "one"], ["made"])], "then", [], [made])
    second = helper.make_graph([helper.make_node("Identity", ["shift_out"], ["made"])], "else", [], [made])
    chosen = b.node("choose", "If", [some], then_branch=first, else_branch=second)
    b.output(b.node("sum", "Add", [chosen, z]))
    return b.model()


def _sequence() -> onnx.ModelProto:
    """A sequence is handed from node to node: it cannot be an input of a piece."""
    b = Builder()
    parts = b.node("parts", "SplitToSequence", [b.input("x", (4, 2))])
    at = b.constant("at", np.array(1, np.int64))
    b.output(b.node("second", "SequenceAt", [parts, at]))
    return b.model()


MODELS = {"residual": residual_model, "concat": concat_model, "bodies": _body}


@pytest.mark.parametrize("nodes", [1, 3, 1000])
@pytest.mark.parametrize("name", MODELS)
def test_pieces_compute_what_one_session_does(name: str, nodes: int, tmp_path: Path) -> None:
    model, store = MODELS[name](), WeightStore(tmp_path)
    values = _computed(model)
    whole, cut = Session(with_outputs(model, values), store), PiecewiseSession(model, store, values, nodes)
    for seed in range(2):
        feed = random_feed(model, seed)
        want, got = whole.run(feed), cut.run(feed)
        assert list(got) == values
        for value in values:
            np.testing.assert_allclose(got[value], want[value], rtol=1e-5, atol=1e-6, err_msg=value)
    assert {v: cut.types[v] for v in values} == {v: whole.types[v] for v in values}


def test_sizes_may_differ_from_feed_to_feed(tmp_path: Path) -> None:
    session = PiecewiseSession(_body(), WeightStore(tmp_path), ["sum_out"], 1)
    for rows in (1, 5):
        assert session.run({"x": np.ones((rows, 4), np.float32)})["sum_out"].shape == (rows, 4)


def test_what_is_no_array_is_computed_in_one_session(tmp_path: Path) -> None:
    session = PiecewiseSession(_sequence(), WeightStore(tmp_path), ["second_out"], 1)
    feed = {"x": np.arange(8, dtype=np.float32).reshape(4, 2)}
    np.testing.assert_array_equal(session.run(feed)["second_out"], feed["x"][1:2])


def test_no_session_is_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What makes the time linear: nodes times outputs of each session are bounded, whatever the graph's size."""
    sizes: list[tuple[int, int]] = []

    class Recorded(Session):
        def __init__(self, proto: onnx.ModelProto, store: WeightStore, **options: Any) -> None:
            sizes.append((len(proto.graph.node), len(proto.graph.output)))
            super().__init__(proto, store, **options)

    monkeypatch.setattr(pieces, "Session", Recorded)
    count = 3 * pieces.PIECE_NODES // 2
    names = [f"v{i}" for i in range(count + 1)]
    nodes = [helper.make_node("Neg", [a], [b]) for a, b in pairwise(names)]
    ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [2]) for v in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], [numpy_helper.from_array(np.zeros(1), "unused")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = PiecewiseSession(model, WeightStore(tmp_path), names[1:]).run({"v0": np.ones(2, np.float32)})
    assert len(found) == count
    assert max(n for n, _ in sizes) == pieces.PIECE_NODES
    np.testing.assert_array_equal(found[names[-1]], np.ones(2) * (-1) ** count)
