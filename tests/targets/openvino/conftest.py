"""What tests of kernels that are wrong share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from inlay.space.rules import Condition, Rules
from inlay.targets.base import Artifact, Feed
from inlay.targets.machine import cpu_flags
from inlay.targets.openvino.target import OpenVinoCpuTarget
from inlay.testing import sqnr
from tests.support.runtime import run_plain

InRuntime = Callable[[Path, Feed, str], float]
"""SQNR in dB of a file's only output in OpenVINO with a precision, against the same file node by node."""


@pytest.fixture
def in_runtime() -> InRuntime:
    """On any processor."""
    pytest.importorskip("openvino", reason="the extra openvino is not installed")
    return _db


@pytest.fixture
def in_amx(in_runtime: InRuntime) -> InRuntime:
    """On a processor with AMX, or the test is skipped: no other has these faults."""
    if not {"amx_bf16", "amx_int8"} <= cpu_flags():
        pytest.skip("the processor has no AMX")
    return in_runtime


def unaware(rules: Rules, op_type: str, condition: Condition) -> Rules:
    """The same rules without a condition of one operator."""
    row = rules.ops[op_type]
    assert condition in row.conditions
    free = replace(row, conditions=tuple(c for c in row.conditions if c is not condition))
    return replace(rules, ops={**rules.ops, op_type: free})


def _db(path: Path, feed: Feed, precision: str) -> float:
    executable = OpenVinoCpuTarget(precision=precision).compile(Artifact(path, path.name))
    try:
        (want,), (got,) = run_plain(onnx.load(path), feed).values(), executable.run(feed).values()
        return sqnr(want, got) if got.shape == want.shape else -math.inf
    finally:
        executable.close()
