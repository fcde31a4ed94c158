"""The user's samples: read, checked against the model's inputs, and split for calibration, selection and verification.

May import ``errors`` only. :mod:`inlay.data.samples` holds the values, :mod:`inlay.data.archives` decodes files, and
:mod:`inlay.data.reading` makes samples of them, or of what the user's functions give.
"""

from inlay.data.archives import as_text, load_feed, load_workload, read_arrays, save_feed, save_feeds
from inlay.data.fixed import FIXED, fixed_values
from inlay.data.fixing import FixedValues, parse_fixed
from inlay.data.images import Images
from inlay.data.labels import labelled
from inlay.data.likely import likely_sizes, random_samples, sizes_to_try, template
from inlay.data.padding import Padding
from inlay.data.reading import files_of, load_function, read_samples
from inlay.data.samples import (
    AUTO_MASK,
    NO_MASK,
    TUNED,
    Ends,
    Feed,
    InputSpec,
    Joins,
    Samples,
    Split,
    bound,
    common_sizes,
    evenly_spaced,
    input_specs,
    split,
    tuned_sizes,
)
from inlay.data.stress import NO_STRESS, StressSet, Variation, stress_set, with_unnoticed_noise
from inlay.data.workload import (
    Shapes,
    ShapeWish,
    Workload,
    batch_wishes,
    parse_batch,
    parse_shapes,
    random_of_shapes,
    shapes_of,
    workload_of,
)

__all__ = [
    "AUTO_MASK",
    "FIXED",
    "NO_MASK",
    "NO_STRESS",
    "TUNED",
    "Ends",
    "Feed",
    "FixedValues",
    "Images",
    "InputSpec",
    "Joins",
    "Padding",
    "Samples",
    "ShapeWish",
    "Shapes",
    "Split",
    "StressSet",
    "Variation",
    "Workload",
    "as_text",
    "batch_wishes",
    "bound",
    "common_sizes",
    "evenly_spaced",
    "files_of",
    "fixed_values",
    "input_specs",
    "labelled",
    "likely_sizes",
    "load_feed",
    "load_function",
    "load_workload",
    "parse_batch",
    "parse_fixed",
    "parse_shapes",
    "random_of_shapes",
    "random_samples",
    "read_arrays",
    "read_samples",
    "save_feed",
    "save_feeds",
    "shapes_of",
    "sizes_to_try",
    "split",
    "stress_set",
    "template",
    "tuned_sizes",
    "with_unnoticed_noise",
    "workload_of",
]
