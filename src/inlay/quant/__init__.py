"""The mechanics of quantization: observe, compute qparams, write Q/DQ nodes, read them back, judge accuracy.

May import ``space`` and ``model``. Offers :mod:`observers` and :mod:`calibrator` (histograms of values), :mod:`qparams`
(the table of scales and zero points), :mod:`emit` (placements as models) with :mod:`qdq_graph` and :mod:`rewrite` (the
seam for a target's rewrites), :mod:`extract` (its inverse), :mod:`accuracy`, and :mod:`noise_probe` with
:mod:`sensitivity` (the noise of any placement from one build).
"""

__all__ = [
    "accuracy",
    "calibrator",
    "emit",
    "extract",
    "group_split",
    "noise_probe",
    "observers",
    "qdq_graph",
    "qparams",
    "rewrite",
    "sensitivity",
]
