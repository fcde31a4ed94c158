"""Outliers moved from activations into the weights of the products that read them.

Where a few channels of an activation are many times larger than the others, as behind the layer normalizations of
trained transformers, one scale for all of them leaves the others few steps. ``x W = (x / s) (s W)`` is the same product
with the channels of both operands evened out: ``s_j = max|x_j|^a / max|W_j|^(1 - a)`` (Xiao et al., *SmoothQuant*,
2023). Which exponent is used, and whether any is, is decided for each activation by the error that rounding leaves in
the products, on samples, and for the whole by the error at the model's outputs.

A layer normalization that nothing else reads takes ``1 / s`` into its own scale and shift; elsewhere a Mul is written,
which costs time and so must gain more, each in its products and all of them together at the outputs.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from inlay.data import AUTO_MASK, Feed, Padding
from inlay.deadline import NEVER, Deadline
from inlay.errors import Late, TargetError
from inlay.model.graph import Graph
from inlay.model.guard import limited
from inlay.model.hands import Stored, each
from inlay.model.metadata import cloned
from inlay.model.passes.steps import add_constant
from inlay.model.pieces import PiecewiseSession, run_visibly
from inlay.model.reference import outputs_of
from inlay.prepare.channel_scales import Channels, best_scales
from inlay.prepare.model import PreparedModel, index
from inlay.prepare.product_inputs import ProductInput, matter, product_inputs, weight_of
from inlay.quant.accuracy import Outputs, sqnr_db
from inlay.quant.emit import Emitter
from inlay.quant.observers import Range
from inlay.quant.positions import find_positions
from inlay.quant.qparams import QParamsTable
from inlay.space.recipe import Recipe
from inlay.targets.base import Capabilities
from inlay.types import Placement, Port, QType

_FOLDED_GAIN = 0.9  # error in the products over that without, from which on it is done where it costs nothing,
_WRITTEN_GAIN = 0.7  # ... and where it costs a Mul (1.5 dB)
_OUTPUT_GAIN_DB = 0.5  # least gain at the worst output: less is chance
_SAMPLES = 4  # to choose on; half as many others judge
_SEARCHING_SHARE = 0.6  # of the time, for looking for scales; the rest is for judging them
_LOST_SHARE = 0.5  # of what static products gain, that the whole in low precision may lose: the search may leave it
_PAID_GAIN_DB = 1.5  # ... where it costs Mul nodes: 21 of them take 3 % of a BERT with dynamic products, and gain 4
_EXACT_DB = 60.0  # what the float model must keep; float rounding leaves over 100

_NO_RANGES: Mapping[str, Range] = {}
Scales = Mapping[str, tuple[float, ...]]
"""By value, what each of its channels is divided by."""


@dataclass(frozen=True, eq=False)
class Evened:
    """The activations whose channels are evened out.

    Attributes:
        scales: of these.
        in_time: the time sufficed to know all of them.
        model: the prepared model with these in it; None where there are none.
    """

    scales: Scales = field(default_factory=dict)
    in_time: bool = True
    model: PreparedModel | None = None


def find_scales(
    prepared: PreparedModel,
    target: Capabilities,
    feeds: Sequence[Feed],
    deadline: Deadline = NEVER,
    mask: str = AUTO_MASK,
    nodes: Sequence[str] = (),
    recipe: Recipe | None = None,
) -> Evened:
    """The scales that lower the error at the model's outputs; none where nothing does, or the model does not run.

    The error is that of static quantization of the products, and of dynamic one where the target has it. Where it has
    not, scales are looked for in models with layer normalizations, behind which outliers are.

    Args:
        prepared: the model.
        target: that it is prepared for.
        feeds: calibration samples.
        deadline: when they must be known. Inputs that there is no time for keep their scales, and so do those for which
            the error cannot be judged by then.
        mask: the input that says which positions are padding and do not count, as of ``Samples``.
        nodes: that it is prepared for,
        recipe: and its recipe.
    """
    sought = _is_dynamic(prepared) or any(n.op_type == "LayerNormalization" for n in prepared.graph.nodes)
    inputs = product_inputs(prepared.graph) if sought else []
    if not matter(prepared.graph, inputs) or not feeds or not prepared.graph.float_outputs:
        return Evened()
    chosen_on, judged_on = feeds[:_SAMPLES], (feeds[_SAMPLES:] or feeds)[: _SAMPLES // 2]
    searching = NEVER if math.isinf(deadline.at) else deadline.within(_SEARCHING_SHARE * deadline.left)
    try:
        with limited(lambda: deadline.left):
            base, store, graph = prepared.emitter.base, prepared.store, prepared.graph
            positions = find_positions(base, store, graph, feeds, mask)
            session = PiecewiseSession(base, store, [i.value for i in inputs])
            arrays: defaultdict[str, list[np.ndarray]] = defaultdict(list)
            for feed in chosen_on:
                values = session.run(feed)
                for one in inputs:
                    arrays[one.value].append(positions.only(feed, one.value, values[one.value]))
            calls = (_channels(graph, one, arrays[one.value]) for one in inputs if searching.left)
            best = zip(inputs, each(best_scales, calls), strict=False)  # of the last ones there may be no time for any
            scales = {one.value: scale for one, found in best if (scale := found.result()) is not None}
            if not scales:
                return Evened(in_time=bool(searching.left))

            def evened(used: Scales) -> PreparedModel:
                return equalized(prepared, used, target, feeds[0], nodes, recipe)

            return _that_help(prepared, scales, evened, inputs, arrays, judged_on, mask)
    except TargetError:
        return Evened(in_time=bool(deadline.left))


def equalized(
    prepared: PreparedModel,
    scales: Scales,
    target: Capabilities,
    feed: Feed,
    nodes: Sequence[str] = (),
    recipe: Recipe | None = None,
) -> PreparedModel:
    """``prepared`` with ``scales`` in its model; the other arguments are those that it was prepared with."""
    if not scales:
        return prepared
    known = {i.value: i for i in product_inputs(prepared.graph)}
    model = cloned(prepared.normalized.model)
    by_name = {str(n.name): n for n in model.graph}
    for value, numbers in scales.items():
        if value in known:
            _apply(model.graph, by_name, known[value], np.array(numbers, np.float32))
    normalized = replace(prepared.normalized, model=model)
    seen = run_visibly(model, prepared.store, feed)  # weights that stay are stored already
    return index(prepared.file, normalized, prepared.extraction, target, feed, seen, nodes, recipe)


def _channels(graph: Graph, given: ProductInput, arrays: Sequence[np.ndarray]) -> tuple[Channels | None, float]:
    """What :func:`best_scales` goes by."""
    weights = [weight_of(graph, graph.node(name)).astype(np.float32, copy=False) for name in given.products]
    return Channels.of(weights, arrays), _FOLDED_GAIN if given.normalization else _WRITTEN_GAIN


def _that_help(
    prepared: PreparedModel,
    scales: Scales,
    evened: Callable[[Scales], PreparedModel],
    inputs: Sequence[ProductInput],
    arrays: Mapping[str, Sequence[np.ndarray]],
    feeds: Sequence[Feed],
    mask: str,
) -> Evened:
    """Those of ``scales`` with which the products, quantized, disturb the outputs less, and in float not at all.

    These are all of them, or those that cost nothing where the others gain little more. What products gain in one form,
    dynamic or static, they may not lose in the other: which one a model ends with, the search decides. Where Mul nodes
    are in low precision too, they may lose half as much, since the search may leave these in float. What there is time
    to judge stands.

    Args:
        prepared: the model.
        scales: of its activations.
        evened: the model with some of these.
        inputs: its activations that scales were looked for.
        arrays: samples of these.
        feeds: other samples, which judge.
        mask: as of :func:`find_scales`.
    """
    whole = outputs_of(_emitted(prepared, Placement()), feeds)
    padding = Padding.of(feeds, whole, mask)

    def db(model: Stored) -> float:  # not by helpers: two samples take less than the way of a large model there
        got = padding.without_each(outputs_of(model, feeds))
        return _worst_db(prepared.graph.float_outputs, padding.without_each(whole), got)

    def of_forms(changed: PreparedModel, used: Scales) -> np.ndarray:
        """In dB: static, the same with the weights in float, since rounding may leave those little noise, dynamic.

        The last one is static with the Mul nodes in low precision, as where all is: their factors, of which the least
        are rounded to nothing, may cost more than evened channels gain.
        """
        ranges = {}
        for one in inputs:
            divisors = np.array(used.get(one.value, (1.0,)), np.float32)
            ranges.update(dict.fromkeys(one.read_by(changed.graph), _range([a / divisors for a in arrays[one.value]])))
        rules = prepared.rules
        forms = [(rules.activation, rules.weight), (rules.activation, None)]
        forms += [(QType.DYNAMIC, rules.weight)] if _is_dynamic(prepared) else []
        placements = [_products(inputs, *form) for form in forms]
        selectable = {unit.name for unit in changed.selectable}
        low = [one for one in inputs if one.multiplier in selectable]
        for one in low:
            factors = np.array([0.0, *(1.0 / np.array(used[one.value]))], np.float32)
            given, constant = (changed.graph.value_of(port) for port in one.multiplied)
            ranges.update({given: _range(arrays[one.value]), constant: _range([factors])})
        ports = [(port, rules.activation) for one in low for port in one.multiplied]
        placements += [Placement([*placements[0], *ports])] if low else []
        found = [db(_emitted(changed, placement, ranges)) for placement in placements]
        return np.array(found if low else [*found, found[0]])

    best = Evened()
    found_db = of_forms(prepared, {})
    free = {i.value: scales[i.value] for i in inputs if i.normalization and i.value in scales}
    for tried in (free, scales) if len(free) < len(scales) else (scales,):
        if not tried:
            continue
        try:
            changed = evened(tried)
            after_db = of_forms(changed, tried)
            least_db = _OUTPUT_GAIN_DB if len(tried) == len(free) else _PAID_GAIN_DB
            if _gains(after_db - found_db, least_db) and db(_emitted(changed, Placement())) >= _EXACT_DB:
                best, found_db = Evened(dict(tried), model=changed), after_db
        except Late:
            return replace(best, in_time=False)
    return best


def _gains(gains_db: np.ndarray, least_db: float) -> bool:
    """Whether some form gains so much, and none loses more than it may; the last one has all in low precision."""
    most_db = np.full(gains_db.shape, _OUTPUT_GAIN_DB)
    most_db[-1] = max(_OUTPUT_GAIN_DB, _LOST_SHARE * gains_db[0])
    return bool(gains_db.max() >= least_db and (gains_db >= -most_db).all())


def _range(arrays: Sequence[np.ndarray]) -> Range:
    """Of all elements."""
    known = [a for a in arrays if a.size]
    return Range(min(float(a.min()) for a in known), max(float(a.max()) for a in known))


def _is_dynamic(prepared: PreparedModel) -> bool:
    return any(form.activation is QType.DYNAMIC for form in prepared.rules.forms)


def _products(inputs: Sequence[ProductInput], form: QType, weight: QType | None = None) -> Placement:
    """All products, with their activations and weights in these types."""
    names = [name for i in inputs for name in i.products]
    weights = [] if weight is None else [(Port(name, 1), weight) for name in names]
    return Placement([*((Port(name, 0), form) for name in names), *weights])


def _emitted(prepared: PreparedModel, placement: Placement, ranges: Mapping[str, Range] = _NO_RANGES) -> Stored:
    """The model with ``placement``."""
    table = QParamsTable(prepared.graph, prepared.rules, ranges)
    emitter = Emitter(prepared.normalized.model, prepared.graph, prepared.store, base=prepared.emitter.base)
    return Stored(emitter.emit(placement, table), prepared.store)


def _worst_db(names: Sequence[str], want: Sequence[Outputs], got: Sequence[Outputs]) -> float:
    """SQNR of the worst one of some outputs over all samples."""
    found = []
    for name in names:
        pairs = [(a[name].astype(np.float64), b[name]) for a, b in zip(want, got, strict=True)]
        noise = sum(float(np.square(a - b).sum()) for a, b in pairs)
        found.append(sqnr_db(sum(float(np.square(a).sum()) for a, _ in pairs), noise))
    return min(found, default=-np.inf)


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
    producer = value.producer()
    if producer is None:
        graph.insert_before(graph[0], mul)
    else:
        graph.insert_after(producer, mul)
    for port in given.readers:
        nodes[port.node].replace_input_with(port.slot, mul.outputs[0])


def _replace(graph: ir.Graph, node: ir.Node, slot: int, value: ir.Value, array: np.ndarray, suffix: str) -> None:
    """Let ``node`` read ``array`` in place of the constant ``value``, which goes where nothing else needs it."""
    node.replace_input_with(slot, add_constant(graph, f"{value.name}_{suffix}", array.astype(np.float32)))
    if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
        del graph.initializers[str(value.name)]
