"""Q/DQ ONNX to integer graph: one walk over the nodes in topological order.

Every float value that equals a dequantized tensor exactly is remembered as that tensor
(:class:`~inlay.tosa.quantized.QuantizedTensor`). A node whose inputs are such values, and whose output is quantized
again, becomes integer operators by the rule for its operator type; anything else stays an ONNX node (or, in profile
``INT+FP``, becomes float TOSA), with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context
from inlay.tosa.ir import Executor, IntegerGraph, Interface
from inlay.tosa.quantized import QuantizedConstant, QuantizedTensor, Unsupported, int8_qparams
from inlay.tosa.rules import FLOAT_RULES, RULES, Rule
from inlay.tosa.rules._node import NodeContext
from inlay.tosa.static_model import StaticModel
from inlay.types import QParams

PROFILES = ("INT", "INT+FP")

LegalityCheck = Callable[[ir.Op, Mapping[str, ir.Tensor], Mapping[str, ir.Array]], "str | None"]
"""A compiler's limits besides TOSA's: why it cannot take an operator, or None. Tensors and constants are by name."""


def all_legal(op: ir.Op, tensors: Mapping[str, ir.Tensor], constants: Mapping[str, ir.Array]) -> str | None:
    """No limits: all that TOSA allows."""


@dataclass(frozen=True)
class NotLowered:
    """An ONNX node that did not become integer operators."""

    node: str  # its name
    op_type: str  # its operator
    reason: str  # why
    place: str  # where it is computed instead: `host` or `float` (TOSA in floating point)
    unstated: str = ""  # the float value whose range no Q/DQ nodes state, where that is all that is missing


def build_integer_graph(
    model: StaticModel, profile: str, on_host: Mapping[str, str], legality: LegalityCheck
) -> tuple[IntegerGraph, tuple[NotLowered, ...]]:
    """The integer graph of a model, and the nodes that are not integer in it; options as of ``lower``."""
    walk = _Walk(Context(model, frozenset(on_host), widens=profile == "INT"), profile, on_host, legality)
    inputs = [walk.model_input(name) for name in model.graph.inputs]
    for node in model.graph.nodes:
        walk.visit(node)
    outputs = [walk.model_output(name) for name in model.graph.outputs]
    return walk.context.builder.finish(inputs, outputs), tuple(walk.not_lowered)


class _Walk:
    def __init__(self, context: Context, profile: str, on_host: Mapping[str, str], legality: LegalityCheck) -> None:
        self.context = context
        self.profile = profile
        self.on_host = on_host
        self.legality = legality
        self.not_lowered: list[NotLowered] = []

    def model_input(self, name: str) -> Interface:
        model = self.context.model
        dtype = model.dtypes.get(name, "")
        tensor = self.context.builder.tensor(name, dtype, model.shape(name))
        self.context.unquantized[name] = tensor
        return Interface(name, dtype, tensor)

    def model_output(self, name: str) -> Interface:
        context = self.context
        dtype = context.model.dtypes.get(name, "")
        quantized = context.quantized.get(name)
        if name not in context.unquantized and quantized is not None and quantized.qparams is None:
            return Interface(name, dtype, context.onnx_integer_tensor(name))
        return Interface(name, dtype, context.unquantized_tensor(name, Executor.CALLER))

    def visit(self, node: Node) -> None:
        barred = self.on_host.get(node.name)
        failed = Unsupported(barred) if barred else self._attempt(node, _INTEGER_RULES)
        if failed is None:
            return
        reason, unstated = str(failed), failed.unstated
        if self.profile == "INT+FP" and node.name not in self.on_host:
            float_reason = self._in_float(node)
            if float_reason is None:
                self.not_lowered.append(NotLowered(node.name, node.op_type, reason, "float", unstated))
                return
            reason = f"{reason}; in float: {float_reason}"
        self._keep_on_host(node)
        self.not_lowered.append(NotLowered(node.name, node.op_type, reason, "host", unstated))

    def _attempt(self, node: Node, rules: Mapping[str, Rule]) -> Unsupported | None:
        """Apply the node's rule; None when it worked, else the reason, with the graph as it was before."""
        rule = rules.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if rule is None:
            return Unsupported(f"{node.domain + '::' if node.domain else ''}{node.op_type} has no rule")
        if node.has_subgraph:
            return Unsupported("it has subgraphs")
        builder = self.context.builder
        mark = builder.mark()
        try:
            rule(NodeContext(self.context, node))
            for op in builder.ops[mark:]:
                limit = self.legality(op, builder.tensors, builder.constants) if op.executor is Executor.TOSA else None
                if limit:
                    raise Unsupported(limit)
        except (Unsupported, ir.UnknownShape) as error:
            builder.rollback(mark)
            self.context.forget(node.outputs)
            return error if isinstance(error, Unsupported) else Unsupported(str(error))
        return None

    def _in_float(self, node: Node) -> Unsupported | None:
        context = self.context
        if context.model.dtypes.get(node.outputs[0]) != "float32":
            return Unsupported("it does not give float32")
        context.in_float = True
        reason = self._attempt(node, FLOAT_RULES)
        context.in_float = False
        return reason

    def _keep_on_host(self, node: Node) -> None:
        context, builder = self.context, self.context.builder
        captured = tuple(sorted(node.captured))
        inputs = [context.unquantized_tensor(v, Executor.HOST) if v else "" for v in (*node.inputs, *captured)]
        outputs = []
        for value in node.outputs:
            dtype, shape = context.model.dtypes.get(value, ""), context.model.shape(value) if value else None
            tensor = builder.tensor(value or f"{node.name}/unused", dtype, shape)
            outputs.append(tensor)
            if value:
                context.unquantized[value] = tensor
        proto = context.model.proto(node.name)
        builder.append(
            ir.Host(source=node.name, inputs=tuple(inputs), outputs=tuple(outputs), node=proto, captured=captured)
        )


