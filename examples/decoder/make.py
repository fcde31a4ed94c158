"""A small language model with a cache, and samples of its steps: ``python -m examples.decoder.make FOLDER``.

The weights are seeded, so the text is what the model itself says: each next token is drawn from its distribution. Its
perplexity on that text is then the least that any model has, and what quantization adds is error. The window slides:
the cache holds the last ``WINDOW`` positions, and the oldest one leaves when a new one comes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from benchmarks.transformers import Size, decoder
from onnx import numpy_helper

WINDOW, VOCABULARY = 32, 1000
SHARPER = 3.0  # random weights alone leave nearly all tokens equally likely
STEPS = 96  # samples; as many steps before them fill the cache

Feed = dict[str, np.ndarray]


def model() -> onnx.ModelProto:
    """Two layers of width 256; inputs ``input_ids`` and ``past_key_values.*``, outputs ``logits`` and ``present.*``."""
    proto = decoder(Size(2, 256, 4, WINDOW), VOCABULARY)
    head = next(n for n in proto.graph.node if n.op_type == "MatMul" and n.output[0] == _logits(proto))
    tensor = next(t for t in proto.graph.initializer if t.name == head.input[1])
    tensor.CopyFrom(numpy_helper.from_array(SHARPER * numpy_helper.to_array(tensor), tensor.name))
    return proto


def _logits(proto: onnx.ModelProto) -> str:
    return str(next(n.input[0] for n in proto.graph.node if list(n.output) == ["logits"]))


def slid(outputs: Feed) -> Feed:
    """The cache of the next step: ``present.*`` without its oldest position."""
    return {n.replace("present.", "past_key_values."): a[:, :, 1:] for n, a in outputs.items() if n != "logits"}


def steps(session: onnxruntime.InferenceSession, count: int, seed: int = 0) -> Iterator[tuple[Feed, int]]:
    """Inputs of a step, and the token that the model says then."""
    rng = np.random.default_rng(seed)
    shapes = {i.name: i.shape for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    feed: Feed = {n: np.zeros(s, np.int64 if n == "input_ids" else np.float32) for n, s in shapes.items()}
    for step in range(count):
        outputs = dict(zip(names, session.run(None, feed), strict=True))
        scores = outputs["logits"].ravel().astype(np.float64)
        odds = np.exp(scores - scores.max())
        token = int(rng.choice(len(odds), p=odds / odds.sum()))
        if step >= count // 2:
            yield feed, token
        feed = {"input_ids": np.array([[token]]), **slid(outputs)}


def main(folder: Path, count: int = STEPS) -> None:
    """Write ``decoder.onnx``, ``samples.npz`` and ``tokens.npy``."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model(), folder / "decoder.onnx")
    session = onnxruntime.InferenceSession(folder / "decoder.onnx")
    found = list(steps(session, 2 * count))
    np.savez(folder / "samples.npz", **{n: np.stack([feed[n] for feed, _ in found]) for n in found[0][0]})
    np.save(folder / "tokens.npy", np.array([token for _, token in found]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
