"""In the process of a case, after its command succeeded: what it delivered can be used."""

from __future__ import annotations

import json
from pathlib import Path

REPORT = "unusable"


def check(folder: Path) -> None:
    """Load every model in ``out`` in ONNX Runtime, and read every result; say in a file what cannot be."""
    import onnxruntime as ort

    problems = []
    for path in sorted(p for p in (folder / "out").glob("*.onnx") if p.is_file()):
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        try:
            ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            problems.append(f"{path.name}: {' '.join(str(error).split())[:300]}")
    for path in sorted((folder / "out").glob("result.json")):
        try:
            json.loads(path.read_text(encoding="utf8"), parse_constant=_refuse)
        except ValueError as error:
            problems.append(f"{path.name}: {error}")
    if problems:
        (folder / REPORT).write_text("\n".join(problems), encoding="utf8")


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")
