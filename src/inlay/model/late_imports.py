"""Modules that a library loads at its import and that models hardly ever need, loaded when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

DEFERRED = frozenset({"sympy", "onnx_ir._symbolic_shapes"})
"""For arithmetic with dynamic dimensions; more than half of the time that a command or a worker takes to start."""


class _Deferring(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in DEFERRED else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def defer_imports() -> None:
    """Load :data:`DEFERRED` when they are first used. For processes of Inlay's own, before they load any library."""
    if not any(isinstance(finder, _Deferring) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Deferring())
