"""How much of a quantized model Inlay takes over as a placement of the float model, by who wrote it, and why not all.

    python -m benchmarks imports [--models DIR] [--only NAME ...] [--nncf PYTHON] [--modelopt PYTHON]

Every file is matched to the model as it was before any quantizer saw it: quantizers fold, fuse and rename, and so does
Inlay's own normalization. A site is one input of an operator that reads a quantized value. Nothing is timed.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import QuantFormat

from benchmarks import lowering, peer, reasons
from benchmarks.reasons import Write
from benchmarks.subjects import Subject
from inlay import api
from inlay.autotune import placement_of
from inlay.errors import InlayError
from inlay.model.load import load
from inlay.prepare.strip_qdq import holds_quantized


def _of_peer(method: str) -> Write:
    def write(subject: Subject, out: Path) -> str:
        made = peer.quantize(method, subject.model, subject.samples, out)
        return made.note if made.path is None else ""

    return write


def _of_quantize_static(options: Mapping[str, Any]) -> Write:
    def write(subject: Subject, out: Path) -> str:
        reasons.quantized(subject, options, out)
        return ""

    return write


def _nameless(subject: Subject, out: Path) -> str:
    """As ``quantize_static`` writes it, with nodes that have no name, and values that have another."""
    note = _of_peer("static")(subject, out)
    if note:
        return note
    model = onnx.load(out)
    fixed = {v.name for v in (*model.graph.input, *model.graph.output)}
    for node in model.graph.node:
        node.name = ""
        for names in (node.input, node.output):
            names[:] = [name if not name or name in fixed else f"v_{name}" for name in names]
    for tensor in model.graph.initializer:
        tensor.name = tensor.name if tensor.name in fixed else f"v_{tensor.name}"
    del model.graph.value_info[:]
    onnx.save(model, out)
    return ""


def _own(subject: Subject, out: Path) -> str:
    api.quantize(subject.model, out, data=str(subject.samples), recipe="full-int8")
    return ""


def _inputs_only(subject: Subject, out: Path) -> str:
    _own(subject, out)
    onnx.save(lowering.inputs_only(onnx.load(out)), out)
    return ""


def ways(nncf: str | None, modelopt: str | None) -> dict[str, Write]:
    """Who writes the quantized models, by name; NNCF and ModelOpt where a Python that has them is given."""
    return {
        "quantize_static": _of_peer("static"),
        "the same, without names": _nameless,
        "quantize_static, products only": _of_quantize_static(reasons.WAYS["products only"]),
        "quantize_static, S8S8": _of_quantize_static(reasons.WAYS["S8S8"]),
        "quantize_static, QOperator": _of_quantize_static({"quant_format": QuantFormat.QOperator}),
        "quantize_dynamic": _of_peer("dynamic"),
        "MatMulNBits, 4 bits": _of_peer("weights4"),
        "own": _own,
        "own, inputs of products only": _inputs_only,
        **reasons.of_others(nncf, modelopt),
    }


def row(subject: Subject, folder: Path, nncf: str | None, modelopt: str | None) -> dict[str, Any]:
    """For each way of quantizing: sites, how many were taken over, and why the others were not."""
    found: dict[str, Any] = {}
    for name, write in ways(nncf, modelopt).items():
        out = folder / "quantized.onnx"
        out.unlink(missing_ok=True)
        try:
            note = write(subject, out)
        except Exception as error:  # of whatever type: these are other people's programs
            note = f"fails: {error}"
        if note:
            found[name] = {"error": f"no file: {' '.join(note.split())[:200]}"}
            continue
        try:
            found[name] = _counted(out, subject)
        except InlayError as error:
            found[name] = {"error": f"refused: {' '.join(str(error).replace(f'{folder}{os.sep}', '').split())[:300]}"}
    return {"model": subject.name, "imports": found}


def _counted(quantized: Path, subject: Subject) -> dict[str, Any]:
    if not holds_quantized(load(quantized)):
        return {"sites": 0, "taken": 0, "within": 0, "reasons": {}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = placement_of(quantized, subject.model, samples=subject.samples)
    why = Counter(reason for _, reason in (*report.unknown, *report.lost))
    return {
        "sites": report.sites,
        "taken": report.sites - why.total() - len(report.within),
        "within": len(report.within),
        "reasons": dict(why.most_common()),
    }


def line(row: Mapping[str, Any]) -> str:
    """A row in a few words."""
    return "; ".join(f"{name} {_cell(found)}" for name, found in row["imports"].items())


def text(table: Mapping[str, Any]) -> str:
    """The table as Markdown."""
    return "\n".join(_lines(table["rows"])) + "\n"


def _lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = [r for r in rows if "imports" in r]
    names = list(dict.fromkeys(name for r in rows for name in r["imports"]))
    yield "# What is taken over of quantized models"
    yield ""
    yield "Sites (inputs of operators that read a quantized value) that become part of a placement of the float model"
    yield "as it was given, plus those inside operators that normalization makes of several and that are quantized as a"
    yield "whole, of all sites of the file. Nothing is timed."
    yield ""
    yield f"| model | {' | '.join(names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for found in rows:
        yield f"| {found['model']} | {' | '.join(_cell(found['imports'].get(n, {'error': ''})) for n in names)} |"
    totals = {n: [c for r in rows if "error" not in (c := r["imports"].get(n, {"error": ""}))] for n in names}
    yield f"| all | {' | '.join(_total(cells) for cells in totals.values())} |"
    yield ""
    yield "Why the others are not:"
    yield ""
    for name in names:
        why: Counter[str] = Counter()
        for cell in totals[name]:
            why.update(cell["reasons"])
        for reason, count in why.most_common():
            yield f"- {name}, {count} x: {reason}"
    for found in rows:
        for name, cell in found["imports"].items():
            if "error" in cell:
                yield f"- {found['model']}, {name}: {cell['error'].replace('|', ' ')}"


def _total(cells: Sequence[Mapping[str, Any]]) -> str:
    taken, within, sites = (sum(c[key] for c in cells) for key in ("taken", "within", "sites"))
    return f"{(taken + within) / sites:.1%}" if sites else ""


def _cell(found: Mapping[str, Any]) -> str:
    if "error" in found:
        return str(found["error"]).partition(":")[0]
    within = f" + {found['within']}" if found["within"] else ""
    return f"{found['taken']}{within} of {found['sites']}" if found["sites"] else "nothing quantized"
