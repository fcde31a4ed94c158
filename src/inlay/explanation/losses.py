"""Which sources of rounding cost a Q/DQ model its accuracy: each alone, each put back to float, the loudest together.

Where many sources each ruin the outputs, putting back one of them changes nothing: only several at once tell.

One build of the float model with switches answers all questions (:mod:`inlay.quant.fake_quant`), with the scales and
zero points that the given model states.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import onnx_ir as ir

from inlay.data import Samples, save_feeds
from inlay.deadline import Deadline
from inlay.errors import InlayError, ModelError, TargetError
from inlay.explanation import policy
from inlay.explanation.explanation import Loss, Together
from inlay.measure.client import Worker
from inlay.model.graph import Graph, build_graph
from inlay.model.load import ModelFile
from inlay.model.store import WeightStore, externalize_weights
from inlay.prepare.candidate_writer import deliver
from inlay.prepare.halves import find_wide, keep_wide, told
from inlay.prepare.model import prepare
from inlay.prepare.options import DEFAULT_MIN_SQNR_DB
from inlay.prepare.qdq_import import import_qdq
from inlay.prepare.strip_qdq import strip_qdq
from inlay.quant.accuracy import Bound, Judge
from inlay.quant.fake_quant import NoiseProbe
from inlay.quant.parts import Parts
from inlay.quant.qparams import QParamsTable, covered
from inlay.space.units import Unit
from inlay.targets.base import Artifact, Capabilities
from inlay.trial import decibels
from inlay.types import Placement, Port, QParams, QType

T = TypeVar("T")


@dataclass(frozen=True)
class Losses:
    """What rounding costs."""

    # of the given model's worst output against the float model in it, as the target computes both
    sqnr_db: float | None
    judged: int = 0  # the number of samples that it is of
    sources: tuple[Loss, ...] = ()  # the worst first
    together: tuple[Together, ...] = ()  # without several of them at once
    problem: str = ""  # why something could not be found out


def too_late(what: str) -> str:
    """Why nothing is said of ``what``."""
    return f"the budget ended before {what} could be tried: give a larger --budget"


def losses(
    file: ModelFile, target: Capabilities, samples: Samples, worker: Worker, folder: Path, deadline: Deadline
) -> Losses:
    """The SQNR of a Q/DQ model, and the sources of rounding that cost most of it.

    Args:
        samples: real ones; some are used.
        worker: runs the given model and the float model in it.
        deadline: sources that are left then are not probed.
    """
    folder.mkdir()
    some = samples.evenly(policy.LOSS_SAMPLES)
    try:
        apart = strip_qdq(file, some.feeds, folder)
        assert apart is not None
        if apart.opaque:
            raise ModelError(apart.opaque)
        parts, sqnr = _judged(file, apart.model, some, worker, folder)
        inside = build_graph(apart.model)
        if not any(
            not qtype.dynamic and not inside.is_constant(inside.value_of(port)) for port, qtype in apart.placement
        ):
            why = "single sources of rounding cannot be tried: each inference finds the range of each value anew"
            return Losses(sqnr, len(some), problem=why)
        prepared = prepare(file, target, some.feeds[0], folder, extraction=apart)
        imported = import_qdq(prepared, None, target.float_rewrites, some.feeds, folder)
        own = prepared.rules.activation
        known = _in_type(imported.qparams, own, prepared.graph)
        # a probe has switches for all types that the target has of a value, and reads those of the file alone
        ranges = {value: covered(params) for (value, qtype), params in known.items() if qtype is own}
        table = QParamsTable(prepared.graph, prepared.rules, ranges, known)
        probe = prepared.probe(table)
        probe.use(some.feeds, some.mask, parts)
        sites = {port: qtype for _, placement in imported.placements for port, qtype in placement}
        graph = prepared.graph
        still = ((p, t) for p, t in sites.items() if not t.dynamic)  # the others have no scale that could be put back
        whole = Placement((p, t if graph.is_constant(graph.value_of(p)) else own) for p, t in still)
        found = _probed(sqnr, probe, whole, dict(_sources(prepared.graph, prepared.units, whole)), deadline)
        return replace(found, judged=len(some))
    except InlayError as error:
        return Losses(None, problem=f"nothing is known about single sources of rounding: {error}")


def _in_type(
    qparams: Mapping[tuple[str, QType], QParams], own: QType, graph: Graph
) -> Mapping[tuple[str, QType], QParams]:
    """The same grids in the target's type of activations, which are those that a probe can switch.

    int8 and uint8 differ by 128; what has another width is left out.
    """
    found: dict[tuple[str, QType], QParams] = {}
    for (value, qtype), params in qparams.items():
        if graph.is_constant(value) or qtype is own:
            found[value, qtype] = params
        elif {qtype, own} == {QType.INT8, QType.UINT8}:
            zero = tuple(z + own.qmin - qtype.qmin for z in params.zero_point)
            found.setdefault((value, own), replace(params, qtype=own, zero_point=zero))
    return found


def _judged(
    file: ModelFile, inner: ir.Model, samples: Samples, worker: Worker, folder: Path
) -> tuple[Parts | None, float | None]:
    """The parts of the outputs, and the SQNR of ``file`` against the float model ``inner`` in it.

    None each where a model does not run.
    """
    store = WeightStore(folder)
    made = deliver(externalize_weights(inner, store), store, folder / "float.onnx")
    feeds = save_feeds(folder / "samples", samples.feeds)
    judge = None
    try:
        judge = Judge(worker.run(made, feeds), samples, Bound())
        return judge.parts, judge.judge(worker.run(Artifact(file.content.resolve(), file.sha256), feeds)).sqnr_db
    except TargetError:
        return None if judge is None else judge.parts, None


def _sources(
    graph: Graph, units: tuple[Unit, ...], whole: Placement
) -> Iterator[tuple[tuple[str, str], tuple[Port, ...]]]:
    """The ports of each activation, and of each operator's weights, by kind and name."""
    weights = {p: u.name for u in units for p in (*u.weights, *u.biases)}
    found: defaultdict[tuple[str, str], list[Port]] = defaultdict(list)
    for port, _ in whole:
        key = ("weights", weights[port]) if port in weights else ("activation", graph.value_of(port))
        found[key].append(port)
    return ((key, tuple(ports)) for key, ports in found.items())


