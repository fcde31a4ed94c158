"""The targets that come with Inlay keep the contract that third parties' must keep."""

from __future__ import annotations

from inlay.targets.base import Target
from inlay.targets.null import NullTarget
from inlay.targets.onnxruntime.target import OrtCpuTarget
from inlay.testing import TargetTestCase


class TestNull(TargetTestCase):
    def target(self) -> Target:
        return NullTarget()


class TestNoisyNull(TargetTestCase):
    def target(self) -> Target:
        return NullTarget(noise=0.05, burst=0.1, seed=3)


class TestOrtCpu(TargetTestCase):
    def target(self) -> Target:
        return OrtCpuTarget()


class TestOrtCpuTwoThreads(TargetTestCase):
    def target(self) -> Target:
        return OrtCpuTarget(threads=2)
