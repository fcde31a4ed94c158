"""What a model is tuned for on its target: the time of one inference, of many at once, or of the processors."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from inlay.errors import UsageError
from inlay.targets.base import TargetSpec
from inlay.targets.machine import streams_for
from inlay.targets.registry import options_of

Objective = Literal["latency", "throughput", "cpu-time"]
OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput", "cpu-time")


def streams_of(spec: TargetSpec) -> int:
    """How many inferences at once a target is asked for."""
    return int(spec.options.get("streams", 1))


def objective_of(spec: TargetSpec) -> Objective:
    """What a target is set up for."""
    if spec.reading == "cpu-time":
        return "cpu-time"
    return "throughput" if streams_of(spec) > 1 else "latency"


def aimed_at(spec: TargetSpec, objective: str, streams: int = 0, elsewhere: bool = False) -> TargetSpec:
    """A target set up for an objective.

    Args:
        spec: the target.
        objective: one of :data:`OBJECTIVES`.
        streams: inferences at once, for throughput; 0 for as many as keep this machine busy.
        elsewhere: it is on another machine.

    Raises:
        UsageError: there is no such objective, or the target cannot be set up so.
    """
    if objective not in OBJECTIVES:
        raise UsageError(f"--objective {objective}: give {', '.join(OBJECTIVES)}")
    if streams and objective != "throughput":
        raise UsageError("--streams needs --objective throughput: nothing else runs several inferences at once")
    if objective == "cpu-time":
        return replace(spec, reading="cpu-time")
    if objective == "latency" or streams_of(spec) > 1:  # --target-option streams=N says the same
        return spec
    if "streams" not in options_of(spec.name):
        raise UsageError(f"--objective throughput: target {spec.name} runs one inference at a time; give latency")
    if elsewhere and not streams:
        raise UsageError("--objective throughput on a device needs --streams N: its processors are not counted here")
    count = streams or streams_for(int(spec.options.get("threads", 1)))
    if count == 1:
        raise UsageError("--objective throughput: one inference at a time keeps this machine busy; give latency")
    return replace(spec, options={**spec.options, "streams": count})
