"""For tests: small models, a target that fails, and the conformance classes of targets and strategies.

A package that brings a target of its own proves that it keeps the contract in three lines of pytest::

    class TestMyTarget(inlay.testing.TargetTestCase):
        def target(self) -> Target:
            return MyTarget()

pytest itself is not imported here.
"""

from inlay.testing.faulty import FAULTS, FaultyTarget
from inlay.testing.models import (
    Builder,
    concat_model,
    depthwise_model,
    full_int8,
    large_image_model,
    random_feed,
    residual_model,
    run_reference,
    small_model,
    sqnr,
    upsampling_model,
)
from inlay.testing.strategies import StrategyTestCase
from inlay.testing.targets import TargetTestCase

__all__ = [
    "FAULTS",
    "Builder",
    "FaultyTarget",
    "StrategyTestCase",
    "TargetTestCase",
    "concat_model",
    "depthwise_model",
    "full_int8",
    "large_image_model",
    "random_feed",
    "residual_model",
    "run_reference",
    "small_model",
    "sqnr",
    "upsampling_model",
]
