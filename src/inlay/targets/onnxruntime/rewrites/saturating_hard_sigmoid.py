"""A ``HardSigmoid`` between Q/DQ nodes, as the saturation of a QuantizeLinear.

``HardSigmoid(x) = max(0, min(1, alpha * x + beta))``. Its result as 8 bits runs over the whole type, so the type's own
ends cut off what is below 0 and above 1; what is left is a line, which a QuantizeLinear with scale and zero point of
its own draws. ONNX Runtime has no integer HardSigmoid: it dequantizes, computes in float, and quantizes again, and a
multiplication behind it (a hard swish, a gate) stays in float, too. A ``LeakyRelu`` of slope 1, which changes nothing,
lets the runtime take all of it as one table of 256 results, QLinearLeakyRelu.

The zero point is ``beta`` in steps of the result. So that it is an integer, the result's scale becomes a bit smaller:
1/256 in place of 1/255. With that scale the integers are those of the float function. Where the old scale is handed
on, through an operator that moves elements or to a Concat, nothing is rewritten: both sides of those must agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from inlay.model.graph import Graph, Node
from inlay.quant.qdq_graph import DEQUANTIZE, QUANTIZE, QDQGraph, set_attributes
from inlay.quant.rewrite import Rewrite

_SUFFIX = "_saturates"
_CLOSE = 1e-6  # of a step, by which float32 may have rounded the offset up
_ABOVE = 1.002  # where the type may end instead of at 1: below half a step of 8 bits


@dataclass(frozen=True)
class Line:
    """``alpha * x + beta``."""

    alpha: float
    beta: float


@dataclass(frozen=True)
class SaturatingHardSigmoid(Rewrite[Line]):
    """``DQ -> HardSigmoid -> Q -> DQ`` becomes ``DQ -> LeakyRelu(alpha=1) -> Q' -> DQ``."""

    name = "saturating hard sigmoid"
    exact = False
    reason = "ONNX Runtime has an integer LeakyRelu and Mul, but no integer HardSigmoid"
    source = (
        "six Convs of 64 channels 40x40 with a hard swish between each: 97 to 62 us for each hard swish, over a Relu's "
        "time (ONNX Runtime 1.31, x86-64 with AVX512)"
    )

    def applies(self, graph: Graph, node: Node) -> Line | None:
        """The line of a HardSigmoid that rises."""
        if node.op_type != "HardSigmoid":
            return None
        line = Line(float(node.attributes.get("alpha", 0.2)), float(node.attributes.get("beta", 0.5)))
        return line if line.alpha > 0.0 else None

    def apply(self, qdq: QDQGraph, forms: Mapping[str, Line]) -> None:
        """Rewrite those whose input and result are 8 bits, where the result's integers end at 0 and at 1."""
        readers: dict[str, list[onnx.NodeProto]] = {}
        for reader in qdq.graph.node:
            for value in reader.input:
                readers.setdefault(value, []).append(reader)
        for node in qdq.graph.node:
            line, dq = forms.get(node.name), qdq.dequantizer(node.input[0])
            behind = readers.get(node.output[0], [])
            if line is None or dq is None or qdq.uses[node.output[0]] != 1 or not behind:
                continue
            (q,) = behind
            drawn = _drawn(line, q, qdq) if q.op_type == QUANTIZE and qdq.in_bytes(q) and qdq.in_bytes(dq) else None
            if drawn is None or any(r.op_type != DEQUANTIZE for r in readers.get(q.output[0], [])):
                continue
            pairs = readers[q.output[0]]
            results = [v for pair in pairs for reader in readers.get(pair.output[0], []) for v in reader.output]
            if any(_same_scale(q, other, qdq) for value in results for other in readers.get(value, [])):
                continue
            node.op_type = "LeakyRelu"
            set_attributes(node, {}, keep=False)
            node.attribute.append(onnx.helper.make_attribute("alpha", 1.0))
            q.name = qdq.unique(f"{q.name}{_SUFFIX}")
            scale, *own = drawn
            for slot, array in enumerate(own, 1):
                q.input[slot] = qdq.add_constant(f"{q.input[slot]}{_SUFFIX}", array)
            old = pairs[0].input[1]
            if qdq.uses[old] == 1 + len(pairs):  # only this Q, until now, and its DQs
                qdq.set_constant(old, partial(np.copy, scale), self.name, ())
                continue
            name = qdq.add_constant(f"{old}_whole", scale)
            for reader in pairs:
                reader.input[1] = name


def _same_scale(q: onnx.NodeProto, other: onnx.NodeProto, qdq: QDQGraph) -> bool:
    """Whether another node is a QuantizeLinear of the same scale, now that ``q`` has its old one."""
    if other.op_type != QUANTIZE or qdq.element(other.input[1]) is None:
        return False
    return np.array_equal(qdq.constant(q.input[1]), qdq.constant(other.input[1]))


def _drawn(line: Line, q: onnx.NodeProto, qdq: QDQGraph) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """The result's scale, and scale and zero point of the QuantizeLinear that draws ``line``.

    None where saturation does not cut it off.
    """
    if len(q.input) < 3 or qdq.element(q.input[1]) is None:
        return None
    scale, zero = qdq.constant(q.input[1]), qdq.constant(q.input[2])
    limits = np.iinfo(zero.dtype)
    if scale.size != 1 or not scale.flat[0] > 0 or line.beta <= 0 or int(zero.flat[0]) != limits.min:
        return None
    steps, most = math.ceil(line.beta / float(scale.flat[0]) - _CLOSE), int(limits.max) - int(limits.min)
    if not 0 < steps <= most or float(scale.flat[0]) * most > _ABOVE:
        return None
    whole = np.full_like(scale, line.beta / steps)
    return whole, np.full_like(scale, line.beta / steps / line.alpha), np.full_like(zero, steps + int(limits.min))
