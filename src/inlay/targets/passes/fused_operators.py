"""Operators that a runtime's optimizer fused, as the operators of ONNX that they were made of.

Files are saved from optimized sessions, and by optimizers of transformers: one ``Attention`` holds the projections of a
layer, a ``SkipLayerNormalization`` the bias of the product before it. Nobody infers their shapes, no pass looks into
them, and their weights are no operator's of which a target has a precision. What a runtime fuses, it fuses again.

Slots and attributes are those of the domain's documentation (ContribOperators.md). An operator with a part that ONNX
has no words for here (a past, a rotation, a mask of another form) stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.constants import lift_constants
from inlay.model.passes.opset import raise_opset
from inlay.model.passes.steps import add_constant, axes_of, constant_of, ints

DOMAIN = "com.microsoft"
NORMALIZATION_OPSET, NORMALIZATION_IR = 17, 8  # the first opset with LayerNormalization, and its IR version
_EPSILON = 1e-12  # where no other is given
_FILTER = -10000.0


def take_fused_apart(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace every such operator that has a row in ``_ROWS``, and nothing that its row cannot say.

    The model is raised to ``NORMALIZATION_OPSET`` where there is something to replace.
    """
    if not any(_row(node) for node in model.graph):
        return model, 0
    model, _ = lift_constants(raise_opset(model, NORMALIZATION_OPSET)[0])  # raising makes nodes of axes
    model.ir_version = max(model.ir_version, NORMALIZATION_IR)
    done, before = 0, -1
    while done > before:  # what one leaves lets shapes be inferred that another asks for
        infer_shapes(model, strict=False)
        before = done
        done += sum(_replaced(model.graph, node) for node in list(model.graph))
    return model, done


def _replaced(graph: ir.Graph, node: ir.Node) -> bool:
    row, kind = _row(node), _kind(graph, node)
    if row is None or kind is None:
        return False
    parts = _Parts(graph, node, kind)
    results = row(node, parts)
    if results is not None:
        parts.replace(results)
    return results is not None


_Row = Callable[[ir.Node, "_Parts"], Sequence[ir.Value | None] | None]
"""Writes the parts of an operator: its outputs, or None where it stays as it is; then nothing was written."""


def _row(node: ir.Node) -> _Row | None:
    return _ROWS.get(node.op_type) if node.domain == DOMAIN else None


_KINDS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)


def _kind(graph: ir.Graph, node: ir.Node) -> ir.DataType | None:
    """The type that the numbers of ``node`` have; None where it is not one of ``_KINDS``, or may be one of several.

    Nobody infers types behind a fused operator: those of its other inputs tell, or of the whole model.
    """
    known = {v.dtype for v in node.inputs if v is not None and v.dtype is not None and v.dtype.is_floating_point()}
    if not known:
        given = (*graph.inputs, *graph.initializers.values())
        known = {v.dtype for v in given if v.dtype is not None and v.dtype.is_floating_point()}
    kind = known.pop() if len(known) == 1 else None
    return kind if kind in _KINDS else None


