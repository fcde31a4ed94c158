"""Quantized rewrites that several targets have, one a file.

May import ``quant`` and ``model``; ``emit`` applies those that a target lists.
"""

__all__ = ["joined_groups"]
