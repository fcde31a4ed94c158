"""Search: strategies that propose placements, by ask and tell (``base``); ``guided`` is the default one.

It imports the space, noise sensitivities, the targets' protocols and trials, and neither builds nor measures anything.
"""

from inlay.search.base import Strategy

__all__ = ["Strategy", "base", "baselines", "guided", "policy", "refine", "unit_graph"]
