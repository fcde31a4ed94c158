"""The recorder: what the sessions of the user's own program are fed, how often each runs, and for how long.

``hook`` runs in the recorded program, in whatever Python that has. What it left, ``gather`` makes into a folder:
samples for ``--data``, one file for each model, and ``pipeline``, the file that says what belongs together. ``api``,
which starts a program with the hook, and ``command`` are :func:`inlay.record` and ``inlay record``. A wing: both join
as entry points.
"""

__all__ = ["api", "command", "gather", "hook", "pipeline"]
