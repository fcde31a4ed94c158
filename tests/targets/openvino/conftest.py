"""What tests of kernels that are wrong with AMX share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inlay.targets.base import Artifact, Feed
from inlay.targets.machine import cpu_flags
from inlay.targets.openvino.target import OpenVinoCpuTarget
from inlay.testing import run_reference, sqnr

InRuntime = Callable[[Path, Feed, str], float]
"""SQNR in dB of a file's only output in OpenVINO with a precision, against ONNX Runtime on the same file."""


@pytest.fixture
def in_amx() -> InRuntime:
    """On a processor with AMX, or the test is skipped: no other has these faults."""
    pytest.importorskip("openvino", reason="the extra openvino is not installed")
    if not {"amx_bf16", "amx_int8"} <= cpu_flags():
        pytest.skip("the processor has no AMX")
    return _db


def _db(path: Path, feed: Feed, precision: str) -> float:
    executable = OpenVinoCpuTarget(precision=precision).compile(Artifact(path, path.name))
    try:
        (want,), (got,) = run_reference(path, feed).values(), executable.run(feed).values()
        return sqnr(want, got)
    finally:
        executable.close()
