"""Settings of the region-pattern search."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Literal

from inlay.errors import UsageError
from inlay.measure.paired import MIN_PAIRS


@dataclass(frozen=True)
class Config:
    """Settings of the region-pattern search, with the classic autotuner's names.

    Their defaults are the classic ones, but for two: there, ``performance_threshold`` is 1.02, ``default_quant_type``
    ``int8``.

    Three settings of the classic autotuner are refused, with the reason: ``default_q_scale`` and
    ``default_q_zero_point`` (scales and zero points are computed from the samples, and are those that are delivered),
    and ``default_dq_dtype`` (Q/DQ nodes are set into float32 models).
    """

    schemes_per_region: int = 30  # most schemes that are measured for one pattern
    # least speedup with which a scheme replaces the incumbent. With 1.0 every improvement counts that the measurement
    # can tell from noise, and small ones of many regions add up; the classic 1.02 guards against noise where a single
    # reading decides, as with `confirmations=0`.
    performance_threshold: float = 1.0
    # what that speedup is over: the `incumbent`, or the float `baseline` (then a scheme must also be faster than the
    # incumbent)
    threshold_against: Literal["incumbent", "baseline"] = "incumbent"
    maximum_sequence_region_size: int = 10  # most nodes of a leaf region
    minimum_topdown_search_size: int = 10  # fewest nodes of a sequence that becomes a COMPOSITE
    # fraction (0..1) of the schemes measured so far, best first, that mutations start from
    top_percent_to_mutate: float = 0.1
    minimum_schemes_to_mutate: int = 10  # fewest schemes that mutations start from, if that many were measured
    maximum_mutations: int = 3  # most insertion points that one mutation changes
    # after so many drawn schemes in a row that are known already, a pattern is finished
    maximum_generation_attempts: int = 100
    # least *expected* number of schemes per pattern that set or clear all inputs of a Concat together (schemes are
    # drawn at random: this bounds the mean, not every run)
    concat_group_min_samples: int = 5
    pattern_cache_minimum_distance: int = 4  # smallest edit distance between two cached schemes of one pattern
    pattern_cache_max_entries_per_pattern: int = 32  # most cached schemes of one pattern; 0 for all
    # in the step-by-step API, how often a scheme that seems faster is measured again, alternating with the incumbent,
    # before it is accepted. 0 accepts on a single reading.
    confirmations: int = 5
    # in the step-by-step API, how often at most the float model and the incumbent are measured again, in turns, after
    # the last region (fewer where the interval of the speed-up is narrow already); 0 for not at all
    final_pairs: int = 20
    seed: int = 0  # of the random choices
    # type of quantized activations, such as `int8` or `uint8`; None for the target's
    default_quant_type: str | None = None
    verbose: bool = False  # report every step (logger `inlay.autotune`; to standard error where it has no handler)
    default_q_scale: InitVar[object] = None
    default_q_zero_point: InitVar[object] = None
    default_dq_dtype: InitVar[object] = None

    def __post_init__(self, default_q_scale: object, default_q_zero_point: object, default_dq_dtype: object) -> None:
        given = (default_q_scale, default_q_zero_point, default_dq_dtype)
        for (name, reason), value in zip(_REFUSED.items(), given, strict=True):
            if value is not None:
                raise UsageError(f"{name}: {reason}")
        for names, least in ((_AT_LEAST_1, 1), (_AT_LEAST_0, 0)):
            for name in names:
                if getattr(self, name) < least:
                    raise UsageError(f"{name} must be {least} or more, not {getattr(self, name)}")
        if self.final_pairs and self.final_pairs < MIN_PAIRS:
            raise UsageError(f"final_pairs is 0, or {MIN_PAIRS} or more for an interval, not {self.final_pairs}")
        if not 0 <= self.top_percent_to_mutate <= 1:
            raise UsageError(f"top_percent_to_mutate is a share from 0 to 1, not {self.top_percent_to_mutate}")
        if not self.performance_threshold >= 1:
            raise UsageError(f"performance_threshold is a speedup of 1 or more, not {self.performance_threshold}")
        if self.threshold_against not in ("incumbent", "baseline"):
            raise UsageError(f"threshold_against is 'incumbent' or 'baseline', not {self.threshold_against!r}")

    def least_gain(self, incumbent: float) -> float:
        """The speedup over the incumbent that a scheme needs; ``incumbent`` is the incumbent's over the baseline."""
        if self.threshold_against == "incumbent":
            return self.performance_threshold
        return max(1.0, self.performance_threshold / incumbent)


_REFUSED = {
    "default_q_scale": "there are no placeholder scales; they are computed from the samples: give samples",
    "default_q_zero_point": "there are no placeholder zero points; they are computed from the samples: give samples",
    "default_dq_dtype": "models are normalized to float32, and so are what Q/DQ nodes give; half precision is refused",
}

_AT_LEAST_1 = (
    "schemes_per_region",
    "maximum_sequence_region_size",
    "minimum_schemes_to_mutate",
    "maximum_mutations",
    "maximum_generation_attempts",
)
_AT_LEAST_0 = (
    "minimum_topdown_search_size",
    "concat_group_min_samples",
    "pattern_cache_minimum_distance",
    "pattern_cache_max_entries_per_pattern",
    "confirmations",
    "final_pairs",
)
