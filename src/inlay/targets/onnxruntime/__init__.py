"""ONNX Runtime on the CPU: its table of rules, its rewrites, and how it is built, timed and profiled.

Offers :mod:`target`; :mod:`rules` is the table, each row verified against the runtime; :mod:`float_rewrites` with
``passes`` and :mod:`rewrites` are its kernel tricks; :mod:`profile` attributes kernels to nodes; :mod:`session`
also detects models that the runtime optimizes to the same graph.
"""

__all__ = ["float_rewrites", "passes", "profile", "rewrites", "rules", "session", "target"]
