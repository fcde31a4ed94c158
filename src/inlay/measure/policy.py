"""The constants of measuring, each with its unit and its reason. What a user may set is in ``prepare.protocol``."""

from __future__ import annotations

import time

# --- one slot: a few inferences of one model --------------------------------------------------------------------------

CLOCK_NS = time.get_clock_info("perf_counter").resolution * 1e9  # a reading must exceed what the clock can tell from 0
MAX_REPEATS = 2000  # inferences per slot: models of microseconds are measured well enough by then
LONG_WHEN_COLD = 5  # times as many, that the very first inference fills of a model that is long for certain
LONG_INFERENCE_SLOTS = 4  # slots that one inference fills; then one repeat is enough, and caches do not matter

# --- races ------------------------------------------------------------------------------------------------------------

REPORTED_LEVEL = 0.96
"""Level of the interval that a race reports as one of 95 %: stopping when the readings look decided costs about one
percent of coverage. Over simulated races of every length it covers the truth in 94 to 97 % of cases
(``tests/measure/test_race.py``); the level of a single look, which decides, would cover it in up to 99 %."""

MAX_PREEMPTED = 0.02  # share of a reading that other processes may have taken; beyond, its block is discarded
ONE_BY_ONE = 8  # inferences in a slot up to which each is timed by itself: turns of others last as long as some of them
MOST_TAKEN = 0.99  # the same, where next to nothing of a reading was the model's own: it then says next to nothing
BUSY = 0.2  # share of preempted blocks beyond which the faster half of the others may not outweigh them
MAX_DRIFT = 0.02  # log-ratio of the two passes through a block beyond which it is discarded
LOST_FIRST = 0.93  # speedup over the incumbent below which the first look gives up, whatever the interval
LOST_LATER = 0.97  # the same at later looks, which rest on at least twice the blocks
MIN_PREDICTIVE_POWER = 0.2  # chance that all blocks together show a gain, below which they are not measured
PAUSE_S = 0.2  # seconds to wait for each discarded block,
MAX_PAUSE_S = 1.0  # and altogether before the next try

# --- workers ----------------------------------------------------------------------------------------------------------

RECENT_MESSAGES = 5  # of each kind that tell what the next one takes: few, as the load of a machine changes
RESIDENT_FEEDS = 64  # feeds that a worker holds in memory: samples by the thousand are read again instead
MOST_DEATHS = 2  # processes that a model may end while it is built, before it is refused at once: each takes seconds
MESSAGE_LIMIT_S = 600.0  # seconds that a message may take before the worker is killed, by default
START_LIMIT_S = 120.0  # seconds that a runtime gets to load: some take ten on a busy machine
CLOSE_LIMIT_S = 5.0  # seconds that a runtime gets to free a model: ending its process frees it as well
MARKER_BYTES = 128  # of a model's key, as a worker marks which model it is at work on; keys of 64 to 70 are usual
MEMORY_RUNS = 2  # inferences on each feed: runtimes learn in the first how large a block of memory to ask for
MESSAGE_LENGTH = 500  # characters of an error of a runtime: it may hold a whole model as text

# --- devices elsewhere ------------------------------------------------------------------------------------------------

LOSSES_OF_A_CALL = 3
"""Times that a device may be lost in one call, found anew each time; then it fails as if the runtime had died in it."""
LOSSES_IN_A_ROW = 6
"""Losses with no answer between them, over all calls, after which a device is taken out: two calls' worth of tries."""

DEVICE_WAIT_S = 120.0  # seconds for one to answer: it comes back, another run ends, Python loads its libraries
UNSEEN_S = 5.0  # of them that nothing is said of: an idle one takes as long to start
RETURN_LIMITS = 2.0  # limits of a message, for one that was lost: a machine starts again; at most what is left
ANSWER_GRACE_S = 30.0  # seconds beyond a message's own limit, which the device enforces: then it is let go
END_LIMIT_S = 5.0  # seconds for an orderly end; then it is killed, and its workers with it
CHUNK = 1 << 25  # bytes of a file in one message: a few of them fit into a small object store
