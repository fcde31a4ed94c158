"""Fold what scales and shifts each channel into the Conv, ConvTranspose or Gemm before it.

That is BatchNormalization, and Mul, Div, Add or Sub with a constant for each channel or for all of them. Each is
``y = k x + d`` per channel, so ``W' = W k`` along the output channel and ``b' = b k + d``; for BatchNormalization
``k = gamma / sqrt(var + epsilon)`` and ``d = beta - mean k``. Computed in float64, so that folding adds no noise of its
own. Without this, such an operator keeps the convolution's activation from being fused, and is paid for by itself.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import constant_of

_SOURCES = ("Conv", "ConvTranspose", "Gemm")
_ARITHMETIC = ("Mul", "Div", "Add", "Sub")
_STANDARD = ("", "ai.onnx")

Affine = tuple[ir.Value, np.ndarray, np.ndarray]
"""What an operator reads, and its factor and shift for each channel, shapes (channels,), float64."""


def fold_affine(model: ir.Model) -> tuple[ir.Model, int]:
    """Fold each such operator that is the only reader of a Conv, ConvTranspose or Gemm with constant weights."""
    folded = sum(_fold(node) for node in list(model.graph) if node.domain in _STANDARD)
    return model, folded


def _fold(node: ir.Node) -> bool:
    affine = _batchnorm(node) if node.op_type == "BatchNormalization" else _arithmetic(node)
    if affine is None:
        return False
    source, k, shift = affine
    producer = source.producer()
    if producer is None or producer.graph is not node.graph or source.is_graph_output() or len(source.uses()) != 1:
        return False
    weight = constant_of(producer.inputs[1])
    bias_value = producer.inputs[2] if len(producer.inputs) > 2 else None
    bias = constant_of(bias_value)
    if weight is None or (bias_value is not None and bias is None):
        return False
    if producer.op_type == "Gemm" and (_float(producer, "alpha", 1.0) != 1.0 or _float(producer, "beta", 1.0) != 1.0):
        return False
    scaled = _scale_channels(producer, weight.astype(np.float64), k)
    if scaled is None:
        return False
    start = np.zeros_like(k) if bias is None else np.broadcast_to(bias.astype(np.float64), k.shape)
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    dtype = weight.dtype
    new_weight = _initializer(graph, f"{node.name}_weight", scaled.astype(dtype))
    new_bias = _initializer(graph, f"{node.name}_bias", (start * k + shift).astype(dtype))
    output = node.outputs[0]
    merged = ir.Node(
        producer.domain,
        producer.op_type,
        [producer.inputs[0], new_weight, new_bias],
        attributes=list(producer.attributes.values()),
        outputs=[ir.Value(name=output.name, type=output.type, shape=output.shape)],
        name=producer.name,
    )
    graph.insert_before(node, merged)
    output.replace_all_uses_with(merged.outputs[0], replace_graph_outputs=True)
    graph.remove([node, producer], safe=True)
    return True


def _batchnorm(norm: ir.Node) -> Affine | None:
    source, numbers = norm.inputs[0], batchnorm_numbers(norm)
    return None if source is None or _channels(source) is None or numbers is None else (source, *numbers)


def batchnorm_numbers(norm: ir.Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Factor and shift of each channel, shapes (channels,), float64; None where they are not constant."""
    numbers = [constant_of(v) for v in norm.inputs[1:5]]
    if any(n is None for n in numbers) or any(v.uses() or v.is_graph_output() for v in norm.outputs[1:]):
        return None
    gamma, beta, mean, var = (np.asarray(n, np.float64) for n in numbers)
    k = gamma / np.sqrt(var + _float(norm, "epsilon", 1e-5))
    return k, beta - mean * k


def _arithmetic(node: ir.Node) -> Affine | None:
    if node.op_type not in _ARITHMETIC or len(node.inputs) != 2:
        return None
    for slot in (0, 1):
        source, numbers = node.inputs[slot], constant_of(node.inputs[1 - slot])
        channels = None if source is None else _channels(source)
        if source is None or channels is None or numbers is None:
            continue
        rank = 2 if _op(source) == "Gemm" else _rank(source)
        constant = _per_channel(numbers, channels, rank)
        if constant is None:
            continue
        one, zero = np.ones(channels), np.zeros(channels)
        match node.op_type, slot:
            case "Add", _:
                return source, one, constant
            case "Sub", 0:
                return source, one, -constant
            case "Sub", 1:
                return source, -one, constant
            case "Mul", _:
                return source, constant, zero
            case "Div", 0 if constant.all():
                return source, 1.0 / constant, zero
    return None


def _op(value: ir.Value) -> str:
    producer = value.producer()
    return "" if producer is None or producer.domain not in _STANDARD else producer.op_type


def _rank(value: ir.Value) -> int:
    """Dimensions of a convolution's output: as many as its weight has."""
    producer = value.producer()
    weight = None if producer is None else constant_of(producer.inputs[1])
    return 0 if weight is None else weight.ndim


def _channels(value: ir.Value) -> int | None:
    """Output channels of the Conv, ConvTranspose or Gemm that computes ``value``; None for anything else."""
    producer = value.producer()
    if producer is None or _op(value) not in _SOURCES:
        return None
    weight = constant_of(producer.inputs[1])
    if weight is None or weight.ndim < 2:
        return None
    match producer.op_type:
        case "Conv":
            return int(weight.shape[0])
        case "Gemm":
            return int(weight.shape[0 if _transposed(producer) else 1])
        case _:
            return int(weight.shape[1]) * _group(producer)


def _per_channel(numbers: np.ndarray, channels: int, rank: int) -> np.ndarray | None:
    """A constant as one number per channel, shape (channels,); None where it also varies along other axes."""
    if numbers.ndim > rank or not np.issubdtype(numbers.dtype, np.floating):
        return None
    aligned = numbers.reshape(*[1] * (rank - numbers.ndim), *numbers.shape)
    if any(size != 1 for axis, size in enumerate(aligned.shape) if axis != 1) or aligned.shape[1] not in (1, channels):
        return None
    return np.broadcast_to(aligned.ravel().astype(np.float64), (channels,)).copy()


def _scale_channels(producer: ir.Node, weight: np.ndarray, k: np.ndarray) -> np.ndarray | None:
    if producer.op_type == "Conv":
        if weight.shape[0] != k.size:
            return None
        return np.asarray(weight * k.reshape(-1, *[1] * (weight.ndim - 1)))
    if producer.op_type == "Gemm":
        transposed = _transposed(producer)
        columns = weight.shape[0] if transposed else weight.shape[1]
        if columns != k.size:
            return None
        return np.asarray(weight * (k[:, None] if transposed else k[None, :]))
    # ConvTranspose: weight is (inputs, outputs / group, ...), the outputs of group g take the g-th share of the inputs
    group = _group(producer)
    if weight.shape[1] * group != k.size:
        return None
    per_input = np.repeat(k.reshape(group, -1), weight.shape[0] // group, axis=0)
    return np.asarray(weight * per_input.reshape(weight.shape[0], weight.shape[1], *[1] * (weight.ndim - 2)))


def _transposed(gemm: ir.Node) -> bool:
    return bool("transB" in gemm.attributes and gemm.attributes["transB"].value)


def _group(conv: ir.Node) -> int:
    return int(conv.attributes["group"].value) if "group" in conv.attributes else 1


def _initializer(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def _float(node: ir.Node, name: str, default: float) -> float:
    return float(node.attributes[name].value) if name in node.attributes else default
