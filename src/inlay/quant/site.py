"""An operator of a Q/DQ graph with what it reads and what becomes of its results: what preconditions are told of.

Unlike a unit or a port, a site speaks of the nodes that a file really holds, whoever set them: two QuantizeLinear nodes
behind one value, a scale of shape (1,), a float reader beside a QuantizeLinear.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_ir as ir

from inlay.quant.qdq_graph import DEQUANTIZE, QUANTIZE
from inlay.space.rules import OpRule, Rules


@dataclass(frozen=True, eq=False)
class Grid:
    """Scale and zero point of a Q or DQ node as the file states them; arrays in their own shapes."""

    dtype: ir.DataType
    scale: np.ndarray
    zero: np.ndarray
    axis: int

    @property
    def per_channel(self) -> bool:
        """Whether there is more than one scale."""
        return self.scale.size > 1

    def same(self, other: Grid) -> bool:
        """Whether both say the same, in whatever shape."""
        return self.dtype is other.dtype and all(
            np.array_equal(a.reshape(-1), b.reshape(-1))
            for a, b in ((self.scale, other.scale), (self.zero, other.zero))
        )


def grid_of(node: ir.Node) -> Grid | None:
    """The grid of a Q or DQ node; None where a part of it is computed at run time."""
    scale = node.inputs[1].const_value if node.inputs[1] is not None else None
    given = node.inputs[2] if len(node.inputs) > 2 else None
    if scale is None or (given is not None and given.const_value is None):
        return None
    scales = np.asarray(scale.numpy(), np.float32)
    if given is not None and given.const_value is not None:
        dtype, zeros = given.const_value.dtype, np.asarray(given.const_value.numpy()).astype(np.int64)
    else:
        integers = node.inputs[0] if node.op_type == DEQUANTIZE else node.outputs[0]
        dtype = integers.dtype if integers is not None and integers.dtype is not None else ir.DataType.UINT8
        zeros = np.zeros(scales.shape, np.int64)
        if node.op_type == QUANTIZE and (stated := node.attributes.get_int("output_dtype", 0)):
            dtype = ir.DataType(stated)
    axis = int(node.attributes["axis"].value) if "axis" in node.attributes else 1
    return Grid(dtype, scales, zeros, axis)


@dataclass(frozen=True, eq=False)
class Read:
    """What an operator reads at one slot."""

    slot: int  # of the operator
    value: ir.Value  # what it reads: the result of `dequantizer`, where there is one
    dequantizer: ir.Node | None  # the DequantizeLinear before it, or None

    @property
    def quantizer(self) -> ir.Node | None:
        """The QuantizeLinear before the DequantizeLinear; None where that reads a constant, or other integers."""
        integers = None if self.dequantizer is None else self.dequantizer.inputs[0]
        before = None if integers is None else integers.producer()
        return before if before is not None and before.op_type == QUANTIZE else None

    @property
    def is_constant(self) -> bool:
        """Whether it is a constant, quantized or not."""
        value = self.value if self.dequantizer is None else self.dequantizer.inputs[0]
        return value is not None and value.const_value is not None

    @property
    def grid(self) -> Grid | None:
        """Of the DequantizeLinear; None also where there is none."""
        return None if self.dequantizer is None else grid_of(self.dequantizer)

    @property
    def name(self) -> str:
        """Of the float value, or of the quantized constant."""
        if self.quantizer is not None and self.quantizer.inputs[0] is not None:
            return str(self.quantizer.inputs[0].name)
        value = self.value if self.dequantizer is None else self.dequantizer.inputs[0]
        return str(value.name if value is not None else self.value.name)


@dataclass(frozen=True, eq=False)
class Result:
    """What becomes of one result of an operator."""

    value: ir.Value  # behind the activations that its target would absorb
    absorbed: tuple[ir.Node, ...]  # those, in order
    quantizers: tuple[ir.Node, ...]  # the QuantizeLinear nodes that read it
    floats: tuple[ir.Node, ...]  # the other nodes that read it, each once
    is_output: bool  # an output of the graph is this very value


class Site:
    """One operator."""

    def __init__(self, node: ir.Node, rules: Rules) -> None:
        self.node, self.rules = node, rules
        found = rules.ops.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        self.rule = found or OpRule(node.op_type, activations=None)

    @property
    def graph(self) -> ir.Graph:
        """That it stands in."""
        assert isinstance(self.node.graph, ir.Graph)
        return self.node.graph

    def read(self, slot: int | None) -> Read | None:
        """What it reads at ``slot``; None where that is empty."""
        value = self.node.inputs[slot] if slot is not None and slot < len(self.node.inputs) else None
        if slot is None or value is None:
            return None
        producer = value.producer()
        return Read(slot, value, producer if producer is not None and producer.op_type == DEQUANTIZE else None)

    @cached_property
    def activations(self) -> tuple[Read, ...]:
        """What it reads as activations; a weight that is computed counts."""
        slots = range(len(self.node.inputs)) if self.rule.activations is None else self.rule.activations
        found = [self.read(s) for s in slots]
        weight = self.read(self.rule.weight)
        computed = [weight] if weight is not None and not weight.is_constant else []
        return tuple(r for r in (*found, *computed) if r is not None)

    @cached_property
    def weight(self) -> Read | None:
        """Its constant weight."""
        found = self.read(self.rule.weight)
        return found if found is not None and found.is_constant else None

    @cached_property
    def bias(self) -> Read | None:
        """Its bias."""
        return self.read(self.rule.bias)

    @cached_property
    def results(self) -> tuple[Result, ...]:
        """What becomes of each of its results that is read at all."""
        absorbs = () if self.rule.moves_data else self.rules.absorbed
        return tuple(_result(v, absorbs) for v in self.node.outputs if v.uses() or v.is_graph_output())


def dequantizers(quantizer: ir.Node) -> tuple[ir.Node, ...]:
    """The DequantizeLinear nodes behind a QuantizeLinear."""
    return tuple(u.node for u in quantizer.outputs[0].uses() if u.node.op_type == DEQUANTIZE)


def readers_behind(quantizer: ir.Node) -> int:
    """How many inputs of operators, and outputs of the graph, read what a QuantizeLinear writes, dequantized or not."""
    count = 0
    for use in quantizer.outputs[0].uses():
        read = use.node.outputs[0]
        count += len(read.uses()) + read.is_graph_output() if use.node.op_type == DEQUANTIZE else 1
    return count


def _result(value: ir.Value, absorbs: Collection[str]) -> Result:
    between: list[ir.Node] = []
    while not value.is_graph_output() and len(uses := value.uses()) == 1:
        (use,) = uses
        if use.node.op_type not in absorbs or use.idx != 0:
            break
        between.append(use.node)
        value = use.node.outputs[0]
    quantizers = tuple(u.node for u in value.uses() if u.node.op_type == QUANTIZE and u.idx == 0)
    others = tuple(dict.fromkeys(u.node for u in value.uses() if u.node not in quantizers))
    return Result(value, tuple(between), quantizers, others, value.is_graph_output())
