"""Q/DQ ONNX to integer graph: one walk over the nodes in topological order.

Every float value that equals a dequantized tensor exactly is remembered as that tensor (:class:`~.context.Rep`).
A node whose inputs are such values, and whose output is quantized again, becomes integer operators by the rule for its
operator type; anything else stays an ONNX node (or, in profile ``INT+FP``, float TOSA), with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context, Refused, Rep, Weight, int8_params
from inlay.tosa.ir import IntegerGraph, Interface, Place
from inlay.tosa.prepare import Source
from inlay.tosa.rules import FLOAT_RULES, RULES
from inlay.types import QParams

Rule = Callable[[Context, Node], None]

PROFILES = ("INT", "INT+FP")

Legal = Callable[[ir.Op, Mapping[str, ir.Tensor], Mapping[str, ir.Array]], "str | None"]
"""A compiler's own limits: why it cannot take an operator, or None when it can; tensors and constants come by name."""


def anything(op: ir.Op, tensors: Mapping[str, ir.Tensor], constants: Mapping[str, ir.Array]) -> str | None:
    """No limits: all that TOSA allows."""


@dataclass(frozen=True)
class NotLowered:
    """An ONNX node that did not become integer operators.

    Attributes:
        node: its name.
        op_type: its operator.
        reason: why.
        place: where it is computed instead: ``host`` or ``float`` (TOSA in floating point).
    """

    node: str
    op_type: str
    reason: str
    place: str


def build(
    source: Source, profile: str, forced: Mapping[str, str] | None = None, legal: Legal = anything
) -> tuple[IntegerGraph, tuple[NotLowered, ...]]:
    """The integer graph of a prepared model.

    Args:
        source: the model.
        profile: ``INT`` or ``INT+FP``.
        forced: nodes that must stay on the host, with the reason.
        legal: what the compiler of the TOSA side can take.

    Returns:
        The graph, and the nodes that are not integer in it.
    """
    forced = forced or {}
    walk = _Walk(Context(source, frozenset(forced)), profile, forced, legal)
    for name in source.graph.inputs:
        walk.model_input(name)
    for node in source.graph.nodes:
        walk.visit(node)
    outputs = [walk.model_output(name) for name in source.graph.outputs]
    return walk.context.builder.finish(walk.inputs, outputs), tuple(walk.not_lowered)


class _Walk:
    def __init__(self, context: Context, profile: str, forced: Mapping[str, str], legal: Legal) -> None:
        self.context = context
        self.legal = legal
        self.profile = profile
        self.forced = forced
        self.inputs: list[Interface] = []
        self.not_lowered: list[NotLowered] = []

    def model_input(self, name: str) -> None:
        context, builder = self.context, self.context.builder
        dtype = context.source.dtypes.get(name, "")
        tensor = builder.tensor(name, dtype, context.source.shape(name))
        self.inputs.append(Interface(name, dtype, tensor))
        context.floats[name] = tensor

    def model_output(self, name: str) -> Interface:
        context = self.context
        dtype = context.source.dtypes.get(name, "")
        rep = context.reps.get(name)
        if name not in context.floats and rep is not None and rep.qparams is None:
            return Interface(name, dtype, context.as_integer(name))
        return Interface(name, dtype, context.as_float(name, Place.BOUNDARY))

    def visit(self, node: Node) -> None:
        reason = self._lower(node)
        if reason is None:
            return
        if self.profile == "INT+FP" and node.name not in self.forced:
            refusal = self._in_float(node)
            if refusal is None:
                self.not_lowered.append(NotLowered(node.name, node.op_type, reason, "float"))
                return
            reason = f"{reason}; in float: {refusal}"
        self._host(node)
        self.not_lowered.append(NotLowered(node.name, node.op_type, reason, "host"))

    def _lower(self, node: Node) -> str | None:
        if node.name in self.forced:
            return self.forced[node.name]
        if node.domain in ("", "ai.onnx") and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            return self._attempt(node, {"QuantizeLinear": _quantize, "DequantizeLinear": _dequantize})
        return self._attempt(node, RULES)

    def _attempt(self, node: Node, rules: Mapping[str, Rule]) -> str | None:
        """Apply the node's rule; None when it worked, else the reason, with the graph as it was before."""
        rule = rules.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if rule is None:
            return f"{node.domain + '::' if node.domain else ''}{node.op_type} has no rule"
        if node.has_subgraph:
            return "it has subgraphs"
        builder = self.context.builder
        mark = builder.mark()
        try:
            rule(self.context, node)
            for op in builder.ops[mark:]:
                limit = self.legal(op, builder.tensors, builder.constants) if op.place is Place.TOSA else None
                if limit:
                    raise Refused(limit)
        except Refused as refusal:
            builder.rollback(mark)
            for value in node.outputs:
                self.context.reps.pop(value, None)
                self.context.floats.pop(value, None)
            return str(refusal)
        return None

    def _in_float(self, node: Node) -> str | None:
        context = self.context
        if context.source.dtypes.get(node.outputs[0]) != "float32":
            return "it does not give float32"
        context.in_float = True
        refusal = self._attempt(node, FLOAT_RULES)
        context.in_float = False
        return refusal

    def _host(self, node: Node) -> None:
        context, builder = self.context, self.context.builder
        captured = tuple(sorted(node.captured))
        names = [*node.inputs, *captured]
        inputs = [context.as_float(v, Place.HOST) if v else "" for v in names]
        outputs = []
        for value in node.outputs:
            dtype = context.source.dtypes.get(value, "")
            tensor = builder.tensor(
                value or f"{node.name}/unused", dtype, context.source.shape(value) if value else None
            )
            outputs.append(tensor)
            if value:
                context.floats[value] = tensor
        proto = context.source.protos[node.name]
        builder.append(
            ir.Host(source=node.name, inputs=tuple(inputs), outputs=tuple(outputs), node=proto, captured=captured)
        )


