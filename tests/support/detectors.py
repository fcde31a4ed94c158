"""Detectors of different make with seeded weights, and whether another model finds what they find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Make = Literal["joined", "separate", "raw", "objectness", "scales", "scaled"]
"""Boxes and scores joined in one output; in one output each; not decoded; with objectness, transposed; three scales;
of one convolution, whose outputs a vector scales, by two heads that are joined."""
MAKES: tuple[Make, ...] = ("joined", "separate", "raw", "objectness", "scales", "scaled")

SIZE, CLASSES = 96, 5


class _Net:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, array: np.ndarray | np.generic) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def add(self, op: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        name = name or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=f"{op}_{name}", **attributes))
        return name

    def conv(
        self, x: str, before: int, after: int, stride: int = 1, kernel: int = 3, bias: float = 0.0, spread: float = 1.0
    ) -> str:
        weight, shift = self.rows(before, after, bias, spread, kernel)
        pads, strides = [kernel // 2] * 4, [stride] * 2
        return self.add("Conv", x, self.constant(weight), self.constant(shift), pads=pads, strides=strides)

    def rows(
        self, before: int, after: int, bias: float, spread: float, kernel: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        scale = spread * np.sqrt(2 / (before * kernel * kernel))
        weight = self.rng.normal(0, scale, (after, before, kernel, kernel)).astype(np.float32)
        return weight, np.full(after, bias, np.float32)

    def block(self, x: str, before: int, after: int, stride: int = 1) -> str:
        x = self.conv(x, before, after, stride)
        return self.add("Mul", x, self.add("Sigmoid", x))

    def flat(self, x: str, channels: int, cells: int) -> str:
        return self.add("Reshape", x, self.constant(np.array([1, channels, cells])))

    def scaled(self, x: str, by: float) -> str:
        return self.add("Mul", x, self.constant(np.float32(by)))

    def head(self, x: str, width: int, channels: int, cells: int, bias: float = 0.0, spread: float = 1.5) -> str:
        return self.flat(self.conv(x, width, channels, kernel=1, bias=bias, spread=spread), channels, cells)


def detector(make: Make, seed: int = 0, pixels: float = SIZE) -> onnx.ModelProto:
    """A small detector: input ``images`` of shape (1, 3, SIZE, SIZE); its boxes are up to ``pixels``."""
    net, side = _Net(seed), SIZE // 8
    x = net.block(net.block(net.block("images", 3, 12, 2), 12, 24, 2), 24, 32, 2)
    outputs: list[tuple[str, list[int]]]
    cells = side * side
    if make in ("joined", "separate", "raw"):
        boxes = net.head(x, 32, 4, cells)
        scores = net.head(x, 32, CLASSES, cells, -8.0, 14.0)
        if make == "raw":
            outputs = [
                (net.add("Concat", net.scaled(boxes, 30.0), scores, axis=1, name="out"), [1, 4 + CLASSES, cells])
            ]
        else:
            boxes, scores = net.scaled(net.add("Sigmoid", boxes), pixels), net.add("Sigmoid", scores)
            if make == "joined":
                outputs = [(net.add("Concat", boxes, scores, axis=1, name="out"), [1, 4 + CLASSES, cells])]
            else:
                boxes, scores = net.add("Identity", boxes, name="boxes"), net.add("Identity", scores, name="scores")
                outputs = [(boxes, [1, 4, cells]), (scores, [1, CLASSES, cells])]
    elif make == "scaled":
        vector = net.constant(np.array([pixels] * 4 + [1.0] * CLASSES, np.float32)[:, None])
        heads = []
        for _ in range(2):
            both = zip(net.rows(32, 4, 0.0, 1.5), net.rows(32, CLASSES, -8.0, 14.0), strict=True)
            weight, bias = (net.constant(np.concatenate(pair)) for pair in both)
            rows = net.flat(net.add("Conv", x, weight, bias), 4 + CLASSES, cells)
            heads.append(net.add("Mul", net.add("Sigmoid", rows), vector))
        outputs = [(net.add("Concat", *heads, axis=2, name="out"), [1, 4 + CLASSES, 2 * cells])]
    else:
        levels = []
        for level in range(3 if make == "scales" else 1):
            here = (side >> level) ** 2
            boxes = net.scaled(net.add("Sigmoid", net.head(x, 32, 4, here)), pixels)
            thing = net.add("Sigmoid", net.head(x, 32, 1, here, 0.0, 8.0))
            scores = net.add("Sigmoid", net.head(x, 32, CLASSES, here, -3.0, 8.0))
            levels.append(net.add("Concat", boxes, thing, scores, axis=1))
            x = net.block(x, 32, 32, 2)
        joined = levels[0] if len(levels) == 1 else net.add("Concat", *levels, axis=2)
        cells = sum((side >> level) ** 2 for level in range(len(levels)))
        outputs = [(net.add("Transpose", joined, perm=[0, 2, 1], name="out"), [1, cells, 5 + CLASSES])]
    read = {name for node in net.nodes for name in node.input} | {name for name, _ in outputs}
    nodes = net.nodes
    while len(kept := [n for n in nodes if n.output[0] in read]) < len(nodes):
        nodes = kept
        read = {name for node in nodes for name in node.input} | {name for name, _ in outputs}
    graph = helper.make_graph(
        nodes,
        make,
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIZE, SIZE])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        [c for c in net.constants if c.name in read],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def finder(seed: int = 0, sides: float = 96.0) -> onnx.ModelProto:
    """The same with its suppression: rows of what it finds, as many as there are, in the order of their scores.

    Outputs: corners ``dets``, shape (n, 4); ``conf`` and ``labels``, shape (n,).
    """
    model = detector("separate", seed, pixels=sides)
    graph = model.graph

    def constant(name: str, array: np.ndarray | np.generic) -> None:
        graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))

    for name, number in (
        ("most", np.array([50], np.int64)),
        ("overlap", np.array([0.5], np.float32)),
        ("least", np.array([0.25], np.float32)),
    ):
        constant(name, number)
    constant("label_at", np.array(1, np.int64))
    constant("row_at", np.array(2, np.int64))
    constant("first_axis", np.array([0], np.int64))
    constant("half", np.float32(0.5))
    make = helper.make_node
    graph.node.extend(
        [
            make("Transpose", ["boxes"], ["rows"], perm=[0, 2, 1]),
            make("NonMaxSuppression", ["rows", "scores", "most", "overlap", "least"], ["chosen"], center_point_box=1),
            make("Gather", ["chosen", "label_at"], ["labels"], axis=1),
            make("Gather", ["chosen", "row_at"], ["at"], axis=1),
            make("Squeeze", ["rows", "first_axis"], ["all_rows"]),
            make("Gather", ["all_rows", "at"], ["chosen_rows"], axis=0),
            make("Split", ["chosen_rows"], ["center", "size"], axis=1),
            make("Mul", ["size", "half"], ["reach"]),
            make("Sub", ["center", "reach"], ["low"]),
            make("Add", ["center", "reach"], ["high"]),
            make("Concat", ["low", "high"], ["dets"], axis=1),
            make("ReduceMax", ["scores"], ["best"], axes=[1], keepdims=0),
            make("Squeeze", ["best", "first_axis"], ["all_best"]),
            make("Gather", ["all_best", "at"], ["conf"], axis=0),
        ]
    )
    del graph.output[:]
    graph.output.extend(
        [
            helper.make_tensor_value_info("dets", TensorProto.FLOAT, ["found", 4]),
            helper.make_tensor_value_info("conf", TensorProto.FLOAT, ["found"]),
            helper.make_tensor_value_info("labels", TensorProto.INT64, ["found"]),
        ]
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def images(count: int, seed: int, patch: int = 8) -> np.ndarray:
    """Images of ``patch``-sized squares of noise, shape (count, 3, SIZE, SIZE); another ``patch`` is another source."""
    small = np.random.default_rng(seed).random((count, 3, SIZE // patch, SIZE // patch))
    return np.repeat(np.repeat(small, patch, 2), patch, 3).astype(np.float32)


Detections = tuple[np.ndarray, np.ndarray]
"""Boxes as (center x, center y, width, height), shape (n, 4), and scores by class, shape (n, classes)."""


def detections(make: Make, outputs: Sequence[np.ndarray]) -> Detections:
    """What a detector's outputs for one image say."""
    if make == "separate":
        return outputs[0][0].T, outputs[1][0].T
    rows = outputs[0][0] if make in ("objectness", "scales") else outputs[0][0].T
    if make in ("joined", "scaled"):
        return rows[:, :4], rows[:, 4:]
    if make == "raw":
        return SIZE / (1 + np.exp(-rows[:, :4] / 30)), 1 / (1 + np.exp(-rows[:, 4:]))
    return rows[:, :4], rows[:, 4:5] * rows[:, 5:]


