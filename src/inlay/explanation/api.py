""":func:`inlay.explain`: what ``inlay explain`` does, as a function."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from inlay.data import FixedValues
from inlay.deadline import NEVER, Deadline
from inlay.explanation import explain as _explain
from inlay.explanation import repair as _repair
from inlay.explanation.explanation import Explanation
from inlay.files import refuse_overwriting
from inlay.model.heard import hearing
from inlay.model.load import ModelSource
from inlay.prepare import options as declared
from inlay.prepare.declare import documented
from inlay.run.call import Given, files_in, seconds_of
from inlay.run.inputs import RANDOM_SAMPLES
from inlay.run.notebook import usual
from inlay.run.options import OneTarget, Sizes
from inlay.run.progress import Phases, Progress
from inlay.targets.registry import target_of


@documented
@dataclass(frozen=True, kw_only=True, eq=False)
class ExplainOptions(OneTarget):
    """What a call of :func:`inlay.explain` asks for."""

    budget: Annotated[str | float | None, declared.EXPLAIN_BUDGET] = f"{declared.EXPLAIN_BUDGET_S:.0f}s"
    threads: Annotated[int, declared.THREADS] = 1
    bind: Annotated[Sizes, declared.BIND] = ()
    fix: Annotated[FixedValues, declared.FIX] = ()
    repair: Annotated[str | Path | None, declared.REPAIR] = None
    seed: Annotated[int, declared.SEED] = 0
    progress: Annotated[Progress | None, declared.PROGRESS] = None


@documented
def explain(
    model: Annotated[ModelSource, declared.MODEL], options: ExplainOptions | None = None, **changes: Any
) -> Explanation:
    """Say why each operator of a float or Q/DQ model runs in the precision in which it runs, and what that costs.

    Raises:
        UsageError: the target gives no times of kernels, or there is nothing to repair.
        InlayError: the model or the samples cannot be used.
    """
    wish = ExplainOptions.of(options, changes)
    seconds, hears = seconds_of(wish.budget), wish.progress or usual()
    phases = Phases(hears)
    with hearing(phases.doing):
        return _explained(model, wish, seconds, hears, phases)


def _explained(
    model: ModelSource, wish: ExplainOptions, seconds: float | None, hears: Progress, phases: Phases
) -> Explanation:
    deadline = NEVER if seconds is None else NEVER.within(seconds)
    spec = target_of(wish.target, wish.target_options, wish.threads)
    given = Given.read(model, wish.data, wish.bind, wish.images, wish.fix)
    samples = given.samples_or_random(np.random.default_rng(wish.seed), RANDOM_SAMPLES)
    out = None if wish.repair is None else Path(wish.repair)
    if out is not None:
        refuse_overwriting([out, Path(f"{out}.data")], [*given.file.files, *files_in(wish.data)])
        _repair.refuse(given.file, out)
    found = _explain.explain(given.file, spec, samples, deadline, phases.begin)
    if out is None:
        return found
    slower = {o.name for o in found.operators if o.lost_ms > 0.0}
    done, made = _repair.repair(given.file, out, spec, samples, seconds, wish.seed, hears, slower)
    if made is not None:
        after = _explain.explain(made, spec, samples, Deadline(-math.inf), phases.begin)
        done = replace(done, changes=_repair.changes(found, after))
    return replace(found, repair=done)
