"""Random small models of the operators that have integer kernels, and of some that have none."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import onnx

from inlay.targets.base import Feed
from inlay.testing import Builder
from tests.support.shuffles import shuffle

Shape = tuple[int, ...]
Step = Callable[["_Drawing", str, Shape], tuple[str, Shape] | None]
"""Adds an operator behind a value of that shape, and gives its result; None where it does not fit."""

_LARGEST = 20_000  # elements of a value
_RECENT = 3  # values of which one is read: most models are deep


class _Drawing:
    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.b = rng, Builder(opset=int(rng.choice([13, 17, 18, 21])))
        channels, size = int(rng.choice([3, 4, 8, 12])), int(rng.choice([6, 8, 11]))
        self.values: list[tuple[str, Shape]] = []
        for name in ("x", "other")[: 1 + (rng.random() < 0.3)]:
            shape = (1, channels, size, size)
            self.values.append((self.b.input(name, shape), shape))

    def node(self, op_type: str, *inputs: str, **attributes: object) -> str:
        return self.b.node(f"{op_type}_{len(self.b.nodes)}", op_type, inputs, **attributes)  # type: ignore[arg-type]

    def weight(self, *shape: int, deviation: float = 1.0) -> str:
        return self.constant(self.rng.normal(0, deviation, shape))

    def constant(self, array: object) -> str:
        return self.b.constant(f"c{len(self.b.initializers)}", array)

    def same(self, shape: Shape, but: int | None = None) -> tuple[str, Shape]:
        """A value of the same shape, but perhaps for an axis."""
        fitting = [
            (v, s)
            for v, s in self.values
            if len(s) == len(shape) and all(a == b or i == but for i, (a, b) in enumerate(zip(s, shape, strict=True)))
        ]
        return fitting[int(self.rng.integers(len(fitting)))]


def random_model(rng: np.random.Generator, most: int = 12) -> tuple[onnx.ModelProto, tuple[Feed, ...]]:
    """A model of 3 to ``most`` operators, and feeds; its last value is its output, and sometimes another one, too."""
    drawing = _Drawing(rng)
    for _ in range(int(rng.integers(3, most))):
        value, shape = drawing.values[int(rng.integers(max(0, len(drawing.values) - _RECENT), len(drawing.values)))]
        made = _STEPS[int(rng.integers(len(_STEPS)))](drawing, value, shape)
        if made is not None and prod(made[1]) <= _LARGEST:
            drawing.values.append(made)
    computed = [v for v, _ in drawing.values if v not in ("x", "other")] or [drawing.node("Tanh", "x")]
    drawing.b.output(computed[-1])
    if len(computed) > 2 and rng.random() < 0.3:
        drawing.b.output(computed[-3])
    given = [(i, s) for i, s in drawing.values if i in ("x", "other")]
    return drawing.b.model(), tuple({i: rng.normal(0, 1, s).astype(np.float32) for i, s in given} for _ in range(3))


def _elementwise(op_type: str, **attributes: object) -> Step:
    return lambda d, x, shape: (d.node(op_type, x, **attributes), shape)


def _with_another(op_type: str) -> Step:
    return lambda d, x, shape: (d.node(op_type, x, d.same(shape)[0]), shape)


def _with_constant(op_type: str) -> Step:
    def step(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape]:
        return d.node(op_type, x, d.weight(*((), shape[-1:])[int(d.rng.integers(2))])), shape

    return step


def _image(step: Step, least: int = 1) -> Step:
    return lambda d, x, shape: step(d, x, shape) if len(shape) == 4 and min(shape[2:]) >= least else None


def _conv(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape]:
    kernel, stride, kind = int(d.rng.choice([1, 3])), int(d.rng.choice([1, 1, 2])), d.rng.random()
    outputs, group = (shape[1], shape[1]) if kind < 0.25 else (int(d.rng.choice([4, 8, 12])), 1)
    if kind > 0.75:
        group = int(d.rng.choice([g for g in (1, 2, 4) if shape[1] % g == 0]))
    weight = d.weight(outputs, shape[1] // group, kernel, kernel, deviation=(shape[1] // group * kernel**2) ** -0.5)
    inputs = [x, weight, *([d.weight(outputs, deviation=0.3)] if d.rng.random() < 0.7 else [])]
    pad = kernel // 2
    made = d.node("Conv", *inputs, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, group=group)
    return made, (1, outputs, *((n + 2 * pad - kernel) // stride + 1 for n in shape[2:]))


def _transposed_conv(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape]:
    inputs = x, d.weight(shape[1], 4, 2, 2, deviation=0.3), d.weight(4, deviation=0.3)
    made = d.node("ConvTranspose", *inputs, kernel_shape=[2, 2], strides=[2, 2])
    return made, (1, 4, *(2 * n for n in shape[2:]))


def _pool(op_type: str) -> Step:
    def step(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape]:
        stride, pad = int(d.rng.choice([1, 2])), int(d.rng.choice([0, 1]))
        counted = {"count_include_pad": 1} if op_type == "AveragePool" and d.rng.random() < 0.5 else {}
        made = d.node(op_type, x, kernel_shape=[3, 3], strides=[stride] * 2, pads=[pad] * 4, **counted)
        return made, (1, shape[1], *((n + 2 * pad - 3) // stride + 1 for n in shape[2:]))

    return step


def _matmul(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape]:
    outputs = int(d.rng.choice([4, 8]))
    return d.node("MatMul", x, d.weight(shape[-1], outputs, deviation=shape[-1] ** -0.5)), (*shape[:-1], outputs)


def _gemm(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape]:
    size = prod(shape[1:])
    inputs = d.node("Flatten", x), d.weight(6, size, deviation=size**-0.5), d.weight(6)
    return d.node("Gemm", *inputs, transB=1), (1, 6)


def _concat(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape]:
    axis = int(d.rng.integers(1, len(shape)))
    other, theirs = d.same(shape, axis)
    joined = tuple(n + m if i == axis else n for i, (n, m) in enumerate(zip(shape, theirs, strict=True)))
    return d.node("Concat", x, other, axis=axis), joined


def _slice(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape] | None:
    half = shape[1] // 2
    bounds = [d.constant(np.array([n])) for n in (0, half, 1)]
    return (d.node("Slice", x, *bounds), (shape[0], half, *shape[2:])) if half else None


def _transpose(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape]:
    order = [0, *(1 + int(i) for i in d.rng.permutation(len(shape) - 1))]
    return d.node("Transpose", x, perm=order), tuple(shape[i] for i in order)


def _shuffle(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape] | None:
    groups = [g for g in (2, 3, 4) if shape[1] % g == 0 and shape[1] > g]
    if not groups:
        return None
    return shuffle(d.b, x, shape, int(d.rng.choice(groups)), name=f"shuffle_{len(d.b.nodes)}"), shape


def _shuffled_conv(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape] | None:
    """A convolution of few groups over single pixels, mostly behind a shuffle."""
    groups = [g for g in (2, 3, 4) if shape[1] % g == 0 and shape[1] > g]
    if not groups:
        return None
    shuffled = _shuffle(d, x, shape) if d.rng.random() < 0.7 else None
    group = int(d.rng.choice(groups))
    weight = d.weight(12, shape[1] // group, 1, 1, deviation=(shape[1] // group) ** -0.5)
    return d.node("Conv", x if shuffled is None else shuffled[0], weight, group=group), (1, 12, *shape[2:])


def _flat(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape]:
    target = (1, shape[1], prod(shape[2:]))
    return d.node("Reshape", x, d.constant(np.array(target))), target


def _softmax(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape]:
    return d.node("Softmax", x, axis=int(d.rng.choice([-1, 1]))), shape


def _normalization(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape] | None:
    scale, shift = d.constant(d.rng.uniform(0.5, 2, shape[-1])), d.weight(shape[-1])
    return (d.node("LayerNormalization", x, scale, shift), shape) if d.b.opset >= 17 else None


def _resize(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape]:
    scales = d.constant(np.array([1, 1, 2, 2], np.float32))
    how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    made = d.node("Resize", x, "", scales, mode=str(d.rng.choice(["nearest", "linear"])), **how)
    return made, (*shape[:2], *(2 * n for n in shape[2:]))


def _gate(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape]:
    means = d.node("GlobalAveragePool", x)
    scores = d.node("Conv", means, d.weight(shape[1], shape[1], 1, 1, deviation=0.5))
    return d.node("Mul", x, d.node(str(d.rng.choice(["Sigmoid", "HardSigmoid"])), scores)), shape


def _maximum(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape]:
    axis = [d.constant(np.array([1]))] if d.b.opset >= 18 else []
    return d.node("ReduceMax", x, *axis, **({} if axis else {"axes": [1]})), (1, 1, *shape[2:])


def _where(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape]:
    below = d.node("Mul", x, d.weight())  # without a step, which would make much of the last bit of what is compared
    return d.node("Where", d.node("Less", x, d.constant(0.0)), below, x), shape


def _clip(d: _Drawing, x: str, shape: Shape) -> tuple[str, Shape]:
    low, high = ((0.0, 6.0), (-1.0, 1.0), (0.0, 1.0))[int(d.rng.integers(3))]
    return d.node("Clip", x, d.constant(low), d.constant(high)), shape


_STEPS: tuple[Step, ...] = (
    *(_image(_conv) for _ in range(4)),  # most operators of most models
    _image(_transposed_conv),
    *(_image(_pool(op), 3) for op in ("AveragePool", "MaxPool")),
    *(_elementwise(op) for op in ("Relu", "Sigmoid", "Tanh", "Erf", "LeakyRelu", "HardSigmoid")),
    *(_with_another(op) for op in ("Add", "Mul", "Sub")),
    *(_with_constant(op) for op in ("Add", "Mul")),
    *(_image(step) for step in (_gate, _maximum, _resize, _shuffle, _shuffled_conv, _shuffled_conv)),
    *(_concat, _slice, _transpose, _flat, _softmax, _normalization, _matmul, _gemm, _where, _clip),
)
