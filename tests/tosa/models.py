"""Quantizes a real float model completely, with minmax ranges: input for the lowering's whole-model tests.

It is a test's helper, not Inlay's emitter: every float value that some quantizable node touches gets one Q/DQ pair, but
for those between an operator and its Relu or Clip.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper, version_converter

WEIGHTED = {"Conv": 0, "Gemm": 0, "MatMul": 1, "ConvTranspose": 1}
OPS = {
    *WEIGHTED, "BatchNormalization", "Relu", "Clip", "Add", "Mul", "Sub", "Concat", "MaxPool", "AveragePool",
    "GlobalAveragePool",
    "Reshape",
    "Flatten", "Transpose", "Softmax", "Sigmoid", "Gather", "Pad", "Resize", "Slice", "Split", "Squeeze", "Unsqueeze",
}  # fmt: skip
SAME = {"Reshape", "Flatten", "Transpose", "MaxPool", "Gather", "Pad", "Slice", "Split", "Squeeze", "Unsqueeze"}


def models_folder() -> Path:
    folder = Path(os.environ.get("INLAY_MODELS", Path(__file__).resolve().parents[3] / "shared" / "models"))
    if not folder.is_dir():
        pytest.skip(f"no trained models: set INLAY_MODELS ({folder} does not exist)")
    return folder


def load(name: str) -> onnx.ModelProto:
    path = models_folder() / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{path} does not exist")
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


def random_feeds(model: onnx.ModelProto, count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    shapes = {v.name: [d.dim_value or 1 for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return [{n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()} for _ in range(count)]


def ranges(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> dict[str, tuple[float, float]]:
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


def quantize(
    model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], qtype: str = "int8", weight_limit: int = 127
) -> onnx.ModelProto:
    """``model`` with Q/DQ everywhere; weights are int8 in ``[-weight_limit, weight_limit]``."""
    model_ranges = ranges(model, feeds)
    graph = model.graph
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    for node in list(graph.node):
        if node.op_type == "Constant":
            constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    consumers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)
    producer = {o: n for n in graph.node for o in n.output}
    new_nodes, initializers, renamed = [], list(graph.initializer), {}

    def numbers(name: str) -> tuple[str, str]:
        root = name
        while root in producer and producer[root].op_type in SAME:
            root = producer[root].input[0]
        low, high = model_ranges.get(root, model_ranges[name])
        limits = np.iinfo(qtype)
        scale = max((high - low) / 255, 1e-8)
        zero = np.clip(np.rint(limits.min - low / scale), limits.min, limits.max)
        initializers.append(numpy_helper.from_array(np.array(scale, np.float32), f"{name}_scale"))
        initializers.append(numpy_helper.from_array(np.array(zero, qtype), f"{name}_zero"))
        return f"{name}_scale", f"{name}_zero"

    def wanted(name: str) -> bool:
        if name in constants or name not in model_ranges:
            return False
        made = producer.get(name)
        readers = consumers.get(name, [])
        if len(readers) == 1 and readers[0].op_type in ("Relu", "Clip") and made is not None:
            return False
        return any(n.op_type in OPS for n in ([made] if made is not None else []) + readers)

    def pair(name: str) -> None:
        s, z = numbers(name)
        new_nodes.append(helper.make_node("QuantizeLinear", [name, s, z], [f"{name}_q"], name=f"{name}_Q"))
        new_nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", s, z], [f"{name}_dq"], name=f"{name}_DQ"))
        renamed[name] = f"{name}_dq"

    def weight(name: str, axis: int) -> str:
        if f"{name}_w" not in {t.name for t in initializers}:
            w = constants[name]
            others = tuple(i for i in range(w.ndim) if i != axis % w.ndim)
            scale = np.maximum(np.abs(w).max(axis=others), 1e-8) / weight_limit
            along = [1] * w.ndim
            along[axis % w.ndim] = -1
            initializers.append(numpy_helper.from_array(np.rint(w / scale.reshape(along)).astype(np.int8), f"{name}_w"))
            initializers.append(numpy_helper.from_array(scale.astype(np.float32), f"{name}_ws"))
            initializers.append(numpy_helper.from_array(np.zeros(scale.shape, np.int8), f"{name}_wz"))
            new_nodes.append(
                helper.make_node(
                    "DequantizeLinear",
                    [f"{name}_w", f"{name}_ws", f"{name}_wz"],
                    [f"{name}_wdq"],
                    name=f"{name}_WDQ",
                    axis=axis % w.ndim,
                )
            )
        return f"{name}_wdq"

    for value in graph.input:
        if wanted(value.name):
            pair(value.name)
    for node in graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for i, name in enumerate(node.input):
            if name in renamed:
                copy.input[i] = renamed[name]
        if node.op_type in WEIGHTED and node.input[1] in constants:
            axis = WEIGHTED[node.op_type]
            if node.op_type == "Gemm":
                axis = 0 if any(a.name == "transB" and a.i for a in node.attribute) else 1
            copy.input[1] = weight(node.input[1], axis)
        new_nodes.append(copy)
        for name in node.output:
            if wanted(name):
                pair(name)
    outputs = []
    for value in graph.output:
        outputs.append(helper.make_tensor_value_info(renamed.get(value.name, value.name), 1, None))
    result = helper.make_graph(new_nodes, "full", list(graph.input), outputs, initializers)
    made = helper.make_model(result, opset_imports=model.opset_import, ir_version=8)
    return onnx.shape_inference.infer_shapes(made)


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
