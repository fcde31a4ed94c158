"""The constants of explaining."""

from __future__ import annotations

HEAVY_SHARE = 0.01
"""Share of the time from which on any operator needs a reason, and not only products: below it, none is worth one."""

SHOWN_SHARE = 0.002
"""Share of the time below which a wasted kernel is not listed on the terminal; JSON lists all."""

PROFILE_S = 0.6
"""Seconds of inferences for the profile that prices are taken from."""
PROFILE_LEAST, PROFILE_MOST = 7, 100
"""Inferences in it."""

CHECK_REPEATS = 1
"""Inferences in the profile of an experiment, of which only the kernels' types are read."""

MOST_EXPERIMENTS = 40
"""Models built to prove reasons. Reasons that do not touch each other share one: real models need 3 to 25."""

BUDGET_S = 60.0
"""Seconds after which no further experiment is begun, where no budget is given."""

TIMED_BLOCKS, TIMED_SLOT_NS = 7, 4_000_000
"""Readings of the model's latency, and nanoseconds that each takes at least."""