def kept(make: Make, want: Sequence[Sequence[np.ndarray]], got: Sequence[Sequence[np.ndarray]]) -> tuple[int, int]:
    """How many of a detector's detections with a score of 0.25 or more another one has, and how many there are.

    A detection is there where one of the same class overlaps by half (IoU 0.5), and also has that score.
    """
    found = total = 0
    for ours, theirs in zip(want, got, strict=True):
        (boxes, scores), (others, other_scores) = detections(make, ours), detections(make, theirs)
        for number in np.flatnonzero(scores.max(axis=1) >= 0.25):
            label = int(scores[number].argmax())
            total += 1
            same = (other_scores.argmax(axis=1) == label) & (other_scores[:, label] >= 0.25)
            found += bool((overlap(boxes[number], others[same]) >= 0.5).any())
    return found, total


def overlap(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of one box with others, shape (n,)."""
    low = np.maximum(box[:2] - box[2:] / 2, others[:, :2] - others[:, 2:] / 2)
    high = np.minimum(box[:2] + box[2:] / 2, others[:, :2] + others[:, 2:] / 2)
    both = np.prod(np.maximum(high - low, 0), axis=1)
    return np.asarray(both / np.maximum(np.prod(box[2:]) + np.prod(others[:, 2:], axis=1) - both, 1e-9))
