"""Whether a recipe was tuned on the target and machine that it is applied on: what pays depends on both."""

from __future__ import annotations

from collections.abc import Callable

from inlay.space.recipe import Recipe
from inlay.targets.base import Fingerprint


def facts_of(fingerprint: Fingerprint) -> dict[str, str]:
    """What a recipe records of the target that it is tuned for."""
    return {"target": fingerprint.target, **fingerprint.facts}


def elsewhere(recipe: Recipe | None, fingerprint: Callable[[], Fingerprint]) -> str:
    """What a target differs in from the one that a recipe is tuned for, as one line; empty where it is the same.

    Nothing is said of a recipe that records none: it was written by hand. ``fingerprint`` is not asked for then.
    """
    if recipe is None or not recipe.tuned_for:
        return ""
    then, now = dict(recipe.tuned_for), facts_of(fingerprint())
    if then == now:
        return ""
    other = then.get("target") != now["target"]
    names = ["target"] if other else [n for n in {**then, **now} if then.get(n) != now.get(n)]
    was, is_now = (", ".join(f"{n} {facts.get(n, 'unknown')}" for n in names) for facts in (then, now))
    return (
        f"the recipe is tuned for {was}; this is {is_now}: other operators may pay here; inlay bench says whether it "
        "still does, and inlay tune without it finds what does"
    )
