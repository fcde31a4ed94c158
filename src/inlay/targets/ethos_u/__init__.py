"""Arm Ethos-U NPUs: compiled and estimated through Vela, computed exactly by the TOSA reference model.

Offers :mod:`target`; :mod:`rules` is its table, :mod:`legality` what Vela accepts, :mod:`vela` the compiler in memory,
:mod:`partitions` the cost of a whole model and :mod:`host_cost` that of its share on the host.
"""

__all__ = ["host_cost", "legality", "partitions", "rules", "target", "vela"]
