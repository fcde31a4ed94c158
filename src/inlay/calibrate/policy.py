"""The constants that steer calibration, each with its unit and reason.

Values without a derivation were chosen by hand, by trying a few on benchmark models.
"""

from inlay.prepare.options import DEFAULT_BUDGET_S

# --- time and samples

BUDGET_SHARE = 0.06
"""Share of a run's budget for choosing ranges: most of the gain comes from the first few domains that are tried."""
DEFAULT_SECONDS = BUDGET_SHARE * DEFAULT_BUDGET_S  # seconds for choosing ranges where there is no budget
SCORINGS_IN_TIME = 21
"""Scorings of a table that must fit into the time that is left, where ranges of single domains are to be chosen."""
ROUNDING_IN_TIME = 6
"""Scorings that must fit for weights to be rounded: moments take an inference for each sample that chooses, and each
type of weights is judged on a few."""
METHODS_IN_TIME = 2 + ROUNDING_IN_TIME  # try a second method only if this many scorings (both included) still fit
ROUNDING_INFERENCES = 12
"""Inferences of the numeric reference that must fit besides: four make the moments, two models are judged on four."""
METHODS_AGAIN = 3  # methods for all ranges, the best ones, that are scored again once weights are rounded
FINAL_SCORINGS_OF_ROUNDING = 2
"""Scorings that the time is kept for behind it, where there is none for ranges: with and without."""
FINAL_SCORINGS = 8
"""Scorings that the time is kept for, behind that choice: of its outcome, two others, and three for variations."""
SELECTION_SHARE = 0.9
"""Share of the time before them after which range selection is cut short: its outcome is still checked."""
OBSERVING_SHARE = 0.4  # share of the time for calibration in which histograms are made
MAX_FEEDS = 12  # samples used for choosing: 8 that choose and 4 held back, see below
SENSITIVITY_SHARE = 0.3
"""Share of that time for noise probes, where the choice must be restricted to a part of the model."""
MIN_SELECTION_SHARE = 0.25  # share of that time that range selection gets however long everything before it took
SCORING_SAMPLES = 8
"""Samples of the selection part on which tables are scored in a search: a worker runs a dozen tables on them."""
SCORING_SAMPLES_ONE_SHOT = 16  # the same for `quantize`, which has no later check of the winner

VARIED_SAMPLES = 2
"""Samples that are varied in each way: one of each half, so that the ranges of the other half meet it."""
MOST_VARIATIONS = 20  # in all: about as many inferences as a handful of samples with their scalings
SCORED_VARIATIONS = 10  # variations on which tables are scored: the ways that there are for images, once each
OVERRUNS = (0.02, 0.2, 0.5)
"""Shares of a range by which variations must exceed it to widen it: whatever is clipped, or only what is by far."""
STRESS_ALLOWANCE_DB = 3.0
"""What variations may lose more than samples before they count: half a bit, since nobody has seen them."""
STRESS_PRICE_DB = 1.0
"""Most that samples may lose for it: all ranges a tenth wider, or a few of many that are twice as wide."""

STEP_SECONDS = 0.02  # step of a clock without a model
MIN_STEP_SECONDS = 0.002  # shortest step: calling a session costs something however small the model is
SECONDS_PER_ELEMENT = 6e-9
"""Of an activation, in a simulated inference: 3 to 10 ns on ten real models, one thread of an x86-64 server."""
SECONDS_PER_NODE = 2e-5  # of an operator and the Q/DQ pairs around it, in the same: what calling their kernels takes

SECONDS_PER_RECURRENT_PRODUCT = 1.5e-10
"""Of a multiplication in LSTM, GRU or RNN: 30 ms for the 197 million of a sentence splitter, where elements say 4."""

# --- which part of the model is calibrated for

