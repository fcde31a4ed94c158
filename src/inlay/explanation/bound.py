"""What INT8 could bring to a float model at most: each operator in its faster precision, conversions for nothing.

The bound of the cost model that a search works with, taken from two profiles: of the normalized float model, and of the
target's usual full recipe with its rewrites. Ranges come from a few samples, since kernels do not depend on them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from inlay.calibrate.observe import observe
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import Samples
from inlay.errors import InlayError
from inlay.explanation import policy
from inlay.explanation.executed import Executed, profiled
from inlay.explanation.explanation import Bound
from inlay.measure.client import Worker
from inlay.model.load import ModelFile
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.model import prepare
from inlay.space.units import Unit
from inlay.targets.base import Capabilities, unit_of
from inlay.types import Placement


@dataclass(frozen=True)
class Bounded:
    """A bound, what INT8 saves at each operator (milliseconds), or why there is no bound."""

    bound: Bound | None
    gains: Mapping[str, float]
    problem: str = ""


def bound(
    file: ModelFile, target: Capabilities, samples: Samples, worker: Worker, folder: Path, feed: Path, factor: float
) -> Bounded:
    """What INT8 brings to a float model at most.

    Args:
        samples: the first ones make ranges.
        factor: from the times of profiled kernels to those without a profiler.
    """
    folder.mkdir()
    some = samples.part(range(min(len(samples), policy.BOUND_SAMPLES)))
    try:
        prepared = prepare(file, target, some.feeds[0], folder)
        table = CalibrationChoice("minmax").table(prepared, observe(prepared, some))
        writer = CandidateWriter(prepared, table, "bound", worker.fingerprint.digest)
        full = prepared.label(frozenset(u.name for u in prepared.selectable))
        plain, low = (
            profiled(worker, writer.write(placement), feed, policy.PROFILE_LEAST, graph, prepared.rules).scaled(factor)
            for placement in (Placement(), full)
            for graph in [ir.from_proto(writer.proto(placement)).graph]
        )
    except InlayError as error:
        return Bounded(None, {}, f"what INT8 could bring is not known: {error}")
    times = {u.name: (_time(u, plain), _time(u, low)) for u in prepared.units}
    units = {u.name: u for u in prepared.units}
    gains = {n: (a - b) / 1e6 for n, (a, b) in times.items() if units[n].selectable and low.is_low(n)}
    best = plain.unknown_ns + sum(min(a, b) if n in gains else a for n, (a, b) in times.items())
    barriers = tuple(_barriers(units, times, gains, low, unit_of(worker.fingerprint.facts)))
    return Bounded(Bound(plain.total_ns / 1e6, low.total_ns / 1e6, best / 1e6, barriers), gains)


def _time(unit: Unit, found: Executed) -> float:
    return sum(found.operators[n].ns for n in unit.nodes if n in found.operators)


def _barriers(
    units: Mapping[str, Unit],
    times: Mapping[str, tuple[float, float]],
    gains: Mapping[str, float],
    low: Executed,
    time_unit: str,
) -> Iterator[str]:
    """What keeps the model from being faster, the most expensive first; ``time_unit`` is the target's own."""
    total = max(sum(a for a, _ in times.values()), 1.0)
    refused: defaultdict[str, list[str]] = defaultdict(list)
    for name, unit in units.items():
        if unit.rejection:
            refused[unit.rejection].append(name)
    for reason, names in sorted(refused.items(), key=lambda item: -sum(times[n][0] for n in item[1])):
        spent = sum(times[n][0] for n in names)
        if spent >= policy.HEAVY_SHARE * total:
            example = f"{len(names)} operators, {names[0]} and others" if len(names) > 1 else names[0]
            yield f"{spent / 1e6:.3f} {time_unit} stay in float: {reason} ({example})"
    slower = sorted((n for n, gain in gains.items() if gain < 0.0), key=lambda n: gains[n])
    lost = -sum(gains[n] for n in slower)
    if lost * 1e6 >= policy.HEAVY_SHARE * total:
        kinds = ", ".join(dict.fromkeys(units[n].op_type for n in slower))
        are = "operator is" if len(slower) == 1 else "operators are"
        yield f"{len(slower)} {are} slower in INT8, by {lost:.3f} {time_unit} together ({kinds})"
    converted = sum(low.conversions.values())
    if converted >= policy.HEAVY_SHARE * total:
        yield f"conversions and reorders take {converted / 1e6:.3f} {time_unit} where all that can be is in INT8"
