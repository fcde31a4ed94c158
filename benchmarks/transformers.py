"""Transformers and recurrent nets with seeded weights: real architectures in any size, written without a framework.

What makes such nets hard to quantize is put in on purpose, as it was observed in trained ones (Dettmers et al.,
*LLM.int8()*, 2022; Xiao et al., *SmoothQuant*, 2023): a few channels of the residual stream are many times larger than
the others, since the scales of the layer normalizations there are (:data:`OUTLIER_SHARE`, :data:`OUTLIER_SCALE`), and
weights have heavier tails than a normal distribution (Student's t with :data:`TAIL` degrees of freedom). The weights
that read a large channel are small there, as training leaves them. The numbers are seeded, so that accuracy means
agreement with the float model, not with any truth.

    python -m benchmarks.transformers bert model.onnx samples.npz
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OUTLIER_SHARE = 0.01  # of the channels of a layer normalization
OUTLIER_SCALE = 8.0  # times the usual scale
TAIL = 5.0  # degrees of freedom

_INT64, _FLOAT = TensorProto.INT64, TensorProto.FLOAT


@dataclass(frozen=True)
class Size:
    """How large a net is: number of layers, width of the residual stream, heads, and positions of a sample."""

    layers: int
    width: int
    heads: int
    length: int


class Builder:
    """Nodes and initializers, as a framework's exporter would write them.

    Args:
        seed: of the weights.
        old: layer normalizations are written out, as exporters do below opset 17.
    """

    def __init__(self, seed: int, old: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        self._old = old
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def const(self, array: np.ndarray, name: str | None = None) -> str:
        """The name of a new initializer."""
        name = name or f"const_{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def ints(self, *numbers: int) -> str:
        """A vector of integers."""
        return self.const(np.array(numbers, np.int64))

    def number(self, value: float) -> str:
        """A scalar."""
        return self.const(np.array(value, np.float32))

    def node(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """The first output of a new node."""
        name = f"{op_type}_{len(self.nodes)}"
        made = [f"{name}_out{i or ''}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, list(inputs), made, name, **attributes))
        return made[0]

    def weight(self, rows: int, columns: int, small: np.ndarray | None = None) -> np.ndarray:
        """Heavy-tailed numbers of variance 1 / rows; the rows of outlier channels are ``small``."""
        numbers = self.rng.standard_t(TAIL, (rows, columns)) * np.sqrt((TAIL - 2) / TAIL / rows)
        return np.asarray(numbers if small is None else numbers / small[:, None], np.float32)

    def linear(self, value: str, rows: int, columns: int, small: np.ndarray | None = None) -> str:
        """A product with seeded weights, and their bias."""
        product = self.node("MatMul", value, self.const(self.weight(rows, columns, small)))
        return self.node("Add", self.const(self.rng.normal(0, 0.02, columns).astype(np.float32)), product)

    def layer_norm(self, value: str, width: int) -> tuple[str, np.ndarray]:
        """The normalized value, and the scale of each of its channels."""
        scale = self.rng.uniform(0.7, 1.3, width)
        scale[self.rng.choice(width, max(1, round(OUTLIER_SHARE * width)), replace=False)] *= OUTLIER_SCALE
        shift = self.rng.normal(0, 0.1, width)
        factors, summands = (self.const(np.asarray(x, np.float32)) for x in (scale, shift))
        if not self._old:
            return self.node("LayerNormalization", value, factors, summands, axis=-1, epsilon=1e-5), scale
        centered = self.node("Sub", value, self.node("ReduceMean", value, axes=[-1]))
        variance = self.node("ReduceMean", self.node("Pow", centered, self.number(2.0)), axes=[-1])
        deviation = self.node("Sqrt", self.node("Add", variance, self.number(1e-5)))
        scaled = self.node("Mul", self.node("Div", centered, deviation), factors)
        return self.node("Add", scaled, summands), scale

    def gelu(self, value: str) -> str:
        """``x * 0.5 * (1 + erf(x / sqrt(2)))``, as exporters write it."""
        inner = self.node("Erf", self.node("Div", value, self.number(np.sqrt(2.0))))
        outer = self.node("Mul", value, self.node("Add", inner, self.number(1.0)))
        return self.node("Mul", outer, self.number(0.5))

    def heads(self, value: str, size: Size, length: int) -> str:
        """A value taken apart into heads."""
        split = self.node("Reshape", value, self.ints(0, length, size.heads, size.width // size.heads))
        return self.node("Transpose", split, perm=[0, 2, 1, 3])

    def attention(
        self, value: str, small: np.ndarray, size: Size, mask: str = "", past: tuple[str, str] | None = None
    ) -> tuple[str, str, str]:
        """The attended value, the keys and the values."""
        length = 1 if past else size.length
        query, key, content = (
            self.heads(self.linear(value, size.width, size.width, small), size, length) for _ in range(3)
        )
        if past:
            key = self.node("Concat", past[0], key, axis=2)
            content = self.node("Concat", past[1], content, axis=2)
        scores = self.node("MatMul", query, self.node("Transpose", key, perm=[0, 1, 3, 2]))
        scores = self.node("Div", scores, self.number(np.sqrt(size.width / size.heads)))
        weights = self.node("Softmax", self.node("Add", scores, mask) if mask else scores, axis=-1)
        joined = self.node("Transpose", self.node("MatMul", weights, content), perm=[0, 2, 1, 3])
        merged = self.node("Reshape", joined, self.ints(0, length, size.width))
        return self.linear(merged, size.width, size.width), key, content

    def feed_forward(self, value: str, small: np.ndarray, width: int, activation: Callable[[str], str]) -> str:
        """Four times as wide in between."""
        return self.linear(activation(self.linear(value, width, 4 * width, small)), 4 * width, width)

    def embedding(self, ids: str, count: int, width: int) -> str:
        """Seeded vectors of tokens."""
        return self.node("Gather", self.const(self.rng.normal(0, 1, (count, width)).astype(np.float32)), ids)

    def model(
        self, inputs: Mapping[str, tuple[int, tuple[int | str, ...]]], outputs: Mapping[str, str]
    ) -> onnx.ModelProto:
        """The model; ``outputs`` names values of the graph."""
        made = []
        for name, value in outputs.items():
            self.nodes.append(helper.make_node("Identity", [value], [name], f"out_{name}"))
            made.append(helper.make_tensor_value_info(name, _FLOAT, None))
        given = [helper.make_tensor_value_info(n, dtype, shape) for n, (dtype, shape) in inputs.items()]
        graph = helper.make_graph(self.nodes, "net", given, made, self.tensors)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
        onnx.checker.check_model(inferred)
        return inferred


def bert(
    size: Size = Size(6, 384, 12, 128), vocabulary: int = 4000, seed: int = 0, old: bool = False
) -> onnx.ModelProto:
    """A text encoder: normalization behind each block, a mask, the sequence and a pooled vector as outputs."""
    b = Builder(seed, old)
    mask = b.node("Cast", b.node("Unsqueeze", "attention_mask", b.ints(1, 2)), to=_FLOAT)
    mask = b.node("Mul", b.node("Sub", b.number(1.0), mask), b.number(-10000.0))
    places = b.const(b.rng.normal(0, 0.3, (1, size.length, size.width)).astype(np.float32))
    x, small = b.layer_norm(b.node("Add", b.embedding("input_ids", vocabulary, size.width), places), size.width)
    for _ in range(size.layers):
        attended, _, _ = b.attention(x, small, size, mask)
        x, small = b.layer_norm(b.node("Add", attended, x), size.width)
        x, small = b.layer_norm(b.node("Add", b.feed_forward(x, small, size.width, b.gelu), x), size.width)
    first = b.node("Gather", x, b.const(np.array(0, np.int64)), axis=1)
    pooled = b.node(
        "Tanh",
        b.node(
            "Gemm", first, b.const(b.weight(size.width, size.width, small)), b.const(np.zeros(size.width, np.float32))
        ),
    )
    shape = (1, size.length)
    inputs = {"input_ids": (_INT64, shape), "attention_mask": (_INT64, shape)}
    return b.model(inputs, {"last_hidden_state": x, "pooler_output": pooled})


def vit(
    size: Size = Size(6, 384, 6, 197), side: int = 224, patch: int = 16, seed: int = 0, old: bool = False
) -> onnx.ModelProto:
    """An image classifier: patches by a Conv, normalization before each block."""
    b = Builder(seed, old)
    kernel = b.weight(3 * patch * patch, size.width).T.reshape(size.width, 3, patch, patch)
    bias = b.const(np.zeros(size.width, np.float32))
    x = b.node("Conv", "image", b.const(kernel), bias, strides=[patch, patch], kernel_shape=[patch, patch])
    x = b.node("Transpose", b.node("Reshape", x, b.ints(0, size.width, -1)), perm=[0, 2, 1])
    x = b.node("Concat", b.const(b.rng.normal(0, 0.5, (1, 1, size.width)).astype(np.float32)), x, axis=1)
    x = b.node("Add", x, b.const(b.rng.normal(0, 0.3, (1, size.length, size.width)).astype(np.float32)))
    for _ in range(size.layers):
        normal, small = b.layer_norm(x, size.width)
        x = b.node("Add", x, b.attention(normal, small, size)[0])
        normal, small = b.layer_norm(x, size.width)
        x = b.node("Add", x, b.feed_forward(normal, small, size.width, b.gelu))
    normal, small = b.layer_norm(x, size.width)
    first = b.node("Gather", normal, b.const(np.array(0, np.int64)), axis=1)
    logits = b.node("Gemm", first, b.const(b.weight(size.width, 1000, small)), b.const(np.zeros(1000, np.float32)))
    return b.model({"image": (_FLOAT, (1, 3, side, side))}, {"logits": logits})


def decoder(size: Size = Size(4, 512, 8, 128), vocabulary: int = 8000, seed: int = 0) -> onnx.ModelProto:
    """One step of a language model with a cache: ``size.length`` positions are in ``past_*``."""
    b = Builder(seed)
    x = b.embedding("input_ids", vocabulary, size.width)
    inputs: dict[str, tuple[int, tuple[int | str, ...]]] = {"input_ids": (_INT64, (1, 1))}
    outputs: dict[str, str] = {}
    shape = (1, size.heads, size.length, size.width // size.heads)
    for layer in range(size.layers):
        past = (f"past_key_values.{layer}.key", f"past_key_values.{layer}.value")
        inputs |= dict.fromkeys(past, (_FLOAT, shape))
        normal, small = b.layer_norm(x, size.width)
        attended, key, content = b.attention(normal, small, size, past=past)
        outputs |= {f"present.{layer}.key": key, f"present.{layer}.value": content}
        x = b.node("Add", x, attended)
        normal, small = b.layer_norm(x, size.width)
        x = b.node("Add", x, b.feed_forward(normal, small, size.width, b.gelu))
    normal, small = b.layer_norm(x, size.width)
    logits = b.node("MatMul", normal, b.const(b.weight(size.width, vocabulary, small)))
    return b.model(inputs, {"logits": logits, **outputs})


def conformer(size: Size = Size(4, 256, 4, 200), kernel: int = 15, seed: int = 0) -> onnx.ModelProto:
    """Speech encoder blocks: half a feed-forward, attention, a gated depthwise convolution, half a feed-forward."""
    b = Builder(seed)
    width = size.width
    x = b.linear("features", 80, width)

    def swish(value: str) -> str:
        return b.node("Mul", value, b.node("Sigmoid", value))

    def half(value: str) -> str:
        normal, small = b.layer_norm(value, width)
        return b.node("Add", value, b.node("Mul", b.feed_forward(normal, small, width, swish), b.number(0.5)))

    for _ in range(size.layers):
        x = half(x)
        normal, small = b.layer_norm(x, width)
        x = b.node("Add", x, b.attention(normal, small, size)[0])
        normal, small = b.layer_norm(x, width)
        gated = b.node("Transpose", b.linear(normal, width, 2 * width, small), perm=[0, 2, 1])
        b.nodes.append(
            helper.make_node(
                "Split", [gated, b.ints(width, width)], [f"{gated}_a", f"{gated}_b"], f"Split_{len(b.nodes)}", axis=1
            )
        )
        gated = b.node("Mul", f"{gated}_a", b.node("Sigmoid", f"{gated}_b"))
        taps = b.const(b.weight(kernel, width).T.reshape(width, 1, kernel))
        bias = b.const(np.zeros(width, np.float32))
        depthwise = b.node("Conv", gated, taps, bias, group=width, pads=[kernel // 2] * 2, kernel_shape=[kernel])
        x = b.node("Add", x, b.linear(b.node("Transpose", swish(depthwise), perm=[0, 2, 1]), width, width))
        x = b.layer_norm(half(x), width)[0]
    return b.model({"features": (_FLOAT, (1, size.length, 80))}, {"encoded": x})


def lstm(size: Size = Size(2, 256, 1, 64), vocabulary: int = 4000, tags: int = 24, seed: int = 0) -> onnx.ModelProto:
    """A tagger: embeddings, bidirectional LSTM layers, one linear layer; time comes first, as exporters write it."""
    b = Builder(seed)
    hidden, depth = size.width, size.width
    x = b.node("Transpose", b.embedding("input_ids", vocabulary, depth), perm=[1, 0, 2])
    for _ in range(size.layers):
        w = np.stack([b.weight(depth, 4 * hidden).T for _ in range(2)])
        r = np.stack([b.weight(hidden, 4 * hidden).T for _ in range(2)])
        bias = b.rng.normal(0, 0.05, (2, 8 * hidden)).astype(np.float32)
        x = b.node("LSTM", x, b.const(w), b.const(r), b.const(bias), direction="bidirectional", hidden_size=hidden)
        depth = 2 * hidden
        x = b.node("Reshape", b.node("Transpose", x, perm=[0, 2, 1, 3]), b.ints(0, 0, depth))
    x = b.linear(b.node("Transpose", x, perm=[1, 0, 2]), depth, tags)
    return b.model({"input_ids": (_INT64, (1, size.length))}, {"tags": x})


MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "bert": bert,
    "bert_base": lambda: bert(Size(12, 768, 12, 128)),
    "bert_old": lambda: bert(old=True),
    "vit": vit,
    "vit_old": lambda: vit(old=True),
    "decoder": decoder,
    "conformer": conformer,
    "lstm": lstm,
}
VARIANTS = ("bert_base", "bert_old", "vit_old")
"""Larger, or as older exporters write them: not for tables in which each model counts as one of many."""


def samples(model: onnx.ModelProto, count: int = 16, seed: int = 0) -> dict[str, np.ndarray]:
    """Seeded inputs, stacked along a new first axis: tokens by Zipf's law, smooth features, masks that end early."""
    rng = np.random.default_rng([seed, 17])
    found: dict[str, np.ndarray] = {}
    counts = {t.name: t.dims[0] for t in model.graph.initializer if len(t.dims) == 2}
    tables = {
        n.input[1]: counts[n.input[0]] for n in model.graph.node if n.op_type == "Gather" and n.input[0] in counts
    }
    for value in model.graph.input:
        shape = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        if value.name == "attention_mask":
            ends = rng.integers(shape[1] // 4, shape[1] + 1, (count, 1, 1))
            found[value.name] = (np.arange(shape[1]) < ends).astype(np.int64)
        elif value.name in tables:
            found[value.name] = np.minimum(rng.zipf(1.3, (count, *shape)), tables[value.name]) - 1
        else:
            noise = rng.standard_normal((count, *shape))
            smooth = (noise + np.roll(noise, 1, -2) + np.roll(noise, -1, -2)) / np.sqrt(3.0)
            found[value.name] = smooth.astype(np.float32)
    return found


if __name__ == "__main__":
    which, model_path, samples_path = sys.argv[1:]
    made = MODELS[which]()
    onnx.save(made, model_path)
    np.savez(Path(samples_path), **samples(made))
