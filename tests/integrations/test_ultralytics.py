"""Ultralytics: its ``YOLO`` loads what was delivered, with the names of classes, and validates it as its own export."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import inlay

pytest.importorskip("torch", reason="the extra torch is not installed")
SIZE = 64
NAMES = {0: "circle", 1: "square", 2: "star"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A YOLOv8n of seeded weights, as the package itself exports it."""
    folder = tmp_path_factory.mktemp("yolo")
    os.environ["YOLO_CONFIG_DIR"] = str(folder)  # where it leaves its settings
    ultralytics = pytest.importorskip("ultralytics", reason="ultralytics is not installed")
    import torch

    torch.manual_seed(0)
    before = Path.cwd()
    os.chdir(folder)
    try:
        model = ultralytics.YOLO("yolov8n.yaml")
        model.model.names = NAMES | {i: str(i) for i in range(3, 80)}
        return folder / str(model.export(format="onnx", imgsz=SIZE, simplify=False, opset=17))
    finally:
        os.chdir(before)


def pictures(count: int = 4) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (count, SIZE, SIZE, 3)).astype(np.uint8)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_what_was_delivered_is_loaded_and_validated(exported: Path, tmp_path: Path) -> None:
    from PIL import Image
    from ultralytics import YOLO

    feeds = [{"images": p.transpose(2, 0, 1)[None].astype(np.float32) / 255} for p in pictures()]
    best = tmp_path / "best_inlay.onnx"
    inlay.quantize(exported, best, data=feeds, target="null", recipe="full-int8")
    assert any(n.op_type == "QuantizeLinear" for n in onnx.load(best).graph.node)

    given, quantized = YOLO(exported, task="detect"), YOLO(best, task="detect")
    results = [m.predict(list(pictures()), imgsz=SIZE, verbose=False, conf=0.0, max_det=5) for m in (given, quantized)]
    assert results[1][0].names[2] == "star", "the metadata is kept"
    assert quantized.predictor.model.stride == given.predictor.model.stride
    assert all(len(r.boxes) == 5 for r in results[1])

    for number, picture in enumerate(pictures()):
        for kind in ("images", "labels"):
            (tmp_path / kind).mkdir(exist_ok=True)
        Image.fromarray(picture).save(tmp_path / "images" / f"{number}.png")
        (tmp_path / "labels" / f"{number}.txt").write_text("1 0.5 0.5 0.4 0.4\n")
    names = "".join(f"  {i}: {NAMES.get(i, i)}\n" for i in range(80))
    (tmp_path / "data.yaml").write_text(f"path: {tmp_path}\ntrain: images\nval: images\nnames:\n{names}")
    measured: Any = quantized.val(
        data=str(tmp_path / "data.yaml"), imgsz=SIZE, plots=False, verbose=False, project=str(tmp_path), workers=0
    )
    assert 0.0 <= measured.box.map <= 1.0
