"""The programs of ``docs/tools.md`` run as they stand, where their packages are; what they download is made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import inlay
from inlay.integrations.folders import quantize
from tests.integrations.test_folders import save, sentences
from tests.test_programs import block

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.exhaustive]
LINES = 5


def program(start: str) -> str:
    text = block("tools.md", start)
    said = [line for line in text.splitlines() if line and not line.startswith(("import ", "from "))]
    assert len(said) <= LINES
    return text


def holds_pairs(path: str | Path) -> bool:
    return any(n.op_type == "QuantizeLinear" for n in onnx.load(path).graph.node)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts, and quick runs."""
    pytest.importorskip("torch", reason="the extra torch is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))
    (tmp_path / "texts.txt").write_text("\n".join(sentences()), encoding="utf8")
    at_once, whole = inlay.quantize, quantize.quantize_folder

    def quickly(model: Any, out: str, **options: Any) -> Any:
        return at_once(model, out, **options, target="null", recipe="full-int8")

    def folder_quickly(folder: str, **options: Any) -> Any:
        return whole(folder, **options, target="null", budget="none")

    monkeypatch.setattr(inlay, "quantize", quickly)
    monkeypatch.setattr(quantize, "quantize_folder", folder_quickly)
    return tmp_path


def test_pytorch(here: Path) -> None:
    import torch

    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(800, 5))
    loader = torch.utils.data.DataLoader(torch.randn(16, 3, 12, 12), batch_size=4)
    exec(program("import inlay\n\ninlay.quantize(module"), {"module": module, "loader": loader})
    assert holds_pairs(here / "model_int8.onnx")


def test_ultralytics(here: Path) -> None:
    ultralytics = pytest.importorskip("ultralytics", reason="ultralytics is not installed")
    from PIL import Image

    (here / "images").mkdir()
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 255, (640, 640, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(here / "images" / f"{number}.png")
    exec(program("from ultralytics").replace("yolo11n.pt", "yolo11n.yaml"), {})
    assert holds_pairs(here / "yolo11n_int8.onnx")
    assert ultralytics.YOLO(here / "yolo11n_int8.onnx", task="detect").predict(here / "images" / "0.png", verbose=False)


def test_sentence_transformers(here: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    given = save(here / "given")
    exec(program("from sentence_transformers").replace("all-MiniLM-L6-v2", str(given)), {})
    made = {"file_name": "model_qint8_avx512_vnni.onnx"}
    assert holds_pairs(here / "my-encoder-int8" / "onnx" / made["file_name"])
    model = library.SentenceTransformer("my-encoder-int8", backend="onnx", device="cpu", model_kwargs=made)
    assert model.encode(sentences()).shape == (16, 32)


def test_optimum(here: Path) -> None:
    pytest.importorskip("optimum.onnxruntime", reason="optimum-onnx is not installed")
    save(here / "my-model")
    names: dict[str, Any] = {}
    text, _, last = program("from optimum").rstrip().rpartition("\n")
    exec(f"{text}\nmodel = {last}", names)
    ids = np.ones((1, 6), np.int64)
    out = names["model"](input_ids=ids, attention_mask=ids, token_type_ids=0 * ids)
    assert np.asarray(out.last_hidden_state).shape == (1, 6, 32)
