"""Inlay sets QuantizeLinear/DequantizeLinear nodes into ONNX models exactly where they pay.

    import inlay

    result = inlay.tune("model.onnx", data="samples.npz", out="out")
    print(result.best.speedup, result.model_path)

Names are imported when they are first used: a worker process needs few of them, and starts in a fraction of the time.
Those of wings (:mod:`inlay.installed`) are entry points; here they are imported for type checkers alone.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# From version 1.32 on the runtime reports its use to its makers and leaves files in the user's cache, unless it reads
# this as it is loaded. Every process of Inlay imports this file before it, and what it starts inherits the variable.
if not os.environ.get("ORT_DISABLE_TELEMETRY"):
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"

if TYPE_CHECKING:
    from inlay.api import bench, inspect, quantize, select, tune
    from inlay.data.images import Images
    from inlay.errors import InlayError
    from inlay.explanation.api import explain
    from inlay.installed import __version__
    from inlay.portfolio.fleet import fleet
    from inlay.recording.api import record
    from inlay.report.api import card, export, write_report
    from inlay.report.gate import gate
    from inlay.run.options import TuneOptions
    from inlay.run.result import TuneResult
    from inlay.space.recipe import OpConfig, Recipe
    from inlay.targets.listing import list_targets

__all__ = [
    "Images",
    "InlayError",
    "OpConfig",
    "Recipe",
    "TuneOptions",
    "TuneResult",
    "__version__",
    "bench",
    "card",
    "explain",
    "export",
    "fleet",
    "gate",
    "inspect",
    "list_targets",
    "quantize",
    "record",
    "select",
    "tune",
    "write_report",
]

_HOMES = {
    "inlay.api": ("bench", "check", "inspect", "quantize", "select", "tune"),
    "inlay.data.images": ("Images",),
    "inlay.errors": ("InlayError",),
    "inlay.installed": ("__version__",),
    "inlay.run.options": ("TuneOptions",),
    "inlay.run.result": ("TuneResult",),
    "inlay.space.recipe": ("OpConfig", "Recipe"),
    "inlay.targets.listing": ("list_targets",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

_MOVED = {
    "inlay.api": ("BenchOptions", "QuantizeOptions", "calibrate_machine", "dry_run"),
    "inlay.types": ("Placement", "Port", "QParams", "QType"),
}
"""Names that stood here before 1.0: they are found, with a warning, until 1.2. Those of wings are entry points."""


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    from inlay.installed import FORMER_NAMES, NAMES, joined

    if name in __all__:
        if (found := joined(NAMES).get(name)) is not None:
            return found.load()
        raise AttributeError(f"inlay.{name} joins through an entry point that is not installed: install Inlay again")
    former = joined(FORMER_NAMES).get(name)
    home = former.module if former else next((module for module, names in _MOVED.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module inlay has no attribute {name}")
    from inlay.errors import warn_deprecated

    warn_deprecated(f"inlay.{name}", since="1.0", until="1.2", instead=f"{home}.{name}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
