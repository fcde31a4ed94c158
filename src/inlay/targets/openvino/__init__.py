"""OpenVINO on the CPU: its table of rules, and how it is built, timed and profiled.

Offers :mod:`target`; :mod:`rules` is the table, each row verified against the compiled model; :mod:`runtime` imports
the package, :mod:`profile` reads the graph that it executes and attributes its kernels to nodes; :mod:`float_rewrites`
with ``passes`` and :mod:`rewrites` are its rewrites.
"""

__all__ = ["float_rewrites", "passes", "profile", "rewrites", "rules", "runtime", "target"]
