"""Real float models, quantized completely with minmax ranges: input for the lowering's whole-model tests.

This is independent of Inlay's emitter: every float value that some quantizable node touches gets one Q/DQ pair, except
between an operator and its Relu or Clip.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper, version_converter

from inlay.tosa.ir import Array
from tests.conftest import models_folder

Feed = dict[str, Array]

WEIGHT_AXIS = {"Conv": 0, "Gemm": 0, "MatMul": 1, "ConvTranspose": 1}
"""Output channels of the weight, by operator with one."""

MOVEMENT = {"Reshape", "Flatten", "Transpose", "MaxPool", "Gather", "Pad", "Slice", "Split", "Squeeze", "Unsqueeze"}
"""Operators whose output keeps the qparams of their input."""

QUANTIZABLE = {
    *WEIGHT_AXIS, *MOVEMENT, "BatchNormalization", "Relu", "Clip", "Add", "Mul", "Sub", "Concat", "AveragePool",
    "GlobalAveragePool", "Softmax", "Sigmoid", "Resize",
}  # fmt: skip


def load(name: str) -> onnx.ModelProto:
    """A trained model, or skip."""
    path = models_folder() / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{path} does not exist: set INLAY_MODELS to a folder that holds it")
    model = onnx.load(path)
    constants = {t.name for t in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return _current(model)


def _current(model: onnx.ModelProto) -> onnx.ModelProto:
    """Opset 13 at least, with names and shapes."""
    model.ir_version = max(model.ir_version, 8)  # before 4, initializers had to be inputs too
    if model.opset_import[0].version < 13:
        model = version_converter.convert_version(model, 13)
    for i, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{i}"
    return onnx.shape_inference.infer_shapes(model)


def random_feeds(model: onnx.ModelProto, count: int, seed: int = 0) -> list[Feed]:
    """Normally distributed inputs; a dynamic dimension is 1."""
    rng = np.random.default_rng(seed)
    shapes = {v.name: [d.dim_value or 1 for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return [{n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()} for _ in range(count)]


def quantize(
    model: onnx.ModelProto, feeds: list[Feed], qtype: str = "int8", weight_limit: int = 127
) -> onnx.ModelProto:
    """``model`` with Q/DQ everywhere; weights are int8 in ``[-weight_limit, weight_limit]``."""
    return _Quantizer(model, _ranges(model, feeds), qtype, weight_limit).run()


def _ranges(model: onnx.ModelProto, feeds: list[Feed]) -> dict[str, tuple[float, float]]:
    """Least and largest of every float value, zero included."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    names = list(dict.fromkeys(o for n in model.graph.node for o in n.output if o))
    del probe.graph.output[:]
    probe.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(probe.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: dict[str, tuple[float, float]] = {}
    for feed in feeds:
        values = {**feed, **dict(zip(names, session.run(None, feed), strict=True))}
        for name, value in values.items():
            if value.dtype == np.float32:
                low, high = found.get(name, (0.0, 0.0))
                found[name] = (min(low, float(value.min())), max(high, float(value.max())))
    return found


class _Quantizer:
    def __init__(
        self, model: onnx.ModelProto, ranges: dict[str, tuple[float, float]], qtype: str, weight_limit: int
    ) -> None:
        self.model, self.ranges, self.qtype, self.weight_limit = model, ranges, qtype, weight_limit
        graph = model.graph
        self.constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self.constants |= {
            n.output[0]: numpy_helper.to_array(n.attribute[0].t) for n in graph.node if n.op_type == "Constant"
        }
        self.consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self.consumers.setdefault(name, []).append(node)
        self.producer = {o: n for n in graph.node for o in n.output}
        self.nodes: list[onnx.NodeProto] = []
        self.initializers = {t.name: t for t in graph.initializer}
        self.renamed: dict[str, str] = {}

    def run(self) -> onnx.ModelProto:
        graph = self.model.graph
        for value in graph.input:
            self.quantize_activation(value.name)
        for node in graph.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            for i, name in enumerate(node.input):
                copy.input[i] = self.renamed.get(name, name)
            if node.op_type in WEIGHT_AXIS and node.input[1] in self.constants:
                copy.input[1] = self.weight(node)
            self.nodes.append(copy)
            for name in node.output:
                self.quantize_activation(name)
        outputs = [
            helper.make_tensor_value_info(self.renamed.get(v.name, v.name), onnx.TensorProto.FLOAT, None)
            for v in graph.output
        ]
        made = helper.make_graph(self.nodes, "full", list(graph.input), outputs, list(self.initializers.values()))
        model = helper.make_model(made, opset_imports=self.model.opset_import, ir_version=8)
        return onnx.shape_inference.infer_shapes(model)

    def constant(self, name: str, value: Array) -> str:
        self.initializers[name] = numpy_helper.from_array(value, name)
        return name

    def wanted(self, name: str) -> bool:
        if name in self.constants or name not in self.ranges:
            return False
        producer, consumers = self.producer.get(name), self.consumers.get(name, [])
        if producer is not None and len(consumers) == 1 and consumers[0].op_type in ("Relu", "Clip"):
            return False
        return any(n.op_type in QUANTIZABLE for n in ([] if producer is None else [producer]) + consumers)

    def quantize_activation(self, name: str) -> None:
        if not self.wanted(name):
            return
        root = name
        while root in self.producer and self.producer[root].op_type in MOVEMENT:
            root = self.producer[root].input[0]
        low, high = self.ranges.get(root, self.ranges[name])
        limits = np.iinfo(self.qtype)
        scale = max((high - low) / 255, 1e-8)
        zero = np.clip(np.rint(limits.min - low / scale), limits.min, limits.max)
        qparams = [
            self.constant(f"{name}_scale", np.asarray(scale, np.float32)),
            self.constant(f"{name}_zero", np.array(zero, self.qtype)),
        ]
        self.nodes.append(helper.make_node("QuantizeLinear", [name, *qparams], [f"{name}_q"], f"{name}_Q"))
        self.nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *qparams], [f"{name}_dq"], f"{name}_DQ"))
        self.renamed[name] = f"{name}_dq"

    def weight(self, node: onnx.NodeProto) -> str:
        name, axis = node.input[1], WEIGHT_AXIS[node.op_type]
        if node.op_type == "Gemm":
            axis = 0 if any(a.name == "transB" and a.i for a in node.attribute) else 1
        if f"{name}_w" not in self.initializers:
            w = self.constants[name]
            axis %= w.ndim
            others = tuple(i for i in range(w.ndim) if i != axis)
            scale = np.maximum(np.abs(w).max(axis=others), 1e-8) / self.weight_limit
            along = [-1 if i == axis else 1 for i in range(w.ndim)]
            inputs = [
                self.constant(f"{name}_w", np.rint(w / scale.reshape(along)).astype(np.int8)),
                self.constant(f"{name}_ws", scale.astype(np.float32)),
                self.constant(f"{name}_wz", np.zeros(scale.shape, np.int8)),
            ]
            self.nodes.append(helper.make_node("DequantizeLinear", inputs, [f"{name}_wdq"], f"{name}_WDQ", axis=axis))
        return f"{name}_wdq"


