"""Fold what scales and shifts each channel into the Conv, ConvTranspose or Gemm before it.

That is BatchNormalization, and Mul, Div, Add or Sub with a constant for each channel or for all of them. Each is
``y = k x + d`` per channel, so ``W' = W k`` along the output channel and ``b' = b k + d``; for BatchNormalization
``k = gamma / sqrt(var + epsilon)`` and ``d = beta - mean k``. Computed in float64, so that folding adds no noise of its
own. Without this, such an operator keeps the convolution's activation from being fused, and is paid for by itself.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import add_constant, constant_of, is_standard, sole_use

_SOURCES = ("Conv", "ConvTranspose", "Gemm")
_ARITHMETIC = ("Mul", "Div", "Add", "Sub")

Affine = tuple[ir.Value, np.ndarray, np.ndarray]
"""What an operator reads, and its factor and shift for each channel, shapes (channels,), float64."""


def fold_affine(model: ir.Model) -> tuple[ir.Model, int]:
    """Fold each such operator that is the only reader of a Conv, ConvTranspose or Gemm with constant weights."""
    return model, sum(_fold(node) for node in list(model.graph))


def _fold(node: ir.Node) -> bool:
    affine = _batchnorm(node) if is_standard(node, "BatchNormalization") else _arithmetic(node)
    if affine is None:
        return False
    source, k, shift = affine
    producer, graph = source.producer(), node.graph
    if producer is None or producer.graph is not graph or sole_use(source) is None or not isinstance(graph, ir.Graph):
        return False
    weight = constant_of(producer.inputs[1])
    bias_value = producer.inputs[2] if len(producer.inputs) > 2 else None
    bias = constant_of(bias_value)
    if weight is None or (bias_value is not None and bias is None):
        return False
    if producer.op_type == "Gemm" and any(producer.attributes.get_float(f, 1.0) != 1.0 for f in ("alpha", "beta")):
        return False
    scaled = _scale_channels(producer, weight.astype(np.float64), k)
    if scaled is None:
        return False
    start = np.zeros_like(k) if bias is None else np.broadcast_to(bias.astype(np.float64), k.shape)
    new_weight = add_constant(graph, f"{node.name}_weight", scaled.astype(weight.dtype))
    new_bias = add_constant(graph, f"{node.name}_bias", (start * k + shift).astype(weight.dtype))
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
    k = gamma / np.sqrt(var + norm.attributes.get_float("epsilon", 1e-5))
    return k, beta - mean * k


def _arithmetic(node: ir.Node) -> Affine | None:
    if not is_standard(node, *_ARITHMETIC) or len(node.inputs) != 2:
        return None
    for slot in (0, 1):
        source, numbers, computed = node.inputs[slot], constant_of(node.inputs[1 - slot]), _channels(node.inputs[slot])
        constant = None if computed is None or numbers is None else _per_channel(numbers, *computed)
        if source is None or constant is None:
            continue
        one, zero = np.ones_like(constant), np.zeros_like(constant)
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


def _channels(value: ir.Value | None) -> tuple[int, int] | None:
    """Output channels of the Conv, ConvTranspose or Gemm that computes ``value``, and its rank; None for others."""
    producer = None if value is None else value.producer()
    weight = constant_of(producer.inputs[1]) if producer is not None and is_standard(producer, *_SOURCES) else None
    if producer is None or weight is None or weight.ndim < 2:
        return None
    match producer.op_type:
        case "Conv":
            return int(weight.shape[0]), weight.ndim
        case "Gemm":
            return int(weight.shape[0 if producer.attributes.get_int("transB", 0) else 1]), 2
        case _:
            return int(weight.shape[1]) * producer.attributes.get_int("group", 1), weight.ndim


def _per_channel(numbers: np.ndarray, channels: int, rank: int) -> np.ndarray | None:
    """A constant as one number per channel, shape (channels,); None where it also varies along other axes."""
    if numbers.ndim > rank or not np.issubdtype(numbers.dtype, np.floating):
        return None
    aligned = numbers.reshape(*[1] * (rank - numbers.ndim), *numbers.shape)
    if any(size != 1 for axis, size in enumerate(aligned.shape) if axis != 1) or aligned.shape[1] not in (1, channels):
        return None
    return np.broadcast_to(aligned.ravel().astype(np.float64), (channels,)).copy()


def _scale_channels(producer: ir.Node, weight: np.ndarray, k: np.ndarray) -> np.ndarray | None:
    """The weight with its output channels scaled by ``k``; None where they are not as many."""
    if producer.op_type == "ConvTranspose":
        # weight is (inputs, outputs / group, ...), the outputs of group g take the g-th share of the inputs
        group = producer.attributes.get_int("group", 1)
        if weight.shape[1] * group != k.size:
            return None
        per_input = np.repeat(k.reshape(group, -1), weight.shape[0] // group, axis=0)
        return np.asarray(weight * per_input.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2)))
    axis = 1 if producer.op_type == "Gemm" and not producer.attributes.get_int("transB", 0) else 0
    if weight.shape[axis] != k.size:
        return None
    return np.asarray(weight * k.reshape([-1 if i == axis else 1 for i in range(weight.ndim)]))
