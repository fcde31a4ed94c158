"""The targets that come with Inlay keep the contract that third parties' must keep."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from inlay.targets.base import Target
from inlay.targets.null import NullTarget
from inlay.targets.onnxruntime.target import OrtCpuTarget
from inlay.testing import TargetTestCase
from tests.support.float_rewrite_models import float_rewrite_models


class TestNull(TargetTestCase):
    def target(self) -> Target:
        return NullTarget()


class TestNoisyNull(TargetTestCase):
    def target(self) -> Target:
        return NullTarget(noise=0.05, burst=0.1, seed=3)


class TestOrtCpu(TargetTestCase):
    def target(self) -> Target:
        return OrtCpuTarget()

    def float_rewrite_models(self) -> Mapping[str, onnx.ModelProto]:
        return float_rewrite_models()


class TestOrtCpuTwoThreads(TestOrtCpu):
    def target(self) -> Target:
        return OrtCpuTarget(threads=2)
