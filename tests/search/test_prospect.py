"""What is left to find: hopes that came to nothing count for less, and what is left is looked for once it is likely."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from inlay.search import policy
from inlay.search.base import Chain, Dialogue, Scripted
from inlay.search.prospect import Hopes, Prospect, said_left
from inlay.trial import Failed, Proposal, Trial
from inlay.types import Placement


def test_a_prospect_is_the_chance_of_any_gain() -> None:
    chances = [0.3, 0.1, 0.05]
    found = Hopes().prospect(chances)
    drawn = np.random.default_rng(0).random((200_000, 3)) < chances
    assert found.probability == pytest.approx(drawn.any(axis=1).mean(), abs=0.05)
    assert found.trials == 3
    assert Hopes().prospect([]) == Prospect(0.0, 0)


def test_hopes_that_came_to_nothing_count_for_less_and_those_that_came_true_for_more() -> None:
    hopes = Hopes()
    before = hopes.prospect([0.2]).probability
    for _ in range(20):
        hopes.learn(0.5, False)
    assert hopes.prospect([0.2]).probability < before / 5.0
    assert hopes.prospect([0.2]).is_unlikely
    for _ in range(20):
        hopes.learn(0.5, True)
    assert hopes.prospect([0.2]).probability == pytest.approx(before, rel=0.1), "as often as was hoped for"


def test_stated_probabilities_hold_where_the_surrogate_hopes_for_too_much() -> None:
    """Of searches whose hopes come true a third as often as was said, most state no more than what then happens."""
    rng, stated, came = np.random.default_rng(1), [], []
    for _ in range(2000):
        hopes, chances = Hopes(), rng.uniform(0.0, 0.6, 15)
        for chance in chances:
            hopes.learn(chance, bool(rng.random() < chance / 3.0))
        left = rng.uniform(0.0, 0.2, 5)
        stated.append(hopes.prospect(left.tolist()).probability)
        came.append(bool((rng.random(5) < left / 3.0).any()))
    naive = float(np.mean([1.0 - np.prod(1.0 - rng.uniform(0.0, 0.2, 5)) for _ in range(2000)]))
    assert abs(np.mean(stated) - np.mean(came)) < 0.5 * abs(naive - np.mean(came)), "less wrong than without history"


def test_json_has_seconds_only_where_a_trial_takes_some() -> None:
    assert Prospect(0.04, 3).as_json(2.0) == {"gain": policy.CLEAR_GAIN, "probability": 0.04, "seconds": 6.0}
    assert "seconds" not in Prospect(0.04, 3).as_json(None)
    assert said_left(Prospect(0.04, 3).as_json(2.0)).endswith("4% likely to be left; to look takes about 6 s")
    assert said_left(Prospect(0.4, 3).as_json(2.0)).endswith(
        "40% likely to be left; to look takes about 6 s: give a larger --budget"
    )
    assert said_left(Prospect(0.0, 0).as_json(2.0)).endswith("is less than 1 % likely to be left")


def test_nothing_follows_in_a_chain_once_it_is_done() -> None:
    def once(name: str) -> Scripted:
        def propose() -> Dialogue:
            yield Proposal(Placement(), name)

        return Scripted(name, propose)

    def whether(done: bool) -> Callable[[], bool]:
        return lambda: done

    for done, expected in ((False, ["first", "second"]), (True, ["first"])):
        chain, asked = Chain([once("first"), once("second")], whether(done)), list[str]()
        while (proposal := chain.ask()) is not None:
            asked.append(proposal.origin)
            chain.tell(Trial(proposal, Failed("emit", "")))
        assert asked == expected
