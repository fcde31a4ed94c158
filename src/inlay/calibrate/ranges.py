"""Which range each domain of values gets: chosen by the error at the outputs of the network, not at the value itself.

Values of one domain change together. Starting from one method for all, groups of domains try the other methods. The
group that had the largest effect on the outputs, for better or worse, is split next, in the order of the model, until
single domains are left: in most networks a handful of values decide, and they get whatever time there is. A change is
kept where it lessens the error of the worst output by more than the standard error over the samples.

One build answers every question: the model is what :func:`~inlay.quant.emit.Emitter.emit` writes, except that scales
and zero points of activations arrive with each run, biases stay float, and nothing is fused. Rounding is simulated, all
else is computed in float, which differs from integer kernels by the rounding of biases alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import onnx
from onnx import TensorProto, helper

from inlay.calibrate import policy
from inlay.data import Feed
from inlay.deadline import NEVER, Deadline
from inlay.model.pool import width
from inlay.model.reference import SharedSession
from inlay.model.store import tensor_proto
from inlay.prepare.model import PreparedModel
from inlay.quant.accuracy import EXACT_DB
from inlay.quant.emit import ONNX_TYPE
from inlay.quant.group_split import Group, GroupQueue
from inlay.quant.observers import Method
from inlay.quant.parts import Reference
from inlay.quant.qdq_graph import DEQUANTIZE, QUANTIZE
from inlay.quant.qparams import STORAGE, QParamsTable
from inlay.trial import decibels
from inlay.types import Placement, QParams, QType

_SCALE, _ZERO = "inlay.scale/", "inlay.zero_point/"

Options = Mapping[str, Mapping[Method, QParams]]  # by domain, the qparams that each method gives


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """The outcome."""

    methods: Mapping[str, Method]  # by domain; all domains of the probe
    before_db: float  # SQNR of the worst output on the samples that chose, at the start
    after_db: float  # at the end
    runs: int  # of probe models
    complete: bool  # nothing was left to try; otherwise time ran out before
    cut: bool = False  # the deadline came before that time, so that a faster or less busy machine would have tried more
    probe: int = 0  # number of the one that they were chosen for


@dataclass(frozen=True, eq=False, kw_only=True)
class RangeTask:
    """What ranges are chosen by.

    With ``headroom``, every sample is run twice: as it is, and scaled up. Values scaled up by a factor are rounded and
    clipped like the given ones in ranges that are narrower by this factor, and that is how it is simulated. It tells a
    range that other samples would exceed, at the expense of the outputs, from one where that does not matter.
    """

    options: Sequence[Options]  # for each of `feeds`; preferably from other samples than that one
    # by domain, the error that each method causes at the values themselves, relative to their power. Of groups with
    # equal effects, those that could gain most are tried first.
    own_noise: Mapping[str, Mapping[Method, float]]
    feeds: Sequence[Feed]  # samples; the first ones choose, some of the others must agree
    reference: Reference  # the float model's outputs for each of them
    seconds: float  # rough limit
    clock: Callable[[], float]  # returns seconds; read once for each run, so that it may count them
    # by domain, the share by which other samples may exceed the calibration samples
    headroom: Mapping[str, float] = field(default_factory=dict)
    until: Deadline = NEVER  # when it must end in any case


def choose_ranges(probes: Sequence[RangeProbe], method: Method, task: RangeTask) -> Ranges:
    """Choose a method for each domain of values.

    Args:
        probes: the quantized model, in ways with the same domains: ranges are chosen for the best at the start.

    Returns:
        The choice; its ``after_db`` is never below ``before_db``, that of ``method`` for all.

    Raises:
        RunFailed: the probe model does not run.
    """
    start, begun = dict.fromkeys(probes[0].domains, method), task.clock()
    searches = [_Search(probe, task, begun + task.seconds) for probe in probes]
    if not task.reference.names or not task.feeds:
        return Ranges(methods=start, before_db=EXACT_DB, after_db=EXACT_DB, runs=0, complete=True)
    least, most = policy.CHOOSING_SAMPLES
    starts = [search.errors(start, range(least)) for search in searches]
    number = max(range(len(probes)), key=lambda i: _worst_db(starts[i]))
    search = searches[number]
    once = max(task.clock() - begun, 1e-6) / sum(each.runs for each in searches)
    count = int(np.clip(task.seconds / (once * policy.TRIALS_IN_TIME * search.runs_per_sample), least, most))
    before = np.concatenate([starts[number], search.errors(start, range(least, count))])
    found, errors, complete = _descend(search, start, before, count, task.own_noise)
    before_db, after_db = _worst_db(before), _worst_db(errors)
    if not search.agrees(start, found, count):
        found, after_db = start, before_db
    return Ranges(
        methods=found,
        before_db=before_db,
        after_db=after_db,
        runs=sum(each.runs for each in searches),
        complete=complete,
        cut=search.cut,
        probe=number,
    )


def _descend(
    search: _Search,
    methods: dict[str, Method],
    errors: np.ndarray,
    count: int,
    own_noise: Mapping[str, Mapping[Method, float]],
) -> tuple[dict[str, Method], np.ndarray, bool]:
    """Rounds of best-first splitting, until one of them changes nothing or time runs out."""
    while True:
        begun = errors
        queue = GroupQueue([Group((-math.inf,), tuple(methods))])
        while queue:
            group = queue.pop()
            effect = 0.0
            for method in search.methods:
                if search.over():
                    return methods, errors, False
                changed = search.changed(methods, group.members, method)
                if changed is None:
                    continue
                tried = search.errors(changed, range(count), errors)
                once = search.runs_per_sample
                effect = max(effect, float(np.abs(_gain_db(tried[:once], errors[:once])).max()))
                if _better(tried, errors):
                    methods, errors = changed, tried
            if effect >= policy.MIN_EFFECT_DB:
                for part in group.split():
                    promise = sum(max(0.0, own_noise[d][methods[d]] - min(own_noise[d].values())) for d in part)
                    queue.push(Group((-effect, -promise, len(queue), part), part))
        if errors is begun:
            return methods, errors, True


class _Search:
    """The probe with its samples, and its deadline by the clock."""

    def __init__(self, probe: RangeProbe, task: RangeTask, deadline: float) -> None:
        self._probe, self._task, self._deadline = probe, task, deadline
        self._factor = {d: 1.0 + share for d, share in task.headroom.items() if share}
        self._signal = np.array([max(float(np.mean(each)), 1e-300) for each in task.reference.signal.T])
        self.runs, self.cut = 0, False
        options = task.options
        self.methods = list(dict.fromkeys(m for known in options[0].values() for m in known)) if options else []

    def over(self) -> bool:
        """Whether the time is spent."""
        spent = self._task.clock() >= self._deadline
        self.cut = not spent and not self._task.until.left
        return spent or self.cut

    def changed(self, methods: dict[str, Method], group: Sequence[str], method: Method) -> dict[str, Method] | None:
        """``methods`` with ``method`` for ``group``; None where that gives almost the same qparams."""
        affected = [d for d in group if method in self._task.options[0][d] and not self._same(d, methods[d], method)]
        return {**methods, **dict.fromkeys(affected, method)} if affected else None

    def _same(self, domain: str, one: Method, other: Method) -> bool:
        kinds = {id(options): options[domain] for options in self._task.options}.values()
        pairs = [(options[one], options[other]) for options in kinds]
        ratios = [a.scale[0] / b.scale[0] for a, b in pairs if a.zero_point == b.zero_point]
        return len(ratios) == len(pairs) and all(abs(ratio - 1.0) < policy.SAME_SCALE for ratio in ratios)

    def errors(self, methods: Mapping[str, Method], samples: range, best: np.ndarray | None = None) -> np.ndarray:
        """Relative noise of each output for samples, as they are and scaled up, shape (runs, outputs).

        It stops as soon as the samples seen so far are, on average, no better than in ``best``.
        """
        rows: list[np.ndarray] = []
        samples = samples[: max(0, len(self._task.feeds) - samples.start)]
        at_once = max(1, len(samples) if best is None else width() // self.runs_per_sample)
        for i in range(0, len(samples), at_once):
            runs = self._runs(methods, samples[i : i + at_once])
            while pair := [*islice(runs, self.runs_per_sample)]:
                rows += pair
                if best is not None and _norm(np.array(rows)).mean() >= _norm(best[: len(rows)]).mean():
                    return np.array(rows)
        return np.array(rows).reshape(-1, len(self._task.reference.names))

    def agrees(self, before: Mapping[str, Method], after: Mapping[str, Method], used: int) -> bool:
        """Whether the held back samples, if there are any, are better off with ``after``."""
        held_back = range(used, min(len(self._task.feeds), used + policy.HELD_BACK_SAMPLES))
        if before == after or len(held_back) < 2:
            return True
        old, new = (_norm(np.array([*self._runs(methods, held_back)])).mean() for methods in (before, after))
        return bool(new < old)

    @property
    def runs_per_sample(self) -> int:
        """Two where samples are scaled up as well."""
        return 2 if self._factor else 1

    def _runs(self, methods: Mapping[str, Method], samples: Iterable[int]) -> Iterator[np.ndarray]:
        """Errors on samples in turn, on each as it is and scaled up."""
        runs: list[tuple[int, Mapping[str, QParams]]] = []
        for index in samples:
            qparams = {d: self._task.options[index][d][m] for d, m in methods.items()}
            runs.append((index, qparams))
            if self._factor:
                factors = {d: self._factor.get(d, 1.0) for d in qparams}
                scales = {d: tuple(s / factors[d] for s in q.scale) for d, q in qparams.items()}
                runs.append((index, {d: replace(q, scale=scales[d]) for d, q in qparams.items()}))
        return self._noises(runs)

    def _noises(self, runs: Sequence[tuple[int, Mapping[str, QParams]]]) -> Iterator[np.ndarray]:
        outputs = self._probe.each((self._task.feeds[index], qparams) for index, qparams in runs)
        for (index, _), output in zip(runs, outputs, strict=True):
            self.runs += 1  # of what is looked at: what was run ahead of it is nobody's
            self._task.clock()
            noise = self._task.reference.noise(index, output)
            yield np.where(np.isfinite(noise), noise, policy.WORST_NOISE) / self._signal


def _better(new: np.ndarray, old: np.ndarray) -> bool:
    """Whether ``new`` is better for the worst output, and by more than the standard error over the samples."""
    if len(new) < len(old) or _worst_db(new) <= _worst_db(old):
        return False
    gains = _gain_db(new, old)
    if gains.size == 1:
        return bool(gains[0] > policy.MIN_SINGLE_GAIN_DB)
    doubt = policy.STANDARD_ERRORS * gains.std(ddof=1) / math.sqrt(gains.size)
    return bool(gains.mean() > max(policy.MIN_GAIN_DB, doubt))


def _gain_db(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """How much less noise each sample has in ``new``."""
    return np.asarray(10.0 * np.log10(np.maximum(_norm(old), 1e-30) / np.maximum(_norm(new), 1e-30)))


def _norm(errors: np.ndarray) -> np.ndarray:
    """For each sample the norm over its outputs, which is close to the error of the worst one."""
    return np.asarray((errors**policy.OUTPUT_NORM).sum(axis=1) ** (1.0 / policy.OUTPUT_NORM))


def _worst_db(errors: np.ndarray) -> float:
    return decibels(errors.mean(axis=0).max())


# --- the quantized model whose activation qparams are graph inputs


class RangeProbe:
    """A session on ``placement`` that takes the qparams of its activations as inputs.

    Args:
        prepared: the model; the qparams of activations of its target's usual type are inputs.
        domains: by value, the domain whose qparams it shares; a value that shares with none may be missing.

    Raises:
        CompileFailed: it cannot be built; where somebody helps, when it first runs.
        ModelError: the placement does not fit the model.
    """

    def __init__(
        self, prepared: PreparedModel, placement: Placement, table: QParamsTable, domains: Mapping[str, str]
    ) -> None:
        placement = placement.without_halves()
        biases = [p for p, q in placement if q is QType.INT32]
        proto = prepared.emitter.emit(placement.without(biases), table)
        nodes = {n.name: n for n in proto.graph.node}
        for port in biases:  # corrected; other readers keep the original
            bias = table.bias(port, placement)
            if bias is not None:
                name = f"{nodes[port.node].input[port.slot]}/{port.node}/corrected"
                proto.graph.initializer.append(tensor_proto(name, bias.astype(np.float32), TensorProto.FLOAT))
                nodes[port.node].input[port.slot] = name
        self._qtype = prepared.rules.activation
        quantized = {prepared.graph.value_of(p) for p, _ in placement}
        # those whose qparams are inputs, in the order of the model
        self.domains = _qparams_to_inputs(proto, quantized, domains, self._qtype)
        self._session = SharedSession(proto, prepared.store, optimize=True, fuse_qdq=False)

    def each(self, questions: Iterable[tuple[Feed, Mapping[str, QParams]]]) -> Iterator[dict[str, np.ndarray]]:
        """Outputs by name for each sample, with ``qparams`` for each domain, in turn.

        Where somebody helps, a few more are taken than are asked for. Raises RunFailed.
        """
        return self._session.each(self._with_qparams(*question) for question in questions)

    def _with_qparams(self, feed: Feed, qparams: Mapping[str, QParams]) -> Feed:
        scales = {_SCALE + d: np.array(qparams[d].scale[0], np.float32) for d in self.domains}
        if self._qtype.floating:
            return {**feed, **scales}
        zeros = {_ZERO + d: np.array(qparams[d].zero_point[0], STORAGE[self._qtype]) for d in self.domains}
        return {**feed, **scales, **zeros}


def _qparams_to_inputs(
    proto: onnx.ModelProto, known: Collection[str], domains: Mapping[str, str], qtype: QType
) -> tuple[str, ...]:
    """Make the qparams of all activations of ``qtype`` graph inputs, one of each for every domain; returns these.

    Of ``known`` values: what a rewrite quantizes besides has the qparams of one of these. The zero points of a floating
    type are all 0, and stay.
    """
    graph = proto.graph
    types = {t.name: t.data_type for t in graph.initializer}
    read = {n.input[0]: n.output[0] for n in graph.node if n.op_type == DEQUANTIZE}
    found, given = dict[str, None](), dict[str, str]()  # domains, and inputs by the constants that they replace
    for node in graph.node:
        if node.op_type != QUANTIZE or types.get(node.input[2]) != ONNX_TYPE[qtype]:
            continue
        # the DQ takes over the name of a graph output: the float value that the Q reads has another name
        value = node.input[0] if node.input[0] in known else read.get(node.output[0], "")
        if value not in known:
            continue  # conversion to the type of a graph input or output: its qparams belong to that boundary
        domain = domains.get(value, value)
        found[domain], given[node.input[1]] = None, _SCALE + domain
        if not qtype.floating:
            given[node.input[2]] = _ZERO + domain
    for node in graph.node:
        for slot, name in enumerate(node.input):
            if name in given:
                node.input[slot] = given[name]
    kept = [t for t in graph.initializer if t.name not in given]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    for name in dict.fromkeys(given.values()):
        dtype = TensorProto.FLOAT if name.startswith(_SCALE) else ONNX_TYPE[qtype]
        graph.input.append(helper.make_tensor_value_info(name, dtype, []))
    return tuple(found)
