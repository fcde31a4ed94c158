"""A graph whose operators on integers become float operators between Q/DQ nodes: rows, and the edits they need.

Runtimes have operators that read and write integers, or quantize inside, and quantizers write them: ``QLinearConv``,
``MatMulInteger`` and their kin. A row says which float operator stands for one of them, and which of its inputs are the
integers, scales and zero points. :mod:`inlay.quant.plain.form` walks over a graph with such rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from inlay.model.passes.names import free_name
from inlay.model.passes.steps import add_constant, constant_of
from inlay.quant.qdq_graph import DEQUANTIZE, DYNAMIC_QUANTIZE, QUANTIZE
from inlay.types import Port, QType

_QUANTIZED, _QUANT = re.compile("_?quantized$"), "_quant"  # how quantizers end the names of values and of nodes
_FLOAT = ir.TensorType(ir.DataType.FLOAT)


@dataclass(frozen=True)
class Leftover:
    """A quantized site that was not taken over, by its node, and why.

    ``within`` is the operator of the other model that computes the node together with others, and which is quantized as
    a whole: then nothing that was integer becomes float.
    """

    node: str
    reason: str
    within: str = ""


class NotPlain(Exception):
    """An operator has no plain form; the text says why."""


Params = tuple[ir.Value, ir.Value | None]  # scale and zero point of a value's integers; no zero point stands for 0


@dataclass(frozen=True)
class Operand:
    """A quantized input of an operator: the slots of its integers, scale and zero point.

    ``axis``: that of the channels where there are several scales, in the float operator's terms.
    """

    value: int
    scale: int
    zero: int
    axis: int | None = None


@dataclass(frozen=True)
class Bias:
    """Slot of an int32 input in units of the product of the first two operands' scales."""

    slot: int


@dataclass(frozen=True)
class IntegerOperator:
    """One row: an operator on integers, or one that quantizes inside, and what stands for it."""

    op_type: str  # its name
    domain: str = ""  # where it is defined
    plain: str = ""  # the float operator: of a product it says that integers are multiplied
    # of the float operator; an int is the slot of an input that is passed on
    inputs: tuple[Operand | Bias | int, ...] = ()
    # slots of the scale and the zero point of what it writes; None where that is float
    result: tuple[int, int] | None = None
    plain_domain: str = ""  # where the float operator is defined
    dropped: frozenset[str] = frozenset()  # attributes that the float operator does not have
    # puts the plain form in the operator's place where the row alone cannot say it; raises `NotPlain`
    write: Callable[[ir.Node, PlainGraph], None] | None = None
    # the params of integers that an input reads, where `inputs` does not say it
    read: Callable[[ir.Node, int], Params | None] | None = None


