"""Inlay sets QuantizeLinear/DequantizeLinear nodes into ONNX models exactly where they pay.

import inlay

result = inlay.tune("model.onnx", data="samples.npz", out="out")
print(result.best.speedup, result.model_path)
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("inlay")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"

from inlay.api import bench, quantize, targets, tune
from inlay.result import TuneResult
from inlay.types import Placement, Port, QParams, QType

__all__ = [
    "Placement",
    "Port",
    "QParams",
    "QType",
    "TuneResult",
    "__version__",
    "bench",
    "quantize",
    "targets",
    "tune",
]
