"""Inlay sets QuantizeLinear/DequantizeLinear nodes into ONNX models exactly where they pay.

import inlay

result = inlay.tune("model.onnx", data="samples.npz", out="out")
print(result.best.speedup, result.model_path)
"""

from inlay.api import bench, quantize, select, targets, tune
from inlay.result import TuneResult
from inlay.types import Placement, Port, QParams, QType
from inlay.version import __version__

__all__ = [
    "Placement",
    "Port",
    "QParams",
    "QType",
    "TuneResult",
    "__version__",
    "bench",
    "quantize",
    "select",
    "targets",
    "tune",
]
