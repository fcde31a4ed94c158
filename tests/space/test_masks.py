"""Masks before a Softmax, whatever number and operators they are made of, have no scale, and cost no accuracy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay.model.graph import Graph
from inlay.model.reference import Session
from inlay.prepare import model as prepare_model
from inlay.testing import Builder, sqnr
from tests.support.workspace import Workspace

ROWS, WIDTH = 12, 16
LOWEST = float(np.finfo(np.float32).min)
Mask = Callable[[Builder, str, str], str]
"""Masked scores, given scores and a mask that is 1 where they count."""


def _number(b: Builder, name: str, number: float) -> str:
    return b.constant(name, np.float32(number))


def added(low: float) -> Mask:
    """Add of Where(mask, 0, low)."""

    def mask(b: Builder, scores: str, kept: str) -> str:
        kept = b.node("kept", "Cast", [kept], to=onnx.TensorProto.BOOL)
        near = b.node("near", "Where", [kept, _number(b, "zero", 0.0), _number(b, "low", low)])
        return b.node("masked", "Add", [scores, near])

    return mask


def put(low: float) -> Mask:
    """Where(mask, scores, low), as masked_fill is exported."""

    def mask(b: Builder, scores: str, kept: str) -> str:
        kept = b.node("kept", "Cast", [kept], to=onnx.TensorProto.BOOL)
        return b.node("masked", "Where", [kept, scores, _number(b, "low", low)])

    return mask


def multiplied(low: float) -> Mask:
    """Add of (1 - mask) * low."""

    def mask(b: Builder, scores: str, kept: str) -> str:
        out = b.node("without", "Sub", [_number(b, "one", 1.0), kept])
        return b.node("masked", "Add", [scores, b.node("near", "Mul", [out, _number(b, "low", low)])])

    return mask


def attention(mask: Mask, end: str = "Softmax") -> onnx.ModelProto:
    """Attention whose scores are masked."""
    b = Builder(opset=17)
    q, k, v = (b.input(name, (1, 2, ROWS, WIDTH)) for name in "qkv")
    scores = b.node("scores", "MatMul", [q, b.node("turned", "Transpose", [k], perm=[0, 1, 3, 2])])
    masked = mask(b, scores, b.input("mask", (1, 1, 1, ROWS)))
    if end == "parts":
        greatest = b.node("greatest", "ReduceMax", [masked], axes=[-1])
        powers = b.node("powers", "Exp", [b.node("below", "Sub", [masked, greatest])])
        total = b.node("total", "ReduceSum", [powers, b.constant("last", np.array([-1]))])
        weights = b.node("weights", "Div", [powers, total])
    else:
        weights = b.node("weights", end, [masked], axis=-1)
    if end == "LogSoftmax":
        weights = b.node("shares", "Exp", [weights])
    b.output(b.node("out", "MatMul", [weights, v]))
    return b.model()


def samples(unmasked: int = 1, count: int = 4) -> tuple[dict[str, np.ndarray], ...]:
    """The first ones are not masked at all."""
    rng = np.random.default_rng(0)
    shape = (1, 2, ROWS, WIDTH)
    some = np.ones((1, 1, 1, ROWS), np.float32)
    some[..., ROWS - 4 :] = 0
    return tuple(
        {
            **{n: rng.normal(0, 1, shape).astype(np.float32) for n in "qkv"},
            "mask": some if i >= unmasked else np.ones_like(some),
        }
        for i in range(count)
    )


def db_of(space: Workspace) -> float:
    """Of all that can be quantized, on the last sample."""
    prepared, feed = space.prepared, dict(space.feeds[-1])
    exact, low = Session(prepared.emitter.base, prepared.store), Session(space.emit(space.full()), prepared.store)
    (want,), (got,) = exact.run(feed).values(), low.run(feed).values()
    return sqnr(want, got)


@pytest.mark.parametrize("low", [LOWEST, -1e4, -1e9])
@pytest.mark.parametrize("form", [added, put, multiplied])
def test_masks_cost_no_accuracy(
    form: Callable[[float], Mask], low: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = attention(form(low))
    for name in ("aware", "unaware"):
        (tmp_path / name).mkdir()
    space = Workspace(model, tmp_path / "aware", feeds=samples())
    reasons = {u.name: u.rejection for u in space.prepared.units}
    assert "holds a mask" in reasons["masked"]
    assert not any(reasons[name] for name in ("scores", "out"))
    assert db_of(space) > 30.0
    monkeypatch.setattr(prepare_model, "find_masks", lambda *_: frozenset())
    assert db_of(Workspace(model, tmp_path / "unaware", feeds=samples())) < 15.0, "the control: no value is known"


@pytest.mark.parametrize("end", ["Softmax", "LogSoftmax", "parts"])
def test_whatever_makes_nothing_of_a_mask(end: str, tmp_path: Path) -> None:
    space = Workspace(attention(added(-1e4), end), tmp_path, feeds=samples())
    assert {"masked_out", "near_out", "low"} <= space.prepared.graph.masks
    assert db_of(space) > 30.0


def graph_of(model: onnx.ModelProto, folder: Path, feeds: tuple[dict[str, np.ndarray], ...]) -> Graph:
    """As it is prepared."""
    return Workspace(model, folder, feeds=feeds).prepared.graph


def given(b: Builder, scores: str, kept: str) -> str:
    """The mask comes in as it is added."""
    return b.node("masked", "Add", [scores, kept])


def test_a_mask_that_comes_in_from_outside(tmp_path: Path) -> None:
    feeds = tuple({**feed, "mask": (1 - feed["mask"]) * np.float32(-1e4)} for feed in samples(unmasked=0))
    assert {"mask", "masked_out"} <= graph_of(attention(given), tmp_path, feeds).masks


@pytest.mark.parametrize("what", ["scores", "bound", "read"])
def test_what_is_no_mask(what: str, tmp_path: Path) -> None:
    """Large scores, a bound that nothing falls below, and numbers that somebody reads for themselves."""
    b = Builder(opset=17)
    x, low = b.input("x", (4, 8)), b.constant("low", np.float32(-1e4))
    y = b.node("y", {"scores": "Neg", "bound": "Max", "read": "Add"}[what], [x] if what == "scores" else [x, low])
    b.output(b.node("shares", "Softmax", [y], axis=-1))
    if what == "read":
        b.output(b.node("itself", "Neg", [y]))
    large = np.linspace(-5000.0, 4000.0, 32, dtype=np.float32).reshape(4, 8)
    found = graph_of(b.model(), tmp_path, tuple({"x": large} for _ in range(2))).masks
    assert y not in found
    assert "x" not in found
