"""Q/DQ pairs where a model has none and lowering needs the range of a value: measured on samples.

A model with pairs at the inputs of weighted operators only says nothing of what lies between those. Some of it has
bounds that follow (:meth:`~inlay.tosa.context.Context.wide_qparams`); a normalization that is written out, a sum behind
an embedding or a logarithm has none, and stays float on the host. With samples, a pair with the range seen there makes
it 8-bit integers, as a quantizer of all operators would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from inlay.data import AUTO_MASK
from inlay.errors import DataError, TargetError
from inlay.files import scratch
from inlay.model.native import Values
from inlay.model.passes.steps import add_constant, constant_of
from inlay.model.pieces import PiecewiseSession
from inlay.model.serialize import to_proto
from inlay.model.store import WeightStore, externalize_weights
from inlay.quant.accuracy import Judge, Outputs
from inlay.quant.observers import Range
from inlay.quant.qparams import activation_params, constant_range
from inlay.tosa.early_pairs import add_pair
from inlay.tosa.integer_graph import NotLowered, all_legal, build_integer_graph
from inlay.tosa.static_model import StaticModel, static_ir
from inlay.types import QType

_ROUNDS = 16
"""A pair lets its readers be lowered, which may lack the next range; chains of them are as long as a normalization."""


@dataclass(frozen=True)
class MeasuredRanges:
    """Ranges that samples gave."""

    values: int  # how many values got one
    samples: int  # how many samples there were
    # of the worst output, or part of one, over the samples, by the model without these pairs; None where none was
    # needed
    sqnr_db: float | None = None

    def __str__(self) -> str:
        if not self.values:
            return "every range that is needed follows from the model: the samples gave none"
        cost = "" if self.sqnr_db is None else f"; they cost its outputs accuracy: {self.sqnr_db:.1f} dB SQNR"
        return f"{self.values} ranges that the model does not state are those of {self.samples} samples{cost}"


def with_measured_ranges(
    model: onnx.ModelProto, feeds: Sequence[Values], bind: Mapping[str, int] | None = None
) -> tuple[onnx.ModelProto, MeasuredRanges]:
    """``model`` with a pair at each float value whose missing range keeps an operator from integers.

    Args:
        feeds: samples; the values of all of them lie in the ranges.
        bind: sizes of named dynamic dimensions (others become 1).

    Returns:
        The model with static shapes, and what was measured.

    Raises:
        DataError: the model does not run on the samples.
        ModelError: the model is not valid.
    """
    work = static_ir(model, bind)
    before: _Observed | None = None
    tried: set[tuple[str, str]] = set()
    count = 0
    for _ in range(_ROUNDS):
        _, left = build_integer_graph(StaticModel.of(work), "INT", {}, all_legal)
        wanted = [n for n in left if n.unstated and (n.node, n.unstated) not in tried]
        tried.update((n.node, n.unstated) for n in wanted)
        if not wanted:
            break
        before = before or _observed(work, feeds, inside=True)
        count += _add_pairs(work, wanted, before.ranges)
    if before is None or not count:
        return to_proto(work), MeasuredRanges(0, len(feeds))
    judge = Judge.of_model(static_ir(model, bind), [dict(feed) for feed in feeds], before.outputs, AUTO_MASK)
    found = judge.judge(_observed(work, feeds).outputs)
    return to_proto(work), MeasuredRanges(count, len(feeds), found.sqnr_db if found.outputs else None)


@dataclass(frozen=True, eq=False)
class _Observed:
    """Ranges of float values by name, and the float outputs on each sample."""

    ranges: Mapping[str, Range]
    outputs: Sequence[Outputs]


def _observed(model: ir.Model, feeds: Sequence[Values], inside: bool = False) -> _Observed:
    """What outputs are on ``feeds``; with ``inside``, also the range of every float value that is computed or given."""
    values = [str(v.name) for n in model.graph for v in n.outputs if v.name and v.dtype is ir.DataType.FLOAT]
    names = [str(o.name) for o in model.graph.outputs if o.name in {*values}]
    outputs = list[Outputs]()
    values = values if inside else names
    ranges: dict[str, Range] = {}
    with scratch() as folder:
        store = WeightStore(folder)
        try:
            session = PiecewiseSession(externalize_weights(model, store), store, values)
            for feed in feeds:
                found = session.run(feed)
                given = {k: a for k, a in feed.items() if inside and a.dtype == np.float32}
                for name, array in {**given, **found}.items():
                    seen = constant_range(array[np.isfinite(array)])
                    known = ranges.get(name, seen)
                    ranges[name] = Range(min(known.low, seen.low), max(known.high, seen.high))
                outputs.append({name: found[name] for name in names})
        except TargetError as error:
            raise DataError(f"the model does not run on the samples: {error}") from error
    return _Observed(ranges, outputs)


def _add_pairs(model: ir.Model, wanted: Sequence[NotLowered], ranges: Mapping[str, Range]) -> int:
    graph = model.graph
    values = {str(v.name): v for v in (*graph.inputs, *(v for n in graph for v in n.outputs))}
    nodes = {str(n.name): n for n in graph}
    done: set[str] = set()
    for left in wanted:
        name = left.unstated
        if name in graph.initializers:
            _quantize_constant(graph, nodes[left.node], graph.initializers[name])
            done.add(name)
        elif name in ranges and name in values and name not in done:
            _add_pair(graph, values[name], ranges[name])
            done.add(name)
    return len(done)


def _quantize_constant(graph: ir.Graph, reader: ir.Node, constant: ir.Value) -> None:
    """Let ``reader`` read a float constant as a dequantized one."""
    array = constant_of(constant)
    assert array is not None
    back = _pair(graph, constant, constant_range(array))
    for slot, value in enumerate(reader.inputs):
        if value is constant:
            reader.replace_input_with(slot, back)


def _add_pair(graph: ir.Graph, value: ir.Value, seen: Range) -> None:
    """Put a pair between ``value`` and all that reads it; an output keeps its name."""
    uses = [use for use in value.uses() if use.node.graph is graph]
    back = _pair(graph, value, seen)
    for use in uses:
        use.node.replace_input_with(use.idx, back)
    for position, output in enumerate(graph.outputs):
        if output is value and value.producer() is not None:
            value.name, back.name = f"{value.name}_measured", value.name
            graph.outputs[position] = back


def _pair(graph: ir.Graph, value: ir.Value, seen: Range) -> ir.Value:
    params = activation_params(seen, QType.INT8)
    scale = add_constant(graph, f"{value.name}_measured_scale", np.array(params.scale[0], np.float32))
    zero = add_constant(graph, f"{value.name}_measured_zero_point", np.array(params.zero_point[0], np.int8))
    prefix = str(scale.name).replace("_scale", "")  # of several readers of one constant, each has a pair of its own
    return add_pair(graph, value, [scale, zero], ir.TensorType(ir.DataType.INT8), prefix)[1]
