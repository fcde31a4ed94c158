"""An answer in seconds: ``inlay quantize``, by a recipe or by what the processor's kernels are known to cost.

:mod:`~inlay.run.instant.calibrate_machine` measures those costs once. :mod:`~inlay.run.instant.proposal` finds a
placement by them, :mod:`~inlay.run.instant.by_costs` builds, times and corrects it, and
:mod:`~inlay.run.instant.quantize` is the command. The folder imports the prepared model, the cost model and a worker,
and nothing of the search's loop.
"""

__all__ = ["by_costs", "calibrate_machine", "one_shot", "proposal", "quantize"]
