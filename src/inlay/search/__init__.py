"""Search: strategies that propose placements, by ask and tell (``base``); ``guided`` is the default one.

It imports the space, noise sensitivities, the targets' protocols and trials, and neither builds nor measures anything.
In the order of its flow: ``unit_graph`` (units and values; ``edges``, ``propagation``), ``cost_model``
(``cost_parameters``, ``cost_prior``, ``cost_posterior``), ``noise_model`` and ``noise_allowance``, ``labeling`` with
its solvers (``mincut``, ``milp``, ``lagrangian``, ``local_search``; ``solver`` keeps the accuracy constraint),
``surrogate``, ``pareto``, ``exploration`` and ``neighborhood``. ``rewrite_choice`` decides about the targets' rewrites,
``executed`` tells from profiles what ran in low precision, ``baselines`` are the anchors, ``refine`` is a strategy
without models, and ``policy`` holds the constants.
"""

__all__ = ["base", "baselines", "guided", "policy", "refine", "unit_graph"]