class _Parts:
    """Writes operators before ``node``, named after it."""

    def __init__(self, graph: ir.Graph, node: ir.Node, kind: ir.DataType) -> None:
        self._graph, self._node = graph, node
        self.kind = kind.numpy()
        self._count = 0

    def given(self, slot: int) -> ir.Value | None:
        """An input, None where it is left out."""
        value = self._node.inputs[slot] if slot < len(self._node.inputs) else None
        return value if value is not None and value.name else None

    def wants(self, *slots: int) -> bool:
        """Whether somebody reads one of these outputs."""
        outputs = [v for i, v in enumerate(self._node.outputs) if i in slots]
        return any(v.is_graph_output() or v.uses() for v in outputs)

    def add(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        return self.split(op_type, 1, *inputs, **attributes)[0]

    def split(self, op_type: str, outputs: int, *inputs: ir.Value | None, **attributes: Any) -> Sequence[ir.Value]:
        """The results of a new operator with several."""
        self._count += 1
        name = f"{self._node.name}_{op_type}" + (f"_{self._count}" if self._count > 1 else "")
        node = ir.node(op_type, list(inputs), attributes, num_outputs=outputs, name=name)
        for number, value in enumerate(node.outputs):
            value.name = f"{name}_value{number or ''}"
        self._graph.insert_before(self._node, node)
        return node.outputs

    def number(self, value: float) -> ir.Value:
        return self.constant(np.array(value, self.kind))

    def ints(self, *values: int) -> ir.Value:
        return self.constant(np.array(values, np.int64))

    def constant(self, array: np.ndarray) -> ir.Value:
        return add_constant(self._graph, f"{self._node.name}_constant", array)

    def biased(self, value: ir.Value, slot: int) -> ir.Value:
        """``value`` with the bias of that slot, if there is one."""
        bias = self.given(slot)
        return value if bias is None else self.add("Add", value, bias)

    def replace(self, results: Sequence[ir.Value | None]) -> None:
        """Let these stand for the outputs of the operator, which goes."""
        for output, result in zip(self._node.outputs, results, strict=False):
            if result is not None:
                name = output.name
                output.name = f"{name}_fused"
                output.replace_all_uses_with(result, replace_graph_outputs=True)
                result.name, result.type, result.shape = name, output.type, output.shape
        self._graph.remove(self._node, safe=True)


def _number(node: ir.Node, name: str, default: float) -> float:
    return float(node.attributes.get_float(name, default))


def _skip_normalization(node: ir.Node, parts: _Parts) -> Sequence[ir.Value | None] | None:
    data, skip, scale = (parts.given(slot) for slot in range(3))
    if data is None or skip is None or scale is None or parts.wants(1, 2):
        return None
    total = parts.add("Add", parts.biased(data, 4), skip)
    return _normalized(node, parts, total, scale, 3), None, None, total


def _normalized(node: ir.Node, parts: _Parts, total: ir.Value, scale: ir.Value, shift: int) -> ir.Value:
    epsilon = _number(node, "epsilon", _EPSILON)
    return parts.add("LayerNormalization", total, scale, parts.given(shift), axis=-1, epsilon=epsilon)


def _embedding(node: ir.Node, parts: _Parts) -> Sequence[ir.Value | None] | None:
    """Words, positions and segments are added up in this order."""
    ids, segments, words, places, kinds, scale, _, mask, positions = (parts.given(slot) for slot in range(9))
    if ids is None or words is None or places is None or scale is None or (parts.wants(1) and mask is None):
        return None
    if positions is None:
        length = parts.add("Shape", ids, start=1, end=2)
        places = parts.add("Slice", places, parts.ints(0), length, parts.ints(0))
    else:
        places = parts.add("Gather", places, positions, axis=0)
    total = parts.add("Add", parts.add("Gather", words, ids, axis=0), places)
    if segments is not None and kinds is not None:
        total = parts.add("Add", total, parts.add("Gather", kinds, segments, axis=0))
    ends: ir.Value | None = None
    if parts.wants(1) and mask is not None:
        counted = parts.add("Cast", parts.add("Equal", mask, parts.constant(np.array(1, np.int32))), to=_INT32)
        ends = parts.add("ReduceSum", counted, parts.ints(1), keepdims=0)
    return _normalized(node, parts, total, scale, 6), ends, total


_INT32, _INT64 = int(ir.DataType.INT32), int(ir.DataType.INT64)


def _attention(node: ir.Node, parts: _Parts) -> Sequence[ir.Value | None] | None:
    """Attention of a product with one weight for queries, keys and values, without a past."""
    data, weight, mask, bias = (parts.given(slot) for slot in (0, 1, 3, 5))
    heads, width = node.attributes.get_int("num_heads", 0), _columns(weight)
    sizes = ints(node, "qkv_hidden_sizes", [width // 3] * 3)
    if data is None or weight is None or heads < 1 or sum(sizes) != width or any(s % heads or not s for s in sizes):
        return None
    if node.attributes.get_int("do_rotary", 0) or sizes[0] != sizes[1] or parts.given(4) is not None or parts.wants(1):
        return None
    if mask is not None and not _is_known_mask(mask, data):
        return None
    rows = parts.split("Split", 3, parts.biased(parts.add("MatMul", data, weight), 2), parts.ints(*sizes), axis=-1)
    query, key, value = (
        parts.add("Transpose", parts.add("Reshape", r, parts.ints(0, 0, heads, size // heads)), perm=[0, 2, 1, 3])
        for r, size in zip(rows, sizes, strict=True)
    )
    scale = _number(node, "scale", 0.0) or 1.0 / math.sqrt(sizes[0] // heads)
    products = parts.add("MatMul", query, parts.add("Transpose", key, perm=[0, 1, 3, 2]))
    products = parts.add("Mul", products, parts.number(scale))
    for kept, low in _kept(node, parts, data, mask):
        near = parts.add("Where", kept, parts.number(0.0), parts.number(low))
        products = parts.add("Add", products, near)
    if bias is not None:
        products = parts.add("Add", products, bias)
    result = parts.add("MatMul", parts.add("Softmax", products, axis=-1), value)
    result = parts.add("Transpose", result, perm=[0, 2, 1, 3])
    return (parts.add("Reshape", result, parts.ints(0, 0, sizes[2])),)


def _is_known_mask(mask: ir.Value, data: ir.Value) -> bool:
    """Ones and zeros of each row, or how many of its first positions count: as many numbers as there are samples.

    Where sizes are not known, a sum over the positions of each row is such a number.
    """
    shape, given = mask.shape, data.shape
    if mask.dtype is not ir.DataType.INT32 or shape is None or len(shape) > 2:
        return False
    if len(shape) != 1:
        return len(shape) == 2
    return _counts_rows(mask) or (given is not None and shape[0] == given[0] and shape[0] != ir.SymbolicDim(None))


def _counts_rows(mask: ir.Value) -> bool:
    node = mask.producer()
    given = None if node is None or node.op_type != "ReduceSum" else node.inputs[0]
    if node is None or given is None or given.shape is None or len(given.shape) != 2:
        return False
    return axes_of(node) in ([1], [-1])


def _kept(node: ir.Node, parts: _Parts, data: ir.Value, mask: ir.Value | None) -> Iterator[tuple[ir.Value, float]]:
    """What may be read, of a shape that goes with (samples, heads, rows, positions), and what is added elsewhere."""
    causal = node.attributes.get_int("unidirectional", 0)
    places = None
    if causal or (mask is not None and mask.shape is not None and len(mask.shape) == 1):
        length = parts.add("Squeeze", parts.add("Shape", data, start=1, end=2), parts.ints(0))
        begin, step = (parts.constant(np.array(n, np.int64)) for n in (0, 1))
        places = parts.add("Range", begin, length, step)
    if mask is not None and places is not None and mask.shape is not None and len(mask.shape) == 1:
        ends = parts.add("Unsqueeze", parts.add("Cast", mask, to=_INT64), parts.ints(1, 2, 3))
        yield parts.add("Less", places, ends), _number(node, "mask_filter_value", _FILTER)
    elif mask is not None:
        kept = parts.add("Greater", mask, parts.constant(np.array(0, np.int32)))
        yield parts.add("Unsqueeze", kept, parts.ints(1, 2)), _number(node, "mask_filter_value", _FILTER)
    if causal and places is not None:
        rows = parts.add("Unsqueeze", places, parts.ints(1))
        yield parts.add("LessOrEqual", places, rows), float(np.finfo(parts.kind).min)


def _columns(weight: ir.Value | None) -> int:
    shape = None if weight is None else weight.shape
    return shape[1] if shape is not None and len(shape) == 2 and isinstance(shape[1], int) else 0


def _gelu(node: ir.Node, parts: _Parts) -> Sequence[ir.Value | None] | None:
    data = parts.given(0)
    if data is None:
        return None
    x = parts.biased(data, 1)
    wave = parts.add("Erf", parts.add("Div", x, parts.number(math.sqrt(2.0))))
    return (parts.add("Mul", parts.add("Mul", x, parts.add("Add", wave, parts.number(1.0))), parts.number(0.5)),)


def _fast_gelu(node: ir.Node, parts: _Parts) -> Sequence[ir.Value | None] | None:
    data = parts.given(0)
    if data is None:
        return None
    x = parts.biased(data, 1)
    cube = parts.add("Mul", parts.add("Pow", x, parts.number(3.0)), parts.number(0.044715))
    inner = parts.add("Mul", parts.add("Add", x, cube), parts.number(math.sqrt(2.0 / math.pi)))
    wave = parts.add("Add", parts.add("Tanh", inner), parts.number(1.0))
    return (parts.add("Mul", parts.add("Mul", x, parts.number(0.5)), wave),)


def _quick_gelu(node: ir.Node, parts: _Parts) -> Sequence[ir.Value | None] | None:
    x = parts.given(0)
    if x is None:
        return None
    inner = parts.add("Mul", x, parts.number(_number(node, "alpha", 1.702)))
    return (parts.add("Mul", x, parts.add("Sigmoid", inner)),)


def _product(node: ir.Node, parts: _Parts) -> Sequence[ir.Value | None] | None:
    operands = []
    for slot, name in enumerate("AB"):
        value = parts.given(slot)
        if value is None or node.attributes.get_int(f"transBatch{name}", 0) != 0:
            return None
        operands.append((value, node.attributes.get_int(f"trans{name}", 0) != 0))
    if any(turned for _, turned in operands) and any(v.shape is None or len(v.shape) < 2 for v, _ in operands):
        return None  # of a turned stack and a vector the runtime computes something of its own
    first, second = (_turned(value, parts) if turned else value for value, turned in operands)
    alpha = _number(node, "alpha", 1.0)
    if alpha != 1.0 and constant_of(operands[1][0]) is not None:  # which is computed once
        return (parts.add("MatMul", first, parts.add("Mul", second, parts.number(alpha))),)
    result = parts.add("MatMul", first, second)
    return (result if alpha == 1.0 else parts.add("Mul", result, parts.number(alpha)),)


def _turned(value: ir.Value, parts: _Parts) -> ir.Value:
    axes = [*range(len(value.shape or ()))]
    return parts.add("Transpose", value, perm=[*axes[:-2], axes[-1], axes[-2]])


_ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
}
"""What a Conv or Gemm may be fused with, and how its parameters are called."""


def _with_activation(node: ir.Node, parts: _Parts) -> Sequence[ir.Value | None] | None:
    """Conv or Gemm, a summand, and the activation behind."""
    plain, summand = node.op_type.removeprefix("Fused"), parts.given(3)
    name = node.attributes.get_string("activation", "")
    if name not in (*_ACTIVATIONS, "Clip", ""):
        return None
    own = {key: a for key, a in node.attributes.items() if not key.startswith("activation")}
    inputs = [parts.given(slot) for slot in range(3)]
    result = parts.add(plain, *(inputs if inputs[2] is not None else inputs[:2]), **own)
    result = result if summand is None else parts.add("Add", result, summand)
    given = [*node.attributes.get_floats("activation_params", [])]
    if name == "Clip":
        return (parts.add("Clip", result, *(parts.number(end) for end in given)),)
    if plain == "Gemm":
        given = [_number(node, f"activation_{key}", math.nan) for key in _ACTIVATIONS.get(name, ())]
    named = dict(zip(_ACTIVATIONS.get(name, ()), given, strict=False))
    said = {key: number for key, number in named.items() if not math.isnan(number)}
    return (parts.add(name, result, **said) if name else result,)


_ROWS: Mapping[str, _Row] = {
    "Attention": _attention,
    "BiasGelu": _gelu,
    "EmbedLayerNormalization": _embedding,
    "FastGelu": _fast_gelu,
    "FusedConv": _with_activation,
    "FusedGemm": _with_activation,
    "FusedMatMul": _product,
    "Gelu": _gelu,
    "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": _skip_normalization,
}
