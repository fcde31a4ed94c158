"""The targets that come with Inlay keep the contract that third parties' must keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

from inlay.errors import UsageError
from inlay.targets.base import Target
from inlay.targets.null import NullTarget
from inlay.targets.onnxruntime.target import OrtCpuTarget
from inlay.targets.openvino.target import OpenVinoCpuTarget
from inlay.targets.ort_ep.htp import QnnHtpTarget
from inlay.targets.ort_ep.target import OrtEpTarget
from inlay.targets.ort_web.install import packages
from inlay.targets.ort_web.target import OrtWebTarget
from inlay.testing import Builder, TargetTestCase
from tests.support.float_rewrite_models import float_rewrite_models, table_before_a_product


def transposed_between_convs() -> onnx.ModelProto:
    """A ConvTranspose that stays in float, between convolutions that do not."""
    b = Builder()
    y = b.conv("first", b.input("x", (1, 3, 8, 8)), 6)
    weight = b.constant("weight", b.rng.standard_normal((6, 6, 3, 3)))
    b.output(b.conv("last", b.node("enlarge", "ConvTranspose", [y, weight]), 4))
    return b.model()


def swish_between_convs() -> onnx.ModelProto:
    """``x * HardSigmoid(x)`` of a convolution, read by another."""
    b = Builder()
    x = b.conv("first", b.input("x", (1, 3, 8, 8)), 6)
    gate = b.node("gate", "HardSigmoid", [x], alpha=0.05)  # below 1: with a power of two as scale, the type ends there
    b.output(b.conv("last", b.node("swish", "Mul", [x, gate]), 4))
    return b.model()


def pool_between_convs() -> onnx.ModelProto:
    """An AveragePool with an integer kernel that counts what lies beyond the padding."""
    b = Builder()
    x = b.conv("first", b.input("x", (1, 3, 8, 8)), 6)
    window: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    x = b.node("pool", "AveragePool", [x], **window, ceil_mode=1, count_include_pad=1)
    weight = b.constant("weight", b.rng.standard_normal((4, 6, 1, 1)).astype(np.float32))
    b.output(b.node("last", "Conv", [x, weight]))
    return b.model()


class TestNull(TargetTestCase):
    def target(self) -> Target:
        return NullTarget()


class TestNoisyNull(TargetTestCase):
    def target(self) -> Target:
        return NullTarget(noise=0.05, burst=0.1, seed=3)


class TestOrtCpu(TargetTestCase):
    def target(self) -> Target:
        return OrtCpuTarget()

    def rewrite_models(self) -> Mapping[str, onnx.ModelProto]:
        own = {
            "float transposed convolution": transposed_between_convs(),
            "table of embeddings": table_before_a_product(),
            "hard swish": swish_between_convs(),
            "rounded up pool": pool_between_convs(),
        }
        return {**super().rewrite_models(), **own}

    def float_rewrite_models(self) -> Mapping[str, onnx.ModelProto]:
        return float_rewrite_models()


@pytest.mark.exhaustive
class TestOrtCpuTwoThreads(TestOrtCpu):
    def target(self) -> Target:
        return OrtCpuTarget(threads=2)


class TestOpenVinoCpu(TargetTestCase):
    def target(self) -> Target:
        pytest.importorskip("openvino", reason="the extra openvino is not installed")
        return OpenVinoCpuTarget(precision="f32")

    def float_rewrite_models(self) -> Mapping[str, onnx.ModelProto]:
        models = float_rewrite_models()
        return {
            name: models[name]
            for name in (
                "halves",
                "fused operators",
                "normalization of rows",
                "patches",
                "few outputs",
                "upsampling",
                "counted padding",
                "mean of all rows",
                "full tile rows",
                "stacked values",
                "short rows of scores",
            )
        }


@pytest.mark.exhaustive
class TestOpenVinoCpuDefault(TestOpenVinoCpu):
    """Where the processor has bfloat16, floats have its eight bits."""

    float_sqnr_db = 30.0

    def target(self) -> Target:
        pytest.importorskip("openvino", reason="the extra openvino is not installed")
        return OpenVinoCpuTarget()


@pytest.mark.exhaustive
class TestOpenVinoCpuStreams(TestOpenVinoCpu):
    def target(self) -> Target:
        pytest.importorskip("openvino", reason="the extra openvino is not installed")
        return OpenVinoCpuTarget(threads=2, streams=2, precision="f32")


class TestOrtEpCpu(TargetTestCase):
    def target(self) -> Target:
        return OrtEpTarget("cpu")


class TestQnnHtp(TargetTestCase):
    def target(self) -> Target:
        pytest.importorskip("onnxruntime_qnn", reason="the extra qnn is not installed")
        return QnnHtpTarget()

    def float_rewrite_models(self) -> Mapping[str, onnx.ModelProto]:
        models = float_rewrite_models()
        return {name: models[name] for name in ("normalization of rows", "gelu")}


class TestOrtWeb(TargetTestCase):
    def target(self) -> Target:
        try:
            packages()
        except UsageError as error:
            pytest.skip(str(error))
        return OrtWebTarget()

    def rewrite_models(self) -> Mapping[str, onnx.ModelProto]:
        own = {"rounded up pool": pool_between_convs(), "table of embeddings": table_before_a_product()}
        return {**super().rewrite_models(), **own}
