"""What rounding weights takes, in seconds of a usual processor: constants of :mod:`inlay.calibrate.policy`."""

from __future__ import annotations

from collections.abc import Sequence

from inlay.calibrate import policy
from inlay.calibrate.weight_readers import Readers, readers_of, sizes_of
from inlay.model.graph import Graph
from inlay.prepare.model import PreparedModel
from inlay.quant.moments import Window
from inlay.quant.rounding import Rounding
from inlay.types import QType


def affordable(
    graph: Graph, reads: Readers, jobs: Sequence[tuple[str, QType]], seconds: float
) -> list[tuple[str, QType]]:
    """Those weights, in those types, that a time suffices for: the cheapest first.

    Args:
        graph: the float model.
        reads: :func:`~inlay.calibrate.weight_readers.readers_of`.
        jobs: what could be rounded.
        seconds: of a usual processor, so that the same are left out on any machine.
    """
    left, found, factored = seconds, [], set[Sequence[Window]]()
    for job in sorted(jobs, key=lambda j: (_seconds(graph, reads, j[0]), j[0], j[1].value)):
        left -= _seconds(graph, reads, job[0], reads[job[0]] not in factored)
        if left < 0.0:
            break
        factored.add(reads[job[0]])
        found.append(job)
    return found


def _seconds(graph: Graph, reads: Readers, value: str, factor: bool = False) -> float:
    """What rounding a weight takes on a usual processor; with the factor, or without that."""
    groups, channels, inputs = sizes_of(graph, value, reads[value][0])
    products = groups * (policy.FACTOR_PRODUCTS * factor * inputs**3 + policy.ROUNDING_PRODUCTS * channels * inputs**2)
    return policy.SECONDS_PER_PRODUCT * products + policy.SECONDS_PER_COLUMN * inputs


def rounding_seconds(prepared: PreparedModel, rounding: Rounding) -> float:
    """What finding such a rounding takes on a usual processor, without the inferences."""
    graph, reads = prepared.graph, readers_of(prepared.graph, prepared.units)
    values = [value for value, _ in rounding.steps if value in reads]
    first = {reads[value]: value for value in values}
    factors = sum(_seconds(graph, reads, v, True) - _seconds(graph, reads, v) for v in first.values())
    return factors + sum(_seconds(graph, reads, v) for v in values)
