"""The constants that steer the search, each with its unit and its reason.

They are judgements, not measurements, unless a source is given: none is a property of one runtime or one model, and
where the best value depends on the model, the reason says what a wrong one costs.
"""

from __future__ import annotations

# --- anchors ----------------------------------------------------------------------------------------------------------

FORM_SHARE = 1 / 4  # of the operators with weights, or of these, that must have a form for an anchor: a build is dear

FORM_WORK = 0.03
"""Of a model's work that the operators with a form must do for an anchor: for nothing, they would gain as much."""

FEW_ROWS = 8
"""Rows of products up to which reading their weights takes most of the time, so that small weights are fast ones:
weights of 8 bits alone gave 2.6x with one row (a decoder's step), 1.04x with 128 and 0.86x with 197."""

TABLE_WORTH = 0.05
"""Share of a model's time in float that it is worth to store all of its constants in 8 bits, where these are tables of
which some rows are read: no time is to be gained there, but memory. One with a third of the constants may cost 2 %."""

# --- guided: how much is spent on each phase --------------------------------------------------------------------------

CUTS = 3  # solutions not outside the bound that are tried; each corrects the model, and exploring solves again anyway
INFEASIBLE_CUTS = 6  # solutions outside the bound before cutting is given up; each tightens the noise allowance
AIM_STEP_DB = 10.0  # by which one solution outside the bound may tighten the next: more says nothing of this one
AIM_CLOSE_DB = 0.5  # steps back towards the bound that are too small to change a solution
AIM_AGAIN = 4  # solutions that were tried already, after which cutting ends: each takes as long as one that is new
BLAMES = 6  # models that the runtime refused or computed wrong of which it is found out why, each by a few others
RETREATS = 6  # attempts at one accuracy, each with less noise than the last
RETREAT_TIGHTENING = 0.7  # of the allowed noise (-1.5 dB), after an attempt that fell short
FRONT_ROUNDS = 4  # times the front is predicted anew from what the last round taught

# --- rewrite choice: one profile without and one with each rewrite ----------------------------------------------------

REWRITE_MIN_GAIN = 0.03  # of a kernel's time: profiles of one kernel differ by about as much
PRICED_REWRITE_GAIN = 0.2  # of a kernel's time by the table alone, whose fits are off by 0.15 to 0.35 in the median:
# with 0.03, 94 convolutions of densenet121 were rewritten with AMX, for 3.3x over float; with 0.2, 2 for 3.8x
REWRITE_MIN_GAIN_NS = 1000.0  # ns: runtimes report whole microseconds
REWRITE_MIN_UNCHANGED = 3  # kernels that both profiles share, needed to correct for the machine's speed

# --- surrogate: which measurements are worth a profile, which costs a second build ------------------------------------

PROFILE_ERROR = 0.03  # relative error of a prediction beyond which a profile teaches most, wherever the model stands
PROFILE_SIGMAS = 2.0  # ... and beyond its own uncertainty, in standard deviations
PROFILE_ERROR_NEAR_BEST = 0.01  # relative error that is worth a profile close to the best, where decisions are made
NEAR_BEST = 1.05  # of the best latency: what "close" means
CLEARLY_BETTER = 0.99  # of the best latency: a new best even where no race said so
UNKNOWN_SPREAD = 0.02  # relative standard deviation of a measurement without a finite interval: few blocks

# --- exploration ------------------------------------------------------------------------------------------------------

LEAST_GAIN = 0.0005  # of the latency: an expected gain below it drowns in the measurement noise
THOMPSON_DRAWS = 2  # posterior samples that are solved in each round
SOLVE_EVERY = 3  # steps; a solution takes longer than all neighborhood moves together
NEIGHBORS = 400  # neighborhood moves per round: enough to cover small models, and bounded for large ones
PROBES_PER_STEP = 8  # candidates whose noise is probed before a step gives up
CLEAR_GAIN = 0.02  # of the latency: about what the intervals of a confirmation can show
UNLIKELY = 0.1  # probability that one is left below which a search ends
FAINT = 1e-3  # chance of a clear gain that adds nothing to that probability
QUICK_CORRECTIONS = 2  # probed corrections of a solution that is one candidate of many

# --- pareto: the front of latency and accuracy ------------------------------------------------------------------------

FRONT_STEP_DB = 2.0  # between the noise levels of the sweep: one relaxation each
FRONT_GAP_DB = 2.0  # from measured points beyond which a gap is wide, and wider ones are no more urgent
FRONT_TOP_DB = 45.0  # SQNR beyond which a model is as good as float

# --- solver: labelings within the accuracy constraint -----------------------------------------------------------------

MILP_UNITS = 2500  # units above which no integer program is tried: it would use up its time limit each time
MILP_SECONDS = 5.0  # that one integer program may take
MILP_GAP = 5e-3  # relative optimality gap: below what can be measured
CORRECTIONS = 5  # solutions that are probed before one is taken
USED_ENOUGH = 0.8  # of the allowed noise (-1 dB): beyond, a solution is not worth correcting further
CORRECTION_TIGHTENING = 0.93  # of the limit (-0.3 dB) where a probe refutes a solution; squared where it did before

# --- lagrangian: relaxation by prices ---------------------------------------------------------------------------------

