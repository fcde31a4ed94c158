"""The default strategy: propose by min-cut or integer program, predict, ask, learn.

1. *Rewrites.* Where the target offers a rewrite of an operator, a profile without and with it decides, and the faster
   form is used from then on.
2. *Cuts.* Profiles of the anchors give a cost model. Its optimal labeling is proposed; each trial corrects the model,
   until the optimum is a labeling that was tried. Where the accuracy bound rules something out, the noise of every
   source becomes a linear limit of the same problem, and each solution is probed before it is proposed. The bound is
   approached from both sides: by what the last solution missed it by, and half the way back from what has room left.
   Before them comes what the processor's cost table says alone, where there is one. Where a target gives no profiles,
   that table is the cost model, which trials correct as wholes.
   Where time is short, nothing that is outside the bound is tried. Where samples differ so much that they would not
   show the bound of the best one, the fastest of which they would is tried, too.
3. *Exploration.* Thompson samples and neighborhood moves are proposed in the order of their expected improvement, until
   that drowns in the measurement noise, or a clear gain is unlikely to be left: then the search is done.
4. *Front.* Otherwise, solving for other noise levels gives the Pareto front of latency and accuracy.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial

import numpy as np

from inlay.search import policy
from inlay.search.bars import between
from inlay.search.base import Dialogue, Scripted, Strategy
from inlay.search.exploration import Explorer, is_dominated, most_informative, predicted_front
from inlay.search.noise_model import Aim
from inlay.search.prospect import Prospect
from inlay.search.surrogate import Surrogate
from inlay.trial import Failed, Infeasible, Proposal, Trial, noise_of
from inlay.types import Placement, PortRewrite


class Guided(Scripted):
    """See the module.

    Args:
        surrogate: what was learned; the anchors that it refers to are complete by the time of the first ``ask``.
    """

    def __init__(self, surrogate: Surrogate, rng: np.random.Generator) -> None:
        super().__init__("guided", self._propose)
        self._graph = surrogate.graph
        self.surrogate = surrogate
        self._explorer = Explorer(surrogate, rng)
        self._blames = policy.BLAMES
        self._likely: Sequence[np.ndarray] = ()  # labelings that may come next, the likeliest first

    @property
    def rewrites(self) -> frozenset[PortRewrite]:
        """The selectable rewrites that make their operators faster; known once :meth:`ask` was called."""
        return self.surrogate.rewrites.rewrites

    def upcoming(self, count: int) -> list[Placement]:
        """Those that promised most behind the last one: what that one shows may change their order."""
        found: list[Placement] = []
        for labels in self._likely:
            if len(found) == count:
                break
            labels = self._graph.fixed_point(labels)
            if self.surrogate.trial(labels) is not None or self.surrogate.bars.forbid(labels):
                continue
            if self.surrogate.solver.within_allowance(labels):
                found.append(self.surrogate.placement(labels))
        return found

    def retreat(self, least_db: float) -> Strategy:
        """A strategy that proposes the fastest models of at least ``least_db`` dB, until one keeps that."""
        return Scripted("retreat", partial(self._retreat, least_db, f"retreat to {least_db:.1f} dB"))

    def _propose(self) -> Dialogue:
        if not self._graph.changeable.any():
            return
        surrogate = self.surrogate
        surrogate.choose_rewrites()
        surrogate.update_from_anchors()
        if not surrogate.knows_costs:  # there was no time for a profile
            yield from self._faster_kernels()
            return
        by_table = surrogate.solve_by_table()
        if by_table is not None and surrogate.trial(by_table) is None:
            yield from self._try(by_table, "by the processor's cost table")
        yield from self._faster_kernels()
        yield from self._cuts()
        yield from self._shown()
        yield from self._explore(to_the_end=self._keeps_to_bound)
        if not self.is_done:
            yield from self._front()
            yield from self._explore(to_the_end=True)

    @property
    def _keeps_to_bound(self) -> bool:
        """Whether models at other accuracies than the bound's can wait: it rules something out, and time is short."""
        return self.surrogate.allowance.active and self.surrogate.oracles.hurried()

    def _faster_kernels(self) -> Dialogue:
        """Try the best anchor with the rewrites that pay."""
        surrogate = self.surrogate
        if surrogate.rewrites.rewrites and surrogate.best.any() and surrogate.trial(surrogate.best) is None:
            yield from self._try(surrogate.best, "the best anchor, faster kernels")

    def _try(self, labels: np.ndarray, origin: str, timed: bool = False) -> Generator[Proposal, Trial, Trial]:
        """Predict, ask, learn; where the runtime refuses the model or computes another, also why."""
        labels = self._graph.fixed_point(labels)
        trial = yield from self._asked(labels, origin, timed)
        if self.surrogate.fails(labels, trial):
            yield from self._blame(labels, trial)
        return trial

    def _asked(self, labels: np.ndarray, origin: str, timed: bool = False) -> Generator[Proposal, Trial, Trial]:
        prediction = self.surrogate.cost_model.predict(labels)
        trial = yield Proposal(self.surrogate.placement(labels), origin, timed=timed)
        self.surrogate.update(labels, trial, prediction)
        return trial

    def _blame(self, failed: np.ndarray, found: Trial) -> Dialogue:
        """Try models between one that failed and the one most like it that ran, and bar the unit that is to blame."""
        surrogate, blamed, refused = self.surrogate, None, isinstance(found.outcome, Failed)
        if self._blames:
            self._blames -= 1
            ends = "one that failed and one that ran" if refused else "one that came out wrong and one that did not"
            blamed = yield from self._blamed(failed, f"between {ends}")
        if blamed is not None:
            unit, label = blamed
            surrogate.bars.add(unit, label, surrogate.ran, refused)
        elif found.accuracy is not None:
            surrogate.solver.believe(failed, found.accuracy)

    def _blamed(self, failed: np.ndarray, origin: str) -> Generator[Proposal, Trial, tuple[int, int] | None]:
        """The unit that is to blame, and its label; None where several fail only together."""
        surrogate = self.surrogate
        search = between(failed, surrogate.nearest(failed), self._graph)
        try:
            labels = next(search)
            while True:
                trial = surrogate.trial(labels)
                if trial is None:
                    trial = yield from self._asked(labels, origin)
                labels = search.send(not surrogate.fails(labels, trial))
        except StopIteration as ended:
            result: tuple[int, int] | None = ended.value
            return result

    def _wrong(self) -> Dialogue:
        """Find out why the runtime computes some of the anchors otherwise than they say."""
        surrogate = self.surrogate
        surrogate.solver.prepare()
        while self._blames and (wrong := surrogate.wrong):
            yield from self._blame(*wrong[0])

    def _cuts(self) -> Dialogue:
        """Solve and try, until the solution is a labeling that was tried."""
        surrogate = self.surrogate
        if not self._keeps_to_bound:
            unconstrained = surrogate.solver.solve_unconstrained(surrogate.expected_problem(), [surrogate.best])
            if surrogate.trial(unconstrained) is None:
                yield from self._try(unconstrained, "cut without a bound", timed=True)
        yield from self._wrong()
        others = infeasible = 0
        aim = Aim(surrogate.allowance)
        while others < policy.CUTS and infeasible <= policy.INFEASIBLE_CUTS:
            labels = surrogate.solve(aim.maximum)
            tried = surrogate.trial(labels)
            if tried is not None and aim.goes_on(tried):
                continue
            if tried is not None or surrogate.bars.forbid(labels):
                break
            trial = yield from self._try(labels, f"cut {others + infeasible + 1}")
            aim.correct(trial)
            if isinstance(trial.outcome, Infeasible):
                infeasible += 1
            elif not (isinstance(trial.outcome, Failed) and self._blames):  # of which something was learned
                others += 1

    @property
    def prospect(self) -> Prospect | None:
        """What going on may bring; None where it cannot be said."""
        return self._explorer.prospect

    @property
    def is_done(self) -> bool:
        """Whether it found what it will find, by all that is known; unless it is to go on nevertheless."""
        return self._is_unlikely and not self.surrogate.oracles.goes_on()

    @property
    def _is_unlikely(self) -> bool:
        """Whether hardly anything faster is left."""
        return self.prospect is not None and self.prospect.is_unlikely

    def _explore(self, to_the_end: bool = False) -> Dialogue:
        """Try the most promising labeling, until hardly any, or ``to_the_end`` none, promises anything."""
        step = 0
        while True:
            solve = step % policy.SOLVE_EVERY == 0
            candidate = self._explorer.most_promising(solve)
            if candidate is None and not solve:
                candidate = self._explorer.most_promising(solve=True)
            if candidate is None or (self.is_done if to_the_end else self._is_unlikely):
                return
            step += 1
            before = self.surrogate.best_ns
            self._likely = self._explorer.runners_up
            yield from self._try(candidate.labels, candidate.origin)
            self._likely = ()
            self._explorer.hopes.learn(candidate.chance, self.surrogate.best_ns < before * (1.0 - policy.CLEAR_GAIN))

    def _front(self) -> Dialogue:
        """Try labelings of the predicted front: the fastest first, then those most different from what was measured.

        Nothing is tried where accuracy does not stand in the way of speed.
        """
        surrogate = self.surrogate
        if not surrogate.solver.constrained:
            return
        for _ in range(policy.FRONT_ROUNDS):
            left, before = predicted_front(surrogate), len(surrogate.points)
            is_first = True  # the fastest; what is learned may change which one that is
            while left:
                labels = left.pop(0 if is_first else most_informative(left, surrogate))
                is_first = False
                surrogate.solver.probe(labels)
                sqnr_db = surrogate.solver.sqnr_db(labels)
                if surrogate.trial(labels) is None and not is_dominated(labels, surrogate):
                    self._likely = left
                    yield from self._try(labels, f"front: about {sqnr_db:.0f} dB", timed=True)
                    self._likely = ()
            if len(surrogate.points) == before:
                return

    def _shown(self) -> Dialogue:
        """Try the fastest labeling for which the samples would show the bound, unless they do for the best one.

        It is what is delivered where they do not: the confirmation would look for it when the time is over.
        """
        best = self.surrogate.trial(self.surrogate.best)
        if best is not None and best.feasible and best.accuracy is not None and best.accuracy.short_db:
            wanted_db = best.accuracy.sqnr_db + best.accuracy.short_db
            yield from self._retreat(wanted_db, f"for new samples: {wanted_db:.0f} dB")

    def _retreat(self, least_db: float, origin: str) -> Dialogue:
        """Try the fastest labelings of at least ``least_db`` dB, until one keeps that."""
        surrogate = self.surrogate
        if not surrogate.knows_costs:
            return
        maximum = noise_of(least_db)
        for _ in range(policy.RETREATS):
            labels = surrogate.solve(maximum)
            if not labels.any():
                return
            trial = surrogate.trial(labels)
            if trial is None:
                trial = yield from self._try(labels, origin)
            if trial.accuracy is None or trial.accuracy.sqnr_db >= least_db:
                return
            maximum *= policy.RETREAT_TIGHTENING
