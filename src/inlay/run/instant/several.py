"""One file for several processors: the placement whose worst regret over them is the smallest, by their cost tables.

The regret on a processor is how much slower a placement is expected to be there than the best one that is known for it
alone. What is fastest for a weighted mean of the processors' costs (each in shares of the float model's) is a
candidate; weights move towards the processor that regrets most, as multiplicative weights do, for a few rounds. The
best for each alone, the anchors and float are candidates too, so that the result is never worse than any of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from inlay.search.cost_model import CostModel
from inlay.search.unit_graph import UnitGraph

_ROUNDS = 6  # of weights, at most: each is an integer program or a minimum cut
_STEP = 8.0  # how far weights move for a regret of 100 %: by 10 % they change to 2.2 times


class Several:
    """Candidates for several processors, and what each is expected to take on each.

    Args:
        prices: nanoseconds of each parameter of the cost model, by the processor's name.
    """

    def __init__(self, graph: UnitGraph, prices: Mapping[str, np.ndarray]) -> None:
        self._graph = graph
        self._models = {name: CostModel(graph, priced=each) for name, each in prices.items()}
        in_float = np.zeros(len(graph.units), np.int8)
        float_ns = [max(model.predict(in_float).mean, 1.0) for model in self._models.values()]
        self._prices = [each / ns for each, ns in zip(prices.values(), float_ns, strict=True)]
        self._mean_ns = float(np.mean(float_ns))
        self._found: dict[bytes, np.ndarray] = {in_float.tobytes(): in_float}
        self.model = self._weighted(np.ones(len(prices)))  # of the mean of all
        self._ns: dict[bytes, list[float]] = {}

    def models(self) -> Iterator[CostModel]:
        """Cost models to find candidates by: one for each processor, then for means; :meth:`add` comes between."""
        yield from self._models.values()
        weights = np.ones(len(self._models))
        for _ in range(_ROUNDS):
            yield self._weighted(weights)
            regrets = np.array(list(self.regrets(self.by_regret()[0]).values()))
            if not regrets.any():
                return
            weights = weights * np.exp(_STEP * regrets)

    def add(self, *candidates: np.ndarray) -> None:
        """Labelings to choose among."""
        self._found.update((each.tobytes(), each) for each in candidates)

    def by_regret(self) -> list[np.ndarray]:
        """All candidates, the smallest worst regret first; among equal ones the faster on the whole."""
        return sorted(self._found.values(), key=lambda each: (max(self.regrets(each).values()), sum(self._of(each))))

    def regrets(self, labels: np.ndarray) -> dict[str, float]:
        """By processor, how much slower a labeling is expected to be than the best candidate there: 0.1 is 10 %."""
        every = np.array([self._of(each) for each in self._found.values()])
        ratios = np.array(self._of(labels)) / every.min(axis=0) - 1.0
        return {name: max(0.0, float(ratio)) for name, ratio in zip(self._models, ratios, strict=True)}

    def speedups(self, labels: np.ndarray) -> dict[str, float]:
        """By processor, how many times as fast as float a labeling is expected to be."""
        in_float = self._of(np.zeros(len(self._graph.units), np.int8))
        ratios = zip(self._models, in_float, self._of(labels), strict=True)
        return {name: slow / fast for name, slow, fast in ratios}

    def _of(self, labels: np.ndarray) -> list[float]:
        key = labels.tobytes()
        if key not in self._ns:
            self._ns[key] = [model.predict(labels).mean for model in self._models.values()]
        return self._ns[key]

    def _weighted(self, weights: np.ndarray) -> CostModel:
        shares = weights / weights.sum()
        mixed = sum((share * each for share, each in zip(shares, self._prices, strict=True)), np.zeros(()))
        return CostModel(self._graph, priced=np.asarray(mixed) * self._mean_ns)