def _quantize(context: Context, node: Node) -> None:
    value, out = node.inputs[0], node.outputs[0]
    scale, zero = context.q_arrays(node)
    constant = context.source.constants.get(value)
    if constant is not None:
        axis = int(node.attributes.get("axis", 1)) if scale.size > 1 else None
        context.weights[out] = _quantized_constant(constant, scale, zero, axis)
        return
    numbers = int8_params(scale, zero)
    unsigned = zero.dtype.name == "uint8"
    if value in context.weights:
        context.quantized(value)
    rep = context.reps.get(value)
    if rep is not None:
        tensor = context.requantize(node.name, rep, numbers, f"{out}/int8" if unsigned else out)
    else:
        # A model input is quantized by the caller; what a host node made, by the host; float TOSA quantizes itself.
        source, base = context.floats[value], f"{out}/int8" if unsigned else out
        place = Place.BOUNDARY if value in context.graph.inputs else context.builder.place(source)
        if context.builder.tensors[source].shape is None:
            raise Refused(f"the shape of its input {value!r} is not known")
        if place is Place.TOSA:
            tensor = context.quantize_in_tosa(node.name, source, numbers, base)
        else:
            tensor = context.builder.add(
                ir.Quantize, node.name, [source], base, "int8", context.builder.shape(source), numbers, place=place
            )
    context.reps[out] = Rep(tensor, None, unsigned)


def _quantized_constant(values: np.ndarray, scale: np.ndarray, zero: np.ndarray, axis: int | None) -> Weight:
    along = [1] * values.ndim
    if axis is not None:
        along[axis] = -1
    s, z = (a.reshape(along) if a.size > 1 else a.reshape(()) for a in (scale, zero.astype(np.int64)))
    limits = np.iinfo(zero.dtype)
    ints = np.clip(np.rint(values.astype(np.float32) / s) + z, limits.min, limits.max).astype(zero.dtype)
    return Weight(ints, scale, zero, axis)


def _dequantize(context: Context, node: Node) -> None:
    value, out = node.inputs[0], node.outputs[0]
    scale, zero = context.q_arrays(node)
    constant = context.source.constants.get(value)
    if constant is None and value in context.weights:
        constant = context.weights[value].values
    if constant is not None:
        if constant.dtype.kind not in "iu":
            raise Refused(f"a constant of type {constant.dtype.name} is dequantized")
        axis = int(node.attributes.get("axis", 1)) if scale.size > 1 else None
        axis = axis + constant.ndim if axis is not None and axis < 0 else axis
        context.weights[out] = Weight(constant, scale, zero, axis)
        return
    numbers = int8_params(scale, zero)
    rep = context.integers(value)
    declared = context.builder.tensors[rep.tensor]
    if declared.qparams is None:
        context.builder.tensors[rep.tensor] = replace(declared, qparams=numbers)
        context.reps[out] = Rep(rep.tensor, numbers)
    elif declared.qparams == numbers:
        context.reps[out] = Rep(rep.tensor, numbers)
    else:
        context.reps[out] = Rep(_reread(context, node.name, rep, numbers), numbers)


def _reread(context: Context, node: str, rep: Rep, numbers: QParams) -> str:
    """The same integers under other numbers: a model may dequantize with another scale than it quantized with."""
    return context.builder.add(
        ir.Reshape, node, [rep.tensor], f"{rep.tensor}/reread", "int8", context.builder.shape(rep.tensor), numbers
    )
