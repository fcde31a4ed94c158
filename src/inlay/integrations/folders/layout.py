"""What a folder says of its model: its ONNX file and tokenizer, how vectors are pooled, and what files are named.

Names of files by processor are those that sentence-transformers' ``export_dynamic_quantized_onnx_model`` gives
(version 5.7: ``model_{weights}_{processor}.onnx`` below ``onnx``); ``model_quantized.onnx`` is what transformers.js
loads for ``dtype: "q8"``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inlay.errors import ModelError, UsageError

FILES: Mapping[str, str] = {
    "avx2": "model_quint8_avx2.onnx",
    "avx512": "model_qint8_avx512.onnx",
    "avx512_vnni": "model_qint8_avx512_vnni.onnx",
    "arm64": "model_qint8_arm64.onnx",
    "web": "model_quantized.onnx",
}
"""The quantized file's name, by what it is for."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.onnx.data", ".git")
_MOST_TOKENS = 512


@dataclass(frozen=True)
class TextFolder:
    """A folder with a text model."""

    root: Path  # of all of it
    model: Path  # the folder with the encoder's configuration
    pooling: str  # mean or cls; empty where the model gives scores, not vectors
    most_tokens: int  # texts are cut there

    @classmethod
    def read(cls, root: Path) -> TextFolder:
        """The folder at ``root``.

        Raises:
            ModelError: it holds no text model that is known here.
        """
        if not root.is_dir():
            raise ModelError(f"{root}: no such folder")
        modules = _json(root / "modules.json") if (root / "modules.json").is_file() else []
        places = {str(m.get("type", "")).rpartition(".")[2]: root / str(m.get("path", "")) for m in modules}
        model = places.get("Transformer", root)
        if not (model / "config.json").is_file():
            raise ModelError(f"{root}: holds no config.json of a transformer")
        config = _json(model / "config.json")
        said = _json(model / "sentence_bert_config.json") if (model / "sentence_bert_config.json").is_file() else {}
        tokens = said.get("max_seq_length") or config.get("max_position_embeddings") or _MOST_TOKENS
        return cls(root, model, _pooling(places, config), min(int(tokens), _MOST_TOKENS))

    @property
    def onnx(self) -> Path | None:
        """The float model in it, if there is one."""
        found = [p for p in (self.model / "onnx" / "model.onnx", self.model / "model.onnx") if p.is_file()]
        return found[0] if found else None

    @property
    def tokenizer(self) -> Path:
        """The tokenizer's file. Raises ModelError where there is none."""
        path = self.model / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{self.model}: holds no tokenizer.json; save it by a fast tokenizer's save_pretrained")
        return path

    def at(self, out: Path) -> TextFolder:
        """The same at ``out``, which may be the folder itself; nothing is written. Raises UsageError."""
        if out.resolve() == self.root.resolve():
            return self
        if out.resolve().is_relative_to(self.root.resolve()):
            raise UsageError(f"--out {out}: lies inside the given folder")
        return replace(self, root=out, model=out / self.model.relative_to(self.root))

    def copy(self, out: Path) -> None:
        """Copy all but weights and models to ``out``, if that is another folder."""
        if out.resolve() != self.root.resolve():
            shutil.copytree(self.root, out, ignore=shutil.ignore_patterns(*_WEIGHTS), dirs_exist_ok=True)


def _pooling(places: Mapping[str, Path], config: Mapping[str, Any]) -> str:
    if "Pooling" in places and (places["Pooling"] / "config.json").is_file():
        said = _json(places["Pooling"] / "config.json")
        mode = said.get("pooling_mode", "")
        return "cls" if said.get("pooling_mode_cls_token") or mode == "cls" else "mean"
    scores = any("SequenceClassification" in str(name) for name in config.get("architectures") or ())
    return "" if scores else "mean"


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
