"""Improve on the anchors: keep the units in float that cost the accuracy, then drop what does not pay.

Repair assumes that the quantization noise of different units is nearly independent: their noise powers at an output add
up, so the noise that a group of units saves in float is what it contributes. Groups are split, best first, down to
single units.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice

from inlay.quant.group_split import Group, GroupQueue
from inlay.search.base import Dialogue, Scripted
from inlay.search.neighborhood import describe_units
from inlay.space.units import Unit
from inlay.trial import Proposal, Trial, noise_of
from inlay.types import Placement

Label = Callable[[frozenset[str]], Placement]  # the placement in which the named units run in low precision

_MAX_FLOAT_SHARE = 0.5  # share of the units: with more of them in float, little of an anchor's speed is left to repair
_MIN_SEGMENT_SHARE = 1 / 32  # of the units; a round of flips doubles with each halving of the segments
_NOISE_OF_FAILURE = 1e3  # noise power over signal power that a failed trial is taken to have: nothing but noise


class Refine(Scripted):
    """Repair the fastest anchors that violate the accuracy constraint, then flip segments of the incumbent.

    Args:
        chosen: by name of the anchor, the units that it runs in low precision.
    """

    def __init__(
        self, units: Sequence[Unit], label: Label, anchors: Mapping[str, Trial], chosen: Mapping[str, frozenset[str]]
    ) -> None:
        super().__init__("refine", self._propose)
        self._order = [u.name for u in units]
        self._label = label
        self._anchors = anchors
        self._chosen = chosen
        self._likely: Callable[[], Iterable[frozenset[str]]] = tuple  # what comes next if nothing is accepted meanwhile

    def upcoming(self, count: int) -> list[Placement]:
        """What comes next if nothing is accepted meanwhile."""
        return [self._label(units) for units in islice(self._likely(), count)]

    def _propose(self) -> Dialogue:
        best, units = self._best_feasible()
        for name in self._worth_repairing(best):
            repaired = yield from self._repair(self._chosen[name], self._anchors[name])
            if repaired is not None and (repaired[1].speedup or 0.0) > best:
                units, best = repaired[0], repaired[1].speedup or 0.0
        yield from self._flip(units)

    def _best_feasible(self) -> tuple[float, frozenset[str]]:
        found = [(t.speedup or 0.0, n) for n, t in self._anchors.items() if t.feasible and n in self._chosen]
        speed, name = max(found, default=(1.0, ""))
        return speed, self._chosen.get(name, frozenset())

    def _worth_repairing(self, best: float) -> list[str]:
        wrong = [
            (t.speedup, name)
            for name, t in self._anchors.items()
            if name in self._chosen and t.speedup is not None and not t.feasible and t.speedup > best
        ]
        return [name for _, name in sorted(wrong, reverse=True)]

    def _repair(
        self, start: frozenset[str], trial: Trial
    ) -> Generator[Proposal, Trial, tuple[frozenset[str], Trial] | None]:
        """Return units to float, those with most noise first, until the placement is feasible; None if it never is."""
        units = start
        noise = _noise(trial)
        queue = GroupQueue([Group((-noise,), tuple(u for u in self._order if u in units))])
        floated = 0
        while queue and floated <= _MAX_FLOAT_SHARE * len(start):
            group = queue.pop()
            if len(group.members) > 1:
                parts = group.split()
                for number, part in enumerate(parts, 1):
                    self._likely = partial(list, [units - set(other) for other in parts[number:]])
                    answer = yield Proposal(self._label(units - set(part)), f"probe: {describe_units(part)} in float")
                    if answer.feasible:
                        return units - set(part), answer
                    queue.push(Group((-max(0.0, noise - _noise(answer)),), part))
                continue
            units = units - set(group.members)
            floated += 1
            self._likely = tuple
            answer = yield Proposal(self._label(units), f"repair: {floated} units in float")
            if answer.feasible:
                return units, answer
            noise = min(noise, _noise(answer))
        return None

    def _flip(self, units: frozenset[str]) -> Dialogue:
        """Flip ever smaller segments, in topological order, keeping what is accepted."""
        size = (len(self._order) + 1) // 2
        while size >= max(1, int(len(self._order) * _MIN_SEGMENT_SHARE)):
            for start in range(0, len(self._order), size):
                both = list(self._flips(units, start, start + size, size))
                for number, (flipped, origin) in enumerate(both, 1):
                    self._likely = partial(self._later, both[number:], units, start + size, size)
                    answer = yield Proposal(self._label(flipped), origin)
                    if answer.accepted:
                        units = flipped
            if size == 1:
                return
            size //= 2

    def _later(
        self, rest: Sequence[tuple[frozenset[str], str]], units: frozenset[str], begin: int, size: int
    ) -> Iterator[frozenset[str]]:
        """The rest of a segment's flips, and those of the segments behind it: made only where somebody asks."""
        for flipped, _ in chain(rest, self._flips(units, begin, len(self._order), size)):
            yield flipped

    def _flips(self, units: frozenset[str], begin: int, end: int, size: int) -> Iterator[tuple[frozenset[str], str]]:
        """Both ways of each segment between two places of the order, as far as they change anything."""
        for start in range(begin, end, size):
            segment = frozenset(self._order[start : start + size])
            for flipped, verb in ((units - segment, "to float"), (units | segment, "to low precision")):
                if flipped != units:
                    yield flipped, f"flip: {describe_units(sorted(segment))} {verb}"


def _noise(trial: Trial) -> float:
    """Noise power over signal power at the worst output."""
    accuracy = trial.accuracy
    return _NOISE_OF_FAILURE if accuracy is None else noise_of(accuracy.sqnr_db)