def _probed(
    sqnr_db: float | None,
    probe: NoiseProbe,
    whole: Placement,
    sources: dict[tuple[str, str], tuple[Port, ...]],
    deadline: Deadline,
) -> Losses:
    """Every source alone on the noisiest sample, then the loudest taken out of the whole on all of them."""

    def without(keys: Sequence[tuple[str, str]]) -> float:
        return decibels(max(probe.noise(whole.without(tuple(p for k in keys for p in sources[k]))), default=0.0))

    alone: dict[tuple[str, str], float] = {}
    first = deadline.within(policy.ALONE_SHARE * deadline.left) if math.isfinite(deadline.at) else deadline
    for key in _spread(list(sources)):
        if not first.left:
            break
        ports = set(sources[key])
        only = Placement((port, qtype) for port, qtype in whole if port in ports)
        alone[key] = max(probe.noise(only, 1), default=0.0)
    everything = without(())
    loudest = sorted(alone, key=lambda k: -alone[k])[: policy.LOSSES]
    together = [
        Together(count, without(loudest[:count]))
        for count in policy.TOGETHER
        if count <= len(loudest) and deadline.left
    ]
    found = []
    for key in loudest:
        loss_db = without([key]) - everything if deadline.left else None
        name = key[1].removesuffix("_saturated")  # what a pair clips is a node of its own in the float model
        found.append(Loss(name, key[0], loss_db, decibels(alone[key])))
    found.sort(key=lambda loss: -math.inf if loss.loss_db is None else loss.loss_db, reverse=True)
    missed = len(sources) - len(alone)
    problem = too_late(f"{missed if alone else 'any'} of the {len(sources)} sources of rounding") if missed else ""
    return Losses(sqnr_db, 0, tuple(found), tuple(together), problem)


def _spread(keys: Sequence[T]) -> list[T]:
    """``keys`` in an order of which every beginning is spread over all of them: by their numbers' bits, reversed."""
    bits = len(keys).bit_length()
    return [keys[i] for i in sorted(range(len(keys)), key=lambda i: f"{i:0{bits}b}"[::-1])]


def kept_wide(file: ModelFile, target: Capabilities, samples: Samples, folder: Path, deadline: Deadline) -> str:
    """A sentence on the units that lose too much in the target's half precision; files go to the new ``folder``."""
    base = target.rules.base
    if base is None:
        return ""
    folder.mkdir()
    try:
        prepared = prepare(file, target, samples.feeds[0], folder)
        prepared = keep_wide(prepared, find_wide(prepared, samples.feeds, DEFAULT_MIN_SQNR_DB, deadline, samples.mask))
    except InlayError as error:
        return f"what loses too much in {base.value} is not known: {error}"
    return told(prepared) or f"on the samples nothing loses too much in {base.value}"
