"""Several runs under one budget: one model for several targets, many models on many, or the models of one program.

All give time to runs of their own (:mod:`inlay.run`), each in its own folder, and keep what became of them: ``runs``.
:mod:`~inlay.portfolio.across` tunes one model for the targets of ``labels``; ``comparing`` then measures the files of
all of them on all of them, and ``choose`` says which target to deploy on, or which single file serves all.
:mod:`~inlay.portfolio.fleet` gives slices of time to the runs of a ``plan``, each where ``allocate`` expects it to gain
most; so does ``pipeline`` for the ``parts`` of one program, of whose measured ``points`` it chooses, by the user's
evaluation of all of them. ``result`` and ``pipeline_result`` hold what is found as values, ``policy`` the constants.
:mod:`inlay.api` imports the room only where several runs are asked for.
"""

from inlay.portfolio.pipeline_result import PipelineResult
from inlay.portfolio.result import AcrossResult, FleetResult

__all__ = [
    "AcrossResult", "FleetResult", "PipelineResult",
    "across", "allocate", "choose", "comparing", "fleet", "labels", "parts", "pipeline", "pipeline_result", "plan",
    "points", "policy", "result", "runs",
]  # fmt: skip
