"""From calibration samples to the qparams of a run: histograms, then a range for every value, then a qparams table.

In the order of the steps: :mod:`observe` (histograms), :mod:`share` (which values have one scale), :mod:`tables` (the
choice, a frozen value that makes the same table again), :mod:`scorer` (how good a table is), :mod:`gptq` (weights),
:mod:`bias`, :mod:`ranges` (methods for single values). :mod:`choose` runs all of it. The room may import ``prepare``,
``measure``, ``quant`` and what is below them.
"""

__all__ = ["bias", "choose", "clock", "gptq", "observe", "policy", "ranges", "scorer", "share", "tables"]
