"""From calibration samples to the qparams of a run: histograms, then a range for every value, then a qparams table.

``choose`` runs all of it and returns a choice, a frozen value that makes the same table again. The room may import
``prepare``, ``measure``, ``quant`` and what is below them.
"""

__all__ = ["bias_correction", "choose", "clock", "policy", "range_selection", "scale_sharing", "scorer", "tables"]
