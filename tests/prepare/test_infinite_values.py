"""Values that hold infinity on the samples, as masked scores of attention do: what reads them stays in float."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay.model.reference import Session
from inlay.space import units
from inlay.testing import Builder, sqnr
from tests.support.workspace import Workspace

ROWS, WIDTH = 12, 16


def causal() -> onnx.ModelProto:
    """Attention whose scores of later rows are minus infinity, by a mask that is computed."""
    b = Builder(opset=17)
    q, k, v = (b.input(name, (1, 2, ROWS, WIDTH)) for name in "qkv")
    scores = b.node("scores", "MatMul", [q, b.node("turned", "Transpose", [k], perm=[0, 1, 3, 2])])
    near = b.node("near", "Where", [b.input("seen", (ROWS, ROWS), onnx.TensorProto.BOOL), *_numbers(b)])
    weights = b.node("weights", "Softmax", [b.node("masked", "Add", [scores, near])], axis=-1)
    b.output(b.node("out", "MatMul", [weights, v]))
    return b.model()


def _numbers(b: Builder) -> list[str]:
    return [b.constant("zero", np.float32(0.0)), b.constant("never", np.float32(-np.inf))]


def samples(count: int = 4) -> tuple[dict[str, np.ndarray], ...]:
    rng = np.random.default_rng(0)
    seen = np.tril(np.ones((ROWS, ROWS), bool))
    shape = (1, 2, ROWS, WIDTH)
    return tuple({**{n: rng.normal(0, 1, shape).astype(np.float32) for n in "qkv"}, "seen": seen} for _ in range(count))


def db_of(space: Workspace) -> float:
    prepared, feed = space.prepared, dict(space.feeds[-1])
    exact, low = Session(prepared.emitter.base, prepared.store), Session(space.emit(space.full()), prepared.store)
    (want,), (got,) = exact.run(feed).values(), low.run(feed).values()
    return sqnr(want, got)


def test_no_integer_stands_for_infinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / name for name in ("aware", "unaware")]
    for folder in folders:
        folder.mkdir()
    space = Workspace(causal(), folders[0], feeds=samples())
    reasons = {u.name: u.rejection for u in space.prepared.units}
    assert all("holds infinity" in reasons[name] for name in ("near", "masked", "weights"))
    assert not any(reasons[name] for name in ("scores", "out"))
    assert db_of(space) > 30.0
    monkeypatch.setattr(units, "_value_rejections", lambda *_: iter(()))
    assert db_of(Workspace(causal(), folders[1], feeds=samples())) < 20.0, "the control: no score is masked"
