"""A convolution of few groups over single pixels as one of a single group, with the shuffle before it in its weight.

Integer kernels compute such a convolution group by group, gathering some channels of each pixel for every one, and a
channel shuffle before it (ShuffleNet, arXiv:1707.01083) moves the whole image once more. One group whose weight is zero
between the groups does several times the products, in one dense product of matrices, and takes the channels in any
order. Zeros add nothing, so every result is the same integer. Float kernels would be slower with it, since products
cost more there: that is why this rewrites quantized operators only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from inlay.model.graph import Graph, Node
from inlay.quant.notes import Inverse
from inlay.quant.qdq_graph import QUANTIZE, QDQGraph
from inlay.quant.rewrite import Rewrite
from inlay.targets.passes.shuffles import groups_dealt

_WEIGHT = 1  # input slot
_SHUFFLE = ("Reshape", "Transpose", "Reshape")  # from the convolution on, upwards


@dataclass(frozen=True)
class Joined:
    """A grouped convolution as one of a single group.

    Attributes:
        groups: that it had.
        shuffled: into how many groups a shuffle before it dealt the channels out; 1 where there is none.
    """

    groups: int
    shuffled: int = 1

    def weight(self, array: np.ndarray) -> np.ndarray:
        """The weight, shape ``(outputs, groups * width, …)``, of one of shape ``(outputs, width, …)``."""
        outputs, width, *kernel = array.shape
        joined = np.zeros((outputs, self.groups * width, *kernel), array.dtype)
        for rows, columns in self._places(outputs, width):
            joined[rows, columns] = array[rows]
        return joined

    def inverse(self, shape: tuple[int, ...]) -> Inverse:
        """Of :meth:`weight`, for arrays of ``shape``."""
        (outputs, width, *kernel), groups, dealt = shape, self.groups, self.shuffled
        rest = range(3, 3 + len(kernel))
        return (
            ("reshape", (outputs, dealt, groups * width // dealt, *kernel)),
            ("transpose", (0, 2, 1, *rest)),
            ("reshape", (groups, outputs // groups, groups, width, *kernel)),
            ("diagonal", (0, 2)),
            ("transpose", (2 + len(kernel), *range(2 + len(kernel)))),
            ("reshape", shape),
        )

    def _places(self, outputs: int, width: int) -> Iterator[tuple[slice, np.ndarray]]:
        """By group: its outputs, and the channels that they read."""
        order = np.arange(self.groups * width).reshape(self.shuffled, -1).T.ravel()
        each = outputs // self.groups
        for group in range(self.groups):
            yield slice(group * each, (group + 1) * each), order[group * width : (group + 1) * width]


@dataclass(frozen=True)
class JoinedGroups(Rewrite[Joined]):
    """``DQ [-> Reshape -> Transpose -> Reshape -> Q -> DQ] -> Conv`` of few groups becomes ``DQ -> Conv`` of one.

    Attributes:
        most_groups: most groups of the convolution.
        most_channels: most channels that it reads.
    """

    most_groups: int = 8
    most_channels: int = 1024

    name = "joined groups"
    selectable = True
    reason = "one dense product of integers, instead of one for each group and a shuffle of the channels before them"
    source = "the search profiles full INT8 with and without it; whether it pays depends on the processor and the shape"

    def applies(self, graph: Graph, node: Node) -> Joined | None:
        """The joined form of a Conv of few groups over single pixels with a constant weight."""
        if node.op_type != "Conv" or node.domain not in ("", "ai.onnx") or len(node.inputs) <= _WEIGHT:
            return None
        weight, groups = graph.shape(node.inputs[_WEIGHT]), int(node.attributes.get("group", 1))
        if weight is None or None in weight or not graph.is_constant(node.inputs[_WEIGHT]):
            return None
        outputs, width, *kernel = (int(d or 0) for d in weight)
        if set(kernel) != {1} or width < 2 or not 1 < groups <= self.most_groups or outputs % groups:
            return None
        if groups * width > self.most_channels:
            return None
        return Joined(groups, _shuffled(graph, node.inputs[0]))

    def apply(self, qdq: QDQGraph, forms: Mapping[str, Joined]) -> None:
        """Rewrite convolutions whose data and weight are quantized, unless another node reads the weight."""
        for node in [n for n in qdq.graph.node if n.name in forms]:
            data, weight = (qdq.dequantizer(v) for v in node.input[:2])
            if data is None or weight is None or not qdq.owns(weight) or not qdq.in_bytes(data) or data.attribute:
                continue
            form = forms[node.name]
            before = _before_shuffle(qdq, node, data) if form.shuffled > 1 else None
            if before is None:  # none, or between numbers of other scales
                form = Joined(form.groups)
            inverse = form.inverse(qdq.shape(weight.input[0]))
            qdq.rearrange(weight, form.weight, lambda channels: channels, f"{self.name} {form.shuffled}", inverse)
            for attribute in node.attribute:
                if attribute.name == "group":
                    attribute.i = 1
            if before is not None:
                qdq.take_out(before.nodes)
                before.reader.input[0] = before.value
            qdq.drop_shapes([weight.output[0]])
        qdq.finish()


# --- the shuffle ----------------------------------------------------------------------------------------------------


def _shuffled(graph: Graph, value: str) -> int:
    """Into how many groups a shuffle that alone leads to ``value`` deals its channels out; 1 where there is none."""
    shapes = [graph.shape(value)]
    perm: tuple[int, ...] = ()
    for op_type in _SHUFFLE:
        node = graph.producer(value)
        if node is None or node.op_type != op_type or len(graph.consumers(value)) != 1:
            return 1
        perm = tuple(node.attributes.get("perm", perm))
        value = node.inputs[0]
        shapes.append(graph.shape(value))
    return groups_dealt(shapes[::-1], perm)


@dataclass(frozen=True, eq=False)
class _Before:
    """What comes before a shuffle, and what is there between it and the convolution.

    Attributes:
        value: before the shuffle.
        reader: that reads it then: the convolution, or the QuantizeLinear before it.
        nodes: to be taken out.
    """

    value: str
    reader: onnx.NodeProto
    nodes: list[onnx.NodeProto]


def _before_shuffle(qdq: QDQGraph, conv: onnx.NodeProto, data: onnx.NodeProto) -> _Before | None:
    """What comes before the shuffle of what ``data`` dequantizes for ``conv``.

    Q/DQ nodes between its operators change nothing where they have the same qparams. Without any before it, the numbers
    are quantized before the shuffle instead of behind it.

    Returns:
        None where other qparams are between, or others read a value in between.
    """
    q = qdq.producers.get(data.input[0])
    if q is None or q.op_type != QUANTIZE or qdq.uses[data.input[0]] > 1 or qdq.uses[data.output[0]] > 1:
        return None
    qparams, nodes, value = _qparams(qdq, data), list[onnx.NodeProto](), q.input[0]
    for op_type in _SHUFFLE:
        value = _skip_pair(qdq, value, qparams, nodes)
        node = qdq.producers.get(value)
        if node is None or node.op_type != op_type or qdq.uses[value] > 1:
            return None
        nodes.append(node)
        value = node.input[0]
    first = qdq.dequantizer(value)
    if first is None:
        return _Before(value, q, nodes[::-1])
    return _Before(value, conv, [*nodes[::-1], q, data]) if _qparams(qdq, first) == qparams else None


def _skip_pair(qdq: QDQGraph, value: str, qparams: bytes, nodes: list[onnx.NodeProto]) -> str:
    """The value before a Q/DQ pair of these qparams that alone leads to ``value``, or ``value`` itself."""
    dq = qdq.dequantizer(value)
    q = None if dq is None else qdq.producers.get(dq.input[0])
    if dq is None or q is None or q.op_type != QUANTIZE or max(qdq.uses[value], qdq.uses[dq.input[0]]) > 1:
        return value
    if _qparams(qdq, dq) != qparams or _qparams(qdq, q) != qparams:
        return value
    nodes += [dq, q]
    return q.input[0]


def _qparams(qdq: QDQGraph, node: onnx.NodeProto) -> bytes:
    """Scale, zero point and type of a Q or DQ node with constant ones, to compare; of each node another without."""
    if node.attribute or any(qdq.element(name) is None for name in node.input[1:]):
        return f"{node.name} {node.output[0]}".encode()
    arrays = [qdq.constant(name) for name in node.input[1:]]
    return b" ".join([*(a.tobytes() for a in arrays), str(arrays[-1].dtype).encode()])