MAJORIZATION_STEPS = 4  # a cut each; it stops earlier where the labels repeat
PRICES = 12  # tried at most: a cut each
FIRST_PRICE = 0.1  # of the sum of all unit gains, for using up a whole limit
PRICE_STEP = 4.0  # factor from one price to the next, until the right one lies between two
PRICE_TOLERANCE = 1.03  # ratio of prices that count as equal
SHARE_EXPONENT = 0.5  # how fast the scarcest limit's share of the price grows; less than 1 damps oscillation
LEAST_SHARE = 0.1  # of the scarcest limit's usage: no limit's price falls faster in one step

# --- local search -----------------------------------------------------------------------------------------------------

PASSES = 6  # over all changes, at most
ROUNDING = 1e-9  # costs and usages closer than this are equal
BATCH_SHARE = 1 / 8  # of the useful repairs that one evaluation of all flips is good for
FREE_USAGE = 1e-3  # of a limit, added to a change's usage: less counts as nothing when changes are ranked

# --- noise model ------------------------------------------------------------------------------------------------------

FIT_ROUNDS = 60  # of expectation maximization: cheap, as few labelings are probed
FIT_STEP = 0.5  # of each correction: damped, as many sources share one labeling
PRIOR_LABELINGS = 0.3  # labelings of that source alone that weigh as much as its prior
PRIOR_PULL = 0.2  # of the prior's weight in a correction
NOISE_RANGE = (1e-30, 100.0)  # noise over signal of one source; above 100 it ruins everything, however much it is
MEASURED_OVER_PROBED = (0.1, 10.0)  # range of that ratio; beyond, it is no matter of rounding
WRONG = 30.0  # noise over what is predicted from which on a runtime computes something else (at least 15 dB more)
HARDLY_ANY_NOISE = 1e-6  # over signal, -60 dB: many times less than that is no sign of it
MOST_FLOOR = 0.5  # of the allowed noise that what a target loses in float may take: operators in 8 bits do not lose it
RECENT_RATIOS = 3  # that are averaged: the ratio drifts as labelings change
ALLOWANCE_MARGIN = 0.96  # of the allowed noise (-0.2 dB): prediction errors of a solution at the limit
MARGIN_DECAY = 0.7  # of an earlier sampling margin per trial: margins differ between models
METRIC_START = 1 / 16  # of the least infeasible noise, where a metric decides and nothing was feasible yet (-12 dB)

# --- cost model: relative standard deviations, unless stated otherwise ------------------------------------------------

SEEN = 0.05  # of a cost that was profiled, between one labeling and the next
SAME_SIGNATURE = 0.25  # of one that was profiled at another unit or value of the same signature
OTHER_CONTEXT = (0.15, 0.5)  # of a unit's cost profiled behind a layout source of the other precision: float, low
GUESSED = 1.0  # of one that follows the trend over size
PRIOR_READINGS = 2.0  # that the target's table counts for against readings of other units with that operator
LEAST_CORRECTION = 0.25  # of what profiles say: whole-model times correct no cost below it
COST_FLOOR_NS = 300.0  # ns: standard deviation of a cost of zero; profilers report whole microseconds
PROFILE_TOTAL = 0.03  # of a profile's total: profiling slows models down unevenly
WHOLE_MODEL = 0.01  # of a whole-model time, besides its interval: what a sum of costs cannot express
LEAST_PREDICTION = 0.002  # of a prediction, whatever is known
NEWEST_WEIGHT = 0.5  # of the newest reading of a cost: it comes from the neighborhood that matters now
SPREAD_DECAY = 0.7  # of a cost's largest jump between readings, per reading
# The next ones stand in only where neither a profile of this run nor the processor's cost table says more: orders of
# magnitude of no processor (on x86-64 with AVX512-VNNI a table has 5 us and 0.5 ns per element for either of the pair).
LOW_OVER_FLOAT = 0.6  # ratio of a unit's costs before any unit was profiled in both precisions,
LOW_OVER_FLOAT_RANGE = (0.2, 3.0)  # and its range afterwards
TREND_READINGS = 4  # values in one state before a trend over size is fitted
QUANTIZE_NS = (1500.0, 0.1)  # ns per Q, and per element, before a trend is known; the first profiles replace it
DEQUANTIZE_NS = (1500.0, 0.15)  # ns per DQ, and per element, likewise

# --- cost table: fits to measured kernels

FIT_SIZES = 4  # different workloads of one kind in one state: as many as a fit has parts
SOMETIMES_FREE = 0.2  # share of the readings that are next to zero, from which they are no outliers
FIT_REPEATS = 8  # weighted least squares, each with the weights that the last one's errors give
UNIFORM_CREDIT = 1.1
"""How much slower than the best labeling an anchor may be expected to be, unmeasured, and is still preferred."""
MOST_OFF_PRICE = 4.0  # ratio of profiled to priced costs beyond which a table is wrong for a sort rather than off
QUICK_GAIN = 1.03  # predicted, over what was timed: below, another model is not built where the answer must be quick
CHALLENGE = 1.3
"""Where float is expected to be the fastest: how much slower an anchor may be expected to be and is still timed."""
# --- names for people -------------------------------------------------------------------------------------------------

NAME_LENGTH = 49  # characters of a unit's name in an origin: one line of a terminal with the figures beside it
