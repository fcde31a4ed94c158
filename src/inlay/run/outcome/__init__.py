"""What is said of a finished run: why the result is what it is, what was cut short, and evidence for its report.

:mod:`~inlay.run.outcome.assemble` puts the result together. The folder imports what a run knows and has decided, and
offers it to :mod:`inlay.run.tune`; the report reads the evidence.
"""

__all__ = ["assemble", "evidence", "notes"]
