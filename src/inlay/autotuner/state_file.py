"""The saved state of step-by-step tuning: a YAML file that belongs to one model.

It holds all that was measured, the region at hand and a duel that is not over included, so that a search that was
killed goes on as if it had not been.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from inlay.autotuner.duel import Duel
from inlay.autotuner.final import FinalComparison
from inlay.autotuner.state import SavedRecord
from inlay.errors import JournalError, UsageError
from inlay.files import write_text
from inlay.measure.paired import PooledVariance
from inlay.model.graph import Graph
from inlay.patterns.cache import PatternCache
from inlay.patterns.config import Config
from inlay.patterns.schemes import InsertionScheme
from inlay.types import Placement
from inlay.yaml_file import read_yaml

FORMAT = "inlay_autotuner_state"
VERSION = 1

_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # a state is written after every reading


@dataclass(frozen=True)
class SavedProfile:
    """The region at hand, or only a scheme that is carried to the next one.

    Attributes:
        signature: of the region's pattern; empty where there is no region.
        before: placement, speedup and latency of the incumbent when the region was started.
        records: as in :class:`~inlay.autotuner.state.Profile`.
        pending: index of the scheme that waits for a latency; None without one.
        duel: of that scheme; None before its first reading.
        placement: of that scheme; None without one.
    """

    signature: str
    before: tuple[Placement, float | None, float | None]
    records: tuple[SavedRecord, ...]
    pending: int | None
    duel: Duel | None
    placement: Placement | None


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """What a search can continue from.

    Attributes:
        model_sha256: the model it belongs to.
        baseline_ms, incumbent_ms: latencies submitted; None before the first.
        profiled: number of schemes measured, by signature of the finished patterns.
        placement: the incumbent.
        cache: the schemes measured, and those given, by pattern.
        variance: of the readings in duels.
        searches: what was tried, by pattern (:meth:`inlay.patterns.evolve.PatternSearch.to_data`).
        proposed: digests of the placements that need not be proposed again.
        profile: the region at hand; None between regions.
        finished: schemes of the finished patterns, by signature.
        failures: number of failed readings, by reason.
        final: the comparison after the last region; None before it.
    """

    model_sha256: str
    baseline_ms: float | None
    incumbent_ms: float | None
    profiled: Mapping[str, int]
    placement: Placement
    cache: PatternCache
    variance: PooledVariance = field(default_factory=PooledVariance)
    searches: Mapping[str, Any] = field(default_factory=dict)
    proposed: tuple[str, ...] = ()
    profile: SavedProfile | None = None
    finished: Mapping[str, tuple[SavedRecord, ...]] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)
    final: FinalComparison | None = None


def write_state(path: Path, state: SavedState, config: Config) -> None:
    """Write the state, together with the settings, for people. Raises UsageError when it cannot be written."""
    data = {
        FORMAT: VERSION,
        "model_sha256": state.model_sha256,
        "config": asdict(config),
        "baseline_latency_ms": state.baseline_ms,
        "incumbent_latency_ms": state.incumbent_ms,
        "profiled_patterns": dict(state.profiled),
        "placement": state.placement.as_json(),
        "cache": state.cache.to_data(),
        "variance": asdict(state.variance),
        "region": None if state.profile is None else _profile_data(state.profile),
        "searches": dict(state.searches),
        "proposed": sorted(state.proposed),
        "finished": {signature: list(map(_record_data, found)) for signature, found in state.finished.items()},
        "failed_readings": dict(state.failures),
        "final": None if state.final is None else _duel_data(state.final.duel),
    }
    text = yaml.dump(data, Dumper=_DUMPER, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120)
    write_text(path, text, UsageError)


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
        return SavedState(
            model_sha256=model_sha256,
            baseline_ms=_milliseconds(data["baseline_latency_ms"]),
            incumbent_ms=_milliseconds(data["incumbent_latency_ms"]),
            profiled={str(k): int(v) for k, v in data["profiled_patterns"].items()},
            placement=placement,
            cache=PatternCache.from_data(data["cache"], str(path)),
            variance=_variance(data.get("variance")),
            searches=dict(data.get("searches") or {}),
            proposed=tuple(map(str, data.get("proposed") or ())),
            profile=_profile(data["region"]) if data.get("region") else None,
            finished={str(k): tuple(map(_record, v)) for k, v in (data.get("finished") or {}).items()},
            failures={str(k): int(v) for k, v in (data.get("failed_readings") or {}).items()},
            final=_final(data.get("final")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UsageError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _profile_data(profile: SavedProfile) -> dict[str, Any]:
    placement, speedup, latency_ms = profile.before
    return {
        "signature": profile.signature,
        "before": {"placement": placement.as_json(), "speedup": speedup, "latency_ms": latency_ms},
        "records": list(map(_record_data, profile.records)),
        "pending": profile.pending,
        "placement": None if profile.placement is None else profile.placement.as_json(),
        "duel": None if profile.duel is None else _duel_data(profile.duel),
    }


def _record_data(record: SavedRecord) -> dict[str, Any]:
    return {**vars(record), "scheme": record.scheme.to_data()}


def _record(data: Mapping[str, Any]) -> SavedRecord:
    return SavedRecord(
        str(data["signature"]),
        InsertionScheme.from_data(data["scheme"]),
        _milliseconds(data["latency_ms"]),
        bool(data["failed"]),
        bool(data["accepted"]),
        str(data["reason"]),
    )


def _duel_data(duel: Duel) -> dict[str, Any]:
    return {key: _plain(value) for key, value in asdict(duel).items()}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _profile(data: Mapping[str, Any]) -> SavedProfile:
    before = data["before"]
    records = tuple(map(_record, data["records"]))
    pending = data["pending"]
    if pending is not None and not 0 <= int(pending) < len(records):
        raise ValueError(f"there is no scheme {pending}")
    return SavedProfile(
        str(data["signature"]),
        (Placement.from_json(before["placement"]), _ratio(before["speedup"]), _milliseconds(before["latency_ms"])),
        records,
        None if pending is None else int(pending),
        _duel(data["duel"]),
        None if data["placement"] is None else Placement.from_json(data["placement"]),
    )


def _duel(data: Mapping[str, Any] | None) -> Duel | None:
    if data is None:
        return None
    incumbent, candidate = (tuple(map(_reading, data[key])) for key in ("incumbent_ms", "candidate_ms"))
    return Duel(int(data["turns"]), _reading(data["first_ms"]), incumbent, candidate)


def _final(data: Mapping[str, Any] | None) -> FinalComparison | None:
    if data is None:
        return None
    incumbent, candidate = (tuple(map(_reading, data[key])) for key in ("incumbent_ms", "candidate_ms"))
    return FinalComparison(Duel(int(data["turns"]), incumbent_ms=incumbent, candidate_ms=candidate))


def _variance(data: Mapping[str, Any] | None) -> PooledVariance:
    return PooledVariance() if data is None else PooledVariance(float(data["squares"]), int(data["freedom"]))


def _ratio(number: object) -> float | None:
    return _milliseconds(number)


def _reading(number: object) -> float:
    found = _milliseconds(number)
    if found is None:
        raise ValueError("a reading is missing")
    return found


def _milliseconds(number: object) -> float | None:
    if number is None:
        return None
    if not isinstance(number, (int, float)) or not 0 < number < math.inf:
        raise ValueError(f"{number!r} is not a latency")
    return float(number)
