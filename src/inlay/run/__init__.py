"""One run, from a model and samples to a delivered model with its evidence.

:mod:`~inlay.run.tune` holds the phases and the loop ``strategy.ask ▶ Placement ▶ emit ▶ accuracy ▶ compile ▶ measure ▶
journal ▶ strategy.tell``; :mod:`~inlay.run.evaluate` is one turn of it. Before the loop: ``inputs``, ``session``,
``preparation`` and ``strategies``; during it: ``schedule``, ``budget``, ``noise_probes``, ``facts``, ``machine_costs``,
``progress``; after it: :mod:`~inlay.run.confirm`, which decides in fresh processes, ``result``, and
:mod:`~inlay.run.outcome`, which puts it together. :mod:`~inlay.run.instant` quantizes without a search; ``select`` and
``compare`` are commands on what was measured or is given. The room may import everything below it: search,
calibrate, measure, prepare and targets; strategies of wings come through ``joined``. It offers functions to
:mod:`inlay.api`, and no text for people other than notes.
"""

__all__ = [
    "budget",
    "compare",
    "confirm",
    "evaluate",
    "facts",
    "inputs",
    "instant",
    "joined",
    "machine_costs",
    "noise_probes",
    "outcome",
    "outputs",
    "preparation",
    "progress",
    "result",
    "schedule",
    "select",
    "session",
    "strategies",
    "tune",
]
