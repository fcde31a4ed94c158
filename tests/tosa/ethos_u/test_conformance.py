"""The Ethos-U targets keep the contract of targets."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import pytest

from inlay.targets.base import Target
from inlay.testing import TargetTestCase
from inlay.tosa.ethos_u.target import EthosUTarget
from tests.support.float_rewrite_models import halves, hard_swish

pytest.importorskip("ethosu", reason="the extra arm is not installed")


class TestEthosU55(TargetTestCase):
    def target(self) -> Target:
        return EthosUTarget("ethos-u55-128")

    def float_rewrite_models(self) -> Mapping[str, onnx.ModelProto]:
        return {"halves": halves(), "hard swish": hard_swish()}


class TestEthosU85(TestEthosU55):
    def target(self) -> Target:
        return EthosUTarget("ethos-u85-256")
