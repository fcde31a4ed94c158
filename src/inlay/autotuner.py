"""The step-by-step API: you measure, Inlay says what. The same core as ``tune`` (regions, patterns, evolve, emit).

Example::

    tuner = QDQAutotuner("model.onnx")
    tuner.initialize(Config(schemes_per_region=30))
    tuner.export_onnx("float.onnx", insert_qdq=False)
    tuner.submit(latency_of("float.onnx"))                  # the baseline
    for region in tuner.regions:
        tuner.set_profile_region(region)                    # takes over the best scheme of the region before
        while tuner.generate() is not None:
            tuner.export_onnx("candidate.onnx")
            tuner.submit(latency_of("candidate.onnx"))
    tuner.set_profile_region(None)
    tuner.export_onnx("best.onnx")

:func:`region_pattern_autotuning_workflow` is this loop, with state, cache and failures taken care of.
"""

from inlay.cache import CacheEntry, PatternCache
from inlay.search.config import Config
from inlay.space.baseline import ImportReport
from inlay.space.points import (
    ChildRegionInputInsertionPoint,
    InsertionPoint,
    NodeInputInsertionPoint,
    RegionOutputInsertionPoint,
)
from inlay.space.regions import Region, RegionType
from inlay.space.schemes import InsertionScheme
from inlay.space.searchspace import RegionPattern
from inlay.stepwise.tuner import QDQAutotuner, SchemeRecord
from inlay.stepwise.workflow import region_pattern_autotuning_workflow

__all__ = [
    "CacheEntry",
    "ChildRegionInputInsertionPoint",
    "Config",
    "ImportReport",
    "InsertionPoint",
    "InsertionScheme",
    "NodeInputInsertionPoint",
    "PatternCache",
    "QDQAutotuner",
    "Region",
    "RegionOutputInsertionPoint",
    "RegionPattern",
    "RegionType",
    "SchemeRecord",
    "region_pattern_autotuning_workflow",
]
