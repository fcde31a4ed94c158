"""``inlay explain --repair``: written where it is faster and as accurate, and never otherwise."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnx
import pytest

import inlay
from inlay import api
from inlay.errors import UsageError
from inlay.explanation import repair
from inlay.explanation.explanation import Explanation, Operator, Repair, Waste
from inlay.explanation.repair import changes, is_better
from inlay.testing import Builder, residual_model
from inlay.trial import Accuracy, Interval
from tests.support.hand_written_qdq import insert_qdq_everywhere


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds ``given.onnx``, with Q/DQ around an operator that gains nothing by it."""
    folder = tmp_path_factory.mktemp("repair")
    b = Builder()
    x = b.node("tanh", "Tanh", [b.input("x", (1, 3, 8, 8))])
    b.output(b.conv("conv", x, 4))
    onnx.save(insert_qdq_everywhere(b.model()), folder / "given.onnx")
    return folder


@pytest.fixture(scope="module")
def done(folder: Path) -> Repair:
    """The repair of it, in ``repaired.onnx``."""
    found = inlay.explain(folder / "given.onnx", target="null", repair=folder / "repaired.onnx").repair
    assert found is not None
    return found


@pytest.mark.exhaustive
def test_a_repair_is_faster_and_as_accurate_and_each_change_has_its_gain(done: Repair, folder: Path) -> None:
    assert done.written
    assert done.speedup is not None
    assert done.speedup.low > 1.0
    assert done.repaired_db is not None
    assert done.repaired_db >= done.given_db - 0.01
    first, second = api.bench([folder / "given.onnx", folder / "repaired.onnx"], target="null", processes=1)
    assert second.speedup.value == pytest.approx(done.speedup.value)
    assert any(c.kind == "conversion-removed" for c in done.changes)
    assert sum(c.gain_ms for c in done.changes) == pytest.approx(first.latency_ms - second.latency_ms, rel=0.01)


@pytest.mark.exhaustive
def test_what_cannot_be_bettered_is_not_written(done: Repair, folder: Path) -> None:
    repaired, again = folder / "repaired.onnx", folder / "again.onnx"
    assert any(n.op_type == "QuantizeLinear" for n in onnx.load(repaired).graph.node)
    found = inlay.explain(repaired, target="null", repair=again).repair
    assert found is not None
    assert not found.written
    assert found.problem
    assert not again.exists()


def test_a_float_model_and_an_input_are_no_place_to_repair(folder: Path, tmp_path: Path) -> None:
    model, given = tmp_path / "float.onnx", folder / "given.onnx"
    onnx.save(residual_model(), model)
    before = given.read_bytes()
    with pytest.raises(UsageError, match="inlay tune"):
        inlay.explain(model, target="null", repair=tmp_path / "out.onnx")
    with pytest.raises(UsageError, match="would overwrite"):
        inlay.explain(given, target="null", repair=given)
    with pytest.raises(UsageError, match="there is no folder"):
        inlay.explain(given, target="null", repair=tmp_path / "nowhere" / "out.onnx")
    assert given.read_bytes() == before


@pytest.mark.parametrize(
    ("low", "high", "more_db", "better"),
    [(1.01, 1.2, 0.0, True), (0.97, 1.01, 20.0, True), (0.97, 1.01, 5.0, False), (0.9, 1.2, 20.0, False)],
)
def test_as_fast_counts_where_it_is_far_more_accurate(low: float, high: float, more_db: float, better: bool) -> None:
    """A file that saturates on this processor is repaired, even where nothing is faster than its wrong numbers."""
    assert is_better(Interval((low + high) / 2, low, high), more_db) == better


@pytest.mark.parametrize(("later", "chosen"), [(Interval(1.3, 1.2, 1.4), "later"), (Interval(0.9, 0.8, 1.0), "first")])
def test_what_is_as_fast_keeps_no_faster_one_from_being_tried(
    later: Interval, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that is looked at only where nothing before it will do."""
    gains = {"first": Interval(0.99, 0.97, 1.01), "later": later}
    given, made = Accuracy(True, 1.0), Accuracy(True, 20.0)
    judge = SimpleNamespace(judge=lambda *_, **__: made)
    subject = SimpleNamespace(judge=judge, accuracy=given, feeds=[])
    monkeypatch.setattr(repair, "_candidates", lambda *_: [(tmp_path / "first", False), (tmp_path / "later", True)])
    monkeypatch.setattr(repair, "load", lambda path: SimpleNamespace(path=path, sha256=path.name))
    monkeypatch.setattr(repair, "_gain", lambda _, found, *__: gains[found.path.name])
    best, _ = repair._best(cast(Any, subject), None, tmp_path, cast(Any, SimpleNamespace(run=lambda *_: [])), 0)
    assert best == (gains[chosen], 20.0, tmp_path / chosen)


def test_what_runs_is_better_than_what_does_not() -> None:
    assert is_better(None, 0.0)


def test_changes_are_told_by_operators_and_values() -> None:
    def found(precision: str, ms: float, value: str) -> Explanation:
        operators = (Operator("conv", "Conv", precision, "Conv", ms, True),)  # type: ignore[arg-type]
        return Explanation(
            model="m",
            target="t",
            quantized=True,
            latency_ms=ms,
            kernels_ms=ms,
            operators=operators,
            waste=(Waste("idle-pair", value, (), 0.25, 0.1),),
        )

    told = changes(found("float", 2.0, "a"), found("int8", 0.5, "b"))
    assert [(c.kind, c.name, c.gain_ms) for c in told] == [
        ("to-int8", "conv", 1.5),
        ("conversion-removed", "a", 0.25),
        ("conversion-added", "b", -0.25),
    ]
