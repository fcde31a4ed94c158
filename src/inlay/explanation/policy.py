"""The constants of explaining."""

from __future__ import annotations

HEAVY_SHARE = 0.01
"""Share of the time from which on any operator needs a reason, and not only products: below it, none is worth one."""

SHOWN_SHARE = 0.002  # share of the time below which a wasted kernel is not listed on the terminal; JSON lists all
PROFILE_S = 0.6  # seconds of inferences for the profile that prices are taken from
PROFILE_LEAST, PROFILE_MOST = 7, 100  # inferences in it
PROFILE_SLOW_S, PROFILE_SLOW = 5.0, 2
"""Seconds that they may take of a model of which even the least of them take long, and how many there are then at
least: one may be disturbed."""

CHECK_REPEATS = 1  # inferences in the profile of an experiment, of which only the kernels' types are read

MOST_EXPERIMENTS = 40
"""Models built to prove reasons. Reasons that do not touch each other share one: real models need 3 to 25."""

TIMED_BLOCKS, TIMED_SLOT_NS = 7, 4_000_000  # readings of the model's latency, and nanoseconds that each takes at least

PAIR_SHARE, TIMED_PAIRS, PAIR_ROUNDS, PAIR_BLOCKS = 0.01, 6, 6, 4
"""Share of the time from which on a needless pair is taken out and the model timed without it, such pairs at most, how
often they are built for that, and paired readings of each build: a few seconds for models of some milliseconds."""

PAIR_SLOT_NS = 20_000_000
"""Nanoseconds of each of these readings at least: the first inference after another model's finds the caches cold."""

REPAIR_SAMPLES = 32  # samples that a repaired model is judged on against the given one: the SQNR settles with tens

SAME_DB = 0.01
"""Decibels by which a repaired model may fall below the given one: the last digit that is shown, less than a tenth."""

TELLING_DB = 6.0
"""DB from which on a given model's SQNR tells which of two is better: below, half of an output is something else."""

AS_FAST, FAR_MORE_DB = 0.95, 6.0
"""Speed-up from which a repaired model is as fast as the given one, and the SQNR beyond that one's, a bit of every
number, for which it is written all the same: shipped files saturate on processors that their makers do not have."""

SAME_SHARE = 0.05
"""Share of what a task's figure may lose at all by which a repaired model's may be below the given one's, beside one
near miss where something is counted."""

RETREATS_DB = (0.0, 0.5, 1.5, 3.5, 7.5)
"""Further measured models that are tried where the delivered one is not as accurate on all samples as the given one,
each asked for so many decibels more on the samples of the search than the given model has."""

REPAIR_BLOCKS, REPAIR_PROCESSES = 8, 3
"""Paired readings of the repaired and the given model in each fresh process: as many as confirm a search."""

REPAIR_TIMED_S, REPAIR_LEAST = 90.0, 2
"""Seconds that they may take of models of which even few readings take long, and how many there are then at least."""

LOSS_SAMPLES = 8  # samples on which sources of rounding are probed
LOSSES = 12  # sources that are taken out of the whole model, the loudest ones alone
ALONE_SHARE = 0.6  # of the time that is left for them, in which sources are tried alone
TOGETHER = (2, 4, 8, 12)  # so many of them are taken out at once: each step doubles the number, up to all
LOSS_SHARE = 0.5  # of the budget, for them
SHOWN_DB = 0.1  # decibels that a source must cost to be listed on the terminal

SHOWN_ALONE = 5
"""Sources that are listed by what they do alone, where none costs so much: others would ruin the outputs without it."""

BOUND_SAMPLES = 2  # samples that make the ranges of a model whose kernels are timed: they do not depend on them
MISREAD_LISTED = 3  # operators that compute something else than the file says, by name; the others are counted


def repeats(latency_ns: float) -> int:
    """Inferences in the profile of a model, by its latency; 0 where that is not known."""
    latency_s = max(latency_ns, 1e3) / 1e9
    least = min(PROFILE_LEAST, max(PROFILE_SLOW, int(PROFILE_SLOW_S / latency_s)))
    return int(min(max(PROFILE_S / latency_s, least), PROFILE_MOST))


def repair_blocks(pair_s: float) -> int:
    """Paired readings in each fresh process, by the seconds of one pair."""
    fitting = int(REPAIR_TIMED_S / (REPAIR_PROCESSES * max(pair_s, 1e-6)))
    return min(REPAIR_BLOCKS, max(REPAIR_LEAST, fitting))
