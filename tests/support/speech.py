"""A speech synthesizer in small: durations that it predicts decide how long its sound is, and noise makes it vary."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from inlay.data import Feed
from inlay.testing import Builder

SYMBOLS, WIDTH = 30, 16


def voice(noise: float = 0.0, opset: int = 17, seed: int = 0, clear: bool = False) -> onnx.ModelProto:
    """Symbols in, shape (1, any); a sound out, shape (1, 1, as long as the durations of the symbols add up to).

    Args:
        noise: of RandomNormalLike on what the sound is made of; 0 for none.
        opset: version of the default ONNX domain.
        seed: of the weights.
        clear: durations are far from where they are rounded to the next whole number, so that little noise changes
            none of them.
    """
    b = Builder(opset=opset, seed=seed)
    ids = b.input("symbols", (1, "length"), TensorProto.INT64)
    table = b.rng.normal(0, 1, (SYMBOLS, WIDTH))
    text = b.node(
        "text", "Transpose", [b.node("embedded", "Gather", [b.constant("table", table), ids])], perm=[0, 2, 1]
    )

    def conv(name: str, value: str, filters: int, width: int) -> str:
        channels = WIDTH
        weight = b.constant(f"{name}_weight", b.rng.normal(0, (channels * width) ** -0.5, (filters, channels, width)))
        return b.node(name, "Conv", [value, weight], pads=[width // 2, width // 2], kernel_shape=[width])

    hidden = b.node("hidden_relu", "Relu", [conv("hidden", text, WIDTH, 3)])
    if clear:
        lengths = b.constant("lengths", b.rng.integers(1, 4, (SYMBOLS, 1)) - 0.5)
        logits = b.node("lengths_of", "Transpose", [b.node("looked_up", "Gather", [lengths, ids])], perm=[0, 2, 1])
    else:
        rate = b.node("exp", "Exp", [conv("durations", hidden, 1, 3)])
        logits = b.node("slower", "Mul", [rate, b.constant("pace", 5.0)])
    frames = b.node("frames", "Ceil", [logits])
    ends = b.node("ends", "CumSum", [frames, b.constant("last", np.array(2, np.int64))])
    begins = b.node("begins", "Sub", [ends, frames])
    total = b.node("total", "ReduceSum", [frames], keepdims=0)
    count = b.node("count", "Cast", [total], to=TensorProto.INT64)
    zero, one = (b.constant(f"n{n}", np.array(n, np.int64)) for n in (0, 1))
    times = b.node("times", "Cast", [b.node("range", "Range", [zero, count, one])], to=TensorProto.FLOAT)
    times = b.node("columns", "Unsqueeze", [times, b.constant("axes", np.array([1], np.int64))])
    later = b.node("later", "GreaterOrEqual", [times, begins])
    earlier = b.node("earlier", "Less", [times, ends])
    path = b.node("path", "Cast", [b.node("both", "And", [later, earlier])], to=TensorProto.FLOAT)
    spread = b.node("spread", "MatMul", [path, b.node("rows", "Transpose", [hidden], perm=[0, 2, 1])])
    sound = b.node("sound", "Transpose", [spread], perm=[0, 2, 1])
    if noise:
        drawn = b.node("drawn", "RandomNormalLike", [sound])
        sound = b.node("varied", "Add", [sound, b.node("louder", "Mul", [drawn, b.constant("noise", noise)])])
    for i in range(3):
        sound = b.node(f"relu{i}", "Relu", [conv(f"conv{i}", sound, WIDTH, 5)])
    b.output(b.node("wave", "Tanh", [conv("out", sound, 1, 5)]))
    model = b.model()
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info(model.graph.output[0].name, TensorProto.FLOAT, [1, 1, "time"])
    )
    return model


def sentences(count: int, seed: int = 0) -> list[Feed]:
    """Symbols of different lengths."""
    rng = np.random.default_rng(seed)
    return [{"symbols": rng.integers(0, SYMBOLS, (1, int(rng.integers(6, 20))))} for _ in range(count)]
