"""The constants of sharing one budget among many runs."""

from __future__ import annotations

FIRST_SLICE_S = 60.0
"""Seconds of a run's first slice, at most: enough to judge the anchors of a model of tens of milliseconds."""
FIRST_SHARE = 0.5
"""Of the budget, what the first slices take together, at most: the rest goes where they show gains."""
LEAST_FIRST_S = 10.0
"""Seconds below which a first slice finds nothing; a model that needs more says so."""
LEAST_SLICE_S = 20.0
"""Seconds below which a later slice is not worth its fixed costs: reading the model, a process, the confirmation."""
GROWTH = 3.0
"""By what a run's total budget grows with each slice. Every slice reads the model and confirms anew: with a factor
that is a constant share of the whole."""
PRIOR_GAIN = 0.05
"""Logarithm of the speed-up that one such step is expected to bring before anything is known of it: the
optimism by which no run is given up for one slice that brought nothing."""
UNUSED_SHARE = 0.75
"""Of a slice, where a run leaves more than that unused it has reached another limit and needs no more time."""
MOST_POOLED_BYTES = 256_000
"""Size of a target's pool of patterns beyond which it learns no more: every run reads it, at about 100 kB a second."""
