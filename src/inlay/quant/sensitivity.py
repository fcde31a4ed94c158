"""How much noise each value's quantization puts on the outputs, and each unit's rounded constants.

One build with switches answers every probe (see :mod:`inlay.quant.noise_probe`). Where one run for each does not fit
into the time, neighbours are probed together, and the groups that make the most noise are split first: time goes
where it matters, and what is never split makes little noise, so that sharing it out evenly misleads little.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from inlay.data import Feed
from inlay.model.graph import Graph
from inlay.quant.group_split import Group, GroupQueue
from inlay.quant.noise_probe import NoiseProbe, Switch
from inlay.space.units import Unit
from inlay.types import Placement

_LEAST_QUESTIONS = 16
_MOST_SAMPLES = 8
_MOST_LOUD = 4
_RANKING_SHARE = 0.4  # of the time, for finding the loudest samples: two runs of each
_WHOLE_SHARE = 0.05  # of the time, for one question on all samples
_NEGLIGIBLE = 1e-3  # of the noise of everything together: such a group is not split

Powers = tuple[float, ...]
"""Noise power over signal power at each float output of the graph."""

Ask = Callable[[Placement], Powers]
"""Noise of a placement."""


@dataclass(frozen=True)
class Sensitivity:
    """Noise of single sources, each alone.

    Attributes:
        values: by value, where all its readers see it quantized.
        constants: by unit, where its weight and its other constants are rounded.
    """

    values: Mapping[str, Powers] = field(default_factory=dict)
    constants: Mapping[str, Powers] = field(default_factory=dict)


@dataclass(frozen=True)
class _Source:
    kind: str
    name: str
    switches: tuple[Switch, ...]


@dataclass(frozen=True)
class Plan:
    """How much probing fits into the time.

    Attributes:
        samples: of which it is found out on which of them most noise arises.
        whole: of these, the loudest, for the noise of a whole placement.
        loud: the same for the noise of single sources.
        questions: about single sources.
    """

    samples: int
    whole: int
    loud: int
    questions: int


def plan(probe: NoiseProbe, feeds: Sequence[Feed], seconds: float, clock: Callable[[], float] = time.monotonic) -> Plan:
    """What fits: every source alone on as many samples as possible, else groups on one sample.

    Raises:
        RunFailed: the model does not run.
    """
    probe.use(feeds[:1])
    everything = Placement((port, s.qtype) for s in probe.switches for port in s.ports)
    begun = clock()
    probe.noise(everything)
    once = max(clock() - begun, 1e-6)
    fit = seconds / once
    samples = int(np.clip(_RANKING_SHARE * fit / 2, 1, min(_MOST_SAMPLES, len(feeds))))
    whole = int(np.clip(_WHOLE_SHARE * fit, 1, samples))
    runs = max(int(fit) - 2 * samples, _LEAST_QUESTIONS)
    loud = max(1, min(runs // max(1, len(probe.switches)), _MOST_LOUD, samples))
    return Plan(samples, whole, loud, runs // loud)


def sensitivity(switches: Sequence[Switch], units: Sequence[Unit], ask: Ask, most: int) -> Sensitivity:
    """Noise of every source alone, by at most about ``most`` questions.

    Args:
        switches: what can be quantized.
        units: the units that the constants belong to.
        ask: noise of a placement.
        most: questions; a few more are asked where even the coarsest groups take as many.
    """
    sources = _sources(switches, units)
    groups = _single(sources, ask) if len(sources) <= most else _split(sources, ask, most)
    found: dict[str, dict[str, Powers]] = {"value": {}, "unit": {}}
    for group in groups:
        share = tuple(x / len(group.members) for x in group.answer)
        for source in group.members:
            found[source.kind][source.name] = share
    return Sensitivity(found["value"], found["unit"])


def _sources(switches: Sequence[Switch], units: Sequence[Unit]) -> list[_Source]:
    """Values in topological order, then units with constants."""
    owner = {port: u.name for u in units for port in (*u.activations, *u.weights, *u.biases)}
    values: defaultdict[str, list[Switch]] = defaultdict(list)
    constants: defaultdict[str, list[Switch]] = defaultdict(list)
    for switch in switches:
        if switch.constant:
            constants[owner[switch.ports[0]]].append(switch)
        else:
            values[switch.value].append(switch)
    order = {u.name: i for i, u in enumerate(units)}
    found = [_Source("value", value, tuple(mine)) for value, mine in values.items()]
    return found + [_Source("unit", n, tuple(constants[n])) for n in sorted(constants, key=lambda n: order[n])]


def _measured(sources: Sequence[_Source], first: int, ask: Ask) -> Group[_Source]:
    """The group of ``sources`` with its noise; ``first``, the position of the first of them, decides between equals."""
    sites = ((port, switch.qtype) for s in sources for switch in s.switches for port in switch.ports)
    noise = ask(Placement(sites))
    return Group((-max(noise, default=0.0), first), tuple(sources), noise)


def _single(sources: Sequence[_Source], ask: Ask) -> list[Group[_Source]]:
    return [_measured([source], i, ask) for i, source in enumerate(sources)]


def _split(sources: Sequence[_Source], ask: Ask, most: int) -> list[Group[_Source]]:
    values = sum(s.kind == "value" for s in sources)
    parts = [(0, sources[:values]), (values, sources[values:])]
    queue = GroupQueue([_measured(part, first, ask) for first, part in parts if part])
    negligible = _NEGLIGIBLE * queue.first.key[0]
    single: list[Group[_Source]] = []
    asked = len(queue)
    while queue and asked < most and queue.first.key[0] < negligible:
        group = queue.pop()
        if len(group.members) == 1:
            single.append(group)
        first = group.key[1]
        for part in group.split():
            queue.push(_measured(part, first, ask))
            first += len(part)
            asked += 1
    return [*single, *queue]


def quiet_units(graph: Graph, units: Sequence[Unit], noise: Mapping[str, Powers], limit: float) -> frozenset[str]:
    """Names of the units that remain when the loudest are left out until the noise of the others adds up to ``limit``.

    Args:
        graph: index of the model.
        units: those that may run in low precision.
        noise: of each value alone.
        limit: noise power over signal power that every output may have.
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
