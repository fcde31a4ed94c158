"""Random small models of sequences: projections, attention, normalization, gates, recurrent layers; of any length."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from inlay.targets.base import Feed
from inlay.testing import Builder

Step = Callable[["_Drawing", str, int], tuple[str, int] | None]
"""Adds operators behind a value of shape (batch, length, width), and gives their result and its width; None where they
do not fit."""

LENGTHS = (7, 1, 12)
"""Of the feeds: the first is what a model is prepared with."""
_WIDTHS = (8, 16, 24)
_WORDS = 20
_RECENT = 3  # values of which one is read: most models are deep


class _Drawing:
    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.b = rng, Builder(opset=int(rng.choice([13, 17, 18, 21])))
        self.batch, self.dynamic = int(rng.choice([1, 2])), bool(rng.random() < 0.6)
        self.length: int | str = "length" if self.dynamic else LENGTHS[0]
        width = int(rng.choice(_WIDTHS))
        self.words = bool(rng.random() < 0.3)
        if self.words:
            ids = self.b.input("ids", (self.batch, self.length), onnx.TensorProto.INT64)
            first = self.node("Gather", self.weight(_WORDS, width), ids, axis=0)
        else:
            first = self.b.input("x", (self.batch, self.length, width))
        self.values: list[tuple[str, int]] = [(first, width)]

    def node(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        name = f"{op_type}_{len(self.b.nodes)}"
        names = [f"{name}_out{i}" for i in range(outputs)] if outputs > 1 else []
        return self.b.node(name, op_type, inputs, names, **attributes)  # type: ignore[arg-type]

    def weight(self, *shape: int, deviation: float = 1.0) -> str:
        return self.constant(self.rng.normal(0, deviation, shape))

    def constant(self, array: object) -> str:
        return self.b.constant(f"c{len(self.b.initializers)}", array)

    def project(self, x: str, inputs: int, outputs: int, bias: float = 0.7) -> str:
        """A product with a weight, mostly with a bias behind it on either side."""
        y = self.node("MatMul", x, self.weight(inputs, outputs, deviation=inputs**-0.5))
        if self.rng.random() >= bias:
            return y
        pair = [y, self.weight(outputs, deviation=0.3)]
        return self.node("Add", *(pair if self.rng.random() < 0.5 else pair[::-1]))

    def reshape(self, x: str, *shape: int) -> str:
        return self.node("Reshape", x, self.constant(np.array(shape)))

    def mean(self, x: str) -> str:
        """Over the last axis."""
        if self.b.opset >= 18:
            return self.node("ReduceMean", x, self.constant(np.array([-1])), keepdims=1)
        return self.node("ReduceMean", x, axes=[-1], keepdims=1)

    def one_of(self, *choices: str) -> str:
        return str(self.rng.choice(choices))


def random_sequence_model(rng: np.random.Generator, most: int = 8) -> tuple[onnx.ModelProto, tuple[Feed, ...]]:
    """A model of 2 to ``most`` layers, and feeds of it; of different lengths where it takes any."""
    d = _Drawing(rng)
    for _ in range(int(rng.integers(2, most))):
        value, width = d.values[int(rng.integers(max(0, len(d.values) - _RECENT), len(d.values)))]
        made = _STEPS[int(rng.integers(len(_STEPS)))](d, value, width)
        if made is not None:
            d.values.append(made)
    value, width = d.values[-1]
    d.b.output(_head(d, value, width) if rng.random() < 0.5 or len(d.values) == 1 else value)
    if len(d.values) > 3 and rng.random() < 0.3:
        d.b.output(d.values[-2][0])
    lengths = LENGTHS if d.dynamic else LENGTHS[:1] * 3
    return d.b.model(), tuple(_feed(d, n) for n in lengths)


def _feed(d: _Drawing, length: int) -> Feed:
    if d.words:
        return {"ids": d.rng.integers(0, _WORDS, (d.batch, length))}
    return {"x": d.rng.normal(0, 1, (d.batch, length, d.values[0][1])).astype(np.float32)}


def _head(d: _Drawing, x: str, width: int) -> str:
    """Classes from the first place, or of every place."""
    if d.rng.random() < 0.5:
        return d.project(x, width, 5)
    first = d.node("Gather", x, d.constant(np.array(0)), axis=1)
    weight = d.weight(5, width, deviation=width**-0.5)
    return d.node("Gemm", first, weight, d.weight(5), transB=1)


def _linear(d: _Drawing, x: str, width: int) -> tuple[str, int]:
    outputs = int(d.rng.choice(_WIDTHS))
    return d.project(x, width, outputs), outputs


def _activation(d: _Drawing, x: str, width: int) -> tuple[str, int]:
    kind = d.one_of("Relu", "Sigmoid", "Tanh", "gelu", "approximate", "swish", "Softplus", "LeakyRelu")
    if kind == "gelu":
        erf = d.node("Erf", d.node("Div", x, d.constant(float(np.sqrt(2)))))
        return d.node("Mul", d.node("Mul", x, d.node("Add", erf, d.constant(1.0))), d.constant(0.5)), width
    if kind == "approximate":
        cubed = d.node("Mul", d.node("Pow", x, d.constant(3.0)), d.constant(0.044715))
        inner = d.node("Tanh", d.node("Mul", d.node("Add", x, cubed), d.constant(float(np.sqrt(2 / np.pi)))))
        return d.node("Mul", d.node("Mul", x, d.constant(0.5)), d.node("Add", inner, d.constant(1.0))), width
    if kind == "swish":
        return d.node("Mul", x, d.node("Sigmoid", x)), width
    return d.node(kind, x), width


def _normalization(d: _Drawing, x: str, width: int) -> tuple[str, int]:
    scale, shift = d.constant(d.rng.uniform(0.5, 2, width)), d.weight(width, deviation=0.3)
    if d.b.opset >= 17 and d.rng.random() < 0.5:
        return d.node("LayerNormalization", x, scale, shift, axis=-1), width
    if d.rng.random() < 0.3:  # by the root of the mean of squares
        root = d.node("Sqrt", d.node("Add", d.mean(d.node("Mul", x, x)), d.constant(1e-5)))
        return d.node("Mul", d.node("Div", x, root), scale), width
    centered = d.node("Sub", x, d.mean(x))
    variance = d.mean(d.node("Pow", centered, d.constant(2.0)))
    normal = d.node("Div", centered, d.node("Sqrt", d.node("Add", variance, d.constant(1e-5))))
    return d.node("Add", d.node("Mul", normal, scale), shift), width


def _attention(d: _Drawing, x: str, width: int) -> tuple[str, int] | None:
    heads = int(d.rng.choice([2, 4]))
    if width % heads:
        return None
    each = width // heads

    def split(value: str, order: list[int]) -> str:
        return d.node("Transpose", d.reshape(value, 0, 0, heads, each), perm=order)

    if d.rng.random() < 0.3:  # one product for the three of them
        joined = d.project(x, width, 3 * width)
        bounds = [d.constant(np.array([i * width])) for i in range(4)]
        parts = [d.node("Slice", joined, bounds[i], bounds[i + 1], d.constant(np.array([2]))) for i in range(3)]
    else:
        parts = [d.project(x, width, width) for _ in range(3)]
    query, key, value = (split(p, o) for p, o in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True))
    scores = d.node("MatMul", query, key)
    if d.rng.random() < 0.7:
        scores = d.node(d.one_of("Div"), scores, d.constant(float(np.sqrt(each))))
    if not d.dynamic and d.rng.random() < 0.4:
        n = LENGTHS[0]
        causal = np.tril(np.ones((n, n), bool))
        if d.rng.random() < 0.5:
            least = float(d.rng.choice([-1e4, float(np.finfo(np.float32).min), -np.inf]))
            scores = d.node("Where", d.constant(causal), scores, d.constant(least))
        else:
            scores = d.node("Add", scores, d.constant(np.where(causal, 0.0, -1e4)))
    mixed = d.node("MatMul", d.node("Softmax", scores, axis=-1), value)
    together = d.reshape(d.node("Transpose", mixed, perm=[0, 2, 1, 3]), 0, 0, width)
    return d.node("Add", d.project(together, width, width), x) if d.rng.random() < 0.7 else together, width


def _recurrent(d: _Drawing, x: str, width: int) -> tuple[str, int]:
    kind, size = d.one_of("LSTM", "GRU", "RNN"), 8  # one size: kernels of equal sizes are what some runtimes share
    gates, both = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], d.rng.random() < 0.4
    directions = 2 if both else 1
    inputs = [
        d.node("Transpose", x, perm=[1, 0, 2]),
        d.weight(directions, gates * size, width, deviation=width**-0.5),
        d.weight(directions, gates * size, size, deviation=size**-0.5),
    ]
    if d.rng.random() < 0.7:
        inputs.append(d.weight(directions, 2 * gates * size, deviation=0.3))
    if d.rng.random() < 0.4:
        inputs += [""] * (5 - len(inputs)) + [_state(d, x, directions, size)]
    own = {"linear_before_reset": int(d.rng.integers(2))} if kind == "GRU" else {}
    direction = "bidirectional" if both else d.one_of("forward", "reverse")
    y = d.node(kind, *inputs, hidden_size=size, direction=direction, **own)  # (length, directions, batch, size)
    placed = d.node("Transpose", y, perm=[2, 0, 1, 3])
    return d.reshape(placed, 0, 0, directions * size), directions * size


def _state(d: _Drawing, x: str, directions: int, size: int) -> str:
    """To begin with: the same for each sequence of the batch, whose size is asked for."""
    batch = d.node("Gather", d.node("Shape", x), d.constant(np.array([0])), axis=0)
    shape = d.node("Concat", d.constant(np.array([directions])), batch, d.constant(np.array([size])), axis=0)
    state = np.zeros(1) if d.rng.random() < 0.5 else d.rng.uniform(-0.9, 0.9, (directions, 1, size))
    return d.node("Expand", d.constant(state), shape)


def _conv(d: _Drawing, x: str, width: int) -> tuple[str, int]:
    kernel, deep = int(d.rng.choice([1, 3])), d.rng.random() < 0.3
    outputs, group = (width, width) if deep else (int(d.rng.choice(_WIDTHS)), 1)
    weight = d.weight(outputs, width // group, kernel, deviation=(width // group * kernel) ** -0.5)
    bias = [d.weight(outputs, deviation=0.3)] if d.rng.random() < 0.7 else []
    turned = d.node("Transpose", x, perm=[0, 2, 1])
    made = d.node("Conv", turned, weight, *bias, kernel_shape=[kernel], pads=[kernel // 2] * 2, group=group)
    if d.rng.random() < 0.5:
        made = d.node("Relu", made)
    return d.node("Transpose", made, perm=[0, 2, 1]), outputs


def _residual(d: _Drawing, x: str, width: int) -> tuple[str, int]:
    others = [v for v, w in d.values if w == width]
    return d.node(d.one_of("Add", "Mul", "Sub"), x, others[int(d.rng.integers(len(others)))]), width


def _concat(d: _Drawing, x: str, width: int) -> tuple[str, int] | None:
    other, theirs = d.values[int(d.rng.integers(len(d.values)))]
    return (d.node("Concat", x, other, axis=2), width + theirs) if width + theirs <= 48 else None


def _gated(d: _Drawing, x: str, width: int) -> tuple[str, int] | None:
    """One half of a value gates the other."""
    if width % 4:
        return None
    half = width // 2
    name = f"Split_{len(d.b.nodes)}"
    number = {"num_outputs": 2} if d.b.opset >= 18 else {}
    d.b.node(name, "Split", [x], [f"{name}_a", f"{name}_b"], axis=2, **number)  # type: ignore[arg-type]
    return d.node("Mul", f"{name}_a", d.node("Sigmoid", f"{name}_b")), half


def _scores(d: _Drawing, x: str, width: int) -> tuple[str, int]:
    return d.node("Softmax", x, axis=-1), width


def _scaled(d: _Drawing, x: str, width: int) -> tuple[str, int]:
    return d.node(d.one_of("Add", "Mul"), x, d.weight(*((), (width,))[int(d.rng.integers(2))])), width


_STEPS: tuple[Step, ...] = (
    *(_linear for _ in range(3)),  # most operators of most models
    *(_attention for _ in range(2)),
    *(_normalization for _ in range(2)),
    *(_activation for _ in range(2)),
    *(_recurrent, _conv, _residual, _concat, _gated, _scores, _scaled),
)
