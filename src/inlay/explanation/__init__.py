"""Why each operator of a model runs in the precision in which it does, what misplaced Q/DQ nodes cost, the repair.

A wing: ``api`` and ``command`` are ``inlay explain``, which is an entry point.
"""

from inlay.explanation.api import ExplainOptions

__all__ = [
    "ExplainOptions",
    "api",
    "bound",
    "command",
    "executed",
    "experiments",
    "explain",
    "explanation",
    "faults",
    "losses",
    "policy",
    "removal",
    "repair",
    "waste",
]
