"""Which way each weight is rounded, by what the samples make of it: see :mod:`inlay.quant.gptq`.

Moments come from the float model, so that they hold for every placement; a weight that several operators read has
the sum of theirs. The largest weights are left to the nearest integers where there is no time for all: what rounding
takes is counted in seconds of a usual processor (constants of :mod:`inlay.calibrate.policy`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from inlay.calibrate import policy
from inlay.data import Feed
from inlay.deadline import NEVER, Deadline
from inlay.model.graph import Graph, Node
from inlay.model.pieces import PiecewiseSession
from inlay.model.pool import Stored, each, width
from inlay.model.reference import in_batches
from inlay.prepare.model import PreparedModel
from inlay.quant.gptq import NEAREST, AddMoments, Moments, Reads, Rounding, Steps, Window, nearest_output, scale_digest
from inlay.quant.padding_propagation import Positions
from inlay.quant.qparams import QParamsTable, aligned, quantize
from inlay.space.units import Unit
from inlay.types import GRAPH_OUTPUT, Placement, Port, QParams, QType

_WEIGHT = 1
Readers = Mapping[str, tuple[Window, ...]]
"""How a weight's readers read what it is multiplied with, by the weight's name."""


@dataclass(frozen=True)
class Found:
    """What was found."""

    rounding: Rounding  # of the weights for which there was time, in the usual type; of other types, each of them whole
    in_time: bool  # these are all


def round_weights(
    prepared: PreparedModel,
    table: QParamsTable,
    feeds: Sequence[Feed],
    positions: Positions,
    seconds: float,
    until: Deadline = NEVER,
    types: Collection[QType] | None = None,
) -> Found:
    """The weights of all units, in each type that a search tries, rounded by what ``feeds`` show.

    Args:
        feeds: samples; those after the deadline of a :class:`~inlay.calibrate.clock.FeedsUntil` are not had.
        positions: what of them is padding, which has no share.
        seconds: of a usual processor, by which large weights are left out: the same ones on any machine.
        until: when it must be over; the usual type of weights comes first.
        types: the others are left to the nearest integers; None for all.

    Raises:
        CompileFailed, RunFailed: the float model does not run.
        TimedOut: the deadline of the feeds is over.
    """
    graph, reads = prepared.graph, readers_of(prepared.graph, prepared.units)
    wanted = weight_types(prepared) if types is None else types
    sites = {(graph.value_of(port), t) for unit in prepared.units for port, t in _sites(prepared, unit) if t in wanted}
    roundable = {v for v in reads if _is_roundable(graph.constant(v))}
    rounded = [(v, t) for v, t in sites if v in roundable and not table.is_given(v, t)]
    jobs = sorted(_affordable(graph, reads, rounded, seconds), key=lambda job: job[1] is not prepared.rules.weight)
    sizes: dict[str, int] = {}
    for value, _ in jobs:
        for window in reads[value]:
            groups, _, inputs = _sizes_of(graph, value, window)
            sizes[window.name] = 4 * groups * inputs * inputs
    base = Stored(prepared.emitter.base, prepared.store)

    def calls() -> Iterator[tuple[Stored, Sequence[_Weight], Sequence[Feed], Positions, Deadline]]:
        for names in in_batches(sorted(sizes), sizes, policy.MOMENT_BYTES):
            held = {*names}  # a weight whose readers are in two batches stays as it is
            mine = [job for job in jobs if all(w.name in held for w in reads[job[0]])]
            for part in _parts([_Weight.of(graph, table, *job, reads[job[0]]) for job in mine], width()):
                yield base, part, feeds, positions, until

    found: dict[tuple[str, QType], Steps] = {}
    late: set[QType] = set()
    for outcome in each(_rounded, calls()):
        steps, left_out = outcome.result()
        found.update(steps)
        late |= left_out
    usual = prepared.rules.weight  # each of its weights gains alone; another type is judged as a whole
    kept = {job: found[job] for job in jobs if job in found and (job[1] is usual or job[1] not in late)}
    return Found(Rounding(kept) if kept else NEAREST, not late)


def rounding_seconds(prepared: PreparedModel, rounding: Rounding) -> float:
    """What finding such a rounding takes on a usual processor, without the inferences."""
    graph, reads = prepared.graph, readers_of(prepared.graph, prepared.units)
    values = [value for value, _ in rounding.steps if value in reads]
    first = {reads[value]: value for value in values}
    factors = sum(_seconds(graph, reads, v, True) - _seconds(graph, reads, v) for v in first.values())
    return factors + sum(_seconds(graph, reads, v) for v in values)


def only(rounding: Rounding, qtype: QType) -> Rounding:
    """Of the weights in one type."""
    return Rounding({key: steps for key, steps in rounding.steps.items() if key[1] is qtype})


def weight_types(prepared: PreparedModel) -> list[QType]:
    """The types that a placement may give weights, the usual one first."""
    found = {t: None for unit in prepared.units for _, t in _sites(prepared, unit)}
    return sorted(found, key=lambda qtype: qtype is not prepared.rules.weight)


def weights_alone(prepared: PreparedModel, qtype: QType) -> Placement:
    """The placement of all weights in a type, and of nothing else."""
    return Placement(site for unit in prepared.units for site in _sites(prepared, unit) if site[1] is qtype)


@dataclass(frozen=True, eq=False)
class _Weight:
    """A weight to be rounded."""

    key: tuple[str, QType]  # its name, and the type
    array: np.ndarray  # the weight
    params: QParams  # its qparams in that type
    limit: int  # largest magnitude of its integers
    transposed: bool  # its inputs are its last dimension
    windows: Sequence[Window]  # what its operators read

    @classmethod
    def of(cls, graph: Graph, table: QParamsTable, value: str, qtype: QType, windows: Sequence[Window]) -> _Weight:
        """A constant of ``graph`` with the qparams of ``table``."""
        array = graph.constant(value)
        assert array is not None  # a weight that was found roundable
        params, limit = table.params(value, qtype), table.weight_limit(qtype)
        return cls((value, qtype), array, params, limit, _is_transposed(graph, value), windows)


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
    model: Stored, weights: Sequence[_Weight], feeds: Sequence[Feed], positions: Positions, until: Deadline
) -> tuple[dict[tuple[str, QType], Steps], set[QType]]:
    """The steps of some weights that gain by them, and the types that there was no time for."""
    if not until.left:
        return {}, {weight.key[1] for weight in weights}
    moments = _moments(model, [*dict.fromkeys(w for weight in weights for w in weight.windows)], feeds, positions)
    known: dict[Sequence[Window], Reads | None] = {}
    found: dict[tuple[str, QType], Steps] = {}
    late: set[QType] = set()
    for weight in weights:
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
        yield from ((port, t) for port, t in sites if port.slot == _WEIGHT and (t.block or t is usual))


def _is_roundable(array: np.ndarray | None) -> bool:
    """Whether all is finite, and few elements are zeros: those stay zeros, and others could not make up for them."""
    if array is None or not np.isfinite(array).all():
        return False
    return np.count_nonzero(array == 0.0) <= policy.MOST_ZEROS * array.size


def _moments(model: Stored, windows: Sequence[Window], feeds: Sequence[Feed], positions: Positions) -> Moments:
    """The sum over all samples."""
    given = {i.name for i in model.proto.graph.input}
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
    scale = np.broadcast_to(aligned(array, params)[0], array.shape)
    groups, inputs, _ = reads.moment.shape
    flip = array.ndim == 2 and not weight.transposed and groups == 1 and array.shape[0] == inputs

    def grouped(of: np.ndarray) -> np.ndarray:
        return of.T[None] if flip else of.reshape(groups, -1, inputs)

    found = nearest_output(grouped(array), grouped(scale), reads, -limit, limit)
    integers = found[0].T if flip else found.reshape(array.shape)
    delta = integers.astype(np.int64) - nearest
    if not delta.any() or np.abs(delta).max() > np.iinfo(np.int8).max:
        return None
    return Steps(scale_digest(params), delta.astype(np.int8))


# --- what reads each weight, and how: a product its rows, a convolution its windows


def readers_of(graph: Graph, units: Sequence[Unit]) -> Readers:
    """How the weights of products and convolutions are read, where all readers of a weight are of a known kind."""
    found: dict[str, tuple[Window, ...]] = {}
    unknown: set[str] = set()
    for node in {u.name: graph.node(u.name) for u in units if u.quantizable}.values():
        value = node.inputs[_WEIGHT] if len(node.inputs) > _WEIGHT else ""
        if node.op_type not in ("MatMul", "Gemm", "Conv") or not graph.is_constant(value):
            continue
        window = _window(graph, node)
        transposed = bool(node.attributes.get("transB", 0))
        if window is None or transposed != _is_transposed(graph, value):
            unknown.add(value)
        else:
            found[value] = (*found.get(value, ()), window)
    return {v: windows for v, windows in found.items() if v not in unknown}


def _window(graph: Graph, node: Node) -> Window | None:
    """How a node with its weight in slot 1 reads slot 0; None where that is none of the ways known here."""
    value, given = node.inputs[0], node.attributes
    weight = graph.shape(node.inputs[1]) or ()
    if node.op_type in ("MatMul", "Gemm"):
        known = len(weight) == 2 and not given.get("transA", 0) and len(graph.shape(value) or ()) >= 2
        return Window(value) if known else None
    spatial = len(weight) - 2
    if node.op_type != "Conv" or spatial < 1 or given.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    ones = (1,) * spatial
    return Window(
        value,
        tuple(int(k or 0) for k in weight[2:]),
        tuple(given.get("strides", ones)),
        tuple(given.get("dilations", ones)),
        tuple(given.get("pads", (0,) * 2 * spatial)),
        int(given.get("group", 1)),
    )


def _is_transposed(graph: Graph, value: str) -> bool:
    """Whether rows of a product's weight are its output channels: as its first reader says."""
    reader = next((graph.node(p.node) for p in graph.consumers(value) if p.node != GRAPH_OUTPUT), None)
    return reader is not None and bool(reader.attributes.get("transB", 0))


