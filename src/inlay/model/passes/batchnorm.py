"""Fold BatchNormalization into the Conv, ConvTranspose or Gemm before it.

With ``k = gamma / sqrt(var + epsilon)``: ``W' = W * k`` along the output channel, ``b' = (b - mean) * k + beta``.
Computed in float64, so that folding adds no noise of its own.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir


def fold_batchnorm(model: ir.Model) -> tuple[ir.Model, int]:
    """Fold each BatchNormalization whose only source is a Conv, ConvTranspose or Gemm with constant weights."""
    folded = 0
    for node in list(model.graph):
        if node.op_type == "BatchNormalization" and node.domain in ("", "ai.onnx") and _fold(node):
            folded += 1
    return model, folded


def _fold(norm: ir.Node) -> bool:
    source = norm.inputs[0]
    producer = source.producer() if source is not None else None
    if source is None or producer is None or producer.graph is not norm.graph or source.is_graph_output():
        return False
    if len(source.uses()) != 1 or any(v.uses() or v.is_graph_output() for v in norm.outputs[1:]):
        return False
    if producer.op_type not in ("Conv", "ConvTranspose", "Gemm") or producer.domain not in ("", "ai.onnx"):
        return False
    numbers = [_numbers(v) for v in norm.inputs[1:5]]
    weight = _numbers(producer.inputs[1])
    bias_value = producer.inputs[2] if len(producer.inputs) > 2 else None
    bias = _numbers(bias_value)
    if any(n is None for n in numbers) or weight is None or (bias_value is not None and bias is None):
        return False
    if producer.op_type == "Gemm" and (_float(producer, "alpha", 1.0) != 1.0 or _float(producer, "beta", 1.0) != 1.0):
        return False
    gamma, beta, mean, var = (np.asarray(n, np.float64) for n in numbers)
    k = gamma / np.sqrt(var + _float(norm, "epsilon", 1e-5))
    scaled = _scale_channels(producer, weight.astype(np.float64), k)
    if scaled is None:
        return False
    start = np.zeros_like(mean) if bias is None else np.broadcast_to(bias.astype(np.float64), mean.shape)
    graph = norm.graph
    assert isinstance(graph, ir.Graph)
    dtype = weight.dtype
    new_weight = _initializer(graph, f"{norm.name}_weight", scaled.astype(dtype))
    new_bias = _initializer(graph, f"{norm.name}_bias", ((start - mean) * k + beta).astype(dtype))
    merged = ir.Node(
        producer.domain,
        producer.op_type,
        [producer.inputs[0], new_weight, new_bias],
        attributes=list(producer.attributes.values()),
        outputs=[ir.Value(name=norm.outputs[0].name, type=norm.outputs[0].type, shape=norm.outputs[0].shape)],
        name=producer.name,
    )
    graph.insert_before(norm, merged)
    norm.outputs[0].replace_all_uses_with(merged.outputs[0], replace_graph_outputs=True)
    graph.remove([norm, producer], safe=True)
    return True


def _scale_channels(producer: ir.Node, weight: np.ndarray, k: np.ndarray) -> np.ndarray | None:
    if producer.op_type == "Conv":
        if weight.shape[0] != k.size:
            return None
        return np.asarray(weight * k.reshape(-1, *[1] * (weight.ndim - 1)))
    if producer.op_type == "Gemm":
        transposed = "transB" in producer.attributes and producer.attributes["transB"].value
        columns = weight.shape[0] if transposed else weight.shape[1]
        if columns != k.size:
            return None
        return np.asarray(weight * (k[:, None] if transposed else k[None, :]))
    # ConvTranspose: weight is (inputs, outputs / group, ...), the outputs of group g take the g-th share of the inputs
    group = int(producer.attributes["group"].value) if "group" in producer.attributes else 1
    if weight.shape[1] * group != k.size:
        return None
    per_input = np.repeat(k.reshape(group, -1), weight.shape[0] // group, axis=0)
    return np.asarray(weight * per_input.reshape(weight.shape[0], weight.shape[1], *[1] * (weight.ndim - 2)))


def _initializer(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def _numbers(value: ir.Value | None) -> np.ndarray | None:
    return None if value is None or value.const_value is None else np.asarray(value.const_value.numpy())


def _float(node: ir.Node, name: str, default: float) -> float:
    return float(node.attributes[name].value) if name in node.attributes else default
