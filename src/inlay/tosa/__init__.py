"""Q/DQ ONNX → integer graph → TOSA 1.0: :func:`lower` does it all; :class:`Reference` runs the result exactly."""

from inlay.tosa.integer import NotLowered
from inlay.tosa.lower import Lowered, Partition, lower
from inlay.tosa.reference import Reference, run_tosa

__all__ = ["Lowered", "NotLowered", "Partition", "Reference", "lower", "run_tosa"]
