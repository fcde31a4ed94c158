"""The types of the callables that ``conftest`` hands to tests as fixtures."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import onnx

from inlay.model.normalize import Normalized, Pass
from inlay.targets.base import Capabilities, Feed
from tests.support.normalizing import Rewritten
from tests.support.workspace import Workspace


class SaveModel(Protocol):
    """Writes a model to the test's folder and returns its path."""

    def __call__(self, model: onnx.ModelProto, name: str = "model.onnx") -> Path: ...


class MakeWorkspace(Protocol):
    """Prepares a model in the test's folder; the arguments are those of ``Workspace``."""

    def __call__(
        self, model: onnx.ModelProto, target: Capabilities | None = None, samples: int = 2, feeds: tuple[Feed, ...] = ()
    ) -> Workspace: ...


class NormalizeModel(Protocol):
    """``normalize_gated`` in the test's folder."""

    def __call__(self, model: onnx.ModelProto) -> tuple[onnx.ModelProto, Normalized]: ...


class RewriteModel(Protocol):
    """``rewrite`` in the test's folder."""

    def __call__(self, model: onnx.ModelProto, step: Pass | None, feed: Feed | None = None) -> Rewritten: ...
