"""Inlay sets QuantizeLinear/DequantizeLinear nodes into ONNX models exactly where they pay.

    import inlay

    result = inlay.tune("model.onnx", data="samples.npz", out="out")
    print(result.best.speedup, result.model_path)

Names are imported when they are first used: a worker process needs few of them, and starts in a fraction of the time.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

# From version 1.32 on the runtime reports its use to its makers and leaves files in the user's cache, unless it reads
# this as it is loaded. Every process of Inlay imports this file before it, and what it starts inherits the variable.
if not os.environ.get("ORT_DISABLE_TELEMETRY"):
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"

if TYPE_CHECKING:
    from inlay.api import (
        bench,
        calibrate_machine,
        dry_run,
        explain,
        export,
        inspect,
        quantize,
        regions,
        select,
        tune,
        write_report,
    )
    from inlay.autotuner import (
        ChildRegionInputInsertionPoint,
        Config,
        InsertionScheme,
        NodeInputInsertionPoint,
        PatternCache,
        QDQAutotuner,
        Region,
        RegionOutputInsertionPoint,
        RegionPattern,
        RegionType,
        placement_of,
        region_pattern_autotuning_workflow,
    )
    from inlay.data.images import Images
    from inlay.run.options import BenchOptions, ExplainOptions, QuantizeOptions, RegionsOptions, TuneOptions
    from inlay.run.result import TuneResult
    from inlay.space.recipe import OpConfig, Recipe
    from inlay.targets.listing import list_targets
    from inlay.types import Placement, Port, QParams, QType
    from inlay.version import __version__

__all__ = [
    "BenchOptions",
    "ChildRegionInputInsertionPoint",
    "Config",
    "ExplainOptions",
    "Images",
    "InsertionScheme",
    "NodeInputInsertionPoint",
    "OpConfig",
    "PatternCache",
    "Placement",
    "Port",
    "QDQAutotuner",
    "QParams",
    "QType",
    "QuantizeOptions",
    "Recipe",
    "Region",
    "RegionOutputInsertionPoint",
    "RegionPattern",
    "RegionType",
    "RegionsOptions",
    "TuneOptions",
    "TuneResult",
    "__version__",
    "bench",
    "calibrate_machine",
    "dry_run",
    "explain",
    "export",
    "inspect",
    "list_targets",
    "placement_of",
    "quantize",
    "region_pattern_autotuning_workflow",
    "regions",
    "select",
    "tune",
    "write_report",
]

_HOMES = {
    "inlay.api": (
        "bench",
        "calibrate_machine",
        "dry_run",
        "explain",
        "export",
        "inspect",
        "quantize",
        "regions",
        "select",
        "tune",
        "write_report",
    ),
    "inlay.data.images": ("Images",),
    "inlay.run.options": ("BenchOptions", "ExplainOptions", "QuantizeOptions", "RegionsOptions", "TuneOptions"),
    "inlay.run.result": ("TuneResult",),
    "inlay.space.recipe": ("OpConfig", "Recipe"),
    "inlay.targets.listing": ("list_targets",),
    "inlay.types": ("Placement", "Port", "QParams", "QType"),
    "inlay.version": ("__version__",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module inlay has no attribute {name}")
    return getattr(importlib.import_module(_HOME.get(name, "inlay.autotuner")), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps rooms from taking the names of functions: importing ``inlay.regions.tree`` would set ``inlay.regions``."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
