"""Operators on integers beside what they take in float: the float model inside a quantized file, timed and profiled.

A file whose operators quantize in each inference may well be slower than the float model in it: what makes floats of
the sums of a ``ConvInteger``, say, runs as kernels of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir

from inlay.deadline import Deadline
from inlay.errors import TargetError
from inlay.explanation import policy
from inlay.explanation.executed import Executed, Ran, profiled, written
from inlay.explanation.explanation import Operator
from inlay.measure.client import Worker
from inlay.measure.paired import speedup
from inlay.model.store import WeightStore
from inlay.quant.qdq_graph import DYNAMIC_QUANTIZE
from inlay.space.rules import Rules
from inlay.trial import Interval


@dataclass(frozen=True, eq=False)
class InFloat:
    """The float model inside a quantized one."""

    speedup: Interval | None = None  # of the quantized model over it; None where one of them was not timed
    operators: Mapping[str, float] = field(default_factory=dict)  # nanoseconds of each operator's kernels
    problem: str = ""  # why nothing is known of it

    def ms(self, operator: Operator) -> float | None:
        """What an ``operator`` that runs on integers takes in float; None where it does not, or nothing is known."""
        ns = self.operators.get(operator.name) if operator.precision == "int8" and operator.heavy else None
        return None if ns is None else ns / 1e6


def grouped(
    found: Executed, graph: ir.Graph, replaced: Mapping[str, tuple[str, str]], kept: Collection[str]
) -> Executed:
    """A profile by operators of the plain form: what makes floats of an operator's integer sums counts for it.

    Args:
        replaced: by the name of each operator of the plain form, the first and the last node that it stands for.
        kept: names of all nodes of the plain form.
    """
    nodes = {str(n.name): n for n in graph}
    owner: dict[str, str] = {}
    for name, (first, last) in replaced.items():
        left = [nodes[last]]
        while left:
            node = left.pop()
            own = str(node.name)
            if own in owner or node.op_type == DYNAMIC_QUANTIZE or (own in kept and own not in (name, first)):
                continue
            owner[own] = name
            left += [p for v in node.inputs if v is not None and (p := v.producer()) is not None]
    operators: dict[str, Ran] = {}
    for own, ran in found.operators.items():
        name = owner.get(own, own)
        before = operators.get(name)
        if before is None:
            operators[name] = ran
            continue
        is_first = replaced.get(name, ("",))[0] == own or (ran.precision == "int8" and before.precision != "int8")
        operators[name] = replace(ran if is_first else before, ns=before.ns + ran.ns)
    return replace(found, operators=operators)


def in_float(
    models: tuple[ir.Model, ir.Model],
    worker: Worker,
    rules: Rules,
    folder: Path,
    feed: Path,
    factor: float,
    deadline: Deadline,
) -> InFloat:
    """What the float model inside a quantized one takes.

    Args:
        models: the quantized one and the float model in it.
        factor: from the times of profiled kernels to those without a profiler.
        deadline: no further block is begun after it.
    """
    folder.mkdir()
    store = WeightStore(folder)
    made = [written(model, store, folder, name) for model, name in zip(models, ("given", "float"), strict=True)]
    try:
        gain, median_ns = None, 0.0
        if "latency" not in worker.lacks:
            slot = 0 if worker.deterministic else policy.TIMED_SLOT_NS
            given, plain = worker.time(made, feed, policy.TIMED_BLOCKS, slot, 0, lambda: deadline.left).models
            gain, median_ns = speedup(plain, given), plain.median_ns
        ran = profiled(worker, made[1], feed, policy.repeats(median_ns), models[1].graph, rules)
    except TargetError as error:
        return InFloat(problem=f"the float model in it does not run: {error}")
    finally:
        for artifact in made:
            worker.drop(artifact)
    return InFloat(gain, {name: each.ns * factor for name, each in ran.operators.items()})