class PlainGraph:
    """The graph under edit.

    Args:
        graph: in topological order; changed in place.
        operators: the rows.
    """

    def __init__(self, graph: ir.Graph, operators: Iterable[IntegerOperator]) -> None:
        self.graph = graph
        self.leftovers: list[Leftover] = []  # what stayed as it is, or lost its quantization
        # ports of weights whose scales no DequantizeLinear can state: they are float constants now
        self.anew: dict[Port, QType] = {}
        # scales that are computed anew behind a move, and those that they equal
        self.equal: dict[ir.Value, ir.Value] = {}
        # integers of values that quantizing does not change, by those values: constants that were moved
        self.rounded: dict[ir.Value, ir.Value] = {}
        # by the name of each float operator, those of the first and the last node in whose place it stands
        self.replaced: dict[str, tuple[str, str]] = {}
        self._rows = {(row.domain, row.op_type): row for row in operators}
        self._read: dict[tuple[ir.Value, ir.Value, ir.Value | None, int | None], ir.Value] = {}
        self._dynamic: dict[ir.Value, ir.Node] = {}
        nodes = list(graph.all_nodes())
        self._values = {str(v.name) for n in nodes for v in (*n.inputs, *n.outputs) if v is not None}
        self._values |= {str(v.name) for v in graph.inputs} | set(graph.initializers)
        self._nodes = {str(n.name) for n in nodes}

    def row(self, node: ir.Node) -> IntegerOperator | None:
        """The row for ``node``."""
        return self._rows.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))

    def scale_of(self, value: ir.Value | None) -> ir.Value | None:
        """The scale of integers that a QuantizeLinear or DynamicQuantizeLinear makes."""
        producer = None if value is None else value.producer()
        if producer is None or producer.op_type not in (QUANTIZE, DYNAMIC_QUANTIZE):
            return None
        return producer.inputs[1] if producer.op_type == QUANTIZE else producer.outputs[1]

    def same(self, scale: ir.Value | None, other: ir.Value | None) -> bool:
        """Whether two scales are one number, also where one of them was computed anew."""
        return scale is not None and other is not None and self._first(scale) is self._first(other)

    def dequantized(
        self,
        before: ir.Node,
        value: ir.Value | None,
        scale: ir.Value | None,
        zero: ir.Value | None,
        axis: int | None = None,
    ) -> ir.Value:
        """What a DequantizeLinear makes of integers, once for all readers.

        Args:
            before: the node that it is for.
            scale: one, or one per channel as a constant of any shape.
            zero: as many, or one, or None for 0.

        Raises:
            NotPlain: they do not fit each other.
        """
        if value is None or scale is None:
            raise NotPlain("an operand is missing")
        maker = value.producer()
        if maker is not None and maker.op_type == DYNAMIC_QUANTIZE and self.same(scale, maker.outputs[1]):
            scale, zero = maker.outputs[1], maker.outputs[2]
        scales, attributes = constant_of(scale), {}
        if scales is not None and scales.size > 1:
            rank = _rank(value)
            if axis is None or rank is None:
                raise NotPlain("it has several scales, along an axis that is not known")
            attributes["axis"] = axis = axis % rank
            scale = self._by_channel(scale, scales.size)
            zero = None if zero is None else self._by_channel(zero, scales.size)
        else:
            axis = None
        key = value, scale, zero, axis
        if key not in self._read:
            inputs = [value, scale] if zero is None else [value, scale, zero]
            self._read[key] = self.insert(
                before, DEQUANTIZE, inputs, f"{value.name}_dequantized", value.shape, attributes
            )
        return self._read[key]

    def operand(self, node: ir.Node, at: Operand) -> ir.Value:
        """An operand of ``node``, dequantized. Raises NotPlain."""
        value, scale, zero = (input_of(node, slot) for slot in (at.value, at.scale, at.zero))
        return self.dequantized(node, value, scale, zero, at.axis)

    def dynamic(self, before: ir.Node, value: ir.Value | None) -> ir.Value:
        """``value`` quantized by its own range and dequantized, by one pair of nodes for all readers."""
        if value is None:
            raise NotPlain("an operand is missing")
        if value not in self._dynamic:
            source = self.quantized_dynamically(before, value)
            self._dynamic[value] = source
        integers, scale, zero = self._dynamic[value].outputs
        return self.dequantized(before, integers, scale, zero)

    def quantized_dynamically(self, before: ir.Node, value: ir.Value) -> ir.Node:
        """A new DynamicQuantizeLinear of ``value``."""
        node = ir.node(
            DYNAMIC_QUANTIZE, [value], num_outputs=3, name=self.free_node(f"{value.name}_{DYNAMIC_QUANTIZE}")
        )
        for output, what in zip(node.outputs, ("quantized", "scale", "zero_point"), strict=True):
            output.name = self.free(f"{value.name}_{what}")
        node.outputs[0].shape = value.shape
        self.graph.insert_before(before, node)
        return node

    def knows(self, node: ir.Node) -> None:
        """Let ``node``, a DynamicQuantizeLinear of the graph, serve whoever asks for its value in :meth:`dynamic`."""
        if node.inputs[0] is not None:
            self._dynamic.setdefault(node.inputs[0], node)

    def replace(
        self,
        node: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Iterable[ir.Attr] = (),
        domain: str = "",
        result: Params | None = None,
        end: ir.Node | None = None,
    ) -> ir.Node:
        """Put a float operator in the place of ``node``, or of the nodes from there to ``end``.

        Args:
            node: its name goes on, less what quantizers add to it.
            result: scale and zero point, where ``node`` writes integers.
            end: the last node that is replaced; by default ``node`` itself.
        """
        end = end or node
        self._nodes.discard(str(node.name))
        name = self.free_node(str(node.name).removesuffix(_QUANT))
        new = ir.Node(domain, op_type, inputs, attributes=list(attributes), num_outputs=len(end.outputs), name=name)
        self.graph.insert_before(end, new)
        self.replaced[name] = str(node.name), str(end.name)
        for old, fresh in zip(end.outputs, new.outputs, strict=True):
            if result is None:
                take_place(fresh, old)
                continue
            fresh.name, fresh.type, fresh.shape = self.free(float_name(old)), _FLOAT, old.shape
            pair = [fresh, *(v for v in result if v is not None)]
            take_place(self.insert(end, QUANTIZE, pair, f"{fresh.name}_quantized", old.shape), old)
        self.graph.remove(end, safe=True)
        return new

    def write_row(self, node: ir.Node, row: IntegerOperator) -> ir.Node:
        """Put in the place of ``node`` what ``row`` says."""
        inputs: list[ir.Value | None] = []
        for given in row.inputs:
            if isinstance(given, Operand):
                inputs.append(None if input_of(node, given.value) is None else self.operand(node, given))
            elif isinstance(given, Bias):
                inputs.append(self._bias(node, given, row))
            else:
                inputs.append(input_of(node, given))
        while inputs and inputs[-1] is None:
            inputs.pop()
        attributes = [a for a in node.attributes.values() if a.name not in row.dropped]
        result = None
        if row.result is not None and (scale := input_of(node, row.result[0])) is not None:
            result = scale, input_of(node, row.result[1])
        return self.replace(node, row.plain, inputs, attributes, row.plain_domain, result)

    def insert(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        wish: str,
        shape: ir.Shape | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> ir.Value:
        """The float result of a new node before another; both are named like ``wish``."""
        node = ir.node(op_type, inputs, attributes or {}, name=self.free_node(f"{wish}_{op_type}"))
        (result,) = node.outputs
        result.name, result.type, result.shape = self.free(wish), _FLOAT, shape
        self.graph.insert_before(before, node)
        return result

    def constant(self, wish: str, array: np.ndarray) -> ir.Value:
        """A new initializer."""
        return add_constant(self.graph, self.free(wish), np.array(array, order="C"))

    def changed(self, value: ir.Value, array: np.ndarray) -> ir.Value:
        """The initializer ``value`` with another array; a new one where it has other readers."""
        if len(value.uses()) > 1 or value.is_graph_output():
            return self.constant(str(value.name), array)
        value.const_value = ir.tensor(np.array(array, order="C"), name=value.name)
        value.shape = ir.Shape(array.shape)
        return value

    def _bias(self, node: ir.Node, bias: Bias, row: IntegerOperator) -> ir.Value | None:
        value = input_of(node, bias.slot)
        if value is None:
            return None
        first, second = (constant_of(input_of(node, o.scale)) for o in row.inputs if isinstance(o, Operand))
        if first is None or second is None or value.const_value is None:
            raise NotPlain("its bias, or the scale of it, is computed at run time")
        alpha = node.attributes.get_float("alpha", 1.0)
        product = np.asarray(np.float32(alpha) * first.reshape(-1) * second.reshape(-1), np.float32)
        scale = self.constant(f"{value.name}_scale", product if product.size > 1 else product.reshape(()))
        return self.dequantized(node, value, scale, None, -1)

    def _by_channel(self, value: ir.Value, count: int) -> ir.Value:
        """A constant as a vector of ``count`` elements."""
        array = constant_of(value)
        if array is None or array.size not in (1, count):
            raise NotPlain("its scales and zero points do not fit each other")
        if array.shape == (count,):
            return value
        return self.constant(f"{value.name}_by_channel", np.broadcast_to(array.reshape(-1), (count,)))

    def _first(self, scale: ir.Value) -> ir.Value:
        while scale in self.equal:
            scale = self.equal[scale]
        return scale

    def free(self, wish: str) -> str:
        """A name for a new value."""
        name = free_name(wish, self._values)
        self._values.add(name)
        return name

    def free_node(self, wish: str) -> str:
        """A name for a new node."""
        name = free_name(wish, self._nodes)
        self._nodes.add(name)
        return name


def input_of(node: ir.Node, slot: int) -> ir.Value | None:
    """Input ``slot`` of ``node``, or None where it has none."""
    return node.inputs[slot] if slot < len(node.inputs) else None


def float_name(integers: ir.Value) -> str:
    """The name of a value from that of its integers."""
    return _QUANTIZED.sub("", str(integers.name))


def take_place(fresh: ir.Value, old: ir.Value) -> None:
    """Let ``fresh`` be called and read as ``old`` was."""
    fresh.name, fresh.type, fresh.shape = old.name, old.type or fresh.type, old.shape
    old.replace_all_uses_with(fresh, replace_graph_outputs=True)


def _rank(value: ir.Value) -> int | None:
    array = constant_of(value)
    if array is not None:
        return array.ndim
    return None if value.shape is None else len(value.shape)