RESTRICTION_ROUNDS = 3  # times that the part of the model is corrected: predicted noise adds up only roughly
RESTRICTION_TOLERANCE_DB = 3.0  # distance from the accuracy constraint at which the part is close enough
SELECTION_CREDIT_DB = 1.0
"""Credit of selected ranges over one method for all: they also hold for larger samples, which scoring does not show."""

# --- range selection

COMPARED = 3  # methods that must have been tried before one may say that they are alike
ALIKE_DB = 1.0
"""Difference between the best and the worst method for all values below which ranges of single values are not chosen:
clipping more or less changes hardly anything, and steps of 8 bits make most of the noise."""

CHOOSING_SAMPLES = (4, 8)  # least and most samples that a choice rests on: fewer for models that take long
HELD_BACK_SAMPLES = 4  # further samples that must agree with the outcome as a whole
TRIALS_IN_TIME = 200  # trials of one sample that should fit into the time before more samples are used
MIN_EFFECT_DB = 0.02  # effect of a group of domains on one sample below which none of them is tried alone
MIN_GAIN_DB = 0.02  # mean gain below which a change is rejected
MIN_SINGLE_GAIN_DB = 0.2  # the same where one sample alone decides
STANDARD_ERRORS = 1.5
"""Standard errors that the mean gain over the samples must exceed: one-sided, 7 % false accepts per trial."""
SAME_SCALE = 0.01
"""Relative difference in scale below which two methods give the same qparams: its effect would drown in rounding."""
OUTPUT_NORM = 4.0  # exponent of the norm over outputs: close to the worst output, but every output counts
WORST_NOISE = 1e6  # noise over signal of an output with another shape, or with values that are not finite

# --- scale sharing

MAX_SHARING_LOSS_DB = 12.0
"""Two bits: what another reader of an input may lose at most, however much it costs to keep them."""
DB_WORTH = 0.005  # part of the model's cost that a dB for other readers is worth: a bit (6 dB) is worth 3 %
ENOUGH_DB = 40.0  # fidelity above this is not worth anything
MAX_FLIPS = 6  # decisions that are tried the other way on a target without noise: each takes a build
MIN_FLIP_GAIN = 1e-4  # relative gain in latency below which a flip is not kept

# --- rounding of weights

ROUNDING_SHARE = 1.0
"""Seconds for rounding weights, in units of those for choosing ranges: it gained 2 to 5 dB on transformers."""
ROUNDING_TIME = 0.5
"""Share of the time that is left, after which weights stay with the nearest integers; ranges need the rest."""
ROUNDING_WORTH_DB = 1.0
"""Least that a model at its bound, or as a whole if that is quieter, would gain without any noise of the weights of a
type: rounding takes away about half of it. It took 4 to 12 of 90 s where that is less, and gained 0.4 dB at most."""
ROUNDING_GAINS_DB = 8.0
"""Most that weights of a type gain by it: they gained up to 6.4 dB. Of a type that is noisier, few can be used at all;
all but the usual one, of which a part may be near the bound, are left alone then."""
FINDING_SHARE = 0.7  # share of that in which roundings are found; the rest is for judging them
ROUNDING_JUDGED = 4  # samples of the first half that judge whether it is kept
MOST_ZEROS = 0.1
"""Share of zeros above which a weight stays with the nearest integers: where a rewrite computes pixels in blocks, each
copy of a weight must stay like the others, so that other targets can undo it."""
SECONDS_PER_PRODUCT = 2.5e-11  # of a multiplication, and `SECONDS_PER_COLUMN` of each step besides: one x86-64 core
SECONDS_PER_COLUMN = 4e-5
FACTOR_PRODUCTS = 2.0  # multiplications for the factor of a matrix, in units of its cube
ROUNDING_PRODUCTS = 3.0  # the same for each channel, in units of its square
MOMENT_BYTES = 256_000_000  # bytes of moments that are held, and travel with each sample, at a time

# --- bias correction

WEIGHT_ERROR_BYTES = 256_000_000
"""Bytes of weight errors that one probe model holds: well below the 2 GiB limit of a protobuf message."""
