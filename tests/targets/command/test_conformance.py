"""Programs of shell and of Python keep the contract of targets."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest

from inlay.targets.base import Target
from inlay.targets.command.target import CommandTarget
from inlay.testing import TargetTestCase, residual_model
from tests.targets.command.scripts import EXAMPLE, LATENCIES, write_script

RULES = """
inlay-rules: 1
activation: int8
share: [Concat]
operators:
  Conv: {weight: 1, bias: 2, conditions: [constant_weight, constant_bias]}
  Add: {activations: all}
  Concat: {activations: all}
  MaxPool: {moves_data: true}
"""


class TestShell(TargetTestCase):
    """It gives latencies only."""

    @pytest.fixture(autouse=True)
    def _program(self, tmp_path: Path) -> None:
        self.program = write_script(tmp_path, LATENCIES)
        self.rules = tmp_path / "rules.yaml"
        self.rules.write_text(RULES)

    def target(self) -> Target:
        return CommandTarget(self.program, str(self.rules))


class TestPython(TargetTestCase):
    """It gives everything, from a process that stays."""

    @pytest.fixture(autouse=True)
    def _interpreter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHON", sys.executable)

    def models(self) -> Mapping[str, onnx.ModelProto]:
        return {"residual": residual_model()}

    def target(self) -> Target:
        return CommandTarget(str(EXAMPLE / "measure.sh"), "null")
