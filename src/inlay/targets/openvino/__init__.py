"""OpenVINO on the CPU: its table of rules, and how it is built, timed and profiled.

Offers :mod:`target`; :mod:`rules` is the table, each row verified against the compiled model; :mod:`runtime` imports
the package, :mod:`profile` reads the graph that it executes and attributes its kernels to nodes, and :mod:`idle_pairs`
is its rewrite.
"""

__all__ = ["idle_pairs", "profile", "rules", "runtime", "target"]
