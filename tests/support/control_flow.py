"""Random models with control flow: nested If, Loop and Scan bodies, captured values, and state that loops carry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS, SIDE = 8, 5
SHAPE = (1, CHANNELS, SIDE, SIDE)
"""Of every float value, so that any may be read where another was."""
MODES = ("mode0", "mode1")
"""Scalar inputs that conditions may ask for."""


@dataclass
class _Scope:
    """One graph under construction: its nodes and weights, and the values that its operators may read."""

    values: list[str]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)


@dataclass
class _Maker:
    rng: np.random.Generator
    outer: _Scope
    kinds: tuple[str, ...]
    conditions: tuple[str, ...]
    count: int = 0

    def name(self, what: str) -> str:
        self.count += 1
        return f"{what}_{self.count}"

    def add(self, scope: _Scope, op: str, inputs: list[str], what: str = "", **attributes: Any) -> str:
        name = self.name(what or op.lower())
        scope.nodes.append(helper.make_node(op, inputs, [name], f"n_{name}", **attributes))
        return name

    def constant(self, scope: _Scope, array: np.ndarray) -> str:
        """A weight of this graph, of the main graph, or a Constant node."""
        how = self.rng.integers(3)
        name = self.name("w") if how else f"outer_w_{len(self.outer.weights)}"
        if how == 2:
            scope.nodes.append(
                helper.make_node("Constant", [], [name], f"n_{name}", value=numpy_helper.from_array(array))
            )
        else:
            (scope if how else self.outer).weights.append(numpy_helper.from_array(array, name))
        return name

    def read(self, scope: _Scope) -> str:
        """A value, mostly a late one."""
        back = min(int(self.rng.geometric(0.5)), len(scope.values))
        return scope.values[-back]

    def fill(self, scope: _Scope, operators: int, depth: int) -> None:
        for _ in range(operators):
            kinds = ("conv", "conv", "convrelu", "add", "pool", "act", *(self.kinds if depth else ()))
            scope.values += getattr(self, f"_{self.rng.choice(kinds)}")(scope, depth)

    def _conv(self, scope: _Scope, _: int) -> list[str]:
        size = int(self.rng.choice([1, 3]))
        weight = self.rng.standard_normal((CHANNELS, CHANNELS, size, size)) / np.sqrt(CHANNELS * size * size)
        bias = 0.1 * self.rng.standard_normal(CHANNELS)
        constants = [self.constant(scope, a.astype(np.float32)) for a in (weight, bias)]
        return [self.add(scope, "Conv", [self.read(scope), *constants], pads=[size // 2] * 4, kernel_shape=[size] * 2)]

    def _convrelu(self, scope: _Scope, depth: int) -> list[str]:
        (y,) = self._conv(scope, depth)
        return [self.add(scope, "Relu", [y])]

    def _add(self, scope: _Scope, _: int) -> list[str]:
        y = self.add(scope, "Add", [self.read(scope), self.read(scope)])
        half = self.constant(scope, np.array(0.5, np.float32))
        return [self.add(scope, "Mul", [y, half])]

    def _pool(self, scope: _Scope, _: int) -> list[str]:
        op = str(self.rng.choice(["MaxPool", "AveragePool"]))
        return [self.add(scope, op, [self.read(scope)], kernel_shape=[3, 3], pads=[1] * 4)]

    def _act(self, scope: _Scope, _: int) -> list[str]:
        return [self.add(scope, str(self.rng.choice(["Relu", "Tanh", "Sigmoid"])), [self.read(scope)])]

    def _condition(self, scope: _Scope) -> str:
        kind = self.rng.choice(self.conditions)
        if kind == "mode":
            one = self.constant(scope, np.array(self.rng.integers(2), np.int64))
            return self.add(scope, "Equal", [str(self.rng.choice(MODES)), one])
        if kind == "shape":
            axis, size = int(self.rng.integers(4)), int(self.rng.choice([1, CHANNELS, SIDE]))
            shape = self.add(scope, "Shape", [self.read(scope)])
            dim = self.add(scope, "Gather", [shape, self.constant(scope, np.array(axis, np.int64))], axis=0)
            return self.add(scope, "Equal", [dim, self.constant(scope, np.array(size, np.int64))])
        mean = self.add(scope, "ReduceMean", [self.read(scope)], axes=[0, 1, 2, 3], keepdims=0)
        return self.add(scope, "Greater", [mean, self.constant(scope, np.array(0.1, np.float32))])

    def _if(self, scope: _Scope, depth: int) -> list[str]:
        condition, results, start = self._condition(scope), int(self.rng.integers(1, 3)), self.count
        bodies, ends = list[onnx.GraphProto](), list[int]()
        for _ in range(2):
            if self.rng.random() < 0.5:
                self.count = start  # both branches of some use the same names
            bodies.append(self._branch(scope, depth, results))
            ends.append(self.count)
        self.count = max(ends)
        outputs = [self.name("if") for _ in range(results)]
        then, otherwise = bodies
        scope.nodes.append(
            helper.make_node("If", [condition], outputs, f"n_{outputs[0]}", then_branch=then, else_branch=otherwise)
        )
        return outputs

    def _branch(self, scope: _Scope, depth: int, results: int) -> onnx.GraphProto:
        body = _Scope(list(scope.values))
        self.fill(body, int(self.rng.integers(0, 4)), depth - 1)
        return _graph(body, self.name("branch"), [], self._results(body, results))

    def _results(self, body: _Scope, results: int) -> list[onnx.ValueInfoProto]:
        """Outputs of a body: values of its own, passed on where the last ones are captured or taken already."""
        names = []
        made = {v for node in body.nodes for v in node.output}
        for _ in range(results):
            value = self.read(body)
            names.append(value if value in made and value not in names else self.add(body, "Identity", [value]))
        return [_info(name) for name in names]

    def _loop(self, scope: _Scope, depth: int) -> list[str]:
        states, scans = int(self.rng.integers(1, 3)), int(self.rng.integers(0, 2))
        given = [self.read(scope) for _ in range(states)]
        carried = [self.name("state") for _ in range(states)]
        turn, going = self.name("turn"), self.name("going")
        body = _Scope([*scope.values, *carried])
        self.fill(body, int(self.rng.integers(1, 4)), depth - 1)
        goes_on = self.add(body, "Identity", [going])
        inputs = [
            helper.make_tensor_value_info(turn, TensorProto.INT64, []),
            helper.make_tensor_value_info(going, TensorProto.BOOL, []),
            *map(_info, carried),
        ]
        results = [helper.make_tensor_value_info(goes_on, TensorProto.BOOL, []), *self._results(body, states + scans)]
        trips = self.constant(scope, np.array(self.rng.integers(1, 4), np.int64))
        true = self.constant(scope, np.array(True))
        outputs = [self.name("loop") for _ in range(states + scans)]
        graph = _graph(body, self.name("body"), inputs, results)
        scope.nodes.append(helper.make_node("Loop", [trips, true, *given], outputs, f"n_{outputs[0]}", body=graph))
        return [
            *outputs[:states],
            *(self.add(scope, "ReduceMean", [v], axes=[0], keepdims=0) for v in outputs[states:]),
        ]

    def _scan(self, scope: _Scope, depth: int) -> list[str]:
        steps = int(self.rng.integers(1, 4))
        axis = self.constant(scope, np.array([0], np.int64))
        rows = [self.add(scope, "Unsqueeze", [self.read(scope), axis]) for _ in range(steps)]
        sequence = self.add(scope, "Concat", rows, axis=0)
        state, row = self.name("state"), self.name("row")
        body = _Scope([*scope.values, state, row])
        self.fill(body, int(self.rng.integers(1, 4)), depth - 1)
        graph = _graph(body, self.name("body"), [_info(state), _info(row)], self._results(body, 2))
        outputs = [self.name("scan") for _ in range(2)]
        scope.nodes.append(
            helper.make_node(
                "Scan", [self.read(scope), sequence], outputs, f"n_{outputs[0]}", body=graph, num_scan_inputs=1
            )
        )
        return [outputs[0], self.add(scope, "ReduceMean", [outputs[1]], axes=[0], keepdims=0)]


def controlled(
    seed: int,
    kinds: tuple[str, ...] = ("if", "loop", "scan"),
    conditions: tuple[str, ...] = ("mode", "shape", "data"),
    operators: int = 7,
    depth: int = 3,
) -> onnx.ModelProto:
    """A random model with the inputs ``x`` and :data:`MODES`, and at least one operator of ``kinds`` in the main graph.

    Args:
        seed: of structure and weights.
        kinds: of control flow: ``if``, ``loop``, ``scan``.
        conditions: what Ifs ask for: ``mode`` (an input), ``shape``, ``data``.
        operators: of the main graph, about.
        depth: of nesting, at most.
    """
    rng = np.random.default_rng(seed)
    outer = _Scope(["x"])
    maker = _Maker(rng, outer, kinds, conditions)
    maker.fill(outer, 2, 0)
    outer.values += getattr(maker, f"_{rng.choice(kinds)}")(outer, depth)
    maker.fill(outer, operators - 3, depth)
    outputs = list(dict.fromkeys([outer.values[-1], *(v for v in outer.values[1:] if rng.random() < 0.15)]))
    inputs = [_info("x"), *(helper.make_tensor_value_info(m, TensorProto.INT64, []) for m in MODES)]
    graph = _graph(outer, "controlled", inputs, [_info(v) for v in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _info(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)


def _graph(
    scope: _Scope, name: str, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
) -> onnx.GraphProto:
    return helper.make_graph(scope.nodes, name, inputs, outputs, scope.weights)


def feed_for(seed: int, mode0: int = 0, mode1: int = 1) -> dict[str, np.ndarray]:
    """Inputs of such a model."""
    x = np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)
    return {"x": x, "mode0": np.array(mode0, np.int64), "mode1": np.array(mode1, np.int64)}
