"""The constants of comparing targets, each with its unit and its reason."""

from __future__ import annotations

MOST_GAIN = 4.0
"""Times that quantizing may speed a model up: 8 bits are a quarter of the bytes of float32, and integer units multiply
four times as many of them in one instruction. A target that is slower than another by more cannot become the faster."""
COMPARING_SHARE = 0.3
"""Of the time behind the first readings, kept for measuring files of all targets on all targets."""
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
LEAST_LIMIT_S = 2.0
"""Seconds that a call of a runtime may take, however little time is left, as in a run."""
WRITING_S = 2.0
"""Seconds, kept for writing the result and ending the process."""
