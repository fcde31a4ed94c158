"""In the process of a case, after its command succeeded: what it delivered can be used."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

REPORT = "unusable"
_HOST_PARTITION = re.compile(r"\.host\d+\.onnx$")


def times(folder: Path) -> Mapping[Path, int]:
    """When each file in ``out`` was written."""
    return {path: path.stat().st_mtime_ns for path in (folder / "out").glob("*") if path.is_file()}


def check(folder: Path, held: Mapping[Path, int]) -> None:
    """Load every model in ``out`` in ONNX Runtime, and read every result; say in a file what cannot be.

    A host partition holds nodes of the given model: where the runtime refuses that one, it may refuse these.

    Args:
        folder: of the case.
        held: :func:`times` before the command: what it did not write is not its work.
    """
    problems = []
    written = sorted(path for path, time in times(folder).items() if held.get(path) != time)
    for path in (p for p in written if p.suffix == ".onnx"):
        refusal = _refusal(path)
        if refusal and not (_HOST_PARTITION.search(path.name) and _refusal(folder / "model" / "model.onnx")):
            problems.append(f"{path.name}: {refusal}")
    for path in (p for p in written if p.name == "result.json"):
        try:
            json.loads(path.read_text(encoding="utf8"), parse_constant=_refuse)
        except ValueError as error:
            problems.append(f"{path.name}: {error}")
    if problems:
        (folder / REPORT).write_text("\n".join(problems), encoding="utf8")


def _refusal(path: Path) -> str:
    """Why the runtime does not load a model; empty where it does."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return " ".join(str(error).split())[:300]
    return ""


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")
