"""Which way each weight is rounded, by what the samples make of it: see :mod:`inlay.quant.rounding`.

Moments come from the float model, so that they hold for every placement; a weight that several operators read has
the sum of theirs. The largest weights are left to the nearest integers where there is no time for all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from inlay.calibrate import policy
from inlay.calibrate.rounding_cost import affordable
from inlay.calibrate.weight_readers import WEIGHT_SLOT, is_transposed, readers_of, sizes_of
from inlay.data import Feed
from inlay.deadline import NEVER, Deadline
from inlay.model.graph import Graph
from inlay.model.hands import Stored, each, width
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
        rounding: of the weights for which there was time, in the usual type; of other types, each of them whole.
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
    base = Stored(prepared.emitter.base, prepared.store)

    def calls() -> Iterator[tuple[Stored, _Some, Sequence[Feed], Positions, Deadline]]:
        for names in in_batches(sorted(sizes), sizes, policy.MOMENT_BYTES):
            held = {*names}  # a weight whose readers are in two batches stays as it is
            mine = [job for job in jobs if all(w.name in held for w in reads[job[0]])]
            weights = [_Weight.of(graph, table, *job, reads[job[0]]) for job in mine]
            for part in _parts(weights, width()):
                read = {w.name for weight in part for w in weight.windows}
                some = _Some([by_name[n] for n in names if n in read], frozenset(graph.inputs), part)
                yield base, some, feeds, positions, until

    found: dict[tuple[str, QType], Steps] = {}
    late: set[QType] = set()
    for outcome in each(_rounded, calls()):
        steps, left_out = outcome.result()
        found.update(steps)
        late |= left_out
    usual = prepared.rules.weight  # each of its weights gains alone; another type is judged as a whole
    kept = {job: found[job] for job in jobs if job in found and (job[1] is usual or job[1] not in late)}
    return Found(Rounding(kept) if kept else NEAREST, not late)


@dataclass(frozen=True, eq=False)
class _Weight:
    """A weight to be rounded.

    Attributes:
        key: its name, and the type.
        array: the weight.
        params: its qparams in that type.
        limit: largest magnitude of its integers.
        transposed: its inputs are its last dimension.
        windows: what its operators read.
    """

    key: tuple[str, QType]
    array: np.ndarray
    params: QParams
    limit: int
    transposed: bool
    windows: Sequence[Window]

    @classmethod
    def of(cls, graph: Graph, table: QParamsTable, value: str, qtype: QType, windows: Sequence[Window]) -> _Weight:
        """A constant of ``graph`` with the qparams of ``table``."""
        array = graph.constant(value)
        assert array is not None  # a weight that was found roundable
        params, limit = table.params(value, qtype), table.weight_limit(qtype)
        return cls((value, qtype), array, params, limit, is_transposed(graph, value), windows)


@dataclass(frozen=True, eq=False)
class _Some:
    """Weights whose moments are held together.

    Attributes:
        windows: all that they read.
        given: names of the model's inputs.
        weights: the weights, in the order in which they are rounded.
    """

    windows: Sequence[Window]
    given: frozenset[str]
    weights: Sequence[_Weight]


def _parts(weights: Sequence[_Weight], count: int) -> list[list[_Weight]]:
    """At most so many parts that take about as long, in their order; weights with the same readers stay together."""
    groups: defaultdict[Sequence[Window], list[_Weight]] = defaultdict(list)
    for weight in weights:
        groups[weight.windows].append(weight)
    sizes, part_of = [0] * count, dict[Sequence[Window], int]()
    for windows, group in sorted(groups.items(), key=lambda item: -sum(w.array.size for w in item[1])):
        part_of[windows] = int(np.argmin(sizes))
        sizes[part_of[windows]] += sum(w.array.size for w in group)
    parts = [[w for w in weights if part_of[w.windows] == number] for number in range(count)]
    return [part for part in parts if part]


def _rounded(
    model: Stored, some: _Some, feeds: Sequence[Feed], positions: Positions, until: Deadline
) -> tuple[dict[tuple[str, QType], Steps], set[QType]]:
    """The steps of some weights that gain by them, and the types that there was no time for."""
    if not until.left:
        return {}, {weight.key[1] for weight in some.weights}
    moments = _moments(model, some.windows, some.given, feeds, positions)
    known: dict[Sequence[Window], Reads | None] = {}
    found: dict[tuple[str, QType], Steps] = {}
    late: set[QType] = set()
    for weight in some.weights:
        if not until.left:
            late.add(weight.key[1])
        if weight.key[1] in late:
            continue
        if weight.windows not in known:
            known[weight.windows] = _together([moments.get(w) for w in weight.windows])
        steps = _steps(weight, known[weight.windows])
        if steps is not None:
            found[weight.key] = steps
    return found, late


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
    model: Stored, windows: Sequence[Window], given: frozenset[str], feeds: Sequence[Feed], positions: Positions
) -> Moments:
    """The sum over all samples."""
    computed = [w for w in windows if w.value not in given]
    session = PiecewiseSession(model.proto, model.store, sorted({w.value for w in computed}))
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


def _steps(weight: _Weight, reads: Reads | None) -> Steps | None:
    """The steps of one weight; None where it stays with the nearest integers."""
    if reads is None:
        return None
    array, params, limit = weight.array, weight.params, weight.limit
    nearest = quantize(array, params).astype(np.int64)
    groups, inputs, _ = reads.moment.shape
    flip = array.ndim == 2 and not weight.transposed and groups == 1 and array.shape[0] == inputs

    def grouped(of: np.ndarray) -> np.ndarray:
        return of.T[None] if flip else of.reshape(groups, -1, inputs)

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
