"""The saturation of Q/DQ pairs as operators of the float model.

A pair clips its value to what its integers represent. Quantizers rely on that: they drop a Relu or Clip that the range
of the quantized type implies. In a model of other origin the saturation is therefore part of the function, and a pair
that is taken out leaves a Clip in its place. Most values never reach the ends of their range; :func:`settle` removes
those Clips again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import constant_of, insert_behind
from inlay.quant.observers import Range
from inlay.quant.plain.graph import PlainGraph
from inlay.quant.qparams import covered
from inlay.types import QParams, QType

_MAY_BE_NEGATIVE = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul", "BatchNormalization"})

Form = Literal["Relu", "Clip"]  # what a saturation is in the float model


@dataclass(frozen=True)
class Saturation:
    """A Clip or Relu in the place of a Q/DQ pair."""

    node: str  # its name
    value: str  # what it reads
    bounds: Range  # the least and the largest value that the pair's integers represent
    step: float  # the pair's scale
    ends: tuple[bool, bool]  # whether the lower and the upper bound matter: not where every reader clips as much
    rectifies: bool  # the operator before it makes negative values, and the pair none: a Relu was dropped here
    form: Form = "Clip"  # what stands there now
    # a Softmax over the last axis reads it, and nothing else does: far below the largest, values are all one
    weighs: bool = False


class Saturations:
    """Puts Clips into a graph in the place of pairs, one for each value, range and need of its readers."""

    def __init__(self, plain: PlainGraph) -> None:
        self._plain = plain
        self._made: dict[tuple[str, Range, tuple[bool, bool]], tuple[Saturation, ir.Value]] = {}

    @property
    def made(self) -> tuple[Saturation, ...]:
        """All of them so far."""
        return tuple(saturation for saturation, _ in self._made.values())

    def of(self, source: ir.Value, read: ir.Value, params: QParams) -> ir.Value:
        """``source`` clipped to what ``params`` represent; itself where all readers of ``read`` clip as much."""
        if (
            ir.convenience.get_const_tensor(source) is not None
            or params.axis is not None
            or params.qtype is QType.INT32
        ):
            return source
        bounds = covered(params)
        limits = [_limits(use.node) for use in read.uses()]
        if read.is_graph_output() or not limits:
            limits.append(_NO_LIMITS)
        ends = any(r.low < bounds.low for r in limits), any(r.high > bounds.high for r in limits)
        if not any(ends):
            return source
        key = (str(source.name), bounds, ends)
        if key not in self._made:
            producer = source.producer()
            clip = self._clip(source, bounds)
            insert_behind(source, clip, self._plain.graph)
            negative = producer is not None and producer.op_type in _MAY_BE_NEGATIVE
            rectifies = ends[0] and bounds.low == 0.0 and negative
            weighs = all(_weighs(use.node) for use in read.uses()) and not read.is_graph_output()
            step = params.scale[0]
            saturation = Saturation(str(clip.name), str(source.name), bounds, step, ends, rectifies, weighs=weighs)
            self._made[key] = saturation, clip.outputs[0]
        return self._made[key][1]

    def _clip(self, source: ir.Value, bounds: Range) -> ir.Node:
        plain, wish = self._plain, f"{source.name}_saturated"
        name, output = plain.free_node(wish), ir.Value(name=plain.free(wish), type=source.type, shape=source.shape)
        if plain.graph.opset_imports.get("", 11) < 11:  # the bounds were attributes before
            ends = [ir.AttrFloat32("min", bounds.low), ir.AttrFloat32("max", bounds.high)]
            return ir.Node("", "Clip", [source], ends, outputs=[output], name=name)
        both = (("low", bounds.low), ("high", bounds.high))
        limits = [plain.constant(f"{wish}_{end}", np.asarray(bound, np.float32)) for end, bound in both]
        return ir.Node("", "Clip", [source, *limits], outputs=[output], name=name)


_NO_LIMITS = Range(-np.inf, np.inf)
_FLOAT_ROUNDING = 1e-14  # of an energy: float32's, with room


def _weighs(node: ir.Node) -> bool:
    if node.op_type != "Softmax":
        return False
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    axis = node.attributes.get_int("axis", -1)
    return axis == -1 or (shape is not None and axis == len(shape) - 1)


def _limits(node: ir.Node) -> Range:
    """What ``node`` clips its input to."""
    if node.op_type == "Relu":
        return Range(0.0, np.inf)
    if node.op_type != "Clip":
        return _NO_LIMITS
    limits = [-np.inf, np.inf]
    for i, attribute in enumerate(("min", "max")):
        array = constant_of(node.inputs[i + 1]) if i + 1 < len(node.inputs) else None
        if array is not None:
            limits[i] = float(array.reshape(-1)[0])
        elif attribute in node.attributes:
            limits[i] = node.attributes[attribute].as_float()
    return Range(*limits)


def reached(saturations: Sequence[Saturation], arrays: Iterable[Mapping[str, np.ndarray]]) -> dict[str, Form]:
    """What has to stay of ``saturations``, by node; those that change nothing are not listed.

    A saturation stays where clipping changes the value by more than the pair's own rounding does (``step**2 / 12``, the
    variance of a uniform error), and where a Relu was dropped. What only a Softmax reads is judged by its results: a
    mask's great negative numbers are clipped to any that still weigh nothing.

    Args:
        arrays: what that model computes of :attr:`Saturation.value` on samples, in parts of any size.
    """
    excess = {s.node: np.zeros(2) for s in saturations}
    weights = {s.node: np.zeros(2) for s in saturations if s.weighs}
    counts = dict.fromkeys(excess, 0)
    for values in arrays:
        for s in (s for s in saturations if s.value in values):
            x = values[s.value].astype(np.float64)
            if s.weighs:
                weights[s.node] += _weights_changed(x, s)
            x = x[np.isfinite(x)]
            beyond = np.maximum(s.bounds.low - x, 0.0), np.maximum(x - s.bounds.high, 0.0)
            excess[s.node] += [np.square(b).sum() for b in beyond]
            counts[s.node] += x.size
    forms: dict[str, Form] = {}
    for s in saturations:
        low, high = (excess[s.node] > s.step**2 / 12 * counts[s.node]) & s.ends
        if s.weighs and weights[s.node][0] <= weights[s.node][1]:
            low = high = np.False_
        if low or high or s.rectifies:
            forms[s.node] = "Relu" if s.bounds.low == 0.0 and not high else "Clip"
    return forms


def _weights_changed(x: np.ndarray, saturation: Saturation) -> tuple[float, float]:
    """By how much clipping changes a Softmax of ``x``, and rounding: energies, that of rounding by the first order."""

    def softmax(x: np.ndarray) -> np.ndarray:
        powers = np.exp(x - x.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))

    bounds = saturation.bounds
    exact, clipped = softmax(x), softmax(np.clip(x, bounds.low, bounds.high))
    squares = np.square(exact)
    slopes = squares * (1.0 - 2.0 * exact + squares.sum(axis=-1, keepdims=True))
    rounding = saturation.step**2 / 12 * slopes.sum() + _FLOAT_ROUNDING * squares.sum()
    return float(np.square(exact - clipped).sum()), float(rounding)


def settle(graph: ir.Graph, saturations: Sequence[Saturation], forms: Mapping[str, Form]) -> dict[str, str]:
    """Give each saturation in ``graph`` its form, and remove those that have none.

    Returns:
        For each value that is gone the one that took its place.
    """
    nodes = {str(n.name): n for n in graph}
    gone: dict[str, str] = {}
    for s in saturations:
        clip = nodes[s.node]
        source, output = clip.inputs[0], clip.outputs[0]
        assert source is not None
        if s.node in forms:
            if forms[s.node] == "Relu":
                relu = ir.Node("", "Relu", [source], name=s.node)
                graph.insert_before(clip, relu)
                _replace(graph, clip, relu.outputs[0])
        elif not output.is_graph_output():
            gone[str(output.name)] = str(source.name)
            output.replace_all_uses_with(source)
            graph.remove(clip, safe=True)
        elif not source.is_graph_output() and source.producer() is not None:
            gone[str(source.name)] = str(output.name)
            _replace(graph, clip, source)
    return gone


def _replace(graph: ir.Graph, clip: ir.Node, result: ir.Value) -> None:
    """Put ``result`` in the place, and under the name, of what ``clip`` writes."""
    old = clip.outputs[0]
    old.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(clip, safe=True)
    result.name, result.type, result.shape = old.name, old.type, old.shape
