"""The constants of several runs under one budget, each with its unit and its reason."""

from __future__ import annotations

# --- one model, several targets

MOST_GAIN = 4.0
"""Times that quantizing may speed a model up: 8 bits are a quarter of the bytes of float32, and integer units multiply
four times as many of them in one instruction. A target that is slower than another by more cannot become the faster."""
MIXED_GAIN = 1.1
"""Times that a mix of forms may be faster than the fastest of the forms that it mixes: what a first look at these shows
is how fast a target can become, up to that factor."""
FORMS_SHARE, FORMS_BLOCKS, FEW_SAMPLES = 0.15, 5, 3
"""Of the time behind the first readings, for that look; its blocks, and samples that say which forms keep the bound."""
FORMS_BYTES = 100_000_000  # size of a model beyond which there is no such look: it holds five of them in each process
LEAST_TRIALS, SEARCHING_SHARE = 12, 1 / 3
"""Candidates that a run should at least have time for, and the share of a short run that it searches: where targets
that may be equally fast would have less each, one has all of it."""
COMPARING_SHARE = 0.3  # of the time behind the first readings, kept for measuring files of all targets on all targets
COMPARING_EACH = 0.05  # the same for each file on each target, where few of them are measured
WRITING_SHARE, JUDGING_SHARE = 0.25, 0.35
"""Of the time that is left for comparing, after which no further candidate is written, and no further one judged."""
SCREEN_BLOCKS, SCREEN_SHARE = 10, 0.08
"""Blocks of the first readings, which only put targets in an order; share of the budget that they may take."""
LOOK_BLOCKS, LOOK_SHARE = 6, 0.4
"""Blocks in which candidates for the single file are compared; share of the time that is left for them."""
PROCESSES, BLOCKS = 3, 8
"""Fresh processes of the figures that are reported, and blocks in each: as a run's own confirmation has them."""
CANDIDATES = 6
"""Files of each target that are tried as the single file: its delivered one, and the fastest of its front."""
SAMPLES = 16
"""Most samples without labels, of each part, that files are judged on here, where each is judged on every target."""
WRITING_S = 2.0  # seconds, kept for writing the result and ending the process

# --- several models of one program

LEAST_SHARE = 0.005
"""Of the program's time; a model that takes less is delivered as it was given: it could gain that much at most."""
MEASURING_SHARE = 0.1  # of the budget, kept for measuring the whole program's models in fresh processes

# --- many models, many targets

FIRST_SLICE_S = 60.0
"""Seconds of a run's first slice, at most: enough to judge the anchors of a model of tens of milliseconds."""
FIRST_SHARE = 0.5  # of the budget, what the first slices take together, at most: the rest goes where they show gains
LEAST_FIRST_S = 10.0  # seconds below which a first slice finds nothing; a model that needs more says so
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
