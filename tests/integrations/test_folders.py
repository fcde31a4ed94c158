"""Folders of text models: what is written is loaded by sentence-transformers and optimum, and ranks as float does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from inlay.errors import DataError, ModelError, UsageError
from inlay.integrations.folders.layout import FILES, TextFolder
from inlay.integrations.folders.quantize import quantize_folder
from inlay.run.options import TuneOptions
from inlay.testing import random_feed, small_model

pytestmark = pytest.mark.filterwarnings("ignore")
WORDS = "the a cat dog runs sleeps on in mat house red blue big small bird tree river city night day".split()  # noqa: SIM905
QUICK: dict[str, Any] = {"target": "null", "budget": "none"}


def sentences(count: int = 16) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, rng.integers(4, 12))) for _ in range(count)]


def save(root: Path, scores: bool = False) -> Path:
    """A small BERT of seeded weights, as its library saves it."""
    pytest.importorskip("torch", reason="the extra torch is not installed")
    pytest.importorskip("onnxscript", reason="the extra torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import torch

    root.mkdir()
    (root / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    transformers.BertTokenizerFast(vocab_file=str(root / "vocab.txt")).save_pretrained(root)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=25, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32, num_labels=1,
    )  # fmt: skip
    made = (transformers.BertForSequenceClassification if scores else transformers.BertModel)(config)
    made.save_pretrained(root)
    if not scores:
        (root / "1_Pooling").mkdir()
        (root / "1_Pooling" / "config.json").write_text(
            json.dumps({"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True})
        )
        modules = [("0", "", "sentence_transformers.models.Transformer")]
        modules.append(("1", "1_Pooling", "sentence_transformers.models.Pooling"))
        listed = [{"idx": int(i), "name": i, "path": path, "type": kind} for i, path, kind in modules]
        (root / "modules.json").write_text(json.dumps(listed))
    return root


def test_a_sentence_encoder_is_loaded_by_its_library(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    pytest.importorskip("optimum.onnxruntime", reason="optimum-onnx is not installed")
    given, texts = save(tmp_path / "given"), sentences()
    found = quantize_folder(given, texts=texts, processor="avx512_vnni", out=tmp_path / "out", **QUICK)
    assert found.path == tmp_path / "out" / "onnx" / "model_qint8_avx512_vnni.onnx"
    assert any(n.op_type == "QuantizeLinear" for n in onnx.load(found.path).graph.node)
    assert found.judged.rank_correlation > 0.9
    assert found.judged.found is not None
    assert found.judged.found > 0.6

    floats = library.SentenceTransformer(str(given), device="cpu").encode(texts)
    ours = library.SentenceTransformer(
        str(tmp_path / "out"), backend="onnx", device="cpu", model_kwargs={"file_name": FILES["avx512_vnni"]}
    ).encode(texts)
    norms = np.linalg.norm(floats, axis=1) * np.linalg.norm(ours, axis=1)
    assert ((floats * ours).sum(axis=1) / norms).min() > 0.98, "padded batches of its own, pooled by it"

    from optimum.onnxruntime import ORTConfig

    assert ORTConfig.from_pretrained(tmp_path / "out").quantization.is_static


@pytest.mark.exhaustive
def test_a_cross_encoder_is_loaded_by_its_library(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    pytest.importorskip("optimum.onnxruntime", reason="optimum-onnx is not installed")
    given, texts = save(tmp_path / "given", scores=True), sentences(32)
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    (tmp_path / "pairs.txt").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    found = quantize_folder(given, texts=tmp_path / "pairs.txt", processor="avx2", **QUICK)
    assert found.path == given / "onnx" / "model_quint8_avx2.onnx"
    assert (given / "onnx" / "model.onnx").is_file()
    floats = library.CrossEncoder(str(given), device="cpu").predict(pairs)
    ours = library.CrossEncoder(
        str(given), backend="onnx", device="cpu", model_kwargs={"file_name": FILES["avx2"]}
    ).predict(pairs)
    assert np.corrcoef(floats, ours)[0, 1] > 0.9


def test_what_is_no_folder_of_a_text_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        quantize_folder(tmp_path, texts=sentences())
    with pytest.raises(ModelError, match="no such folder"):
        quantize_folder(tmp_path / "absent", texts=sentences())
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="--for sse: give avx2, avx512"):
        quantize_folder(tmp_path, texts=sentences(), processor="sse")
    with pytest.raises(DataError, match="3 are given; give at least 12"):
        quantize_folder(tmp_path, texts=sentences(3))
    with pytest.raises(UsageError, match="lies inside the given folder"):
        quantize_folder(tmp_path, texts=sentences(), out=tmp_path / "inner")
    with pytest.raises(ModelError, match=r"holds no tokenizer\.json"):
        _ = TextFolder.read(tmp_path).tokenizer


def test_what_is_refused_leaves_no_folder_and_no_exported_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget is refused once the model is known; what a run was begun with stays for that run."""
    given, model = tmp_path / "given", small_model()
    given.mkdir()
    (given / "config.json").write_text("{}")
    feeds = [dict(random_feed(model, seed)) for seed in range(12)]
    monkeypatch.setattr("inlay.integrations.folders.quantize._exported", lambda _, path: onnx.save(model, path) or path)
    monkeypatch.setattr("inlay.integrations.folders.texts.feeds_of", lambda *_: feeds)
    for out, place in ((tmp_path / "a" / "out", tmp_path / "a"), (None, given / "onnx")):
        with pytest.raises(UsageError, match="budget"):
            quantize_folder(given, texts=sentences(), out=out, target="null", budget="0.001s")
        assert not place.exists()
    assert [path.name for path in given.iterdir()] == ["config.json"]

    def stopped(model: Path, wish: TuneOptions) -> None:
        (Path(str(wish.out)) / "run.sqlite").parent.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr("inlay.integrations.folders.quantize.tune", stopped)
    with pytest.raises(KeyboardInterrupt):
        quantize_folder(given, texts=sentences(), target="null")
    assert (given / "onnx" / "model.onnx").is_file()


@pytest.mark.parametrize(
    ("said", "pooling"),
    [({"pooling_mode_cls_token": True}, "cls"), ({"pooling_mode": "cls"}, "cls"), ({"pooling_mode": "mean"}, "mean")],
)
def test_pooling_is_read_as_the_library_writes_it(said: dict[str, Any], pooling: str, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "config.json").write_text(json.dumps(said))
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 128}')
    (tmp_path / "modules.json").write_text(
        json.dumps([{"path": "", "type": "x.Transformer"}, {"path": "p", "type": "x.Pooling"}])
    )
    found = TextFolder.read(tmp_path)
    assert (found.pooling, found.most_tokens, found.onnx) == (pooling, 128, None)
