"""What can be chosen: a target's rules, units, domains that share qparams, and the user's recipe.

May import ``model``. Offers :mod:`rules` (a target's table), :mod:`units` (what runs as one kernel; labels on units
imply ports), :mod:`domains` (values that must share qparams), :mod:`recipe` with :mod:`recipe_file` (rules of the user)
and :mod:`resolve` (a recipe as a placement, with a reason for every node).
"""

__all__ = ["domains", "recipe", "recipe_file", "resolve", "rules", "units"]
