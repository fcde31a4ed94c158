"""Arm Ethos-U NPUs as targets: estimated by Vela, computed exactly.

``target`` is the target; ``rules`` says what becomes integer operators. A model is lowered to TOSA by
:mod:`inlay.tosa` within the limits of the accelerator (``rules``), its partitions are compiled by Vela (``vela``,
``partitions``), and what stays on the host is priced by a stated model (``host_cost``). The folder may import
:mod:`inlay.tosa` and what every target may; Vela itself comes with the extra ``arm`` and is imported when first needed.
"""

__all__ = ["host_cost", "partitions", "rules", "target", "vela"]
