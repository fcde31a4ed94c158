"""Q/DQ ONNX → integer graph → TOSA 1.0: :func:`lower` does it all; :class:`Reference` runs the result exactly."""

from inlay.lower.api import Lowered, Partition, lower
from inlay.lower.integer import NotLowered
from inlay.lower.reference import Reference, run_tosa

__all__ = ["Lowered", "NotLowered", "Partition", "Reference", "lower", "run_tosa"]
