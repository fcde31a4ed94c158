"""Claims that others judge: a claim and a judgement agree where they have a value in common."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks import claims


def interval(low: float, high: float) -> dict[str, float]:
    """With its middle."""
    return {"value": (low + high) / 2, "low": low, "high": high}


def row(name: str, loop: dict[str, float], turn: dict[str, float], **cold: dict[str, float]) -> dict[str, object]:
    """A model that is claimed to be twice as fast."""
    judged = dict(zip(claims.WAYS, (loop, turn), strict=True))
    return {"model": name, "kept": False, "claims": {"loop": interval(1.9, 2.1), **cold}, "judged": judged}


def test_what_is_judged_apart_from_the_claim_does_not_hold() -> None:
    """A judge's interval that begins above a claim's end, or ends below it, speaks against it."""
    found = claims.table(
        [
            row("right", interval(2.0, 2.2), interval(1.8, 1.95)),
            row("too much", interval(1.5, 1.8), interval(1.3, 1.4)),
            row("too little", interval(2.2, 2.4), interval(2.2, 2.4)),
            {"model": "float", "kept": True},
        ]
    )
    assert found["held"] == {claims.WAYS[0]: 1, claims.WAYS[1]: 1}
    assert (found["claims"], found["kept"]) == (3, 1)
    shown = claims.markdown(found)
    assert shown.count("] !") == 4
    assert "1 of 3 hold, 33%" in shown


def test_in_turn_with_others_the_truth_lies_between_hot_and_cold() -> None:
    """Where a run also claims for cold caches, what lies between both claims holds in turn with others alone."""
    between = interval(1.5, 1.6)
    found = claims.table([row("r", between, between, cold=interval(1.2, 1.3))])
    assert found["held"] == {claims.WAYS[0]: 0, claims.WAYS[1]: 1}
    assert "1.25x [1.20, 1.30]" in claims.markdown(found)


def test_the_judges_interval_holds_the_truth() -> None:
    """Of many judgements of a known ratio, about 95 % have it in their interval."""
    rng = np.random.default_rng(3)
    judged = [claims.Judged.of(np.log(2.0) + rng.normal(0.0, 0.05, 6)) for _ in range(400)]
    held = np.mean([j.low <= 2.0 <= j.high for j in judged])
    assert held == pytest.approx(0.95, abs=0.03)
