"""The command line: options in, exit codes out; nothing is decided here.

``commands`` calls one function of :mod:`inlay.api` per command, ``options`` derives the options from the signatures of
these functions, ``render`` turns results into text and tables, ``progress`` shows a run while it works, ``terminal``
prints all of that so that it controls nothing. Commands of wings join through entry points and use the last four of
these. Its own entry point is :func:`inlay.cli.commands.main`.
"""

import os

from inlay.model.late_imports import defer_imports

defer_imports()

# As inlay.model.libraries does for calls from Python, for whatever library is loaded from now on.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

__all__ = ["commands", "options", "progress", "render", "terminal"]
