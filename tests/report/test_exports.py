"""What a run found, in the terms of other tools: each form is read by the tool that it is for, where it is here."""

from __future__ import annotations

import csv
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

import inlay
from inlay.errors import UsageError
from inlay.report.folder import read_run
from tests.report.conftest import chain_model, feeds


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self._feeds = iter(feeds(4))

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


@pytest.fixture(scope="module")
def partly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose delivered model has Convs in float and Convs in INT8."""
    folder = tmp_path_factory.mktemp("partly")
    model = chain_model(folder / "m.onnx")
    inlay.tune(
        model, out=folder / "out", target="null", data=feeds(), min_sqnr=5, max_measurements=3, cost_db=False,
        nodes=["conv4", "conv5", "relu4", "relu5"],
    )  # fmt: skip
    return folder / "out"


def convs_with_quantized_weights(path: Path) -> set[str]:
    graph = onnx.load(path).graph
    dequantized = {n.output[0] for n in graph.node if n.op_type == "DequantizeLinear"}
    return {n.name for n in graph.node if n.op_type == "Conv" and n.input[1] in dequantized}


def in_its_types(row: dict[str, Any]) -> dict[str, Any]:
    made = {"scale": np.array(row["scale"], np.float32), "zero_point": np.array(row["zero_point"], np.uint8)}
    return made | {"quant_type": QuantType.from_string(row["quant_type"])}


def quantized_by_the_runtime(run: Path, out: Path, **options: Any) -> None:
    logging.disable()
    try:
        quantize_static(
            run.parent / "m.onnx", out, Reader(), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8,
            op_types_to_quantize=["Conv"], **options,
        )  # fmt: skip
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.exhaustive
def test_the_runtimes_quantizer_quantizes_the_same_operators(partly: Path, tmp_path: Path) -> None:
    found = json.loads(inlay.export(partly, "ort-exclude", tmp_path / "e.json").read_text())
    quantized_by_the_runtime(partly, tmp_path / "q.onnx", nodes_to_exclude=found["nodes_to_exclude"])
    ours = convs_with_quantized_weights(partly / "model.onnx")
    assert ours == {"conv4", "conv5"}
    assert convs_with_quantized_weights(tmp_path / "q.onnx") == ours
    quantized_by_the_runtime(partly, tmp_path / "all.onnx")
    assert convs_with_quantized_weights(tmp_path / "all.onnx") != ours, "without the list it quantizes others, too"


@pytest.mark.exhaustive
def test_the_runtimes_quantizer_takes_our_scales(partly: Path, tmp_path: Path) -> None:
    names = json.loads(inlay.export(partly, "ort-exclude", tmp_path / "e.json").read_text())["nodes_to_exclude"]
    found = json.loads(inlay.export(partly, "ort-overrides", tmp_path / "o.json").read_text())["TensorQuantOverrides"]
    assert found
    as_types = {tensor: [in_its_types(row) for row in rows] for tensor, rows in found.items()}
    extra = {"TensorQuantOverrides": as_types}
    quantized_by_the_runtime(partly, tmp_path / "q.onnx", nodes_to_exclude=names, extra_options=extra)
    graph = onnx.load(tmp_path / "q.onnx").graph
    scales = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    written = {n.input[0]: float(scales[n.input[1]]) for n in graph.node if n.op_type == "QuantizeLinear"}
    shared = written.keys() & found.keys()
    assert shared
    assert all(written[t] == pytest.approx(found[t][0]["scale"], rel=1e-6) for t in shared)


def test_ignored_scopes_are_what_stays_float(partly: Path, tmp_path: Path) -> None:
    ignored = set(json.loads(inlay.export(partly, "nncf", tmp_path / "n.json").read_text())["names"])
    convs = {n.name for n in onnx.load(partly.parent / "m.onnx").graph.node if n.op_type == "Conv"}
    assert convs - ignored == convs_with_quantized_weights(partly / "model.onnx")


def test_metadata_changes_no_output(partly: Path, tmp_path: Path) -> None:
    path = inlay.export(partly, "netron", tmp_path / "n.onnx")
    model = onnx.load(path)
    onnx.checker.check_model(model)
    said = {n.name: {p.key: p.value for p in n.metadata_props} for n in model.graph.node if n.metadata_props}
    assert said["conv4"]["inlay: placed"] == "static"
    (feed,) = feeds(1)
    before, after = (
        onnxruntime.InferenceSession(str(p), providers=["CPUExecutionProvider"]).run(None, feed)
        for p in (partly / "model.onnx", path)
    )
    np.testing.assert_array_equal(before[0], after[0])


def test_every_trial_is_a_line(partly: Path, tmp_path: Path) -> None:
    with inlay.export(partly, "csv", tmp_path / "t.csv").open(newline="", encoding="utf8") as file:
        rows = list(csv.DictReader(file))
    trials = read_run(partly).trials
    assert [r["origin"] for r in rows] == [t.origin for t in trials]
    assert all(float(r["speedup"]) > 0 for r in rows if r["outcome"] == "measured")


def test_what_cannot_be_written_is_one_error(partly: Path) -> None:
    with pytest.raises(UsageError, match="ort-exclude"):
        inlay.export(partly, "pdf")
    before = (partly / "model.onnx").read_bytes()
    with pytest.raises(UsageError, match="would overwrite"):
        inlay.export(partly, "csv", partly / "model.onnx")
    assert (partly / "model.onnx").read_bytes() == before


def test_model_explorer_has_the_time_and_precision_of_every_operator(partly: Path, tmp_path: Path) -> None:
    run = read_run(partly)
    found = json.loads(inlay.export(partly, "model-explorer", tmp_path / "n.json").read_text())["results"]
    values = {n.output[0]: n.name for n in onnx.load(partly / "model.onnx").graph.node}
    assert found.keys() <= values.keys()
    named = {values[value]: row for value, row in found.items()}
    colours = {name: row["bgColor"] for name, row in named.items()}
    assert colours["conv4"] == colours["conv5"] == "#8a6d1a", "integers on its way in, float on its way out"
    assert colours["relu0"] == colours["skip"] == "#b65a1e"
    assert run.evidence is not None
    kernels = run.profiles[run.evidence.delivered]
    nodes = {node for unit in run.evidence.units for node in unit.nodes}
    compute = sum(k.ns for k in kernels if k.kind == "compute" and nodes & set(k.nodes))
    assert sum(row["value"] for row in found.values()) == pytest.approx(compute / 1e3, abs=0.01 * len(found))
