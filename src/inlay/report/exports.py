"""Ways out of a run: what it found, in the terms of other tools, from its folder alone."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from inlay.errors import JournalError, ModelError, UsageError
from inlay.files import refuse_overwriting, replacing
from inlay.report import card
from inlay.report.folder import FinishedRun, as_shown, read_run, refusing_damage
from inlay.report.kernels import unit_rows
from inlay.run.finished import inputs_of
from inlay.run.outcome.evidence import FLOAT, Evidence
from inlay.trial import Failed, Measured

CARD, CARD_JSON = "card", "card-json"  # forms of `inlay card`
_QUANT_TYPES = {"int8": "QInt8", "uint8": "QUInt8", "int16": "QInt16", "uint16": "QUInt16"}
"""Names of integer types in ONNX Runtime's quantizer, by numpy's."""
_METADATA_IR = 10  # IR version of ONNX from which on nodes may carry metadata, which Netron shows


def export(folder: Path, form: str, to: Path | None) -> Path:
    """Write the run in ``folder`` in one of :data:`FORMS` to ``to``, by default beside it; return the path.

    Raises:
        UsageError: no such form, or ``to`` is a file of the run.
        JournalError: there is no finished run in ``folder``, or it lacks what the form needs.
    """
    if form not in FORMS:
        raise UsageError(f"--as {form}: give {', '.join(FORMS)}")
    name, write = FORMS[form]
    path = folder / name if to is None else to
    kept = [folder / own for own in ("model.onnx", "result.json", "run.sqlite", "recipe.yaml", "report.html")]
    refuse_overwriting([path], kept)
    if form == CARD and path.is_file() and card.MARK not in as_shown(path):
        raise UsageError(f"{path} was not written by inlay card: name another file (--to), or take it away")
    run = read_run(folder)
    refuse_overwriting([path], inputs_of(run.result))
    with refusing_damage(folder):
        content = write(run)
    with replacing(path) as fresh:
        fresh.write_bytes(content)
    return path


def _ort_exclude(run: FinishedRun) -> bytes:
    """``nodes_to_exclude`` and ``nodes_to_quantize`` of ``onnxruntime.quantization.quantize_static``."""
    return _json({"nodes_to_exclude": _floats(run), "nodes_to_quantize": _quantized(run)})


def _ort_overrides(run: FinishedRun) -> bytes:
    """``TensorQuantOverrides`` for its ``extra_options``: the delivered type, scale and zero point of each activation.

    JSON has neither its types nor arrays: ``QuantType.from_string`` reads ``quant_type``, and ``scale`` (float32) and
    ``zero_point`` must be made arrays.
    """
    graph = _delivered(run).graph
    constants = {t.name: t for t in graph.initializer}
    found: dict[str, list[dict[str, Any]]] = {}
    for node in graph.node:
        if node.op_type != "QuantizeLinear" or node.input[0] in constants or len(node.input) < 3:
            continue
        scale, zero = (constants.get(name) for name in node.input[1:3])
        if scale is None or zero is None:
            continue
        zero_point = numpy_helper.to_array(zero)
        kind = _QUANT_TYPES.get(zero_point.dtype.name)
        if kind is not None and zero_point.size == 1:
            value = float(np.ravel(numpy_helper.to_array(scale))[0])
            entry = {"quant_type": kind, "scale": value, "zero_point": int(np.ravel(zero_point)[0])}
            found.setdefault(node.input[0], [entry])
    return _json({"TensorQuantOverrides": found})


def _nncf(run: FinishedRun) -> bytes:
    """``names`` of ``nncf.IgnoredScope``: the operators that stay float."""
    return _json({"names": _floats(run)})


def _netron(run: FinishedRun) -> bytes:
    """The delivered model with what is known of each operator as metadata of its node."""
    model, evidence = _delivered(run), _evidence(run)
    rows = {node: row for row in unit_rows(run, evidence) for node in row.facts.nodes}
    model.ir_version = max(model.ir_version, _METADATA_IR)
    for node in model.graph.node:
        row = rows.get(node.name)
        if row is None:
            continue
        facts = {"placed": row.facts.precision, "ran": row.executed, "why not INT8": row.why}
        if row.ns is not None:
            facts["microseconds"] = f"{row.ns / 1e3:.1f}"
        for key, value in facts.items():
            if value:
                node.metadata_props.add(key=f"inlay: {key}", value=value)
    return bytes(model.SerializeToString())


_COLOURS = {"int8": "#1b7f79", "mixed": "#8a6d1a", "float": "#b65a1e"}
"""Backgrounds by how an operator ran, dark enough for white text; what ran in no kernel of its own has none."""


def _model_explorer(run: FinishedRun) -> bytes:
    """Node data of Model Explorer: microseconds by the name of each operator's first output, coloured by precision.

    Its loaders give nodes names of their own, and match data by the names of output tensors as well. A unit's time
    stands at its last operator, so that sums over groups count it once; the others have 0.
    """
    results: dict[str, dict[str, Any]] = {}
    outputs = {node.name: node.output[0] for node in _delivered(run).graph.node if node.output}
    for row in unit_rows(run, _evidence(run)):
        present = [outputs[node] for node in row.facts.nodes if node in outputs]
        for value in present:
            time = row.ns or 0.0 if value == present[-1] else 0.0
            results[value] = {"value": round(time / 1e3, 3)}
            if (colour := _COLOURS.get(row.executed)) is not None:
                results[value] |= {"bgColor": colour, "textColor": "#ffffff"}
    return _json({"results": results})


_COLUMNS = (
    "number", "origin", "placement_digest", "outcome", "accepted", "latency_ms", "speedup", "speedup_low",
    "speedup_high", "blocks", "sqnr_db", "metric", "feasible", "size_bytes", "why",
)  # fmt: skip


def _csv(run: FinishedRun) -> bytes:
    """Every trial in order, one a line."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, _COLUMNS, restval="")
    writer.writeheader()
    writer.writerows(_trials(run))
    return text.getvalue().encode()


