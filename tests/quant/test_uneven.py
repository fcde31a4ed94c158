"""What a Concat joins on the way to an output has scales of its own where one for all would lose a part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay.model.reference import Session
from inlay.prepare import model as prepare_model
from inlay.quant.uneven import find_uneven
from inlay.space.domains import find_domains
from inlay.testing import Builder, sqnr
from inlay.types import QType
from tests.support.workspace import Workspace

JOINS = {"v": (None, (0, 0, 0, 0, 1, 1, 1, 1), None)}


def joined(large: np.ndarray, small: np.ndarray) -> dict[str, np.ndarray]:
    return {"v": np.concatenate([large, small], axis=1).astype(np.float32)}


def test_what_one_scale_does_not_do_for() -> None:
    rng = np.random.default_rng(0)
    boxes, scores = 320 * rng.random((1, 4, 64)), rng.random((1, 4, 64))
    (reason,) = find_uneven(joined(boxes, scores), JOINS, QType.UINT8).values()
    assert reason.startswith("v holds values that differ in size by 3")
    assert reason.endswith("x: one uint8 scale would leave the smaller ones with 3 dB")
    assert not find_uneven(joined(boxes, scores), {}, QType.UINT8), "nothing is joined there"
    assert not find_uneven(joined(boxes, scores), JOINS, QType.UINT16), "16 bits have steps for both"
    assert not find_uneven(joined(boxes, 60 * scores), JOINS, QType.UINT8), "the small ones keep 20 dB and more"
    assert not find_uneven(joined(boxes, 0 * scores), JOINS, QType.UINT8), "zero is exact in any scale"


def test_what_no_scale_does_for() -> None:
    """Few large numbers among small ones: a scale of their own would be no finer."""
    rng = np.random.default_rng(0)
    dense, sparse = rng.random((1, 4, 256)), 0.005 * rng.random((1, 4, 256))
    sparse[0, 0, 0] = 0.9
    assert not find_uneven(joined(dense, sparse), JOINS, QType.UINT8)


def head(tail: str) -> onnx.ModelProto:
    """Two convolutions, one with results 500 times as large; what is behind their Concat; an output."""
    b = Builder(opset=17)
    x = b.conv("a", b.input("x", (1, 3, 8, 8)), 8, relu=True)
    large = b.node("large", "Mul", [b.conv("boxes", x, 4), b.constant("k", np.float32(500))])
    v = b.concat("join", [large, b.conv("scores", x, 4)])
    if tail == "moved":
        v = b.node("flat", "Reshape", [v, b.constant("shape", np.array([1, 8, 64]))])
        v = b.node("turned", "Transpose", [v], perm=[0, 2, 1])
    if tail == "split":
        v = b.node("part", "Slice", [v, *(b.constant(n, np.array([k])) for n, k in (("s", 4), ("e", 8), ("ax", 1)))])
    if tail == "conv":
        v = b.conv("after", v, 4)
    b.output(v)
    return b.model()


@pytest.mark.parametrize("tail", ["", "moved"])
def test_it_stays_in_float_from_there_on(tail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = Workspace(head(tail), tmp_path / "aware")
    reasons = {u.name: u.rejection for u in space.prepared.units}
    kept = {"join", "flat", "turned"} & reasons.keys()
    assert all("differ in size by" in reasons[name] for name in kept)
    assert not any(reasons[name] for name in reasons.keys() - kept)
    assert least_db(space) > 25.0
    domains = find_domains(space.graph, space.prepared.rules)
    assert domains.get("large_out", "large_out") != domains.get("scores_out", "scores_out")
    monkeypatch.setattr(prepare_model, "find_uneven", lambda *_: {})
    assert least_db(Workspace(head(tail), tmp_path / "blind")) < 5.0, "the control: one scale for all"


def test_what_is_taken_apart_again_or_weighed_is_left_alone(tmp_path: Path) -> None:
    assert not Workspace(head("conv"), tmp_path / "conv").graph.uneven, "weights make up for sizes"
    assert set(Workspace(head("split"), tmp_path / "split").graph.uneven) == {"join_out"}


def least_db(space: Workspace) -> float:
    """Of the joined values, with all in low precision that can be."""
    prepared, feed = space.prepared, dict(space.feeds[-1])
    (want,) = Session(prepared.emitter.base, prepared.store).run(feed).values()
    (got,) = Session(space.emit(space.full()), prepared.store).run(feed).values()
    axis = want.shape.index(8)
    pairs = zip(np.split(want, 2, axis), np.split(got, 2, axis), strict=True)
    return min(sqnr(a, b) for a, b in pairs)
