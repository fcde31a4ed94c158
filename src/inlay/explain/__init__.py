"""Why each operator of a model runs in the precision in which it does, what misplaced Q/DQ nodes cost, the repair."""

__all__ = [
    "bound",
    "changes",
    "exact",
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
