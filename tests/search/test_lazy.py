"""A strategy made when its turn comes sees what came before it."""

from __future__ import annotations

from inlay.regions.evolve import Evolve
from inlay.search.base import Chain, LazyStrategy, Strategy
from inlay.targets.onnxruntime.rules import rules_for
from inlay.testing.generated_graphs import residual
from inlay.trial import Proposal, Trial
from inlay.types import Placement, Port, QType
from tests.support.planted import PlantedEvaluator, drive, planted_latency

RULES = rules_for("x86_64", frozenset({"avx512_vnni"}))


class Once:
    """Asks for one placement and remembers it."""

    name = "once"

    def __init__(self, placement: Placement) -> None:
        self._left: list[Placement] = [placement]
        self.best = Placement()

    def ask(self) -> Proposal | None:
        return Proposal(self._left.pop(), "once") if self._left else None

    def tell(self, trial: Trial) -> None:
        if trial.accepted:
            self.best = trial.proposal.placement


def test_evolve_starts_from_the_incumbent_of_the_strategy_before() -> None:
    graph = residual(30)
    first = Once(Placement([(Port("n0", 0), QType.UINT8), (Port("n0", 1), QType.INT8), (Port("n0", 2), QType.INT32)]))
    made: list[Placement] = []

    def make() -> Strategy:
        made.append(first.best)
        return Evolve(graph, RULES, first.best)

    late = LazyStrategy("evolve", make)
    chain = Chain([first, late])
    evaluator = PlantedEvaluator(planted_latency(Evolve(graph, RULES).space, "mixed"))
    one = chain.ask()
    assert one is not None
    assert not made
    chain.tell(evaluator(one))
    two = chain.ask()
    assert two is not None
    assert made == [one.placement]
    assert two.placement == one.placement
    chain.tell(evaluator(two))
    drive(chain, evaluator)
    assert evaluator.best <= 50.5
    assert isinstance(late.strategy, Evolve)
    assert len(made) == 1
