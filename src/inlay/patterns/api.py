"""`inlay.autotune.regions`: what ``inlay regions`` does, as a function."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from inlay.data import FixedValues
from inlay.files import scratch
from inlay.model.gc_pause import gc_paused
from inlay.model.load import ModelSource
from inlay.patterns.config import Config
from inlay.patterns.search_space import SearchSpace, find_search_space
from inlay.prepare import options as declared
from inlay.prepare.declare import documented
from inlay.prepare.model import prepare
from inlay.run.call import Given
from inlay.run.options import OneTarget, Sizes
from inlay.targets.base import Capabilities
from inlay.targets.registry import create, target_of


@documented
@dataclass(frozen=True, kw_only=True, eq=False)
class RegionsOptions(OneTarget):
    """What a call of :func:`inlay.autotune.regions` asks for."""

    bind: Annotated[Sizes, declared.BIND] = ()
    fix: Annotated[FixedValues, declared.FIX] = ()
    nodes: Annotated[Sequence[str], declared.NODES] = ()
    maximum_sequence_region_size: Annotated[int, declared.LARGEST_LEAF] = 10
    minimum_topdown_search_size: Annotated[int, declared.SMALLEST_SEQUENCE] = 10


@documented
def regions(
    model: Annotated[ModelSource, declared.MODEL], options: RegionsOptions | None = None, **changes: Any
) -> SearchSpace:
    """Find the regions, patterns and insertion points of a model, normalized as ``tune`` would.

    Raises:
        UsageError: a glob of ``nodes`` matches nothing.
        InlayError: the model cannot be used.
    """
    wish = RegionsOptions.of(options, changes)
    capabilities = Capabilities.of(create(target_of(wish.target, wish.target_options)))
    with gc_paused(lives_on=True), scratch() as folder:  # without a collection
        given = Given.read(model, wish.data, wish.bind, wish.images, wish.fix)
        feed = given.samples_or_random(np.random.default_rng(0), 1).feeds[0]
        prepared = prepare(given.file, capabilities, feed, folder, wish.nodes)
        graph, rules, allowed, units = prepared.graph, prepared.rules, prepared.allowed, prepared.units
        del given, prepared
        gc.collect()  # of a large model, its nodes take as much memory as its regions and patterns will
        config = Config(
            maximum_sequence_region_size=wish.maximum_sequence_region_size,
            minimum_topdown_search_size=wish.minimum_topdown_search_size,
        )
        return find_search_space(graph, rules, None, allowed, config, units=units if allowed is None else None)
