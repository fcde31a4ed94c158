"""Fold what scales and shifts each channel into the Conv, ConvTranspose, Gemm or MatMul before it.

That is BatchNormalization, and Mul, Div, Add or Sub with a constant for each channel or for all of them. Each is
``y = k x + d`` per channel, so ``W' = W k`` along the output channel and ``b' = b k + d``; for BatchNormalization
``k = gamma / sqrt(var + epsilon)`` and ``d = beta - mean k``. Computed in float64, so that folding adds no noise of its
own. Without this, such an operator keeps the convolution's activation from being fused, and is paid for by itself.
The bias of a MatMul is an Add behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import add_constant, constant_of, is_standard, sole_use

_ARITHMETIC = ("Mul", "Div", "Add", "Sub")


@dataclass(frozen=True, eq=False)
class _Product:
    """An operator with constant weights."""

    node: ir.Node  # the operator
    weight: np.ndarray  # its weights, as it has them
    bias: np.ndarray | None  # what it adds to each channel, None for nothing
    addition: ir.Node | None  # the Add of the bias behind a MatMul that has one
    channels: int  # how many there are
    axis: int  # of the channels, counted from the last: -1 for that
    rank: int  # of the result


Affine = tuple[_Product, np.ndarray, np.ndarray]
"""What an operator reads, and its factor and shift for each channel, shapes (channels,), float64."""


def fold_affine(model: ir.Model) -> tuple[ir.Model, int]:
    """Fold each such operator that alone reads an operator with constant weights."""
    return model, sum(_fold(node) for node in list(model.graph))


def _fold(node: ir.Node) -> bool:
    affine = _batchnorm(node) if is_standard(node, "BatchNormalization") else _arithmetic(node)
    if affine is None:
        return False
    product, k, shift = affine
    producer, graph = product.node, node.graph
    replaced = [node, *([] if product.addition is None else [product.addition]), producer]
    if any(n.graph is not graph or sole_use(n.outputs[0]) is None for n in replaced[1:]):
        return False
    is_bias = producer.op_type == "MatMul" and product.addition is None and is_standard(node, "Add")
    if not isinstance(graph, ir.Graph) or is_bias:  # a bias is where it belongs already
        return False
    if producer.op_type == "Gemm" and any(producer.attributes.get_float(f, 1.0) != 1.0 for f in ("alpha", "beta")):
        return False
    scaled = _scale_channels(producer, product.weight.astype(np.float64), k)
    if scaled is None:
        return False
    start = np.zeros_like(k) if product.bias is None else np.broadcast_to(product.bias.astype(np.float64), k.shape)
    bias, kind = start * k + shift, product.weight.dtype
    inputs = [producer.inputs[0], add_constant(graph, f"{node.name}_weight", scaled.astype(kind))]
    apart = producer.op_type == "MatMul" and bool(bias.any())
    output = node.outputs[0]
    result = ir.Value(name=output.name, type=output.type, shape=output.shape)
    if producer.op_type != "MatMul" or apart:
        inputs.append(add_constant(graph, f"{node.name}_bias", bias.astype(kind)))
    if apart:
        added = ir.Value(name=f"{output.name}_unbiased", type=output.type, shape=output.shape)
        name = replaced[-2].name
        graph.insert_before(node, ir.node("MatMul", inputs[:2], outputs=[added], name=producer.name))
        graph.insert_before(node, ir.node("Add", [added, inputs[2]], outputs=[result], name=name))
    else:
        attributes = list(producer.attributes.values())
        made = ir.Node(
            producer.domain, producer.op_type, inputs, attributes=attributes, outputs=[result], name=producer.name
        )
        graph.insert_before(node, made)
    output.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(replaced, safe=True)
    return True


def _batchnorm(norm: ir.Node) -> Affine | None:
    product, numbers = _product(norm.inputs[0]), batchnorm_numbers(norm)
    if product is None or numbers is None or product.rank + product.axis != 1:
        return None
    return product, *numbers


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
        numbers, product = constant_of(node.inputs[1 - slot]), None
        if numbers is not None:
            product = _product(node.inputs[slot])
        constant = None if product is None or numbers is None else _per_channel(numbers, product)
        if product is None or constant is None:
            continue
        one, zero = np.ones_like(constant), np.zeros_like(constant)
        match node.op_type, slot:
            case "Add", _:
                return product, one, constant
            case "Sub", 0:
                return product, one, -constant
            case "Sub", 1:
                return product, -one, constant
            case "Mul", _:
                return product, constant, zero
            case "Div", 0 if constant.all():
                return product, 1.0 / constant, zero
    return None


def _product(value: ir.Value | None) -> _Product | None:
    """The operator with constant weights, and a constant bias if any, that computes ``value``; None for others."""
    node = None if value is None else value.producer()
    if node is None:
        return None
    if is_standard(node, "Add"):
        for slot in (0, 1):
            numbers, plain = constant_of(node.inputs[1 - slot]), _matmul(node.inputs[slot])
            bias = None if numbers is None or plain is None else _per_channel(numbers, plain)
            if plain is not None and bias is not None:
                return replace(plain, bias=bias, addition=node)
        return None
    weight = constant_of(node.inputs[1]) if is_standard(node, "Conv", "ConvTranspose", "Gemm") else None
    if weight is None or weight.ndim < 2:
        return _matmul(value)
    given = node.inputs[2] if len(node.inputs) > 2 else None
    bias = constant_of(given)
    if given is not None and bias is None:
        return None
    match node.op_type:
        case "Conv":
            channels = int(weight.shape[0])
        case "Gemm":
            channels = int(weight.shape[0 if node.attributes.get_int("transB", 0) else 1])
        case _:
            channels = int(weight.shape[1]) * node.attributes.get_int("group", 1)
    return _Product(node, weight, bias, None, channels, 1 - weight.ndim, weight.ndim)


def _matmul(value: ir.Value | None) -> _Product | None:
    """The same of a MatMul with constant weights alone."""
    node = None if value is None else value.producer()
    weight = constant_of(node.inputs[1]) if node is not None and is_standard(node, "MatMul") else None
    if value is None or value.shape is None or node is None or weight is None or weight.ndim != 2:
        return None
    return _Product(node, weight, None, None, int(weight.shape[1]), -1, len(value.shape))


def _per_channel(numbers: np.ndarray, product: _Product) -> np.ndarray | None:
    """A constant as one number per channel, shape (channels,); None where it also varies along other axes."""
    rank, axis, channels = product.rank, product.rank + product.axis, product.channels
    if numbers.ndim > rank or not np.issubdtype(numbers.dtype, np.floating):
        return None
    aligned = numbers.reshape(*[1] * (rank - numbers.ndim), *numbers.shape)
    if any(n != 1 for i, n in enumerate(aligned.shape) if i != axis) or aligned.shape[axis] not in (1, channels):
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
    transposed = producer.attributes.get_int("transB", 0)
    axis = 0 if producer.op_type == "Conv" or transposed else 1
    if weight.shape[axis] != k.size:
        return None
    return np.asarray(weight * k.reshape([-1 if i == axis else 1 for i in range(weight.ndim)]))
