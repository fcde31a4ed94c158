"""Quantization parameters (qparams): scales and zero points from ranges and weights, one table for all candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from inlay.errors import ModelError
from inlay.model.graph import Graph
from inlay.quant.gptq import NEAREST, Rounding, Steps
from inlay.quant.observers import Range
from inlay.quant.weight_scales import BIAS_LIMIT, LEAST_SCALE, WeightScales
from inlay.space.rules import Rules
from inlay.types import Placement, Port, QParams, QType

_HUGE = float(np.finfo(np.float32).max) * (1 - 2.0**-20)  # every integer dequantizes to a finite value


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
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
STORAGE = {
    t: _FLOAT8 if t.floating else _BFLOAT16 if t is QType.BF16 else np.dtype(t.element.replace("int4", "int8"))
    for t in QType
}
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


class QParamsTable:
    """The qparams of every value that a placement may quantize, computed on first use, then constant.

    Args:
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
        self._weights = WeightScales(graph, rules, per_tensor)
        self._rules = rules
        self._ranges = ranges
        self._given = dict(fixed or {})
        self._known = {key: self._representable(params) for key, params in self._given.items()}
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
            self._known[key] = self._representable(self._compute(value, qtype))
        return self._known[key]

    def steps(self, value: str, qtype: QType) -> Steps | None:
        """Offsets from round-to-nearest; None where the constant is rounded to nearest."""
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
                scale = np.maximum(scale, (least / BIAS_LIMIT).astype(np.float32))
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

    def _representable(self, params: QParams) -> QParams:
        """``params`` with scales that are numbers of the base in half precision, each the next one that is no less."""
        base = self._rules.base
        if base is None:
            return params
        exact, dtype = np.asarray(params.scale, np.float32), STORAGE[base]
        zero, infinity = dtype.type(0), dtype.type(np.inf)
        least, most = float(np.nextafter(zero, infinity)), float(np.nextafter(infinity, zero))
        near = np.clip(exact, least, most).astype(dtype)
        short = near.astype(np.float32) < np.minimum(exact, most)
        scale = np.where(short, np.nextafter(near, infinity), near).astype(np.float32)
        return replace(params, scale=tuple(scale.tolist()))

    def _compute(self, value: str, qtype: QType) -> QParams:
        found = self._ranges.get(value)
        if self._graph.is_constant(value):
            weight = self._weights.params(value, qtype, self._data_scale)
            if weight is not None:
                return weight
            array = self._graph.constant(value)
            assert array is not None
            found = found or constant_range(array)
        if found is None:
            raise KeyError(value)
        return activation_params(found, qtype, self._rules.is_symmetric(qtype))

    def _data_scale(self, value: str) -> float | None:
        """The scale of data that are multiplied by a weight; None where it is not known."""
        usual = self._rules.activation
        data_type = usual if usual.takes_bias else QType.UINT8  # beside others, the bias is float
        return self.params(value, data_type).scale[0] if value in self._ranges else None


def constant_range(array: np.ndarray) -> Range:
    """The range of a constant's values."""
    return Range(float(array.min()), float(array.max())) if array.size else Range(0.0, 0.0)
