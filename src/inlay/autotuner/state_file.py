"""The saved state of step-by-step tuning: a YAML file that belongs to one model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from inlay.errors import JournalError, UsageError
from inlay.files import write_text
from inlay.model.graph import Graph
from inlay.regions.cache import PatternCache
from inlay.regions.config import Config
from inlay.types import Placement
from inlay.yaml_file import read_yaml

FORMAT = "inlay_autotuner_state"
VERSION = 1


@dataclass(frozen=True)
class SavedState:
    """What a search can continue from.

    Attributes:
        model_sha256: the model it belongs to.
        baseline_ms, incumbent_ms: latencies submitted; None before the first.
        profiled: number of schemes measured, by signature of the finished patterns.
        placement: the incumbent.
        cache: the schemes measured, by pattern.
    """

    model_sha256: str
    baseline_ms: float | None
    incumbent_ms: float | None
    profiled: Mapping[str, int]
    placement: Placement
    cache: PatternCache


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
    }
    text = yaml.safe_dump(data, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120)
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
        raise JournalError(f"{path} belongs to another model; use another file, or delete it to begin anew")
    try:
        placement = Placement.from_json(data["placement"])
        for port, _ in placement:
            graph.value_of(port)
        return SavedState(
            model_sha256,
            _milliseconds(data["baseline_latency_ms"]),
            _milliseconds(data["incumbent_latency_ms"]),
            {str(k): int(v) for k, v in data["profiled_patterns"].items()},
            placement,
            PatternCache.from_data(data["cache"], str(path)),
        )
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UsageError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _milliseconds(number: object) -> float | None:
    if number is None:
        return None
    if not isinstance(number, (int, float)) or not 0 < number < math.inf:
        raise ValueError(f"{number!r} is not a latency")
    return float(number)
