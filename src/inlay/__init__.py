"""Inlay sets QuantizeLinear/DequantizeLinear nodes into ONNX models exactly where they pay.

import inlay

result = inlay.tune("model.onnx", data="samples.npz", out="out")
print(result.best.speedup, result.model_path)
"""

from inlay.api import bench, quantize, regions, select, targets, tune
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
    region_pattern_autotuning_workflow,
)
from inlay.result import TuneResult
from inlay.types import Placement, Port, QParams, QType
from inlay.version import __version__

__all__ = [
    "ChildRegionInputInsertionPoint",
    "Config",
    "InsertionScheme",
    "NodeInputInsertionPoint",
    "PatternCache",
    "Placement",
    "Port",
    "QDQAutotuner",
    "QParams",
    "QType",
    "Region",
    "RegionOutputInsertionPoint",
    "RegionPattern",
    "RegionType",
    "TuneResult",
    "__version__",
    "bench",
    "quantize",
    "region_pattern_autotuning_workflow",
    "regions",
    "select",
    "targets",
    "tune",
]
