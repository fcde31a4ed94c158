"""Settings of the region-pattern search."""

from __future__ import annotations

from dataclasses import dataclass

from inlay.errors import UsageError


@dataclass(frozen=True)
class Config:
    """Settings of the region-pattern search, with the classic autotuner's names and defaults.

    Attributes:
        schemes_per_region: most placements that are tried for one pattern.
        performance_threshold: a scheme replaces the incumbent only when it is at least so many times as fast. With 1.0
            every improvement counts that the measurement can tell from noise.
        maximum_sequence_region_size: most nodes of a leaf region.
        minimum_topdown_search_size: fewest nodes of a sequence that becomes a COMPOSITE.
        top_percent_to_mutate: share of the schemes measured so far, best first, that mutations start from (0..1).
        minimum_schemes_to_mutate: fewest schemes that mutations start from, as far as there are so many.
        maximum_mutations: most insertion points that one mutation changes.
        maximum_generation_attempts: how many schemes in a row may turn out to be known before a pattern is done.
        concat_group_min_samples: the *expected* least number of schemes per region in which all inputs of a Concat
            were set or cleared together (the schemes are drawn at random; this is a mean, not a guarantee).
        pattern_cache_minimum_distance: smallest edit distance between two cached schemes of one pattern.
        pattern_cache_max_entries_per_pattern: most cached schemes of one pattern.
        confirmations: in the step-by-step API, how often a scheme that seems faster is measured again, in turns with
            the incumbent, before it is believed. 0 believes every single reading.
        seed: of the random choices.
    """

    schemes_per_region: int = 30
    performance_threshold: float = 1.0
    maximum_sequence_region_size: int = 10
    minimum_topdown_search_size: int = 10
    top_percent_to_mutate: float = 0.1
    minimum_schemes_to_mutate: int = 10
    maximum_mutations: int = 3
    maximum_generation_attempts: int = 100
    concat_group_min_samples: int = 3
    pattern_cache_minimum_distance: int = 4
    pattern_cache_max_entries_per_pattern: int = 32
    confirmations: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (
            "schemes_per_region",
            "maximum_sequence_region_size",
            "minimum_schemes_to_mutate",
            "maximum_mutations",
            "maximum_generation_attempts",
            "pattern_cache_max_entries_per_pattern",
        ):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, not {getattr(self, name)}")
        for name in (
            "minimum_topdown_search_size",
            "concat_group_min_samples",
            "pattern_cache_minimum_distance",
            "confirmations",
        ):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if not 0 <= self.top_percent_to_mutate <= 1:
            raise UsageError(f"top_percent_to_mutate is a share from 0 to 1, not {self.top_percent_to_mutate}")
        if not self.performance_threshold >= 1:
            raise UsageError(f"performance_threshold is a speedup of 1 or more, not {self.performance_threshold}")
