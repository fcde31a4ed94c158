"""The step-by-step API: the caller measures latency, Inlay chooses what to measure next.

It has the same core as ``tune`` (regions, patterns, schemes, emit). Like ``api`` it is a public face, and a wing.

Example::

    from inlay.autotune import Config, QDQAutotuner

    tuner = QDQAutotuner("model.onnx")
    tuner.initialize(Config(schemes_per_region=30))
    tuner.export_onnx("float.onnx", insert_qdq=False)
    tuner.submit(latency_of("float.onnx"))                  # the baseline
    for region in tuner.regions:
        tuner.set_profile_region(region)                    # commits the best scheme of the region before
        while tuner.generate() is not None:
            tuner.export_onnx("candidate.onnx")
            tuner.submit(latency_of("candidate.onnx"))
    tuner.set_profile_region(None)
    while tuner.generate() is not None:                     # float and best model once more, in turns
        tuner.export_onnx("candidate.onnx")
        tuner.submit(latency_of("candidate.onnx"))
    tuner.export_onnx("best.onnx")
    print(tuner.summary)                                    # the speed-up with its interval

:func:`region_pattern_autotuning_workflow` is this loop, with state, cache and failures taken care of.
"""

from inlay.autotune.state import SchemeRecord
from inlay.autotune.timing import Measurer, measurer
from inlay.autotune.tuner import QDQAutotuner
from inlay.autotune.workflow import placement_of, region_pattern_autotuning_workflow
from inlay.patterns.api import RegionsOptions, regions
from inlay.patterns.cache import CacheEntry, PatternCache
from inlay.patterns.config import Config
from inlay.patterns.known import Coverage
from inlay.patterns.scheme_import import ImportReport
from inlay.patterns.schemes import (
    ChildRegionInputInsertionPoint,
    InsertionPoint,
    InsertionScheme,
    NodeInputInsertionPoint,
    RegionOutputInsertionPoint,
)
from inlay.patterns.search_space import RegionPattern
from inlay.patterns.tree import Region, RegionGroup, RegionType
from inlay.quant.accuracy import Bound

__all__ = [
    "Bound",
    "CacheEntry",
    "ChildRegionInputInsertionPoint",
    "Config",
    "Coverage",
    "ImportReport",
    "InsertionPoint",
    "InsertionScheme",
    "Measurer",
    "NodeInputInsertionPoint",
    "PatternCache",
    "QDQAutotuner",
    "Region",
    "RegionGroup",
    "RegionOutputInsertionPoint",
    "RegionPattern",
    "RegionType",
    "RegionsOptions",
    "SchemeRecord",
    "measurer",
    "placement_of",
    "region_pattern_autotuning_workflow",
    "regions",
]
