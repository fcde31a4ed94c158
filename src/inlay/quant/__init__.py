"""The mechanics of quantization: histograms, qparams, writing Q/DQ nodes, reading them back, judging accuracy.

May import ``space`` and ``model``. Offers :mod:`observers` (histograms of values, and ranges from them), :mod:`qparams`
(the table of scales and zero points), :mod:`gptq` (weights that are not rounded to nearest), :mod:`emit` (placements as
models) with :mod:`qdq_graph` and :mod:`rewrite` (the seam for a target's rewrites), :mod:`extract` (its inverse),
:mod:`accuracy`, and :mod:`fake_quant` with :mod:`sensitivity` (the noise of any placement from one build).
"""

__all__ = [
    "accuracy",
    "emit",
    "extract",
    "fake_quant",
    "gptq",
    "group_split",
    "observers",
    "qdq_graph",
    "qparams",
    "rewrite",
    "sensitivity",
]
