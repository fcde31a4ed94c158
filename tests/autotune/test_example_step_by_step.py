"""The documented example runs as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx

from tests.support.branches import branches

EXAMPLE = Path(__file__).parents[2] / "examples" / "step_by_step" / "tune.py"


def test_example_writes_a_model(tmp_path: Path) -> None:
    onnx.save(branches(), tmp_path / "model.onnx")
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "model.onnx"), str(tmp_path / "out"), "--schemes", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "ports read Q/DQ" in done.stdout
    onnx.checker.check_model(onnx.load(tmp_path / "out" / "model.onnx"), full_check=True)
