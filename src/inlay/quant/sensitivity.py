"""How much noise each value's quantization puts on the outputs, and each unit's rounded constants.

One build with switches answers every probe (see :mod:`inlay.quant.fake_quant`). Where there is no time for one run
per source, neighbours are probed together, and the groups with most noise are split first. What is never split makes
little noise, so that dividing it evenly misleads little.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, groupby

import numpy as np

from inlay.data import Feed
from inlay.model.graph import Graph
from inlay.quant.fake_quant import NoiseProbe, Switch
from inlay.quant.group_split import Group, GroupQueue
from inlay.space.units import Unit
from inlay.types import Placement, Port, QType

_MIN_QUESTIONS = 16  # however short the time is: fewer do not get below the coarsest groups
_MAX_RANKED_SAMPLES = 8  # each costs two runs
_MAX_SOURCE_SAMPLES = 4  # the noisiest ones stand for the others by their share of the noise
_RANKING_SHARE = 0.4  # of the time, for ranking the samples by noise: two runs of each
_PLACEMENT_SHARE = 0.05  # of the time, for one question on all samples
_NEGLIGIBLE = 1e-3  # of the noise of the noisiest group: a group below is not split

Powers = tuple[float, ...]  # noise power over signal power at each float output of the graph
Ask = Callable[[Iterable[Placement]], Iterator[Powers]]  # noise of placements in turn


@dataclass(frozen=True)
class Sensitivity:
    """Noise of single sources, each alone."""

    values: Mapping[str, Powers] = field(default_factory=dict)  # by value, where all its readers see it quantized
    # by unit, where its weight and its other constants are rounded
    constants: Mapping[str, Powers] = field(default_factory=dict)
    # by form, then by unit, where that unit alone runs in it
    forms: Mapping[str, Mapping[str, Powers]] = field(default_factory=dict)

    @classmethod
    def of(cls, noise: Mapping[tuple[str, str], Powers]) -> Sensitivity:
        """From the noise of sources by kind (``value``, ``unit``, or the name of a form) and name."""
        kinds: dict[str, dict[str, Powers]] = {VALUE: {}, UNIT: {}}
        for (kind, name), powers in noise.items():
            kinds.setdefault(kind, {})[name] = powers
        return cls(kinds.pop(VALUE), kinds.pop(UNIT), kinds)


VALUE, UNIT = "value", "unit"  # kinds of sources besides forms


@dataclass(frozen=True)
class _Source:
    kind: str
    name: str
    switches: tuple[Switch, ...]

    def is_of(self, units: Collection[str], outputs: Collection[str]) -> bool:
        """Whether it is the constants of one of ``units``, a value that one reads, or one of their ``outputs``."""
        if self.kind != VALUE:
            return self.kind == UNIT and self.name in units
        return self.name in outputs or any(port.node in units for switch in self.switches for port in switch.ports)


@dataclass(frozen=True)
class ProbeBudget:
    """How many noise probes fit into the time."""

    ranked_samples: int  # that are ranked by the noise that arises on them
    placement_samples: int  # of these, the noisiest, for the noise of a whole placement
    source_samples: int  # the same for the noise of single sources
    questions: int  # about single sources

    def as_json(self) -> dict[str, int]:
        """As plain data; see :meth:`from_json`."""
        return {_JSON[name]: count for name, count in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, int]) -> ProbeBudget:
        """The budget that gave ``data``."""
        return cls(**{name: data[key] for name, key in _JSON.items()})


_JSON = {
    "ranked_samples": "samples",
    "placement_samples": "whole",
    "source_samples": "loud",
    "questions": "questions",
}
"""Names in journals."""


def probe_budget(
    probe: NoiseProbe, feeds: Sequence[Feed], seconds: float, clock: Callable[[], float] = time.monotonic
) -> ProbeBudget:
    """What fits: every source alone on as many samples as possible, otherwise groups of sources on one sample.

    Raises:
        RunFailed: the model does not run.
    """
    probe.use(feeds[:1])
    everything = Placement(
        {port: s.qtype for s in reversed(probe.switches) if s.weight is None for port in s.ports}.items()
    )
    begun = clock()
    probe.noise(everything)
    once = max(clock() - begun, 1e-6)
    runs_in_time = seconds / once
    ranked = int(np.clip(_RANKING_SHARE * runs_in_time / 2, 1, min(_MAX_RANKED_SAMPLES, len(feeds))))
    of_placements = int(np.clip(_PLACEMENT_SHARE * runs_in_time, 1, ranked))
    runs = max(int(runs_in_time) - 2 * ranked, _MIN_QUESTIONS)
    of_sources = max(1, min(runs // max(1, len(probe.switches)), _MAX_SOURCE_SAMPLES, ranked))
    return ProbeBudget(ranked, of_placements, of_sources, runs // of_sources)


def sensitivity(
    switches: Sequence[Switch], units: Sequence[Unit], ask: Ask, most: int, apart: Collection[str] = ()
) -> Sensitivity:
    """Noise of every source alone, by at most about ``most`` questions.

    Args:
        units: the units that can be anything but float, in topological order.
        most: questions; a few more are asked where even the coarsest groups take that many.
        apart: units about whose own sources is asked first, each alone, by further questions: what they read and write,
            and their constants.
    """
    sources = _sources(switches, units)
    if len(sources) <= most:
        groups = _measured([[source] for source in sources], 0, ask)
    else:
        outputs = {value for u in units if u.name in apart for value in u.outputs}
        first = [s for s in sources if s.is_of(apart, outputs)]
        others = [s for s in sources if not s.is_of(apart, outputs)]
        groups = [*_measured([[source] for source in first], 0, ask), *_split(others, ask, most)]
    return Sensitivity.of(
        {
            (source.kind, source.name): tuple(x / len(group.members) for x in group.answer)
            for group in groups
            for source in group.members
        }
    )


def _sources(switches: Sequence[Switch], units: Sequence[Unit]) -> list[_Source]:
    """Values in topological order, then units with constants, then units in each form."""
    owner = {port: u.name for u in units if u.selectable for port in (*u.activations, *u.weights, *u.biases)}
    values: defaultdict[str, list[Switch]] = defaultdict(list)
    constants: defaultdict[str, list[Switch]] = defaultdict(list)
    by_site: dict[tuple[Port, QType], Switch] = {}
    usual: dict[Port, QType] = {}
    for switch in switches:
        if switch.weight is not None:
            continue  # it follows from another
        by_site.update(((port, switch.qtype), switch) for port in switch.ports)
        if switch.qtype is not QType.INT32 and any(
            usual.setdefault(p, switch.qtype) is not switch.qtype for p in switch.ports
        ):
            continue  # it is another label's: the usual type comes first
        if switch.constant and not switch.qtype.block and switch.ports[0] in owner:
            constants[owner[switch.ports[0]]].append(switch)
        elif not switch.constant and not switch.qtype.dynamic:
            values[switch.value].append(switch)
    found = [_Source(VALUE, value, tuple(mine)) for value, mine in values.items()]
    found += [_Source(UNIT, u.name, tuple(constants[u.name])) for u in units if u.name in constants]
    for form in dict.fromkeys(form for u in units for form in u.searched):
        for unit in units:
            own = dict.fromkeys(by_site[site] for site in unit.forms.get(form, ()) if site in by_site)
            if own:
                found.append(_Source(form, unit.name, tuple(own)))
    return found


def _measured(parts: Sequence[Sequence[_Source]], first: int, ask: Ask) -> list[Group[_Source]]:
    """Neighbouring groups with their noise; their positions, from ``first`` on, decide between equals."""
    placements = (
        Placement((port, switch.qtype) for s in part for switch in s.switches for port in switch.ports)
        for part in parts
    )
    begins = accumulate(map(len, parts), initial=first)
    return [
        Group((-max(noise, default=0.0), begin), tuple(part), noise)
        for begin, part, noise in zip(begins, parts, ask(placements), strict=False)
    ]


def _split(sources: Sequence[_Source], ask: Ask, most: int) -> list[Group[_Source]]:
    if not sources:
        return []
    queue = GroupQueue(_measured([[*stretch] for _, stretch in groupby(sources, lambda s: s.kind)], 0, ask))
    negligible = _NEGLIGIBLE * queue.first.key[0]
    single: list[Group[_Source]] = []
    asked = len(queue)
    while queue and asked < most and queue.first.key[0] < negligible:
        group = queue.pop()
        if len(group.members) == 1:
            single.append(group)
        parts = group.split()
        for part in _measured(parts, group.key[1], ask):
            queue.push(part)
        asked += len(parts)
    return [*single, *queue]


def units_within(graph: Graph, units: Sequence[Unit], noise: Mapping[str, Powers], limit: float) -> frozenset[str]:
    """Names of the units that remain when the noisiest are left out until the noise of the others is within ``limit``.

    ``noise`` is that of each value alone.
    """
    touched = {
        u.name: [v for v in dict.fromkeys([*map(graph.value_of, u.activations), *u.outputs]) if v in noise]
        for u in units
    }
    readers = Counter(v for values in touched.values() for v in values)
    total = sum((np.array(noise[v]) for v in readers), np.zeros(1))
    left = set(touched)
    for name in sorted(touched, key=lambda n: -max((max(noise[v], default=0.0) for v in touched[n]), default=0.0)):
        if (total <= limit).all():
            break
        left.discard(name)
        for value in touched[name]:
            readers[value] -= 1
            if not readers[value]:
                total = total - np.array(noise[value])
    return frozenset(left)
