"""One run, from a model and samples to a delivered model with its evidence.

:mod:`~inlay.run.tune` holds the phases and the loop ``strategy.ask ▶ Placement ▶ emit ▶ accuracy ▶ compile ▶ measure ▶
journal ▶ strategy.tell``; :mod:`~inlay.run.evaluate` is one turn of it. Before the loop: ``inputs``, ``session``,
``calibration``, ``strategies`` and ``oracles``; during it: ``budget``, ``noise_probes``, ``facts``, ``cost_database``,
``progress``; after it: ``contenders``, ``confirm``, ``notes``, ``assemble``, ``result``, ``outputs``. ``quantize`` and
``select`` are the commands without a search. The room may import everything below it: calibrate, prepare, search,
regions, measure and targets. It offers functions to :mod:`inlay.api`, and no text for people other than notes.
"""

__all__ = [
    "assemble",
    "budget",
    "calibration",
    "compare",
    "confirm",
    "contenders",
    "cost_database",
    "evaluate",
    "facts",
    "inputs",
    "noise_probes",
    "notes",
    "oracles",
    "outputs",
    "progress",
    "quantize",
    "result",
    "select",
    "session",
    "strategies",
    "tune",
]
