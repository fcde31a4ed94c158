"""Static types beside one another: what each leaves of the outputs, and whether what is written is what is read.

Conv, ConvTranspose, Gemm and MatMul of each model in one type, by ``inlay quantize`` for ONNX Runtime.
SQNR is against float, on samples from other sources than those of calibration, in default sessions, where files run.
Types without fast kernels run in float between their Q/DQ nodes, so latency is no matter here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from benchmarks import paired
from benchmarks.subjects import Subject
from inlay import api
from inlay.errors import InlayError
from inlay.quant.extract import extract
from inlay.targets.registry import known_operators

TYPES = ("uint8", "uint16", "fp8")
"""Of the integers, the signed ones leave as much: weights are signed anyway."""
_SAMPLES = 8  # of the others


def row(subject: Subject, folder: Path) -> dict[str, Any]:
    """For each type: dB at the worst output, opset, quantized ports, and whether extracting finds them again."""
    found: dict[str, Any] = {}
    for qtype in TYPES:
        path = folder / f"{qtype}.onnx"
        try:
            api.quantize(subject.model, path, data=str(subject.samples), recipe="conv-matmul", quant_type=qtype)
            found[qtype] = _read_back(path)
        except InlayError as error:
            found[qtype] = {"error": str(error)}
    written = {qtype: folder / f"{qtype}.onnx" for qtype, of in found.items() if "error" not in of}
    evaluation = paired.read(subject.evaluation, subject.model, _SAMPLES)
    for qtype, sqnr_db in paired.sqnr(written, subject.model, evaluation).items():
        found[qtype]["sqnr_db"] = sqnr_db
    return {"model": subject.name, "types": found}


def _read_back(path: Path) -> dict[str, Any]:
    model = onnx.load(path)
    facts = {p.key: p.value for p in model.metadata_props}
    placement = extract(ir.from_proto(model), known_operators()).placement
    return {
        "opset": next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")),
        "ports": len(placement),
        "read_back": placement.digest == facts["inlay.placement"],
    }


def line(row: Mapping[str, Any]) -> str:
    """A row in short."""
    return "; ".join(f"{name} {_cell(found)}" for name, found in row["types"].items())


def text(table: Mapping[str, Any]) -> str:
    """The table as Markdown."""
    lines = [
        "# Static types",
        "",
        "SQNR in dB at the worst output, with Conv, ConvTranspose, Gemm and MatMul in one type (weights in fp8 "
        "beside it, else in int8), on samples from other sources than those of calibration, by default sessions of "
        "ONNX Runtime.",
        "Every file loads there, and extracting finds the placement that was written, except where a cell says so.",
        "",
        f"| model | {' | '.join(TYPES)} |",
        "|---" * (len(TYPES) + 1) + "|",
    ]
    for found in table["rows"]:
        cells = [_cell(found.get("types", {}).get(t, {"error": found.get("error", "")})) for t in TYPES]
        lines.append(f"| {found['model']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(found: Mapping[str, Any]) -> str:
    if "error" in found:
        return f"fails: {found['error']}"
    if found["sqnr_db"] <= -300.0:
        return "does not run"
    return f"{found['sqnr_db']:.1f}{'' if found['read_back'] else ' (read back otherwise)'}"
