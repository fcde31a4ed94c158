"""The settings of a run: plain, frozen, and part of its identity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from inlay.prepare import options
from inlay.prepare.declare import documented
from inlay.prepare.options import DEFAULT_BUDGET_S, DEFAULT_MIN_SQNR_DB
from inlay.prepare.protocol import Protocol
from inlay.quant.accuracy import Bound
from inlay.quant.observers import METHODS, Method
from inlay.space.recipe import Recipe
from inlay.targets.base import TargetSpec
from inlay.targets.registry import DEFAULT_TARGET
from inlay.types import AUTO


@documented
@dataclass(frozen=True)
class TuneConfig:
    """Settings of one run: the options of :func:`inlay.tune`, resolved, and what only the Python interface offers.

    Attributes:
        target: where the model will run.
        bound: the accuracy constraint.
        bind: sizes of dynamic dimensions by symbol.
        budget_s: seconds of the whole command, over all sessions of a run that was interrupted; None for no limit.
        methods: ways to choose ranges; the one with the least error is used.
        protocol: how latency is measured.
        confirm_processes: fresh processes in which the winner is measured again.
        confirm_blocks: blocks in each of them.
        limit_s: seconds that one call of the runtime may take.
        steering_db: SQNR that the search asks for where the user's own evaluation alone is bounded.
        command: the line that asks for this run, for people.
        sources: digests of the source of the user's own functions and programs, by the option that names them.
    """

    target: TargetSpec = field(default_factory=lambda: TargetSpec(DEFAULT_TARGET))
    bound: Bound = field(default_factory=lambda: Bound(min_sqnr_db=DEFAULT_MIN_SQNR_DB, is_usual=True))
    bind: Mapping[str, int] = field(default_factory=dict)
    freeze_shapes: Annotated[bool, options.FREEZE_SHAPES] = False
    shapes: Annotated[tuple[str, ...], options.SHAPES] = ()
    batch: Annotated[tuple[int, ...] | None, options.BATCH] = None
    seed: Annotated[int, options.SEED] = 0
    accept_unproven: Annotated[bool, options.ACCEPT_UNPROVEN] = False
    budget_s: float | None = DEFAULT_BUDGET_S
    max_measurements: Annotated[int | None, options.MAX_MEASUREMENTS] = None
    max_builds: Annotated[int | None, options.MAX_BUILDS] = None
    qdq_baseline: Annotated[Path | None, options.QDQ_BASELINE] = None
    keep_qparams: Annotated[bool, options.KEEP_QPARAMS] = False
    strategy: Annotated[str, options.STRATEGY] = "auto"
    schemes_per_region: Annotated[int, options.SCHEMES_PER_REGION] = 30
    pattern_cache: Annotated[Path | None, options.PATTERN_CACHE] = None
    quant_type: Annotated[str, options.QUANT_TYPE] = AUTO
    base: Annotated[str, options.BASE] = AUTO
    max_opset: Annotated[int | None, options.MAX_OPSET] = None
    augment: Annotated[str, options.AUGMENT] = "auto"
    task: Annotated[str, options.TASK] = "auto"
    nodes: Annotated[tuple[str, ...], options.NODES] = ()
    recipe: Annotated[Recipe | None, options.SEARCH_RECIPE] = None
    methods: tuple[Method, ...] = METHODS
    protocol: Protocol = field(default_factory=Protocol)
    confirm_processes: int = 3
    confirm_blocks: int = 8
    limit_s: float = 600.0
    steering_db: float = DEFAULT_MIN_SQNR_DB
    cost_db: Annotated[bool, options.COST_DB] = True
    costs: Annotated[Path | None, options.COSTS] = None
    command: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def searched(self) -> Bound:
        """What the search goes by: the bound, or, where that takes an evaluation of seconds to minutes, an SQNR."""
        if self.bound.is_none or self.bound.evaluation is None or self.bound.min_sqnr_db is not None:
            return self.bound
        return replace(self.bound, min_sqnr_db=self.steering_db)

    def identity(self) -> dict[str, str]:
        """The settings that change which trials a run makes. Budgets may be raised when a run is continued."""
        return {
            "bound": f"{self.bound}{' where the task has no bound of its own' if self.bound.is_usual else ''}",
            "bind": str(sorted(self.bind.items())),
            "seed": str(self.seed),
            "keep_qparams": str(self.keep_qparams),
            "strategy": self.strategy,
            "schemes_per_region": str(self.schemes_per_region),
            "augment": self.augment,
            "nodes": " ".join(self.nodes),
            "recipe": "" if self.recipe is None else str(self.recipe),
            "methods": ",".join(self.methods),
            "protocol": str(self.protocol),
            **({} if self.target.reading == "latency" else {"objective": self.target.reading}),
            **({} if self.task == AUTO else {"task": self.task}),
            **({} if self.quant_type == AUTO else {"quant_type": self.quant_type}),
            **({} if self.base == AUTO else {"base": self.base}),
            **({} if self.max_opset is None else {"max_opset": str(self.max_opset)}),
            **({"freeze_shapes": "True"} if self.freeze_shapes else {}),
            **({"shapes": " ".join(self.shapes)} if self.shapes else {}),
            **({"batch": str(self.batch)} if self.batch else {}),
            **{edited(option): digest for option, digest in self.sources.items()},
        }


def edited(option: str) -> str:
    """The source behind an option as a part of a run's identity, in words for whoever edited it."""
    return f"what {option} runs, which was edited since"
