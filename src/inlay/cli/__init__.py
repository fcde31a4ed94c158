"""The command line: options in, exit codes out; nothing is decided here.

``commands`` calls one function of :mod:`inlay.api` per command, ``options`` derives the options from the signatures of
these functions, ``render`` turns results into text and tables, ``progress`` shows a run while it works, ``terminal``
prints all of that so that it controls nothing. The room may import everything; nothing imports it. Its entry point is
:func:`inlay.cli.commands.main`.
"""

import os

# What numpy multiplies here is small. With a thread for each core and other work on them every product waits for the
# slowest: beside two busy processes on two cores, evening out a BERT's outliers took 6 s, and 2 with one thread.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

__all__ = ["commands", "explained", "inspected", "options", "progress", "render", "terminal"]
