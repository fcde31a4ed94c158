"""Small models built node by node, random feeds for them, and their reference outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from inlay.calibrate.observe import observe
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import Samples, bound, input_specs, random_samples
from inlay.model.load import load
from inlay.model.native import NativeSession, multiplies_integers
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.model import prepare
from inlay.targets.base import Capabilities, Feed


class Builder:
    """Builds an ONNX model node by node, with seeded random weights.

    Args:
        opset: version of the default ONNX domain.
        seed: of the weights.

    Example::

        b = Builder()
        x = b.input("x", (1, 3, 16, 16))
        b.output(b.conv("first", x, 8, relu=True))
        proto = b.model()
    """

    def __init__(self, opset: int = 17, seed: int = 0) -> None:
        self.opset = opset
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self._channels: dict[str, int] = {}

    def input(self, name: str, shape: Sequence[int | str | None], dtype: int = onnx.TensorProto.FLOAT) -> str:
        """Add a graph input and return its name; symbols and None are dynamic dimensions."""
        self.inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        if len(shape) > 1 and isinstance(shape[1], int):
            self._channels[name] = shape[1]
        return name

    def constant(self, name: str, array: object) -> str:
        """Add an initializer and return its name; Python floats become float32, integers int64."""
        values = np.asarray(array)
        if values.dtype == np.float64:
            values = values.astype(np.float32)
        self.initializers[name] = numpy_helper.from_array(values, name)
        return name

    def node(
        self,
        name: str,
        op_type: str,
        inputs: Sequence[str],
        outputs: Sequence[str] = (),
        domain: str = "",
        channels: int | None = None,
        **attributes: Any,
    ) -> str:
        """Add a node and return its first output, by default called ``<name>_out``.

        Args:
            inputs: value names, ``""`` for an absent optional input.
            outputs: value names.
            channels: size of axis 1 of the first output, if it differs from that of the first input.
        """
        made = list(outputs) or [f"{name}_out"]
        self.nodes.append(helper.make_node(op_type, list(inputs), made, name=name, domain=domain, **attributes))
        known = channels if channels is not None else self._channels.get(inputs[0]) if inputs else None
        if known is not None:
            self._channels[made[0]] = known
        return made[0]

    def conv(
        self,
        name: str,
        x: str,
        channels: int,
        kernel: int = 3,
        group: int = 1,
        stride: int = 1,
        bias: bool = True,
        relu: bool = False,
    ) -> str:
        """A 2-D Conv, padded to keep the size at stride 1; with ``relu`` followed by a Relu called ``<name>_relu``."""
        width = self.channels(x) // group
        shape = (channels, width, kernel, kernel)
        deviation = np.sqrt(2.0 / (width * kernel * kernel))  # He initialization
        inputs = [x, self.constant(f"{name}_weight", self.rng.standard_normal(shape).astype(np.float32) * deviation)]
        if bias:
            inputs.append(self.constant(f"{name}_bias", self.rng.normal(0, 0.1, channels).astype(np.float32)))
        pads = [kernel // 2] * 4
        y = self.node(name, "Conv", inputs, channels=channels, pads=pads, group=group, strides=[stride, stride])
        return self.node(f"{name}_relu", "Relu", [y]) if relu else y

    def concat(self, name: str, values: Sequence[str]) -> str:
        """Values joined along the channels."""
        return self.node(name, "Concat", values, channels=sum(self.channels(v) for v in values), axis=1)

    def classifier(self, name: str, x: str, classes: int) -> str:
        """Global average pooling, Flatten and Gemm."""
        pooled = self.node(f"{name}_pool", "GlobalAveragePool", [x])
        flat = self.node(f"{name}_flatten", "Flatten", [pooled])
        weight = self.rng.standard_normal((classes, self.channels(x))).astype(np.float32)
        bias = self.rng.normal(0, 0.1, classes).astype(np.float32)
        inputs = [flat, self.constant(f"{name}_weight", weight), self.constant(f"{name}_bias", bias)]
        return self.node(name, "Gemm", inputs, channels=classes, transB=1)

    def channels(self, value: str) -> int:
        """Size of axis 1 of ``value``."""
        return self._channels[value]

    def output(self, value: str, dtype: int = onnx.TensorProto.FLOAT) -> None:
        """Make ``value`` a graph output; its shape is inferred when the model is built."""
        given = next((i for i in self.inputs if i.name == value), None)
        self.outputs.append(given or helper.make_tensor_value_info(value, dtype, None))

    def model(self, check: bool = True) -> onnx.ModelProto:
        """The model, with inferred shapes, checked by ONNX unless ``check`` is False."""
        graph = helper.make_graph(self.nodes, "test", self.inputs, self.outputs, list(self.initializers.values()))
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(d, 1) for d in sorted({n.domain for n in self.nodes} - {""})]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="inlay.testing")
        if not check:
            return model
        inferred = onnx.shape_inference.infer_shapes(model)
        onnx.checker.check_model(inferred)
        return inferred


def residual_model(seed: int = 0) -> onnx.ModelProto:
    """Conv+Relu, then a residual block (Conv, Add of the skip, Relu), then a classifier."""
    b = Builder(seed=seed)
    stem = b.conv("stem", b.input("x", (1, 3, 12, 12)), 8, relu=True)
    branch = b.conv("branch", stem, 8)
    total = b.node("add_relu", "Relu", [b.node("add", "Add", [branch, stem])])
    b.output(b.classifier("head", total, 5))
    return b.model()


def concat_model(seed: int = 0) -> onnx.ModelProto:
    """A Fire module: squeeze, two expanding branches joined by Concat; its second output is the squeezed value."""
    b = Builder(seed=seed)
    squeeze = b.conv("squeeze", b.input("x", (1, 3, 12, 12)), 4, kernel=1, relu=True)
    narrow = b.conv("expand1", squeeze, 6, kernel=1, relu=True)
    wide = b.conv("expand3", squeeze, 6, relu=True)
    b.output(b.conv("last", b.concat("join", [narrow, wide]), 4))
    b.output(squeeze)
    return b.model()


def depthwise_model(seed: int = 0) -> onnx.ModelProto:
    """A separable convolution: depthwise and pointwise, between MaxPool and Sigmoid."""
    b = Builder(seed=seed)
    stem = b.conv("stem", b.input("x", (1, 3, 12, 12)), 8, relu=True)
    pooled = b.node("pool", "MaxPool", [stem], kernel_shape=[2, 2], strides=[2, 2])
    depthwise = b.conv("depthwise", pooled, 8, group=8, relu=True)
    b.output(b.node("gate", "Sigmoid", [b.conv("pointwise", depthwise, 6, kernel=1)]))
    return b.model()


def small_model(seed: int = 0) -> onnx.ModelProto:
    """All of the above in one: fork, Concat, depthwise Conv, residual Add, a float island (Tanh), a classifier."""
    b = Builder(seed=seed)
    stem = b.conv("stem", b.input("x", (1, 3, 16, 16)), 8, stride=2, relu=True)
    joined = b.concat("join", [b.conv("left", stem, 4, kernel=1, relu=True), b.conv("right", stem, 4, relu=True)])
    depthwise = b.conv("depthwise", joined, 8, group=8, relu=True)
    total = b.node("add", "Add", [b.conv("pointwise", depthwise, 8, kernel=1), joined])
    island = b.node("island", "Tanh", [total])
    b.output(b.classifier("head", b.conv("last", island, 8, relu=True), 10))
    return b.model()


def recurrent_model(seed: int = 0) -> onnx.ModelProto:
    """A bidirectional LSTM over eight steps, and a product behind it."""
    b = Builder(seed=seed)
    x, hidden = b.input("x", (8, 1, 12)), 16
    shapes = {"w": (2, 4 * hidden, 12), "r": (2, 4 * hidden, hidden), "b": (2, 8 * hidden)}
    weights = [b.constant(name, b.rng.normal(0.0, 0.3, shape)) for name, shape in shapes.items()]
    y = b.node("lstm", "LSTM", [x, *weights], hidden_size=hidden, direction="bidirectional")
    b.output(b.node("dense", "MatMul", [y, b.constant("dense_weight", b.rng.normal(0.0, 0.3, (hidden, 4)))]))
    return b.model()


def upsampling_model(seed: int = 0) -> onnx.ModelProto:
    """A decoder: Conv+Relu, a ConvTranspose that doubles height and width, Relu, Conv."""
    b = Builder(seed=seed)
    stem = b.conv("stem", b.input("x", (1, 3, 8, 8)), 8, relu=True)
    weight = b.constant("up_weight", b.rng.normal(0.0, 0.1, (8, 6, 4, 4)))
    bias = b.constant("up_bias", b.rng.normal(0.0, 0.1, 6))
    up = b.node("up", "ConvTranspose", [stem, weight, bias], channels=6, strides=[2, 2], pads=[1] * 4)
    b.output(b.conv("last", b.node("up_relu", "Relu", [up]), 4, kernel=1))
    return b.model()


def large_image_model(seed: int = 0) -> onnx.ModelProto:
    """Conv+Relu to 64 channels over 64x64 pixels (1 MB of float32), then a Conv to 3 channels."""
    b = Builder(seed=seed)
    stem = b.conv("stem", b.input("x", (1, 4, 64, 64)), 64, relu=True)
    b.output(b.conv("last", stem, 3, kernel=1))
    return b.model()


def random_feed(model: onnx.ModelProto | Path, seed: int = 0, bind: Mapping[str, int] | None = None) -> Feed:
    """One set of random inputs: standard normal for floats; 0 or 1 for integers and booleans."""
    loaded = ir.load(model) if isinstance(model, Path) else ir.from_proto(model)
    return random_samples(bound(input_specs(loaded), bind or {}), np.random.default_rng(seed), 1).feeds[0]


def run_reference(model: onnx.ModelProto | Path, feed: Feed) -> dict[str, np.ndarray]:
    """Outputs by name, computed by ONNX Runtime without graph optimizations; exact also where products saturate."""
    proto = onnx.load(model, load_external_data=False) if isinstance(model, Path) else model
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    integers = multiplies_integers(proto.graph)
    return NativeSession(source, False if integers else None, not integers, 0, integers).run(feed)


def sqnr(want: np.ndarray, got: np.ndarray) -> float:
    """Signal-to-quantization-noise ratio in dB; infinite if the arrays are equal."""
    signal = float(np.sum(np.square(want, dtype=np.float64)))
    noise = float(np.sum(np.square(want.astype(np.float64) - got)))
    return math.inf if noise == 0.0 else float(10.0 * np.log10(max(signal, 1e-300) / noise))


def full_int8(model: Path, target: Capabilities, feed: Feed, folder: Path) -> Path:
    """Path in ``folder`` of ``model`` with all that ``target`` runs in low precision, calibrated on one feed."""
    prepared = prepare(load(model), target, feed, folder)
    table = CalibrationChoice("minmax").table(prepared, observe(prepared, Samples((dict(feed),), "feeds", "testing")))
    placement = prepared.label(frozenset(u.name for u in prepared.selectable))
    return CandidateWriter(prepared, table, "testing", "testing").deliver(placement, folder / "full-int8.onnx").path


def same_up_to_noise(want: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray], least_db: float, what: str) -> None:
    """Raise AssertionError where outputs differ in names, types or shapes, or fall below ``least_db``."""
    assert list(got) == list(want), f"{what}: the outputs are {list(got)} instead of {list(want)}"
    for output, array in want.items():
        assert got[output].dtype == array.dtype, f"{what}: dtype of {output}"
        assert got[output].shape == array.shape, f"{what}: shape of {output}"
        quality = sqnr(array, got[output])
        assert quality >= least_db, f"{what}: output {output} has {quality:.1f} dB"
