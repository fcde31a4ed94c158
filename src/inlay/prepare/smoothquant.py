"""SmoothQuant: outliers moved from activations into the weights of the products that read them.

Where a few channels of an activation are many times larger than the others, as behind the layer normalizations of
trained transformers, one scale for all of them leaves the others few steps. ``x W = (x / s) (s W)`` is the same product
with the channels of both operands smoothed: ``s_j = max|x_j|^a / max|W_j|^(1 - a)`` (Xiao et al., *SmoothQuant*,
2023). Which exponent is used, and whether any is, is decided for each activation by the error that rounding leaves in
the products, on samples, and for the whole by the error at the model's outputs.

A layer normalization that nothing else reads takes ``1 / s`` into its own scale and shift; elsewhere a Mul is written,
which costs time and so must gain more, each in its products and all of them together at the outputs.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property, partial

import numpy as np
import onnx_ir as ir

from inlay.data import AUTO_MASK, Feed
from inlay.deadline import NEVER, Deadline
from inlay.errors import Late, TargetError
from inlay.model.graph import Graph
from inlay.model.guard import limited
from inlay.model.heard import counting
from inlay.model.metadata import cloned
from inlay.model.passes.steps import add_constant, insert_behind
from inlay.model.pieces import PiecewiseSession
from inlay.model.pool import Stored, each
from inlay.model.reference import outputs_of
from inlay.prepare.model import PreparedModel
from inlay.prepare.smoothing_factors import Channels, ProductInput, best_scales, matter, product_inputs, weight_of
from inlay.quant.accuracy import Judge, Outputs
from inlay.quant.emit import Emitter
from inlay.quant.observers import Range
from inlay.quant.padding_propagation import find_positions
from inlay.quant.qparams import QParamsTable
from inlay.types import Placement, Port, QType

_FOLDED_GAIN = 0.9  # error in the products over that without, from which on it is done where it costs nothing,
_WRITTEN_GAIN = 0.7  # ... and where it costs a Mul (1.5 dB)
_OUTPUT_GAIN_DB = 0.5  # least gain at the worst output: less is chance
_SAMPLES = 4  # to choose on; half as many others judge
_SEARCHING_SHARE = 0.6  # of the time, for looking for scales; the rest is for judging them
_LOST_SHARE = 0.5  # of what static products gain, that the whole in low precision may lose: the search may leave it
_PAID_GAIN_DB = 1.5  # ... where it costs Mul nodes: 21 of them take 3 % of a BERT with dynamic products, and gain 4
_CHANGING = 3  # making a model with scales, and having its Mul nodes in low precision, in judgements of one mode
_EXACT_DB = 60.0  # what the float model must keep; float rounding leaves over 100

Scales = Mapping[str, tuple[float, ...]]  # by value, what each of its channels is divided by


@dataclass(frozen=True, eq=False)
class Smoothed:
    """The activations whose channels are smoothed."""

    scales: Scales = field(default_factory=dict)  # of these
    in_time: bool = True  # the time sufficed to know all of them
    # the prepared model with these in it; None where nothing is known of it that was not before
    model: PreparedModel | None = None


def find_scales(
    prepared: PreparedModel,
    feeds: Sequence[Feed],
    deadline: Deadline = NEVER,
    mask: str = AUTO_MASK,
    soon: Deadline = NEVER,
) -> Smoothed:
    """The scales that lower the error at the model's outputs; none where nothing does, or the model does not run.

    The error is that of static quantization of the products, and of dynamic one where the target has it. Where it has
    not, scales are looked for in models with layer normalizations, behind which outliers are.

    Args:
        deadline: when they must be known. Inputs that there is no time for keep their scales, and so do those for which
            the error cannot be judged by then.
        mask: the input that says which positions are padding and do not count, as of ``Samples``.
        soon: when they should be known: what is judged is cut down to that, as far as anything is left of it.
    """
    sought = is_dynamic(prepared) or any(n.op_type == "LayerNormalization" for n in prepared.graph.nodes)
    inputs = product_inputs(prepared.graph) if sought else []
    judged = [v for v in prepared.graph.float_outputs if prepared.graph.producer(v) is not None]
    if not matter(prepared.graph, inputs) or not feeds or not judged:
        return Smoothed()
    chosen_on, judged_on = feeds[:_SAMPLES], (feeds[_SAMPLES:] or feeds)[: _SAMPLES // 2]
    searching = NEVER if math.isinf(deadline.at) else deadline.within(_SEARCHING_SHARE * deadline.left)
    try:
        with limited(lambda: deadline.left):
            base, store, graph = prepared.emitter.base, prepared.store, prepared.graph
            positions = find_positions(base, store, graph, feeds, mask)
            prepared = replace(prepared, request=replace(prepared.request, padded_by=positions.mask))
            values = [*dict.fromkeys([*(i.value for i in inputs), *judged])]
            session = PiecewiseSession(base, store, values, briefly=True)
            arrays: defaultdict[str, list[np.ndarray]] = defaultdict(list)
            outputs: list[Outputs] = []
            run_on = [*chosen_on, *(judged_on if len(feeds) > _SAMPLES else ())]
            least = len(run_on) - 2 + len(judged_on) * (2 + _CHANGING)  # inferences after the second, to judge anything
            for number, feed in enumerate(counting(run_on, "run the model on sample")):
                begun = deadline.clock()
                seen = session.run(feed)
                if number == 1 and not deadline.fits(least * (deadline.clock() - begun)):
                    return Smoothed(in_time=False)  # better now than when the time is gone
                outputs.append({v: seen[v] for v in judged})
                for one in inputs if number < len(chosen_on) else ():
                    arrays[one.value].append(positions.only(feed, one.value, seen[one.value]))
            exact = (outputs[_SAMPLES:] or outputs)[: len(judged_on)]
            calls = (_channels(graph, one, arrays[one.value]) for one in inputs if searching.left)
            best = zip(inputs, each(best_scales, calls), strict=False)  # of the last ones there may be no time for any
            scales = {one.value: scale for one, found in best if (scale := found.result()) is not None}
            if not scales:
                return Smoothed(in_time=bool(searching.left), model=prepared)
            judge = Judge.of_model(prepared.file.model, judged_on, exact, mask)
            noise = ProductNoise(prepared, inputs, arrays, judged_on, judge)
            first = Judge.of_model(prepared.file.model, feeds[:1], outputs[:1], mask)

            def with_scales(used: Scales) -> tuple[PreparedModel, float]:
                changed, shown = _smoothed(prepared, used, feeds[0])
                return changed, first.judge([shown]).sqnr_db

            return _that_help(noise, scales, with_scales, deadline, soon)
    except TargetError:
        return Smoothed(in_time=bool(deadline.left))


def smoothed(prepared: PreparedModel, scales: Scales, feed: Feed) -> PreparedModel:
    """``prepared`` with ``scales`` in its model."""
    return _smoothed(prepared, scales, feed)[0] if scales else prepared


def _smoothed(prepared: PreparedModel, scales: Scales, feed: Feed) -> tuple[PreparedModel, Outputs]:
    """The same, and the outputs of its float model for ``feed``."""
    known = {i.value: i for i in product_inputs(prepared.graph)}
    model = cloned(prepared.normalized.model)
    by_name = {str(n.name): n for n in model.graph}
    for value, numbers in scales.items():
        if value in known:
            _apply(model.graph, by_name, known[value], np.array(numbers, np.float32))
    return prepared.with_model(model, feed)


def _channels(graph: Graph, given: ProductInput, arrays: Sequence[np.ndarray]) -> tuple[Channels | None, float]:
    """What :func:`best_scales` goes by."""
    weights = [weight_of(graph, graph.node(name)).astype(np.float32, copy=False) for name in given.products]
    return Channels.of(weights, arrays), _FOLDED_GAIN if given.normalization else _WRITTEN_GAIN


def _that_help(
    noise: ProductNoise,
    scales: Scales,
    with_scales: Callable[[Scales], tuple[PreparedModel, float]],
    deadline: Deadline,
    soon: Deadline,
) -> Smoothed:
    """Those of ``scales`` with which the products, quantized, disturb the outputs less, and in float not at all.

    These are all of them, or those that cost nothing where the others gain little more. What products gain in one mode,
    dynamic or static, they may not lose in the other: which one a model ends with, the search decides. Where Mul nodes
    are in low precision too, they may lose half as much, since the search may leave these in float. Where there is no
    time for all modes, the first ones tell. What there is time to judge stands.

    Args:
        with_scales: the model with some of these, and the SQNR in dB of its float outputs.
    """
    free = {i.value: scales[i.value] for i in noise.inputs if i.normalization and i.value in scales}
    attempts = [tried for tried in ((free, scales) if len(free) < len(scales) else (scales,)) if tried]
    begun, modes = deadline.clock(), noise.modes
    plain = noise.of(noise.prepared, {})
    timed = not math.isinf(min(deadline.at, soon.at))  # otherwise it may be judged while the others are made
    first_db = [noise.here((plain, modes[0], False))] if timed else []
    each_s = deadline.clock() - begun

    def affordable(until: Deadline) -> int:
        takes_s = [(n - 1 + len(attempts) * (n + _CHANGING)) * each_s for n in range(1, len(modes) + 1)]
        return sum(until.fits(seconds) for seconds in takes_s)

    best, most = Smoothed(model=noise.prepared), affordable(deadline)
    if not most:
        return replace(best, in_time=False)
    modes = modes[: max(1, min(most, affordable(soon)))]
    now, found_db = plain, np.array([*first_db, *noise.each((plain, mode, False) for mode in modes[len(first_db) :])])
    found_db = np.append(found_db, found_db[0])
    try:
        for tried in attempts:
            changed, exact_db = with_scales(tried)
            if not exact_db >= _EXACT_DB:  # also where it is no number
                continue
            after = noise.of(changed, tried)
            asked = [*((after, mode, False) for mode in modes), *([(after, modes[0], True)] if after.factors else [])]
            after_db = np.array([*noise.each(asked)])
            after_db = after_db if after.factors else np.append(after_db, after_db[0])
            least_db = _OUTPUT_GAIN_DB if len(tried) == len(free) else _PAID_GAIN_DB
            if _gains(after_db - found_db, least_db, partial(_hidden_db, noise, now, after)):
                best, found_db, now = Smoothed(dict(tried), model=after.prepared), after_db, after
    except Late:
        return replace(best, in_time=False)
    return best if best.scales else replace(best, in_time=len(modes) == len(noise.modes))


def _gains(gains_db: np.ndarray, least_db: float, hidden_db: Callable[[], float]) -> bool:
    """Whether no mode loses more than it may, and some gains so much, if only the one that is hidden in the others.

    Args:
        gains_db: of each mode, and at last of static products with all in low precision.
        hidden_db: finds out what is gained besides; asked only where it decides.
    """
    most_db = np.full(gains_db.shape, _OUTPUT_GAIN_DB)
    most_db[-1] = max(_OUTPUT_GAIN_DB, _LOST_SHARE * gains_db[0])
    bearable = bool((gains_db >= -most_db).all())
    return bearable and bool(gains_db.max() >= least_db or hidden_db() >= least_db)


def _hidden_db(noise: ProductNoise, before: Variant, after: Variant) -> float:
    """What activations alone gain, which the noise of weights may hide that rounding them well takes away."""
    after_db, before_db = noise.each([(model, QuantMode.ACTIVATIONS, False) for model in (after, before)])
    return after_db - before_db


def _apply(graph: ir.Graph, nodes: Mapping[str, ir.Node], given: ProductInput, scales: np.ndarray) -> None:
    suffix = f"equalized_{hashlib.sha256(scales.tobytes()).hexdigest()[:8]}"  # weights are stored by their names
    for name in given.products:
        node = nodes[name]
        turned = node.attributes.get_int("transB", 0)
        weight = node.inputs[1]
        assert weight is not None
        assert weight.const_value is not None
        array = weight.const_value.numpy() * (scales if turned else scales[:, None])
        _replace(graph, node, 1, weight, array, suffix)
    if given.normalization:
        node = nodes[given.normalization]
        for slot in range(1, len(node.inputs)):
            value = node.inputs[slot]
            if value is not None and value.const_value is not None:
                _replace(graph, node, slot, value, value.const_value.numpy() / scales, suffix)
        return
    first = given.readers[0]
    value = nodes[first.node].inputs[first.slot]
    assert value is not None
    factors = add_constant(graph, f"{given.value}_{suffix}", 1.0 / scales)
    mul = ir.node("Mul", [value, factors], name=given.multiplier)
    mul.outputs[0].name, mul.outputs[0].type, mul.outputs[0].shape = f"{given.value}_equalized", value.type, value.shape
    insert_behind(value, mul, graph)
    for port in given.readers:
        nodes[port.node].replace_input_with(port.slot, mul.outputs[0])


def _replace(graph: ir.Graph, node: ir.Node, slot: int, value: ir.Value, array: np.ndarray, suffix: str) -> None:
    """Let ``node`` read ``array`` in place of the constant ``value``, which goes where nothing else needs it."""
    node.replace_input_with(slot, add_constant(graph, f"{value.name}_{suffix}", array.astype(np.float32)))
    if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
        del graph.initializers[str(value.name)]


# --- how much low precision in products disturbs the outputs, in each of the modes that they may have


class QuantMode(Enum):
    """What is in low precision."""

    STATIC = auto()
    DYNAMIC = auto()
    ACTIVATIONS = auto()  # static, and the weights in float, since rounding them well may leave little noise


@dataclass(frozen=True, eq=False)
class Variant:
    """One model whose products may be in low precision."""

    prepared: PreparedModel  # the model
    ranges: Mapping[str, Range]  # of what its products read
    factors: Sequence[Port]  # ports of the Mul nodes that divide activations, where these may be in low precision, too


Question = tuple[Variant, QuantMode, bool]
"""A model, the mode of its products, and whether the Mul nodes that divide activations are in low precision as well:
their factors, of which the least are rounded to nothing, may cost more than smooth channels gain."""


@dataclass(frozen=True, eq=False)
class ProductNoise:
    """The disturbance of a model's outputs by its products."""

    prepared: PreparedModel  # the model
    inputs: Sequence[ProductInput]  # what the products read
    # samples of these values, channels last, whose ranges static products have
    arrays: Mapping[str, Sequence[np.ndarray]]
    feeds: Sequence[Feed]  # other samples, which judge
    judge: Judge  # compares with the float model on them

    @property
    def modes(self) -> tuple[QuantMode, ...]:
        """What the target's products may be."""
        return (QuantMode.STATIC, QuantMode.DYNAMIC) if is_dynamic(self.prepared) else (QuantMode.STATIC,)

    def of(self, changed: PreparedModel, scales: Mapping[str, Sequence[float]]) -> Variant:
        """The model with the channels of activations divided by ``scales``, by activation, or as it was."""
        selectable = {unit.name for unit in changed.selectable}
        low = [one for one in self.inputs if one.multiplier in selectable]
        ranges: dict[str, Range] = {}
        for one in self.inputs:
            ranges.update(dict.fromkeys(one.read_by(changed.graph), self._range(one.value, scales.get(one.value))))
        for one in low:
            factors = 1.0 / np.array(scales[one.value], np.float32)
            given, constant = (changed.graph.value_of(port) for port in one.multiplied)
            ranges[given] = self._range(one.value, None)
            ranges[constant] = Range(0.0, float(factors.max()))
        return Variant(changed, ranges, [port for one in low for port in one.multiplied])

    def each(self, questions: Iterable[Question]) -> Iterator[float]:
        """SQNR in dB of the worst output of several models in turn; where somebody helps, a few are made ahead.

        Raises:
            CompileFailed, RunFailed, Crashed, TimedOut: one does not run.
        """
        for outcome in each(outputs_of, ((self._model(*question), self.feeds, True) for question in questions)):
            yield self._db(outcome.result())

    def here(self, question: Question) -> float:
        """The same of one in this process, so that its time tells what the others take."""
        return self._db(outputs_of(self._model(*question), self.feeds, briefly=True))

    def _db(self, got: Sequence[Outputs]) -> float:
        return self.judge.judge(got).sqnr_db

    def _model(self, variant: Variant, mode: QuantMode, factors: bool) -> Stored:
        changed, rules = variant.prepared, self.prepared.rules
        activation = QType.DYNAMIC if mode is QuantMode.DYNAMIC else rules.activation
        products = [name for one in self.inputs for name in one.products]
        sites = [(Port(name, 0), activation) for name in products]
        if mode is not QuantMode.ACTIVATIONS:
            sites += [(Port(name, 1), rules.weight) for name in products]
        if factors:
            sites += [(port, rules.activation) for port in variant.factors]
        emitter = Emitter(changed.normalized.model, changed.graph, changed.store, base=changed.emitter.base)
        table = QParamsTable(changed.graph, changed.rules, variant.ranges)
        return Stored(emitter.emit(Placement(sites), table), changed.store)

    def _range(self, value: str, scales: Sequence[float] | None) -> Range:
        """Of all elements of an activation, once its channels are divided by ``scales``."""
        low, high = self._channels[value]
        divisors = np.array((1.0,) if scales is None else scales, np.float32)
        return Range(float((low / divisors).min()), float((high / divisors).max()))

    @cached_property
    def _channels(self) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
        """By activation, least and largest element of each channel."""
        found = {}
        for value, arrays in self.arrays.items():
            rows = [a.reshape(-1, a.shape[-1]) for a in arrays if a.size]
            found[value] = np.min([r.min(axis=0) for r in rows], axis=0), np.max([r.max(axis=0) for r in rows], axis=0)
        return found


def is_dynamic(prepared: PreparedModel) -> bool:
    """Whether the target has dynamic products."""
    return any(form.activation is QType.DYNAMIC for form in prepared.rules.forms)
