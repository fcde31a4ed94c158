"""Scales of weights: symmetric ones for each output channel, or for blocks, each of which makes the least error.

What an operator with a state between its steps asks of them (:class:`~inlay.space.rules.Recurrence`), scales that
several weights share, is known here alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from inlay.model.graph import Graph, Node
from inlay.space.rules import Rules
from inlay.types import Port, QParams, QType

T = TypeVar("T")

LEAST_SCALE = float(np.float32(2.0**-100))  # scales, and products of two of them, stay normal float32 values
BIAS_LIMIT = float(1 << 30)  # leaves a factor of two before a bias overflows int32

_SLICE = 1 << 16  # elements that are looked at together
_CLIPPED = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Shares of a block's largest magnitude that its integers may reach: of 4 bits, a large one costs all others."""


def block_params(weight: np.ndarray, axis: int, qtype: QType) -> QParams:
    """Symmetric qparams of blocks: of :data:`_CLIPPED`, each block gets the scale of least squared error.

    Args:
        weight: float array; its size along ``axis`` is a multiple of the block.
    """
    shape = weight.shape
    blocks = np.where(np.isfinite(weight), weight, 0.0).astype(np.float32)
    blocks = blocks.reshape(*shape[:axis], -1, qtype.block, *shape[axis + 1 :])
    best = _least_error(blocks, axis + 1, qtype, _CLIPPED if qtype.bits < 8 else _CLIPPED[:1])
    flat = best.reshape(-1)
    return QParams(qtype, tuple(flat.tolist()), (0,) * flat.size, axis)


def _least_error(blocks: np.ndarray, axis: int, qtype: QType, shares: Sequence[float]) -> np.ndarray:
    """The scale of each block, float32, with which rounding the elements along ``axis`` makes the least squared error.

    Slice by slice: what is computed of one stays in the processor's cache.

    Args:
        blocks: finite float32 numbers.
        shares: of a block's largest magnitude, from which its scale is chosen; of equally good ones the first.
    """
    top = np.abs(blocks).max(axis=axis, initial=0.0) / qtype.qmax
    scales = [np.where(top > 0.0, np.maximum(share * top, LEAST_SCALE), 1.0).astype(np.float32) for share in shares]
    if len(scales) == 1:
        return scales[0]
    best = np.empty(top.shape, np.float32)
    step = max(1, _SLICE // max(1, math.prod(blocks.shape[1:])))
    for start in range(0, len(blocks), step):
        part = slice(start, start + step)
        choices = [scale[part] for scale in scales]
        errors = [_rounding_error(blocks[part], np.expand_dims(scale, axis), axis, qtype) for scale in choices]
        best[part] = np.choose(np.argmin(errors, axis=0), choices)
    return best


def _rounding_error(blocks: np.ndarray, scale: np.ndarray, axis: int, qtype: QType) -> np.ndarray:
    """The squared error of each block."""
    error = blocks / scale
    np.rint(error, out=error)
    np.clip(error, qtype.qmin, qtype.qmax, out=error)
    error *= scale
    error -= blocks
    return np.asarray(np.square(error, out=error).sum(axis=axis))


def weight_params(weight: np.ndarray, axis: int | None, limit: int, qtype: QType = QType.INT8) -> QParams:
    """Symmetric qparams: ``scale = max|w| / limit`` per channel along ``axis``, or per tensor for None."""
    axis = None if axis is None else axis % weight.ndim
    return _symmetric(_largest(weight, axis), axis, limit, 0.0, qtype)


def _largest(weight: np.ndarray, axis: int | None) -> np.ndarray:
    """The largest finite magnitude, per channel along ``axis``."""
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    finite = np.where(np.isfinite(weight), np.abs(weight), 0.0)
    return np.asarray(finite.max(axis=others, initial=0.0), np.float64)


def _symmetric(
    largest: np.ndarray, axis: int | None, limit: int, floor: np.ndarray | float, qtype: QType = QType.INT8
) -> QParams:
    """With scales of at least ``floor``, which keeps the int32 bias of a channel from overflowing."""
    scale = np.maximum(largest / limit, floor)
    scale = np.where(scale > 0.0, np.maximum(scale, LEAST_SCALE), 1.0).astype(np.float32).reshape(-1)
    return QParams(qtype, tuple(scale.tolist()), (0,) * scale.size, axis)


_of_weights: WeakKeyDictionary[Graph, dict[Hashable, Any]] = WeakKeyDictionary()


def _once(graph: Graph, key: Hashable, compute: Callable[[], T]) -> T:
    """What depends on a weight alone: all tables of a model share it. A model of 355 MB takes 2 s to look at."""
    known = _of_weights.setdefault(graph, {})
    if key not in known:
        known[key] = compute()
    found: T = known[key]
    return found


class WeightScales:
    """The scales of a model's weights.

    Args:
        per_tensor: weights that get one scale for all channels.
    """

    def __init__(self, graph: Graph, rules: Rules, per_tensor: frozenset[str]) -> None:
        self._graph, self._rules, self._per_tensor = graph, rules, per_tensor

    def params(self, value: str, qtype: QType, data_scale: Callable[[str], float | None]) -> QParams | None:
        """The qparams of a constant; None where no operator reads it as a weight in this type.

        Args:
            data_scale: the scale of the data that a weight is multiplied by; None where it is not known.
        """
        array, (axis, consumers) = self._graph.constant(value), self._readers.get(value, (None, []))
        assert array is not None
        if qtype.block and axis is not None:
            along = 1 - axis
            return _once(self._graph, (value, along, qtype), lambda: block_params(array, along, qtype))
        if not consumers or not (qtype is self._rules.weight or qtype.floating):
            return None
        weights, groups = self._beside(value, consumers)
        axis = axis if self._rules.per_channel and self._per_tensor.isdisjoint(weights) else None
        axis = None if axis is None else axis % array.ndim
        largest = self._largest_of(weights, axis, groups)
        if qtype.floating:
            return _symmetric(largest, axis, qtype.qmax, 0.0, qtype)
        return _symmetric(largest, axis, self._rules.weight_limit, self._floor(array, axis, consumers, data_scale))

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
    def _readers(self) -> dict[str, tuple[int | None, list[str]]]:
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

    def _floor(
        self, weight: np.ndarray, axis: int | None, consumers: list[str], data_scale: Callable[[str], float | None]
    ) -> np.ndarray | float:
        """Least scales with which every consumer's bias, in units of ``scale_x * scale_w``, fits int32."""
        floor: np.ndarray | float = 0.0
        for name in consumers:
            node = self._graph.node(name)
            rule = self._rules.rule(node)
            slot = None if rule is None else rule.bias
            bias = node.inputs[slot] if slot is not None and len(node.inputs) > slot else ""
            values = self._graph.constant(bias) if bias else None
            scale = None if values is None else data_scale(node.inputs[0])
            if values is None or scale is None:
                continue
            least = np.abs(values.astype(np.float64)).reshape(-1) / (scale * BIAS_LIMIT)
            channels = 1 if axis is None else weight.shape[axis]
            least = least if channels == least.size else np.full(channels, least.max(initial=0.0))
            floor = np.maximum(floor, least if axis is not None else least.max(initial=0.0))
        return floor


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
