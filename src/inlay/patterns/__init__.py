"""The region-pattern wing: search Q/DQ schemes for structural patterns of the graph instead of for single nodes.

A wing: it joins a run through entry points, as one strategy among others (``--strategy evolve``, in ``joined``), and
whoever follows a model from the command line to the result may skip it whole. :mod:`inlay.autotune` offers it step by
step. ``api`` and ``command`` are ``inlay regions`` and ``inlay cache``.

Vocabulary:

* *region*: a node of the region tree. LEAF regions partition the graph's nodes, COMPOSITE regions hold child regions,
  one ROOT holds all.
* *pattern*: the structural signature that isomorphic regions share; such a region is an *instance* of its pattern.
* *insertion point*: a slot of a pattern at which Q/DQ may be inserted. It stands for ports in every instance.
* *scheme*: a frozen set of insertion points of one pattern.
"""

__all__ = ["api", "cache", "command", "config", "evolve", "joined", "scheme_import", "schemes", "search_space", "tree"]
