"""Quantized rewrites that several targets have, one a file, and what undoing them has in common.

May import ``quant`` and ``model``; ``emit`` applies those that a target lists.
"""

__all__ = ["joined_groups", "undo"]
