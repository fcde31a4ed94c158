"""Which way each weight is rounded, by what the samples make of it: see :mod:`inlay.quant.rounding`.

Moments come from the float model, so that they hold for every placement; a weight that several operators read has
the sum of theirs. The largest weights are left to the nearest integers where there is no time for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from inlay.calibrate import policy
from inlay.calibrate.rounding_cost import affordable
from inlay.calibrate.weight_readers import WEIGHT_SLOT, is_transposed, readers_of, sizes_of
from inlay.data import Feed
from inlay.deadline import NEVER, Deadline
from inlay.model.graph import Graph
from inlay.model.pieces import PiecewiseSession
from inlay.model.reference import in_batches
from inlay.prepare.model import PreparedModel
from inlay.quant.moments import AddMoments, Moments, Window
from inlay.quant.positions import Positions
from inlay.quant.qparams import QParamsTable, quantize, scale_shape
from inlay.quant.rounding import NEAREST, Reads, Rounding, Steps, nearest_output, scale_digest
from inlay.space.units import Unit
from inlay.types import Placement, Port, QParams, QType


@dataclass(frozen=True)
class Found:
    """What was found.

    Attributes:
        rounding: of the types for which there was time; each of them is whole.
        in_time: these are all.
    """

    rounding: Rounding
    in_time: bool


def round_weights(
    prepared: PreparedModel,
    table: QParamsTable,
    feeds: Sequence[Feed],
    positions: Positions,
    seconds: float,
    until: Deadline = NEVER,
) -> Found:
    """The weights of all units, in each type that a search tries, rounded by what ``feeds`` show.

    Args:
        prepared: the model.
        table: qparams of the weights.
        feeds: samples; those after the deadline of a :class:`~inlay.calibrate.clock.FeedsUntil` are not had.
        positions: what of them is padding, which has no share.
        seconds: of a usual processor, by which large weights are left out: the same ones on any machine.
        until: when it must be over; the usual type of weights comes first.

    Raises:
        CompileFailed, RunFailed: the float model does not run.
        TimedOut: the deadline of the feeds is over.
    """
    graph, reads = prepared.graph, readers_of(prepared.graph, prepared.units)
    sites = {(graph.value_of(port), t) for unit in prepared.units for port, t in _sites(prepared, unit)}
    roundable = {v for v in reads if _is_roundable(graph.constant(v))}
    rounded = [(v, t) for v, t in sites if v in roundable and not table.is_given(v, t)]
    jobs = sorted(affordable(graph, reads, rounded, seconds), key=lambda job: job[1] is not prepared.rules.weight)
    sizes = {w.name: _moment_bytes(graph, v, w) for v, _ in jobs for w in reads[v]}
    by_name = {w.name: w for v, _ in jobs for w in reads[v]}
    found: dict[tuple[str, QType], Steps] = {}
    ready: set[tuple[str, QType]] = set()
    late: set[QType] = set()
    for names in in_batches(sorted(sizes), sizes, policy.MOMENT_BYTES):
        moments = _moments(prepared, [by_name[n] for n in names], feeds, positions)
        known: dict[Sequence[Window], Reads | None] = {}
        for job in jobs:
            windows = reads[job[0]]
            if job in ready or any(w.name not in names for w in windows):
                continue  # a weight whose readers are in two batches stays as it is
            if not until.left:
                late.add(job[1])
            if job[1] in late:
                continue
            ready.add(job)
            if windows not in known:
                known[windows] = _together([moments.get(w) for w in windows])
            steps = _steps(graph, table, *job, known[windows])
            if steps is not None:
                found[job] = steps
    whole = {job: steps for job, steps in found.items() if job[1] not in late}
    return Found(Rounding(whole) if whole else NEAREST, not late)


def _sites(prepared: PreparedModel, unit: Unit) -> Iterator[tuple[Port, QType]]:
    """The weight of a unit in each type that a placement may give it, of those that are integers with a zero of 0."""
    usual = prepared.rules.weight
    if unit.selectable:
        yield from ((port, usual) for port in unit.weights)
    for sites in unit.searched.values():
        yield from ((port, t) for port, t in sites if port.slot == WEIGHT_SLOT and _rounds(t, usual))


def _rounds(qtype: QType, usual: QType) -> bool:
    return bool(qtype.block) or qtype is usual


def _moment_bytes(graph: Graph, value: str, window: Window) -> int:
    groups, _, inputs = sizes_of(graph, value, window)
    return 4 * groups * inputs * inputs


def _is_roundable(array: np.ndarray | None) -> bool:
    """Whether all is finite, and few elements are zeros: those stay zeros, and others could not make up for them."""
    if array is None or not np.isfinite(array).all():
        return False
    return np.count_nonzero(array == 0.0) <= policy.MOST_ZEROS * array.size


def _moments(
    prepared: PreparedModel, windows: Sequence[Window], feeds: Sequence[Feed], positions: Positions
) -> Moments:
    """The sum over all samples."""
    given = set(prepared.graph.inputs)
    computed = [w for w in windows if w.value not in given]
    session = PiecewiseSession(prepared.emitter.base, prepared.store, sorted({w.value for w in computed}))
    found: dict[str, Moments] = {}
    of_inputs = AddMoments([w for w in windows if w.value in given])
    for feed in feeds:
        if computed:
            found = session.gather([feed], positions.note(feed, AddMoments(computed)), found)
        positions.note(feed, of_inputs)(found, feed)
    return {window: moment for of in found.values() for window, moment in of.items()}


def _together(moments: Sequence[np.ndarray | None]) -> Reads | None:
    """What several readers of one weight read; None where nothing can be said of it."""
    known = [m for m in moments if m is not None]
    if not known or any(m.shape != known[0].shape for m in known):
        return None
    try:
        return Reads.of(np.sum(known, axis=0))
    except np.linalg.LinAlgError:
        return None


def _steps(graph: Graph, table: QParamsTable, value: str, qtype: QType, reads: Reads | None) -> Steps | None:
    """The steps of one weight; None where it stays with the nearest integers."""
    array = graph.constant(value)
    if array is None or reads is None:
        return None
    params = table.params(value, qtype)
    nearest = quantize(array, params).astype(np.int64)
    groups, inputs, _ = reads.moment.shape
    flip = array.ndim == 2 and not is_transposed(graph, value) and groups == 1 and array.shape[0] == inputs

    def grouped(of: np.ndarray) -> np.ndarray:
        return of.T[None] if flip else of.reshape(groups, -1, inputs)

    limit = table.weight_limit(qtype)
    found = nearest_output(grouped(array), grouped(_scales(array, params)), reads, -limit, limit)
    integers = found[0].T if flip else found.reshape(array.shape)
    delta = integers.astype(np.int64) - nearest
    if not delta.any() or np.abs(delta).max() > np.iinfo(np.int8).max:
        return None
    return Steps(scale_digest(params), delta.astype(np.int8))


def _scales(array: np.ndarray, params: QParams) -> np.ndarray:
    """The scale of every element."""
    scale = np.asarray(params.scale, np.float32)
    if params.qtype.block:
        axis = params.axis or 0
        return np.repeat(scale.reshape(scale_shape(array.shape, params)), params.qtype.block, axis)
    shape = [1] * array.ndim
    if params.axis is not None:
        shape[params.axis] = -1
    return np.broadcast_to(scale.reshape(shape), array.shape)


def only(rounding: Rounding, qtype: QType) -> Rounding:
    """Of the weights in one type."""
    return Rounding({key: steps for key, steps in rounding.steps.items() if key[1] is qtype})


def weights_alone(prepared: PreparedModel, qtype: QType) -> Placement:
    """The placement of all weights in a type, and of nothing else."""
    return Placement(site for unit in prepared.units for site in _sites(prepared, unit) if site[1] is qtype)
