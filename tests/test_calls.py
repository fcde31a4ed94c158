"""Natural calls from Python: what works, and mistakes that end in one clear line of Inlay's own."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import inlay
from inlay import api, autotune
from inlay.errors import InlayError
from inlay.testing import residual_model

FAST: Mapping[str, Any] = {"target": "null", "max_measurements": 1, "cost_db": False}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(residual_model(), path)
    return path


def feeds(model: onnx.ModelProto, count: int = 8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    inputs = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    return {name: rng.standard_normal((count, *shape[1:])).astype(np.float32) for name, shape in inputs.items()}


def mean_of_outputs(outputs: Sequence[Mapping[str, np.ndarray]], labels: object) -> float:
    return float(np.mean([np.mean(next(iter(o.values()))) for o in outputs]))


@pytest.mark.exhaustive
def test_a_proto_a_dict_and_a_function(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    proto = residual_model()
    with caplog.at_level(logging.INFO, logger="inlay"):
        result = inlay.tune(
            proto, out=tmp_path / "out", data=feeds(proto), metric=mean_of_outputs, max_drop=0.1, **FAST
        )
    assert isinstance(result, inlay.TuneResult)
    assert "mean_of_outputs" in result.bound
    assert result.best.selection.metric is not None
    assert onnx.load(result.model_path).graph.node
    ours = [r for r in caplog.records if not r.name.startswith("onnx_ir")]  # another test may have made it talk
    assert {r.name for r in ours} == {"inlay"}
    assert any("full-int8" in r.message for r in caplog.records)
    assert inlay.select(tmp_path / "out", fastest=True, to=tmp_path / "s.onnx"), "the given model is read again"


@pytest.mark.exhaustive
def test_options_are_one_value_of_their_own(model: Path, tmp_path: Path) -> None:
    """Given whole, by name, or both: the same run, and the same line to ask for it again."""
    options = inlay.TuneOptions(target="null", max_measurements=1, cost_db=False, out=tmp_path / "a")
    whole = inlay.tune(model, options)
    named = inlay.tune(model, **{**options.by_name(), "out": tmp_path / "b"})
    both = inlay.tune(model, options, out=tmp_path / "c", seed=0)
    assert whole.model_path.parent.name == "a", "a value that is given stays as it was"
    folders = [r.model_path.parent for r in (whole, named, both)]
    asked = [json.loads((f / "result.json").read_text())["command"].replace(str(f), "OUT") for f in folders]
    assert len(set(asked)) == 1
    assert asked[0].endswith("m.onnx --out OUT --target null --max-measurements 1 --no-cost-db")
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.seed = 1  # type: ignore[misc]
    with pytest.raises(InlayError, match="has no argument sed: did you mean seed"):
        inlay.tune(model, options, sed=1)
    with pytest.raises(InlayError, match="seed takes int, not 'x'"):
        inlay.TuneOptions(seed="x")  # type: ignore[arg-type]


@pytest.mark.exhaustive
def test_a_result_says_what_it_is(model: Path, tmp_path: Path) -> None:
    result = inlay.tune(model, out=tmp_path / "a<b>", data=feeds(onnx.load(model)), **FAST)
    assert isinstance(result, inlay.TuneResult)
    line = result.summary()
    assert "\n" not in line
    assert f"{result.best.speedup.value:.2f}x" in line
    assert str(result.model_path) in line
    page = result._repr_html_()
    assert "a&lt;b&gt;" in page
    assert "a<b>" not in page
    assert all(f"<td>{a.name}</td>" in page for a in result.anchors)


@pytest.mark.exhaustive
def test_the_same_proto_continues_its_run(tmp_path: Path) -> None:
    first = inlay.tune(residual_model(), out=tmp_path / "out", **FAST)
    again = inlay.tune(residual_model(), out=tmp_path / "out", **FAST)
    assert isinstance(first, inlay.TuneResult)
    assert isinstance(again, inlay.TuneResult)
    assert again.model[1] == first.model[1]
    assert again.best.output_sha256 == first.best.output_sha256


TUNE: list[tuple[dict[str, Any], str]] = [
    ({"data": 5}, "data takes"),
    ({"data": {"x": "text"}}, "x"),
    ({"data": [1, 2]}, "instead of a mapping"),
    ({"data": np.zeros((3, 3))}, "expects rank 4, the array has shape [3, 3]"),
    ({"images": {"mean": 1}}, "images takes"),
    ({"min_sqnr": "20"}, "min_sqnr takes float"),
    ({"min_sqnr": float("nan")}, "min-sqnr"),
    ({"max_drop": [1], "metric": "cosine"}, "max_drop takes"),
    ({"metric": 5}, "metric takes"),
    ({"budget": -1}, "budget"),
    ({"budget": float("nan")}, "budget"),
    ({"budget": [60]}, "budget takes"),
    ({"threads": "2"}, "threads takes int"),
    ({"threads": -1}, "the least is 0"),
    ({"threads": True}, "threads takes int"),
    ({"seed": -1}, "the least is 0"),
    ({"seed": None}, "seed takes int"),
    ({"max_measurements": 0}, "the least is 1"),
    ({"nodes": "conv*"}, "nodes takes a list of str"),
    ({"nodes": [1]}, "nodes takes a list of str"),
    ({"bind": 5}, "bind takes"),
    ({"bind": {"N": "x"}}, "--bind N=x"),
    ({"labels": [1, 2]}, "labels takes"),
    ({"labels": np.zeros(3), "metric": "top1", "data": "DATA"}, "there are 8 samples"),
    ({"target": 5}, "target takes"),
    ({"target_options": 5}, "target_options takes"),
    ({"recipe": 5}, "recipe takes"),
    ({"out": None}, "out takes"),
    ({"restart": "no"}, "restart takes bool"),
    ({"min_sqrn": 20}, "did you mean min_sqnr"),
    ({"strategy": None}, "strategy takes str"),
]


@pytest.mark.parametrize(("given", "word"), TUNE, ids=[str(list(g)) + w for g, w in TUNE])
@pytest.mark.parametrize("name", ["tune", "dry_run"])
def test_mistakes_with_tune(name: str, given: dict[str, Any], word: str, model: Path, tmp_path: Path) -> None:
    if isinstance(given.get("data"), str):
        given = {**given, "data": feeds(onnx.load(model))}
    call = {"out": tmp_path / "out", **FAST, **given}
    with pytest.raises(InlayError, match=word.replace("[", r"\[")) as error:
        getattr(api, name)(model, **call)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


HOMES = {"regions": autotune, "calibrate_machine": api}
OTHERS: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("tune", (), {}, "missing a required argument: 'model'"),
    ("tune", (5,), {}, "model takes"),
    ("tune", (None,), {}, "model takes"),
    ("tune", ("m.onnx", "out"), {}, "options takes TuneOptions or None, not 'out'"),
    ("tune", ("m.onnx", None, "out"), {}, "too many positional"),
    ("inspect", (5,), {}, "model takes"),
    ("inspect", (onnx.ModelProto(),), {}, "ONNX model"),
    ("bench", ("m.onnx",), {}, "models takes a list"),
    ("bench", (["m.onnx", "n.onnx"], None, 3), {}, "too many positional"),
    ("bench", ([1, 2],), {}, "models takes a list"),
    ("quantize", ("m.onnx",), {}, "missing a required argument: 'out'"),
    ("quantize", ("m.onnx", 5), {}, "out takes"),
    ("quantize", ("m.onnx", "q.onnx"), {"recipe": None}, "recipe takes"),
    ("select", (5,), {}, "out takes"),
    ("select", (".",), {"max_size": [1]}, "max_size takes"),
    ("explain", (["m.onnx"],), {}, "model takes"),
    ("explain", ("m.onnx",), {"repair": True}, "repair takes"),
    ("export", (".",), {}, "missing a required argument: 'form'"),
    ("export", (".", None), {}, "form takes"),
    ("card", (".",), {"form": 5}, "form takes"),
    ("gate", (".",), {"blocks": 0}, "the least is 1"),
    ("write_report", (5,), {}, "out takes"),
    ("regions", ("m.onnx",), {"maximum_sequence_region_size": 0}, "the least is 1"),
    ("calibrate_machine", (), {"budget": {}}, "budget takes"),
]


@pytest.mark.parametrize(("name", "given", "named", "word"), OTHERS, ids=[f"{n}: {w}" for n, _, _, w in OTHERS])
def test_mistakes_with_other_functions(name: str, given: tuple[Any, ...], named: dict[str, Any], word: str) -> None:
    with pytest.raises(InlayError, match=word) as error:
        getattr(HOMES.get(name, inlay), name)(*given, **named)
    assert "\n" not in str(error.value)