def light(name: str, seed: int = 0) -> onnx.ModelProto:
    """A real graph of the ``onnx`` package with seeded weights in place of its constant ones; BN folded, opset 13."""
    path = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"
    if not path.exists():
        pytest.skip(f"this version of onnx does not ship light_{name}.onnx")
    model = onnx.load(path)
    graph, rng = model.graph, np.random.default_rng(seed)
    arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    role = {name: (n.op_type, i) for n in graph.node for i, name in enumerate(n.input)}
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            kind, slot = role[node.output[0]]
            shape = [int(v) for v in arrays[node.input[0]]]
            fan = max(int(np.prod(shape[1:])), 1)
            value = rng.normal(size=shape) * (np.sqrt(2 / fan) if len(shape) > 1 else 0.1)
            if kind == "BatchNormalization" and slot in (1, 4):
                value = np.abs(value) + 0.5
            arrays[node.output[0]] = value.astype(np.float32)
    nodes = []
    made = {o: n for n in graph.node for o in n.output}
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            continue
        if node.op_type == "BatchNormalization":
            conv = made[node.input[0]]
            scale, offset, mean, variance = (arrays[n] for n in node.input[1:5])
            factor = scale / np.sqrt(variance + 1e-5)
            arrays[conv.input[1]] = arrays[conv.input[1]] * factor[:, None, None, None]
            bias = arrays[conv.input[2]] if len(conv.input) > 2 else 0
            arrays[f"{node.name or node.output[0]}_bias"] = ((bias - mean) * factor + offset).astype(np.float32)
            del conv.input[2:]
            conv.input.append(f"{node.name or node.output[0]}_bias")
            conv.output[0] = node.output[0]
            continue
        if node.op_type == "Sum":
            node.op_type = "Add"
        nodes.append(node)
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    used = {n for node in nodes for n in node.input}
    inputs = [v for v in graph.input if v.name not in arrays and v.name in used]
    del graph.input[:]
    graph.input.extend(inputs)
    graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in arrays.items() if n in used)
    return _current(model)
