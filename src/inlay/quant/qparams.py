"""Quantization parameters (qparams): scales and zero points from ranges and weights, one table for all candidates."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import ml_dtypes
import numpy as np

from inlay.errors import ModelError
from inlay.model.graph import Graph, Node
from inlay.quant.block_params import LEAST_SCALE, block_params
from inlay.quant.gptq import NEAREST, Rounding, Steps
from inlay.quant.observers import Range
from inlay.space.rules import Rules
from inlay.types import Placement, Port, QParams, QType

T = TypeVar("T")

_HUGE = float(np.finfo(np.float32).max) * (1 - 2.0**-20)  # every integer dequantizes to a finite value
_BIAS_LIMIT = float(1 << 30)  # leaves a factor of two before a bias overflows int32


def activation_params(found: Range, qtype: QType, symmetric: bool = False) -> QParams:
    """Per-tensor qparams that cover ``found``: ``scale = (high - low) / (qmax - qmin)``, zero exactly representable.

    Those of a floating type are symmetric: the largest magnitude becomes the largest element.

    The scale is rounded down to float32 where rounding up would let the largest integer dequantize to more than
    ``high``: a runtime drops a Clip only when no integer exceeds its bounds.
    """
    low, high = min(0.0, found.low), max(0.0, found.high)
    steps = qtype.qmax - qtype.qmin
    if symmetric or qtype.floating:
        reach = max(-low, high)
        low, high = -reach, reach
        steps = 2 * qtype.qmax if qtype.signed else steps
    if high == low:
        return QParams(qtype, (1.0,), (qtype.qmin if not qtype.signed else 0,))
    scale = np.float32(min(max((high - low) / steps, LEAST_SCALE), _HUGE / steps))
    if low == 0.0 and scale * np.float32(steps) > np.float32(high):
        scale = np.nextafter(scale, np.float32(0))
    if symmetric or qtype.floating:
        return QParams(qtype, (float(scale),), (0 if qtype.signed else (qtype.qmax + 1) // 2,))
    zero = round(qtype.qmin - low / float(scale))
    return QParams(qtype, (float(scale),), (int(np.clip(zero, qtype.qmin, qtype.qmax)),))


def covered(params: QParams) -> Range:
    """The range that per-tensor ``params`` represent."""
    scale, zero = params.scale[0], params.zero_point[0]
    return Range((params.qtype.qmin - zero) * scale, (params.qtype.qmax - zero) * scale)


def weight_params(
    weight: np.ndarray, axis: int | None, limit: int, floor: np.ndarray | float = 0.0, qtype: QType = QType.INT8
) -> QParams:
    """Symmetric qparams: ``scale = max|w| / limit`` per channel along ``axis``, or per tensor for None.

    Args:
        weight: float array, at least one dimension when ``axis`` is given.
        axis: channel axis.
        limit: largest magnitude of an element.
        floor: least scale, per channel: keeps the int32 bias of the channel from overflowing.
        qtype: of the elements.
    """
    axis = None if axis is None else axis % weight.ndim
    return _symmetric(_largest(weight, axis), axis, limit, floor, qtype)


def _largest(weight: np.ndarray, axis: int | None) -> np.ndarray:
    """The largest finite magnitude, per channel along ``axis``."""
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    finite = np.where(np.isfinite(weight), np.abs(weight), 0.0)
    return np.asarray(finite.max(axis=others, initial=0.0), np.float64)


def _symmetric(
    largest: np.ndarray, axis: int | None, limit: int, floor: np.ndarray | float, qtype: QType = QType.INT8
) -> QParams:
    scale = np.maximum(largest / limit, floor)
    scale = np.where(scale > 0.0, np.maximum(scale, LEAST_SCALE), 1.0).astype(np.float32).reshape(-1)
    return QParams(qtype, tuple(scale.tolist()), (0,) * scale.size, axis)


def scale_shape(shape: Sequence[int | None], params: QParams) -> tuple[int, ...]:
    """Shape of scale and zero point, as DequantizeLinear takes them, of a tensor of this ``shape``."""
    if params.axis is None:
        return ()
    if not params.qtype.block:
        return (len(params.scale),)
    return tuple((n or 0) // (params.qtype.block if i == params.axis else 1) for i, n in enumerate(shape))


def quantize(array: np.ndarray, params: QParams, by: Steps | None = None) -> np.ndarray:
    """``clip(round_half_even(x / scale) + zero_point)`` as QuantizeLinear does, in float32 (biases: float64).

    Of a floating type, the nearest element, ties to the even one, in place of the nearest integer. ``by`` as many
    steps further, where given.
    """
    scale, zero = aligned(array, params)
    if params.qtype.floating:
        steps = np.asarray(array, np.float32) / scale
        return np.asarray(np.clip(steps, params.qtype.qmin, params.qtype.qmax), STORAGE[params.qtype])
    wide = np.float64 if params.qtype is QType.INT32 else np.float32
    steps = np.rint(np.asarray(array, wide) / scale.astype(wide)) + zero.astype(wide)
    if by is not None:
        steps += by.delta
    return np.asarray(np.clip(steps, params.qtype.qmin, params.qtype.qmax), STORAGE[params.qtype])


def dequantize(array: np.ndarray, params: QParams) -> np.ndarray:
    """``(q - zero_point) * scale`` in float32."""
    scale, zero = aligned(array, params)
    if params.qtype.floating:
        return np.asarray(array.astype(np.float32) * scale, np.float32)
    return np.asarray((array.astype(np.int64) - zero).astype(np.float32) * scale, np.float32)


_FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
STORAGE = {t: _FLOAT8 if t.floating else np.dtype(t.element.replace("int4", "int8")) for t in QType}
"""The numpy type that holds the elements of each type."""

STORED = {t: np.dtype(ml_dtypes.int4) if t.element == "int4" else STORAGE[t] for t in QType}
"""The numpy type of each as a model stores it."""


def aligned(array: np.ndarray, params: QParams) -> tuple[np.ndarray, np.ndarray]:
    """Scale and zero point shaped to broadcast over ``array``."""
    if params.qtype.block:
        numbers = np.asarray(params.scale, np.float32), np.asarray(params.zero_point, np.int64)
        scale, zero = (np.reshape(n, scale_shape(array.shape, params)) for n in numbers)
        return (
            np.repeat(scale, params.qtype.block, params.axis),
            np.repeat(zero, params.qtype.block, params.axis) if zero.any() else np.zeros((), np.int64),
        )
    shape = [1] * array.ndim
    if params.axis is not None:
        shape[params.axis] = -1
    return np.asarray(params.scale, np.float32).reshape(shape), np.asarray(params.zero_point, np.int64).reshape(shape)


_of_weights: WeakKeyDictionary[Graph, dict[Hashable, Any]] = WeakKeyDictionary()


def _once(graph: Graph, key: Hashable, compute: Callable[[], T]) -> T:
    """What depends on a weight alone: all tables of a model share it. A model of 355 MB takes 2 s to look at."""
    known = _of_weights.setdefault(graph, {})
    if key not in known:
        known[key] = compute()
    found: T = known[key]
    return found


class QParamsTable:
    """The qparams of every value that a placement may quantize, computed on first use, then constant.

    Args:
        graph: the normalized model.
        rules: types, symmetry and weight limits of the target.
        ranges: by value; values of one domain have one range already.
        fixed: qparams that replace computed ones (those of an imported baseline).
        per_tensor: weights that get one scale for all channels.
        shifts: by node, the mean error that its rounded weight makes, for each output channel: shape (channels,).
            It is taken off the node's bias wherever that is quantized.
        rounding: which weights are not rounded to the nearest integers, and how.
    """

    def __init__(
        self,
        graph: Graph,
        rules: Rules,
        ranges: Mapping[str, Range],
        fixed: Mapping[tuple[str, QType], QParams] | None = None,
        per_tensor: frozenset[str] = frozenset(),
        shifts: Mapping[str, np.ndarray] | None = None,
        rounding: Rounding = NEAREST,
    ) -> None:
        self._graph = graph
        self._rounding = rounding
        self._shifts = dict(shifts or {})
        self._per_tensor = per_tensor
        self._rules = rules
        self._ranges = ranges
        self._given = dict(fixed or {})
        self._known: dict[tuple[str, QType], QParams] = dict(fixed or {})
        self._fixed = {value for value, _ in self._known}
        self._biases: dict[tuple[Port, int, int], QParams] = {}

    def as_json(self) -> dict[str, Any]:
        """Everything that the qparams are computed from, as plain data; see :meth:`from_json`."""
        return {
            "ranges": {value: [found.low, found.high] for value, found in self._ranges.items()},
            "fixed": [[v, q.value, p.scale, p.zero_point, p.axis] for (v, q), p in self._given.items()],
            "per_tensor": sorted(self._per_tensor),
            "shifts": {node: shift.tolist() for node, shift in self._shifts.items()},
        }

    @classmethod
    def from_json(
        cls, graph: Graph, rules: Rules, data: Mapping[str, Any], rounding: Rounding = NEAREST
    ) -> QParamsTable:
        """The table that gave ``data``, for the same graph, rules and rounding."""
        ranges = {value: Range(*found) for value, found in data["ranges"].items()}
        fixed = {(v, QType(q)): QParams(QType(q), tuple(s), tuple(z), axis) for v, q, s, z, axis in data["fixed"]}
        shifts = {node: np.asarray(shift, np.float64) for node, shift in data.get("shifts", {}).items()}
        return cls(graph, rules, ranges, fixed, frozenset(data.get("per_tensor", ())), shifts, rounding)

    def knows(self, value: str) -> bool:
        """Whether ``value`` can be quantized: it was observed, or is a constant."""
        return value in self._ranges or self._graph.is_constant(value) or value in self._fixed

    def params(self, value: str, qtype: QType) -> QParams:
        """The qparams of ``value`` in ``qtype``. Raises KeyError when it was never observed."""
        key = (value, qtype)
        if key not in self._known:
            self._known[key] = self._compute(value, qtype)
        return self._known[key]

    def steps(self, value: str, qtype: QType) -> Steps | None:
        """How far the integers of a constant are from the nearest ones; None where they are these."""
        if (value, qtype) not in self._rounding.steps or self.is_given(value, qtype):
            return None
        return self._rounding.of(value, self.params(value, qtype))

    def quantized(self, value: str, qtype: QType) -> np.ndarray:
        """The integers of a constant, or elements of a floating type. Raises KeyError where it is none."""
        array = self._graph.constant(value)
        if array is None:
            raise KeyError(value)
        return quantize(array, self.params(value, qtype), self.steps(value, qtype))

    def is_given(self, value: str, qtype: QType) -> bool:
        """Whether qparams replace the computed ones."""
        return (value, qtype) in self._given

    def weight_limit(self, qtype: QType) -> int:
        """Largest magnitude of a weight's integers: the target's, or in blocks the type's."""
        return qtype.qmax if qtype.block else self._rules.weight_limit

    def bias_params(self, port: Port, placement: Placement) -> QParams:
        """The qparams of the int32 bias at ``port``: in units of ``scale_x * scale_w``, as the products it is added to.

        In those of activations of 16 bits, 32 may not hold it: such a channel has the least scale that does.

        Raises:
            ModelError: ``placement`` does not quantize the node's data and weight, or the bias does not fit them.
        """
        data, weight = Port(port.node, 0), Port(port.node, 1)
        data_type, weight_type = placement.qtype(data), placement.qtype(weight)
        value = self._graph.value_of(port)
        if data_type is None or weight_type is None or not self._graph.is_constant(value):
            raise ModelError(f"bias port {port} is quantized without its data and weight ports")
        x = self.params(self._graph.value_of(data), data_type)
        w = self.params(self._graph.value_of(weight), weight_type)
        key = (port, id(x), id(w))
        if key not in self._biases:
            scale = np.asarray(x.scale, np.float32) * np.asarray(w.scale, np.float32)
            size = self._graph.size(value) or 1
            if data_type.bits > self._rules.activation.bits:  # for the usual type, the weight's scale sees to it
                values = np.abs(np.asarray(self._graph.constant(value), np.float64)).reshape(-1)
                least = values if scale.size == values.size else values.max(initial=0.0)
                scale = np.maximum(scale, (least / _BIAS_LIMIT).astype(np.float32))
            if scale.size not in (1, size):
                raise ModelError(f"bias port {port} has {size} values for {scale.size} channels")
            axis = None if scale.size == 1 else (len(self._graph.shape(value) or (0,)) - 1)
            self._biases[key] = QParams(QType.INT32, tuple(scale.tolist()), (0,) * scale.size, axis)
        return self._biases[key]

    def corrects(self, node: str) -> bool:
        """Whether the quantized bias of ``node`` makes up for its rounded weight."""
        return node in self._shifts

    def bias(self, port: Port, placement: Placement | None = None) -> np.ndarray | None:
        """The float values of the bias at ``port``, less the mean error of the node's rounded weight where known.

        Args:
            port: of a constant bias.
            placement: where given, and it quantizes the weight in another type than the target's, the error is not
                known, and nothing is taken off.
        """
        values = self._graph.constant(self._graph.value_of(port))
        shift = self._shifts.get(port.node)
        if values is None or shift is None:
            return values
        if placement is not None and placement.qtype(Port(port.node, 1)) is not self._rules.weight:
            return values
        return np.asarray(values - shift.reshape(values.shape), np.float32)

    def _compute(self, value: str, qtype: QType) -> QParams:
        if not self._graph.is_constant(value):
            return activation_params(self._ranges[value], qtype, self._rules.is_symmetric(qtype))
        array = self._graph.constant(value)
        assert array is not None
        channels = self._weights[value][0] if qtype.block and value in self._weights else None
        if channels is not None:
            along = 1 - channels
            return _once(self._graph, (value, along, qtype), lambda: block_params(array, along, qtype))
        if value not in self._weights or not (qtype is self._rules.weight or qtype.floating):
            found = self._ranges.get(value) or constant_range(array)
            return activation_params(found, qtype, self._rules.is_symmetric(qtype))
        axis, consumers = self._weights[value]
        weights, groups = self._beside(value, consumers)
        axis = axis if self._rules.per_channel and self._per_tensor.isdisjoint(weights) else None
        axis = None if axis is None else axis % array.ndim
        largest = self._largest_of(weights, axis, groups)
        if qtype.floating:
            return _symmetric(largest, axis, qtype.qmax, 0.0, qtype)
        return _symmetric(largest, axis, self._rules.weight_limit, self._floor(array, axis, consumers))

    def _largest_of(self, weights: Sequence[str], axis: int | None, groups: np.ndarray | None) -> np.ndarray:
        """The largest magnitude in all of these weights, per channel, or per group of channels."""
        arrays = {w: np.asarray(self._graph.constant(w)) for w in weights}
        found = [_once(self._graph, (w, axis), partial(_largest, a, axis)) for w, a in arrays.items()]
        largest: np.ndarray = np.max(found, axis=0)
        if axis is None or groups is None:
            return largest
        of_groups = np.zeros(groups.max() + 1)
        np.maximum.at(of_groups, groups, largest)
        return np.asarray(of_groups[groups])

    def _beside(self, value: str, consumers: list[str]) -> tuple[list[str], np.ndarray | None]:
        """The weights that have one set of scales, ``value`` among them, and which of their channels have one scale."""
        node = self._graph.node(consumers[0])
        rule = self._rules.rule(node)
        if len(consumers) > 1 or rule is None or not rule.recurrence.joins_weights:
            return [value], None
        groups_of = rule.recurrence.scale_groups
        groups = None if groups_of is None else groups_of(self._graph, node)
        family = self._families.get(node.name, (node,))
        return [n.inputs[slot] for n in family for slot in rule.weights], groups

    @cached_property
    def _families(self) -> dict[str, tuple[Node, ...]]:
        """The family of each operator that has one."""
        return {node.name: family for family in self._rules.families(self._graph) for node in family}

    @cached_property
    def _weights(self) -> dict[str, tuple[int | None, list[str]]]:
        """Channel axis and consumers of every constant that some operator reads as its weight."""
        found: dict[str, tuple[int | None, list[str]]] = {}
        for node in self._graph.nodes:
            for slot in self._rules.weight_slots(node):
                value = node.inputs[slot] if slot < len(node.inputs) else ""
                if self._graph.is_constant(value):
                    axis = weight_axis(self._graph, Port(node.name, slot))
                    before = found.get(value, (axis, []))
                    found[value] = (axis if before[0] == axis else None, [*before[1], node.name])
        return found

    def _floor(self, weight: np.ndarray, axis: int | None, consumers: list[str]) -> np.ndarray | float:
        """Least scales with which every consumer's bias, in units of ``scale_x * scale_w``, fits int32."""
        floor: np.ndarray | float = 0.0
        usual = self._rules.activation
        data_type = usual if usual.takes_bias else QType.UINT8  # beside others, the bias is float
        for name in consumers:
            node = self._graph.node(name)
            rule = self._rules.rule(node)
            slot = None if rule is None else rule.bias
            bias = node.inputs[slot] if slot is not None and len(node.inputs) > slot else ""
            values = self._graph.constant(bias) if bias else None
            if values is None or node.inputs[0] not in self._ranges:
                continue
            scale = self.params(node.inputs[0], data_type).scale[0]
            least = np.abs(values.astype(np.float64)).reshape(-1) / (scale * _BIAS_LIMIT)
            channels = 1 if axis is None else weight.shape[axis]
            least = least if channels == least.size else np.full(channels, least.max(initial=0.0))
            floor = np.maximum(floor, least if axis is not None else least.max(initial=0.0))
        return floor


def constant_range(array: np.ndarray) -> Range:
    """The range of a constant's values."""
    return Range(float(array.min()), float(array.max())) if array.size else Range(0.0, 0.0)


def weight_axis(graph: Graph, port: Port) -> int | None:
    """The output-channel axis of the weight at ``port``; None where only one scale for all makes sense.

    Conv: 0. Gemm: 1, or 0 with transB. MatMul: the last, for two-dimensional weights. LSTM and GRU: 1, their gates'
    rows, one scale for both directions. Gather: 1, the columns of a table of rows.
    """
    node = graph.node(port.node)
    shape = graph.shape(node.inputs[port.slot])
    rank = len(shape) if shape is not None else 0
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1 if int(node.attributes.get("group", 1)) == 1 else None
    if node.op_type == "Gemm":
        return 0 if node.attributes.get("transB", 0) else 1
    if (node.op_type in ("MatMul", "Gather") and rank == 2) or node.op_type in ("LSTM", "GRU"):
        return 1
    return None
