"""What single changes of a labelling cost and use up: kept in step, so that a change costs what it touches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from inlay.search.labeling import FusionPenalty, Limit, Problem

_PASSES = 6
_ROUNDING = 1e-9
_AT_ONCE = 8  # part of the useful changes that one look at them is good for
_CHEAP = 1e-3  # part of a limit that counts as nothing


class LocalSearch:
    """A labelling, its cost, and how much of each limit it uses up.

    Args:
        problem: units and values.
        limits: what must hold.
        labels: to begin with; they keep the ties and label no unit that is not free.
    """

    def __init__(self, problem: Problem, limits: Sequence[Limit], labels: np.ndarray) -> None:
        n, terms = len(problem.float_cost), len(problem.terms)
        self._problem = problem
        self._low: list[bool] = labels.tolist()
        self._dearer: np.ndarray = problem.low_cost - problem.float_cost
        self._lows: list[int] = problem.state(labels)[1].tolist()
        most = np.array([max(limit.most, 1e-300) for limit in limits])
        self._unit_uses = np.array([limit.units for limit in limits], np.float64).reshape(len(limits), n).T / most
        self._up_uses = np.array([limit.up for limit in limits], np.float64).reshape(len(limits), terms).T / most
        self.used: np.ndarray = np.array([limit.used(problem, labels) for limit in limits], np.float64)
        tied = {i: tuple(tie) for tie in _joined(problem.ties) for i in tie}
        self._group = [tied.get(i, (i,)) for i in range(n)]
        self._tied = [group for i, group in enumerate(self._group) if len(group) > 1 and group[0] == i]
        self._movable = np.array([bool(problem.free[list(group)].all()) for group in self._group], bool)
        self.cost = problem.cost(labels)

    @property
    def labels(self) -> np.ndarray:
        """As they are now, shape (n,)."""
        return np.array(self._low, bool)

    def fits(self) -> bool:
        """Whether every limit is kept."""
        return _excess(self.used) == 0.0

    def improve(self) -> None:
        """Keep the limits at the least additional cost, then make every change that pays: one by one, greedily."""
        self._repair()
        if self.fits():
            for _ in range(_PASSES):
                if not (self._fill() | self._join()):
                    return

    def _repair(self) -> None:
        """Give up what costs least for what it used up of the limits that are broken; each change uses up less."""
        over = _excess(self.used)
        while over > 0.0:
            cost, use = self._flips()
            broken = self.used > 1.0
            saved = np.minimum(-use, np.maximum(self.used - 1.0, 0.0))[:, broken].sum(axis=1)
            useful = np.flatnonzero(self._movable & (saved > 0.0))
            best = useful[np.argsort(np.maximum(cost, 0.0)[useful] / saved[useful], kind="stable")]
            before = over
            for unit in best[: max(1, useful.size // _AT_ONCE)].tolist():
                group, low = self._group[unit], not self._low[unit]
                left = _excess(self.used + self._preview(group, low)[1])
                if left < over - _ROUNDING:
                    self._set(group, low)
                    over = left
            if over == before:
                return

    def _fill(self) -> bool:
        """Flip single units where that pays, the most for what it uses up first."""
        cost, use = self._flips()
        paying = np.flatnonzero(self._movable & (cost < 0.0))
        best = paying[np.argsort(cost[paying] / (use[paying].max(axis=1, initial=0.0) + _CHEAP), kind="stable")]
        return self._take(((unit,), not self._low[unit]) for unit in best.tolist())

    def _join(self) -> bool:
        """Give all that share a value one label, where they differ and that pays."""
        members = [
            (t.producer, *t.consumers) if t.producer >= 0 else t.consumers for t in self._problem.terms if t.consumers
        ]
        return self._take((m, low) for m in members if len({self._low[i] for i in m}) > 1 for low in (True, False))

    def _take(self, changes: Iterable[tuple[Sequence[int], bool]]) -> bool:
        taken = False
        for members, low in changes:
            whole = [i for m in members for i in self._group[m] if self._movable[i] and self._low[i] is not low]
            if whole:
                cost, use = self._preview(whole, low)
                if cost < -_ROUNDING and _excess(self.used + use) == 0.0:
                    self._set(whole, low)
                    taken = True
        return taken

    def _flips(self) -> tuple[np.ndarray, np.ndarray]:
        """Additional cost of flipping each unit, with those tied to it, and its use of the limits.

        Shapes (n,) and (n, limits).
        """
        problem, flat, n = self._problem, self._problem.flat, len(self._low)
        low = self.labels
        made, lows = problem.state(low)
        now = problem.paid(made, lows).astype(np.int8)
        own = flat.producer >= 0
        by_producer = problem.paid(~made, lows).astype(np.int8) - now
        step = np.where(low[flat.consumer], -1, 1)
        by_reader = (
            problem.paid(made[flat.owner], lows[flat.owner] + step, flat.owner).astype(np.int8) - now[:, flat.owner]
        )
        weights = problem.weights
        sign = np.where(low, -1.0, 1.0)
        cost = sign * self._dearer
        cost += np.bincount(flat.producer[own], (weights * by_producer).sum(axis=0)[own], n)
        cost += np.bincount(flat.consumer, (weights[:, flat.owner] * by_reader).sum(axis=0), n)
        for trap in problem.traps:
            holding = [m for m, need in _members(trap) if self._low[m] is not need]
            if not holding:
                cost[[trap.unit, *trap.causes]] -= trap.cost
            elif len(holding) == 1:
                cost[holding[0]] += trap.cost
        use = sign[:, None] * self._unit_uses
        for j in range(use.shape[1]):
            ups = self._up_uses[:, j]
            use[:, j] += np.bincount(flat.producer[own], (ups * by_producer[0])[own], n)
            use[:, j] += np.bincount(flat.consumer, ups[flat.owner] * by_reader[0], n)
        for group in self._tied:
            cost[list(group)], use[list(group)] = self._preview(group, not self._low[group[0]])
        return cost, use

    def _preview(self, units: Sequence[int], low: bool) -> tuple[float, np.ndarray]:
        """Additional cost and use of the limits, if ``units`` were labelled ``low``."""
        before, used = self.cost, self.used
        changed = [i for i in dict.fromkeys(units) if self._low[i] is not low]
        self._set(changed, low)
        cost, use = self.cost - before, self.used - used
        self._set(changed, not low)
        self.cost, self.used = before, used  # without what rounding left
        return cost, use

    def _set(self, units: Sequence[int], low: bool) -> None:
        changed = [i for i in dict.fromkeys(units) if self._low[i] is not low]
        near = dict.fromkeys(k for i in changed for k in self._problem.near[i])
        before = [self._pays(k) for k in near]
        traps = [self._problem.traps[k] for k in dict.fromkeys(k for i in changed for k in self._problem.caught[i])]
        self.cost -= sum(trap.cost for trap in traps if trap.sprung(self._low))
        sign = 1.0 if low else -1.0
        for i in changed:
            self._low[i] = low
            self.cost += sign * float(self._dearer[i])
        self.cost += sum(trap.cost for trap in traps if trap.sprung(self._low))
        members = set(changed)
        used = sign * self._unit_uses[changed].sum(axis=0)
        for k, (cost, up) in zip(near, before, strict=True):
            self._lows[k] += int(sign) * len(members.intersection(self._problem.terms[k].consumers))
            after, now = self._pays(k)
            self.cost += after - cost
            if now is not up:
                used = used + (self._up_uses[k] if now else -self._up_uses[k])
        self.used = self.used + used

    def _pays(self, k: int) -> tuple[float, bool]:
        """Cost of a term, and whether its value is quantized behind a float producer."""
        term, lows = self._problem.terms[k], self._lows[k]
        made = term.producer >= 0 and self._low[term.producer]
        up = not made and lows > 0
        cost = term.up if up else 0.0
        if made and (term.float_reader or lows < len(term.consumers)):
            cost += term.down
        return (cost + term.touched if made or lows > 0 else cost), up


def _excess(used: np.ndarray) -> float:
    """How far limits are exceeded, together; rounding counts as nothing."""
    return float(np.maximum(used - 1.0 - _ROUNDING, 0.0).sum())


def _members(trap: FusionPenalty) -> list[tuple[int, bool]]:
    """Units of a trap, each with the label under which it does not hold the trap open."""
    return [(trap.unit, False), *((cause, True) for cause in trap.causes)]


def _joined(ties: Iterable[Sequence[int]]) -> list[list[int]]:
    """Ties that share a unit, as one."""
    found: list[set[int]] = []
    for tie in ties:
        touching = [group for group in found if group.intersection(tie)]
        found = [group for group in found if not group.intersection(tie)]
        found.append(set(tie).union(*touching))
    return [sorted(group) for group in found]