def _trials(run: FinishedRun) -> Iterator[Mapping[str, Any]]:
    for number, trial in enumerate(run.trials, 1):
        outcome = trial.outcome
        row: dict[str, Any] = {
            "number": number,
            "origin": trial.origin,
            "placement_digest": trial.placement_digest,
            "outcome": type(outcome).__name__.lower(),
            "accepted": int(trial.accepted),
        }
        if isinstance(outcome, Failed):
            yield row | {"why": f"{outcome.stage}: {outcome.message}"}
            continue
        accuracy = outcome.accuracy
        row |= {"sqnr_db": accuracy.sqnr_db, "feasible": int(accuracy.feasible), "why": accuracy.reason}
        row["metric"] = "" if accuracy.metric is None else accuracy.metric
        if isinstance(outcome, Measured):
            speed = outcome.latency.speedup
            row |= {
                "latency_ms": run.baseline_ms / speed.value,
                "speedup": speed.value,
                "blocks": outcome.latency.blocks,
            }
            row |= {"speedup_low": speed.low, "speedup_high": speed.high}
            row["size_bytes"] = run.sizes.get(trial.candidate, "")
        yield row


def _evidence(run: FinishedRun) -> Evidence:
    if run.evidence is None:
        raise JournalError(
            f"{run.folder} says nothing of its operators: it ended early, or was made by an older version"
        )
    return run.evidence


def _floats(run: FinishedRun) -> list[str]:
    return [node for unit in _evidence(run).units if unit.precision == FLOAT for node in unit.nodes]


def _quantized(run: FinishedRun) -> list[str]:
    return [node for unit in _evidence(run).units if unit.precision != FLOAT for node in unit.nodes]


def _delivered(run: FinishedRun) -> onnx.ModelProto:
    path = run.folder / "model.onnx"
    try:
        return onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's own, which are no common class
        raise ModelError(f"{path} cannot be read: {error}") from error


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=2) + "\n").encode()


FORMS: Mapping[str, tuple[str, Callable[[FinishedRun], bytes]]] = {
    "ort-exclude": ("ort-exclude.json", _ort_exclude),
    "ort-overrides": ("ort-overrides.json", _ort_overrides),
    "nncf": ("nncf-ignored.json", _nncf),
    "netron": ("model-netron.onnx", _netron),
    "model-explorer": ("model-explorer.json", _model_explorer),
    "csv": ("trials.csv", _csv),
    CARD: ("README.md", card.as_markdown),
    CARD_JSON: ("card.json", card.as_json),
}
"""Forms by name: the usual name of the file, and what makes its content."""
