"""From calibration samples to the qparams of a run: histograms, then a range for every value, then a qparams table.

In the order of the flow: ``tables`` observes a histogram of every activation and turns ranges into a qparams table;
``scale_sharing`` decides which values share one scale; ``bias_correction`` measures the mean error of rounded weights;
``range_probe`` and ``range_selection`` choose a method of calibration for each domain of values; ``scorer`` says how
good a table is; ``choose`` runs all of it and returns a ``choice``, a frozen value that makes the same table again.
``policy`` holds the constants, ``clock`` the step clock that makes decisions reproducible. May import ``prepare``,
``measure``, ``quant`` and what is below them.
"""

__all__ = [
    "bias_correction",
    "choice",
    "choose",
    "clock",
    "policy",
    "range_probe",
    "range_selection",
    "scale_sharing",
    "scorer",
    "tables",
]
