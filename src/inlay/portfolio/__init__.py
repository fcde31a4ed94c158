"""Several runs under one budget: one model for several targets, or many models on many targets.

Both give time to runs of their own (:mod:`inlay.run`), each in its own folder, and keep what became of them: ``runs``.
:mod:`~inlay.portfolio.across` tunes one model for the targets of ``labels``; ``comparing`` then measures the files of
all of them on all of them, and ``choose`` says which target to deploy on, or which single file serves all.
:mod:`~inlay.portfolio.fleet` gives slices of time to the runs of a ``plan``, each where ``allocate`` expects it to gain
most. ``result`` holds what is found as values, ``policy`` the constants. :mod:`inlay.api` imports the room only where
several runs are asked for.
"""

__all__ = [
    "across", "allocate", "choose", "comparing", "fleet", "labels", "plan", "policy", "result", "runs",
]  # fmt: skip
