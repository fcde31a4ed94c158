"""Runtimes that build, run and time a model, and their low-precision rules."""
