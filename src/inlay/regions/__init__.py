"""The region-pattern wing: search Q/DQ schemes for structural patterns of the graph instead of for single nodes.

``tune`` uses it as one strategy among others (``--strategy evolve``), and :mod:`inlay.autotuner` offers it step by
step; whoever follows a model from the command line to the result may skip it whole. It imports the space, the model's
graph, paired statistics and the frozen values: no target, and no part of the run.

Vocabulary:

* *region*: a node of the region tree. LEAF regions partition the graph's nodes, COMPOSITE regions hold child regions,
  one ROOT holds all.
* *pattern*: the structural signature that isomorphic regions share; such a region is an *instance* of its pattern.
* *insertion point*: a slot of a pattern at which Q/DQ may be inserted. It stands for ports in every instance.
* *scheme*: a frozen set of insertion points of one pattern.
"""

__all__ = ["cache", "config", "describe", "evolve", "scheme_import", "schemes", "search_space", "tree"]
