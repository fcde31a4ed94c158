"""The user's samples: read, checked against the model's inputs, and split for calibration, selection and verification.

May import ``errors`` only. :mod:`inlay.data.samples` holds the values, :mod:`inlay.data.reading` reads them from files
and from the user's functions.
"""

from inlay.data.reading import load_function, read_labels, read_samples, save_feed
from inlay.data.samples import Feed, InputSpec, Samples, Split, evenly_spaced, input_specs, random_samples, split

__all__ = [
    "Feed",
    "InputSpec",
    "Samples",
    "Split",
    "evenly_spaced",
    "input_specs",
    "load_function",
    "random_samples",
    "read_labels",
    "read_samples",
    "save_feed",
    "split",
]
