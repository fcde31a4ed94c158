"""Strategies composed: who is asked and told, in which order, when they end, and that a resumed run asks the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from benchmarks.generated_graphs import residual
from hypothesis import given
from hypothesis import strategies as st

from inlay.patterns.evolve import Evolve
from inlay.patterns.search_space import find_search_space
from inlay.search.base import Chain, Dialogue, Scripted, Strategy
from inlay.targets.onnxruntime.rules import rules_for
from inlay.testing import StrategyTestCase
from inlay.trial import Proposal, Trial
from inlay.types import Placement, Port, QType
from tests.support.planted import PlantedEvaluator, drive, planted_latency

RULES = rules_for("x86_64", frozenset({"avx512_vnni"}))


def proposal(name: str) -> Proposal:
    return Proposal(Placement([(Port(name, 0), QType.UINT8)]), name)


def answer(asked: Proposal) -> Trial:
    return StrategyTestCase().answer(asked, 0)


class Listing(Scripted):
    """Proposes the given names, and keeps what it was told."""

    def __init__(self, *names: str) -> None:
        super().__init__("listing", self._dialogue_of_names)
        self.names, self.started, self.told = names, 0, list[Trial]()

    def _dialogue_of_names(self) -> Dialogue:
        self.started += 1
        for name in self.names:
            self.told.append((yield proposal(name)))


def origins(trials: Sequence[Trial]) -> list[str]:
    return [t.proposal.origin for t in trials]


def talk(strategy: Strategy) -> list[Trial]:
    trials = []
    while (asked := strategy.ask()) is not None:
        trials.append(answer(asked))
        strategy.tell(trials[-1])
    return trials


def test_a_dialogue_starts_at_the_first_ask_and_hears_every_trial_once() -> None:
    listing = Listing("a", "b")
    assert listing.started == 0
    trials = talk(listing)
    assert origins(trials) == ["a", "b"]
    assert listing.told == trials
    assert listing.ask() is None
    assert listing.started == 1, "an exhausted dialogue is not started again"


def test_asking_twice_without_telling_is_an_error() -> None:
    listing = Listing("a", "b")
    listing.ask()
    with pytest.raises(AssertionError, match="told back"):
        listing.ask()


def test_a_chain_asks_in_order_and_tells_only_who_asked() -> None:
    first, empty, second = Listing("a", "b"), Listing(), Listing("c")
    chain = Chain([first, empty, second])
    asked = chain.ask()
    assert asked == proposal("a")
    assert (empty.started, second.started) == (0, 0), "the next begins when the one before it is exhausted"
    chain.tell(answer(asked))
    trials = talk(chain)
    assert origins(trials) == ["b", "c"]
    assert (origins(first.told), empty.told, origins(second.told)) == (["a", "b"], [], ["c"])
    assert chain.ask() is None
    assert chain.ask() is None


def test_chains_nest_and_may_be_empty() -> None:
    assert Chain([]).ask() is None
    nested = Chain([Chain([]), Chain([Listing("a"), Chain([Listing("b")])]), Listing("c")])
    assert origins(talk(nested)) == ["a", "b", "c"]


def test_a_strategy_is_made_once_when_its_turn_comes() -> None:
    first, made = Listing("a"), list[Listing]()

    def make() -> Strategy:
        made.append(Listing(f"after {len(first.told)} trials", "z"))
        return made[-1]

    chain = Chain([first, make])
    trials = talk(chain)
    assert origins(trials) == ["a", "after 1 trials", "z"]
    assert len(made) == 1
    assert made[0].told == trials[1:]
    assert chain.ask() is None
    assert len(made) == 1


def test_telling_a_chain_before_it_was_asked_is_an_error() -> None:
    with pytest.raises(AssertionError, match="without ask"):
        Chain([lambda: Listing("a")]).tell(answer(proposal("a")))


def composed(seed: int) -> Strategy:
    """What each part proposes depends on a generator and on what it was told, and the last one on the first."""
    seen: list[Trial] = []

    def adaptive(name: str, rng: np.random.Generator) -> Dialogue:
        speed = 1.0
        for number in range(6):
            trial = yield proposal(f"{name}{number} {rng.integers(1000)} after {speed:.6f}")
            seen.append(trial)
            speed = trial.speedup or 0.0

    def last() -> Strategy:
        best = max(t.speedup or 0.0 for t in seen)
        return Scripted("last", lambda: adaptive(f"best {best:.6f} ", np.random.default_rng([seed, len(seen)])))

    rng = np.random.default_rng(seed)
    return Chain([Scripted("first", lambda: adaptive("a", rng)), Listing("b"), last])


@given(st.integers(0, 20), st.integers(0, 13))
def test_a_resumed_composition_asks_the_same(seed: int, interrupted: int) -> None:
    """A run that is resumed replays the journal: the strategy is made anew and told the trials of the first session."""
    journal: dict[str, Trial] = {}
    first = composed(seed)
    for _ in range(interrupted):
        asked = first.ask()
        assert asked is not None
        journal[asked.placement.digest] = answer(asked)
        first.tell(journal[asked.placement.digest])
    resumed, trials = composed(seed), list[Trial]()
    while (asked := resumed.ask()) is not None:
        known = journal.get(asked.placement.digest)
        assert (known is not None) == (len(trials) < interrupted), "the old questions first, then new ones"
        trials.append(known or answer(asked))
        resumed.tell(trials[-1])
    assert origins(trials) == origins(talk(composed(seed)))


class TestComposition(StrategyTestCase):
    def strategy(self) -> Strategy:
        return composed(3)


def test_evolve_starts_from_the_incumbent_of_the_strategy_before() -> None:
    graph = residual(30)
    sites = [(Port("n0", 0), QType.UINT8), (Port("n0", 1), QType.INT8), (Port("n0", 2), QType.INT32)]
    incumbents: list[Placement] = [Placement()]

    def once() -> Dialogue:
        trial = yield Proposal(Placement(sites), "once")
        if trial.accepted:
            incumbents.append(trial.proposal.placement)

    space = find_search_space(graph, RULES)
    chain = Chain([Scripted("once", once), lambda: Evolve(space, incumbents[-1])])
    evaluator = PlantedEvaluator(planted_latency(space, "mixed"))
    one = chain.ask()
    assert one is not None
    chain.tell(evaluator(one))
    two = chain.ask()
    assert two is not None
    assert two.placement == one.placement == incumbents[-1]
    chain.tell(evaluator(two))
    drive(chain, evaluator)
    assert evaluator.best <= 50.5
