"""One model and several targets: which of them to deploy on, or which single file serves all of them.

:mod:`~inlay.across.tune` tunes for each target, in a run of its own (:mod:`inlay.run`), and then measures files of all
of them on all of them. The room may import everything below it; it offers functions to :mod:`inlay.api`.
"""

__all__ = ["candidates", "choose", "comparing", "labels", "policy", "result", "session", "tune"]