def _sizes_of(graph: Graph, value: str, window: Window) -> tuple[int, int, int]:
    """Groups, channels of each, and inputs of each channel."""
    shape = [int(n or 0) for n in graph.shape(value) or ()]
    if not window.kernel:
        inputs, channels = shape[::-1] if _is_transposed(graph, value) else shape
        return 1, channels, inputs
    return window.groups, shape[0] // window.groups, int(np.prod(shape[1:]))


# --- what it takes


def _affordable(
    graph: Graph, reads: Readers, jobs: Sequence[tuple[str, QType]], seconds: float
) -> list[tuple[str, QType]]:
    """Those of ``jobs``, weights in types, that ``seconds`` of a usual processor suffice for: the cheapest first."""
    left, found, factored = seconds, [], set[Sequence[Window]]()
    for job in sorted(jobs, key=lambda j: (_seconds(graph, reads, j[0]), j[0], j[1].value)):
        left -= _seconds(graph, reads, job[0], reads[job[0]] not in factored)
        if left < 0.0:
            break
        factored.add(reads[job[0]])
        found.append(job)
    return found


def _seconds(graph: Graph, reads: Readers, value: str, factor: bool = False) -> float:
    """What rounding a weight takes on a usual processor; with the factor, or without that."""
    groups, channels, inputs = _sizes_of(graph, value, reads[value][0])
    products = groups * (policy.FACTOR_PRODUCTS * factor * inputs**3 + policy.ROUNDING_PRODUCTS * channels * inputs**2)
    return policy.SECONDS_PER_PRODUCT * products + policy.SECONDS_PER_COLUMN * inputs
