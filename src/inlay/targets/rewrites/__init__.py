"""Quantized rewrites that several targets have, and what undoing them has in common."""
