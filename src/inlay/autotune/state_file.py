"""The saved state of step-by-step tuning: a YAML file that belongs to one model.

It holds all that was measured, the region at hand and a duel that is not over included, so that a search that was
killed goes on as if it had not been.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from inlay.autotune.duel import Duel, FinalComparison
from inlay.autotune.state import Pending, Profile, SchemeRecord, TunerState
from inlay.errors import JournalError, UsageError
from inlay.files import write_text
from inlay.measure.paired import PooledVariance
from inlay.model.graph import Graph
from inlay.patterns.cache import PatternCache
from inlay.patterns.evolve import Evolve
from inlay.patterns.schemes import InsertionScheme
from inlay.types import Placement
from inlay.yaml_file import read_yaml

FORMAT = "inlay_autotuner_state"
VERSION = 1

_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # a state is written after every reading


# --- written ---------------------------------------------------------------------------------------------------------


def write_state(path: Path, sha256: str, state: TunerState, core: Evolve) -> None:
    """Write all that ``state`` and ``core`` know of the model with that digest, and the settings, for people.

    Raises:
        UsageError: it cannot be written.
    """
    data = {
        FORMAT: VERSION,
        "model_sha256": sha256,
        "config": asdict(core.config),
        "baseline_latency_ms": state.baseline_ms,
        "incumbent_latency_ms": state.incumbent_ms,
        "profiled_patterns": dict(state.profiled),
        "placement": core.incumbent.as_json(),
        "cache": core.learned().to_data(),
        "variance": asdict(state.variance),
        "region": _region_data(state),
        "searches": {signature: search.to_data() for signature, search in core.searches.items()},
        "proposed": sorted(core.proposed),
        "finished": {signature: list(map(_record_data, found)) for signature, found in state.finished.items()},
        "failed_readings": dict(state.failures),
        "final": None if state.final is None else _duel_data(state.final.duel),
    }
    text = yaml.dump(data, Dumper=_DUMPER, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120)
    write_text(path, text, UsageError)


def _region_data(state: TunerState) -> dict[str, Any] | None:
    """The region at hand, or only a scheme that is carried to the next one: then its signature is empty."""
    before: tuple[Placement, float | None, float | None] = (Placement(), None, None)
    records: tuple[SchemeRecord, ...]
    waiting: Pending | None
    if state.carried is not None:
        record, pending = state.carried
        signature, records, waiting = "", (record,), replace(pending, index=0)
    elif state.profile is not None:
        incumbent, latency_ms = state.profile.before
        before = (incumbent.placement, incumbent.speedup, latency_ms)
        signature, records, waiting = state.profile.signature, state.profile.records, state.profile.pending
    else:
        return None
    return {
        "signature": signature,
        "before": {"placement": before[0].as_json(), "speedup": before[1], "latency_ms": before[2]},
        "records": list(map(_record_data, records)),
        "pending": None if waiting is None else waiting.index,
        "placement": None if waiting is None else waiting.proposal.placement.as_json(),
        "duel": None if waiting is None or waiting.duel is None else _duel_data(waiting.duel),
    }


def _record_data(record: SchemeRecord) -> dict[str, Any]:
    """Without its placement, which follows from the scheme."""
    kept = ("signature", "scheme", "latency_ms", "failed", "accepted", "reason")
    return {name: getattr(record, name) for name in kept} | {"scheme": record.scheme.to_data()}


def _duel_data(duel: Duel) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(duel).items()}


# --- read ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SavedState:
    """What a search can continue from."""

    known: TunerState  # all but the region at hand
    placement: Placement  # the incumbent
    cache: PatternCache  # the schemes measured, and those given, by pattern
    searches: Mapping[str, Any]  # what was tried, by pattern (`to_data`)
    proposed: tuple[str, ...]  # digests of the placements that need not be proposed again
    region: _Region | None  # the region at hand, or a scheme that is carried; None between regions


@dataclass(frozen=True)
class _Region:
    """The region at hand; with an empty signature only the scheme that is carried to the next one."""

    signature: str
    # placement, speedup and latency of the incumbent when the region was started
    before: tuple[Placement, float | None, float | None]
    records: tuple[SchemeRecord, ...]  # schemes generated so far, without their placements
    pending: int | None  # index of the scheme that waits for a latency; None without one
    duel: Duel | None  # of that scheme; None before its first reading
    placement: Placement | None  # of that scheme; None without one


def read_state(path: Path, model_sha256: str, graph: Graph) -> SavedState:
    """Read a state and check that it fits the model.

    Raises:
        JournalError: it belongs to another model.
        NoSuchFile: there is no such file.
        UsageError: it cannot be read, or is not a saved state.
    """
    data = read_yaml(path)
    if not isinstance(data, dict) or FORMAT not in data:
        raise UsageError(f"{path} is not a saved state: it lacks the line '{FORMAT}: {VERSION}'")
    if data[FORMAT] != VERSION:
        raise UsageError(f"{path} has format version {data[FORMAT]!r}; this Inlay reads version {VERSION}")
    if data.get("model_sha256") != model_sha256:
        raise JournalError(f"{path} belongs to another model; use another file, or delete it to start over")
    try:
        placement = Placement.from_json(data["placement"])
        for port, _ in placement:
            graph.value_of(port)
        variance, final = data.get("variance"), _duel(data.get("final"), began=False)
        known = TunerState(
            baseline_ms=_number(data["baseline_latency_ms"]),
            incumbent_ms=_number(data["incumbent_latency_ms"]),
            variance=PooledVariance(float(variance["squares"]), int(variance["freedom"]))
            if variance is not None
            else PooledVariance(),
            profiled={str(k): int(v) for k, v in data["profiled_patterns"].items()},
            finished={str(k): _records(v) for k, v in (data.get("finished") or {}).items()},
            failures={str(k): int(v) for k, v in (data.get("failed_readings") or {}).items()},
            final=None if final is None else FinalComparison(final),
        )
        return SavedState(
            known,
            placement,
            cache=PatternCache.from_data(data["cache"], str(path)),
            searches=dict(data.get("searches") or {}),
            proposed=tuple(map(str, data.get("proposed") or ())),
            region=_region(data["region"]) if data.get("region") else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UsageError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _region(data: Mapping[str, Any]) -> _Region:
    before, records, pending = data["before"], _records(data["records"]), data["pending"]
    if pending is not None and not 0 <= int(pending) < len(records):
        raise ValueError(f"there is no scheme {pending}")
    return _Region(
        str(data["signature"]),
        (Placement.from_json(before["placement"]), _number(before["speedup"]), _number(before["latency_ms"])),
        records,
        None if pending is None else int(pending),
        _duel(data["duel"]),
        None if data["placement"] is None else Placement.from_json(data["placement"]),
    )


def _records(data: list[Mapping[str, Any]]) -> tuple[SchemeRecord, ...]:
    return tuple(
        SchemeRecord(
            index=index,
            scheme=InsertionScheme.from_data(each["scheme"]),
            placement=Placement(),
            latency_ms=_number(each["latency_ms"]),
            failed=bool(each["failed"]),
            accepted=bool(each["accepted"]),
            reason=str(each["reason"]),
            signature=str(each["signature"]),
        )
        for index, each in enumerate(data)
    )


def _duel(data: Mapping[str, Any] | None, began: bool = True) -> Duel | None:
    """The turns; ``began`` where a promising reading led to them."""
    if data is None:
        return None
    incumbent, candidate = (tuple(map(_reading, data[key])) for key in ("incumbent_ms", "candidate_ms"))
    return Duel(int(data["turns"]), _reading(data["first_ms"]) if began else math.nan, incumbent, candidate)


def _reading(number: object) -> float:
    found = _number(number)
    if found is None:
        raise ValueError("a reading is missing")
    return found


def _number(number: object) -> float | None:
    """A latency or a speedup; None where there is none."""
    if number is None:
        return None
    if not isinstance(number, (int, float)) or not 0 < number < math.inf:
        raise ValueError(f"{number!r} is not a latency")
    return float(number)


# --- gone on with ----------------------------------------------------------------------------------------------------


def resumed(saved: SavedState, core: Evolve) -> TunerState:
    """The state of a search that goes on; ``core`` is a new one, and takes over what was tried.

    Raises:
        UsageError: the parts of the file contradict each other.
    """
    known, speedup = saved.known, None
    if known.baseline_ms is not None and known.incumbent_ms is not None:
        speedup = known.baseline_ms / known.incumbent_ms
    core.best = core.incumbent_of(saved.placement, speedup)
    try:
        core.restore(saved.searches, saved.proposed)
        return known if saved.region is None else _with_region(known, saved.region, core)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UsageError(f"the saved state is damaged: {type(error).__name__}: {error}") from error


def _with_region(known: TunerState, region: _Region, core: Evolve) -> TunerState:
    placement, speedup, latency_ms = region.before
    records = []
    for held in region.records:
        search = core.search_of(core.space.patterns[held.signature])
        first = held.index == 0 and bool(region.signature)
        found = placement if first else core.again(search, held.scheme).placement
        records.append(replace(held, placement=found))
    pending = None
    if region.pending is not None:
        record = records[region.pending]
        search = core.searches[record.signature]
        if region.duel is None:  # it was generated, but never measured
            core.withdraw(search, record.scheme, region.placement or record.placement)
            del records[region.pending :]
        else:
            candidate = core.again(search, record.scheme, region.placement)
            records[region.pending] = record = replace(record, placement=candidate.placement)
            proposal = core.propose(candidate, f"step by step: {record.signature[:8]}, again")
            pending = Pending(record.index, proposal, None, region.duel)
    if not region.signature:
        return known if pending is None else replace(known, carried=(records[0], pending))
    before = (core.incumbent_of(placement, speedup), latency_ms)
    return replace(known, profile=Profile(region.signature, before, tuple(records), pending))
