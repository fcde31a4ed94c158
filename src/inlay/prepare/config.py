"""What a run is asked to do: plain, frozen, and part of its identity."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from inlay.errors import UsageError
from inlay.measure.race import Protocol
from inlay.quant.accuracy import Bound
from inlay.quant.observers import METHODS, Method
from inlay.space.recipe import Recipe
from inlay.targets.base import TargetSpec
from inlay.targets.registry import DEFAULT_TARGET

DEFAULT_MIN_SQNR_DB = 20.0
DEFAULT_BUDGET_S = 120.0
STRATEGIES = ("auto", "guided", "evolve", "refine", "anchors")


@dataclass(frozen=True)
class TuneConfig:
    """Settings of one run.

    Attributes:
        target: where the model will run.
        bound: what accuracy must hold.
        bind: sizes of dynamic dimensions by symbol.
        seed: of every random choice.
        budget_s: seconds of search, preparation and confirmation aside; None for no limit.
        max_measurements: timed candidates; None for no limit.
        max_builds: models that the search may build, the given one, probes and profiles included; None for no limit.
        qdq_baseline: a Q/DQ model to start from, or None.
        keep_qparams: use the scales and zero points that came with the Q/DQ model.
        strategy: ``auto``, ``guided`` (cost model), ``evolve`` (region patterns), ``refine``, or ``anchors``.
        schemes_per_region: most placements that evolution tries for one pattern.
        pattern_cache: schemes of earlier runs, which are tried first, or None.
        nodes: globs over node names that may be quantized; empty for all.
        recipe: rules of the user that restrict the search, or None.
        methods: ways to choose ranges; the one with the least error is used.
        protocol: how latency is measured.
        confirm_processes: fresh processes in which the winner is measured again.
        confirm_blocks: blocks in each of them.
        limit_s: seconds that one call of the runtime may take.
        cost_db: start from the costs that earlier runs on this target learned, and add this one's.
    """

    target: TargetSpec = field(default_factory=lambda: TargetSpec(DEFAULT_TARGET))
    bound: Bound = field(default_factory=lambda: Bound(min_sqnr_db=DEFAULT_MIN_SQNR_DB))
    bind: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    budget_s: float | None = DEFAULT_BUDGET_S
    max_measurements: int | None = None
    max_builds: int | None = None
    qdq_baseline: Path | None = None
    keep_qparams: bool = False
    strategy: str = "auto"
    schemes_per_region: int = 30
    pattern_cache: Path | None = None
    nodes: tuple[str, ...] = ()
    recipe: Recipe | None = None
    methods: tuple[Method, ...] = METHODS
    protocol: Protocol = field(default_factory=Protocol)
    confirm_processes: int = 3
    confirm_blocks: int = 8
    limit_s: float = 600.0
    cost_db: bool = True

    def identity(self) -> dict[str, str]:
        """The settings that change which trials a run makes. Budgets may be raised when a run is continued."""
        return {
            "bound": str(self.bound),
            "bind": str(sorted(self.bind.items())),
            "seed": str(self.seed),
            "keep_qparams": str(self.keep_qparams),
            "strategy": self.strategy,
            "schemes_per_region": str(self.schemes_per_region),
            "nodes": " ".join(self.nodes),
            "recipe": "" if self.recipe is None else str(self.recipe),
            "methods": ",".join(self.methods),
            "protocol": str(self.protocol),
        }


def parse_duration(text: str) -> float:
    """Seconds from ``90``, ``90s``, ``10m``, ``1.5h`` or ``1h30m``. Raises UsageError."""
    factors = {"h": 3600.0, "m": 60.0, "s": 1.0, "": 1.0}
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms]?)", text.strip())
    if not parts or "".join(n + u for n, u in parts) != text.strip():
        raise UsageError(f"--budget {text}: give a duration such as 90s, 10m or 1h30m")
    return sum(float(n) * factors[u] for n, u in parts)


def parse_share(text: str) -> float:
    """A drop: ``0.5%`` is 0.005, ``0.005`` itself. Raises UsageError."""
    body = text.strip()
    try:
        value = float(body.removesuffix("%")) / (100.0 if body.endswith("%") else 1.0)
    except ValueError:
        raise UsageError(f"--max-drop {text}: give a number such as 0.005, or a share such as 0.5%") from None
    if not 0.0 <= value < float("inf"):
        raise UsageError(f"--max-drop {text}: it must not be negative")
    return value


def parse_bind(entries: list[str]) -> dict[str, int]:
    """``name=N`` entries as a mapping. Raises UsageError."""
    bound = {}
    for entry in entries:
        name, equals, number = entry.rpartition("=")
        if not equals or not name or not number.isdigit() or int(number) < 1:
            raise UsageError(f"--bind {entry}: give name=N with a whole number of at least 1")
        bound[name] = int(number)
    return bound