def _quantize_linear(here: NodeContext) -> None:
    context, value = here.context, here.node.inputs[0]
    scale, zero = context.scale_and_zero_point(here.node)
    constant = context.model.constants.get(value)
    if constant is not None:
        axis = _channel_axis(here, constant, scale)
        context.constants[here.out] = QuantizedConstant.quantize(constant, scale, zero, axis)
        return
    qparams = int8_qparams(scale, zero)
    unsigned = zero.dtype.name == "uint8"
    base = f"{here.out}/int8" if unsigned else here.out
    if value in context.constants:
        here.quantized_input()
    known = context.quantized.get(value)
    tensor = _quantize(here, base, qparams) if known is None else here.requantize(known, qparams, base)
    context.quantized[here.out] = QuantizedTensor(tensor, None, unsigned)


def _quantize(here: NodeContext, base: str, to: QParams) -> str:
    """A float tensor quantized by whoever has it: a model input by the caller, else by the host, or by float TOSA."""
    context, value = here.context, here.node.inputs[0]
    tensor = context.unquantized[value]
    executor = Executor.CALLER if value in context.graph.inputs else context.builder.executor(tensor)
    if here.tensor(tensor).shape is None:
        raise Unsupported(f"the shape of its input {value!r} is not known")
    if executor is Executor.TOSA:
        return _quantize_in_tosa(here, tensor, to, base)
    return here.add(ir.Quantize, tensor, "", "int8", qparams=to, base=base, executor=executor)


def _quantize_in_tosa(here: NodeContext, tensor: str, to: QParams, base: str) -> str:
    """Float to int8 in float TOSA: scale, clamp, round half to even, and only then add the zero point.

    It multiplies by the reciprocal scale where ONNX divides: ties can fall the other way.
    """
    rank, zero = len(here.shape(tensor)), to.zero_point[0]
    steps = here.binary("mul", tensor, here.context.scalar(1 / to.scale[0], rank), "steps")
    low, high = float(to.qtype.qmin - zero), float(to.qtype.qmax - zero)
    limited = here.add(ir.Clamp, steps, "limited", low=low, high=high)
    rounded = here.add(ir.Cast, limited, "rounded", "int32")
    moved = here.binary("add", rounded, here.constant("offset", np.full((1,) * rank, zero, np.int32)), "moved")
    return here.add(ir.Cast, moved, "", "int8", qparams=to, base=base)


def _channel_axis(here: NodeContext, constant: ir.Array, scale: ir.Array) -> int | None:
    """The axis of a constant along which it has several scales, or None. Raises Unsupported."""
    if scale.size == 1:
        return None
    if not constant.ndim:
        raise Unsupported(f"{scale.size} scales do not fit a constant without dimensions")
    return int(here.attribute("axis", 1)) % constant.ndim


def _dequantize_linear(here: NodeContext) -> None:
    context, value = here.context, here.node.inputs[0]
    scale, zero = context.scale_and_zero_point(here.node)
    constant = context.model.constants.get(value)
    if constant is None and value in context.constants:
        constant = context.constants[value].values
    if constant is not None:
        if constant.dtype.kind not in "iu":
            raise Unsupported(f"a constant of type {constant.dtype.name} is dequantized")
        axis = _channel_axis(here, constant, scale)
        context.constants[here.out] = QuantizedConstant(constant, scale, zero, axis)
        return
    qparams = int8_qparams(scale, zero)
    tensor = context.int8_tensor(value).tensor
    declared = here.tensor(tensor)
    if declared.qparams is None:
        context.builder.tensors[tensor] = replace(declared, qparams=qparams)
    elif declared.qparams != qparams:
        # The model dequantizes with other qparams than it quantized with: the same integers under another name.
        tensor = here.add(ir.Reshape, tensor, "", "int8", qparams=qparams, base=f"{tensor}/reread")
    context.quantized[here.out] = QuantizedTensor(tensor, qparams)


_INTEGER_RULES: Mapping[str, Rule] = {
    **RULES,
    "QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
}
