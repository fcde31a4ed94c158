"""A ``trtexec`` that computes with ONNX Runtime."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import run

__all__ = ["calls", "fake", "needs_compiler", "run"]


@pytest.fixture
def fake(tmp_path: Path) -> str:
    """The program's path."""
    path = tmp_path / "trtexec"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).parent / "fake_trtexec.py"} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[str]]]:
    """The arguments of every call so far."""
    file = tmp_path / "calls"
    monkeypatch.setenv("FAKE_TRTEXEC_CALLS", str(file))
    return lambda: [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx_bindings") is None or importlib.util.find_spec("tensorrt_rtx_libs") is None,
    reason="TensorRT for RTX is not installed: make engines",
)
