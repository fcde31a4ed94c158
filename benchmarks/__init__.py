"""Measurements of Inlay, as paired ratios. Run with `make bench`."""
