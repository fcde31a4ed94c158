"""Whether one model computes what another computes: part by part, each part from the other model's own values.

Two forms of a quantized model round at the same places, so that they differ only where a value lies on a rounding edge
and float sums differ in their last bit. In deep models whose ranges are those of each inference such steps add up, and
in models that round durations they decide how long an output is: the whole says nothing then. From the same values no
part has far to go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import onnx
import onnx_ir as ir

from inlay.model.joins import joins_of
from inlay.model.nesting import nested
from inlay.model.pieces import Parts as Pieces
from inlay.model.reference import Session, with_outputs
from inlay.model.store import WeightStore
from inlay.quant.accuracy import Outputs, sqnr_db
from inlay.quant.parts import Parts
from inlay.targets.base import Feed

SAME_DB = 30.0
"""Least SQNR between two forms.

Both round at the same places: a few elements differ by one step, above 40 dB on the models tried. A lost activation
costs 10 dB and more.
"""

OWN_DB = 6.0
"""By how much a part that cannot be divided may differ more than the given one does from itself with other last bits:
files whose operators work on integers have no floats within."""

NUDGED_ELEMENTS = 8  # elements from which on a vector of a file gets other last bits: smaller ones may be sizes
LEAST_DB = 10.0  # SQNR below which two models are never the same: lost activations gave -1.7 to 5 dB
FAN = 8  # parts that one is divided into: three steps down are 500, and each part is run once

_INTEGER = ("QLinear", "QGemm")
"""Beginnings of the names of operators that read scales beside integers, and give integers."""
_UNLIKE = ("Quantize", "Dequantize", "DynamicQuantize", "QLinear", "QGemm", "Sequence", "SplitToSequence", "Optional")
"""Beginnings of the names of operators whose results may have the same name and be other numbers, or no arrays."""


def first_difference(
    model: ir.Model, given: onnx.ModelProto, written: onnx.ModelProto, store: WeightStore, feed: Feed
) -> str:
    """The first value in which ``written`` differs from ``given``; empty where they are the same.

    Args:
        model: the same as ``given``.
        given: the file.
        written: from its parts.

    Raises:
        CompileFailed, RunFailed, Crashed, TimedOut: one of them does not run.
    """
    return _Comparison(model, given, written, store, feed).found


class _Comparison:
    """Two forms of one model, beside each other on one feed."""

    def __init__(
        self, model: ir.Model, given: onnx.ModelProto, written: onnx.ModelProto, store: WeightStore, feed: Feed
    ) -> None:
        self._protos, self._store = (nested(given), nested(written)), store
        self._given, self._written = map(Pieces, self._protos)
        self._outputs = list(dict.fromkeys(o.name for o in given.graph.output))
        wanted = self._run(self._given, self._outputs, feed)
        self._parts = Parts.of([wanted], joins_of(model, feed))
        self.found = self._first(None, wanted, dict(feed))

    def _first(self, span: Sequence[str] | None, wanted: Outputs, known: Mapping[str, np.ndarray]) -> str:
        """The first value of ``span`` that differs.

        Args:
            span: consecutive values that both models have; None for all.
            wanted: in the given model: those of them on which something outside the span depends.
            known: in the given model: all that the span is computed from.
        """
        names = list(wanted)
        differing = self._differing(wanted, self._run(self._written, names, known))
        if not differing:
            return ""
        span = self._shared if span is None else span
        if len(span) < 2:
            own = self._differing(wanted, self._run(self._nudged, names, known), np.inf)
            if all(db >= _least_db(own.get(v, np.inf), v in self._parts.names) for v, db in differing.items()):
                return ""
            value = min(differing, key=lambda v: differing[v])
            return f"the first value that differs is {value} ({differing[value]:.1f} dB)"
        size = -(-len(span) // FAN)
        parts = [span[i : i + size] for i in range(0, len(span), size)]
        read = {v for part in parts for v in self._reads(part, known)}.union(names)
        inside = self._run(self._given, [v for v in span if v in read], known)
        values = {**known, **inside}
        for part in parts:
            own_values = set(part)
            ends = {v: inside[v] for v in part if v in inside}
            found = self._first(part, ends, {v: a for v, a in values.items() if v not in own_values}) if ends else ""
            if found:
                return found
        return ""

    def _reads(self, part: Sequence[str], known: Mapping[str, np.ndarray]) -> set[str]:
        """What of the shared values before ``part`` it is computed from."""
        others = {*self._shared, *known}.difference(part)
        return self._written.needed(part, others)[1]

    @cached_property
    def _shared(self) -> list[str]:
        """Arrays of one name and type in both models, in their order."""
        both = [v for v in self._written.makers if v in self._given.makers]
        makers = [[p.nodes[p.makers[v]].op_type for v in both] for p in (self._given, self._written)]
        named = [(v, name) for names in makers for v, name in zip(both, names, strict=True)]
        unlike = {v for v, name in named if name.startswith(_UNLIKE) or name.endswith("Integer")}
        asked = [v for v in both if v in self._outputs or v not in unlike]
        types = [Session(with_outputs(p, asked), self._store, fuse_qdq=False, briefly=True).types for p in self._protos]
        return [v for v in asked if v in self._outputs or (types[0][v] == types[1][v] and types[0][v][:7] == "tensor(")]

    @cached_property
    def _nudged(self) -> Pieces:
        return Pieces(_nudged(self._protos[0], self._store))

    def _run(self, model: Pieces, values: Sequence[str], known: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        part = model.model(values, known)
        feed = {i.name: known[i.name] for i in part.graph.input}
        found = Session(part, self._store, fuse_qdq=False, briefly=True).run(feed)
        return {value: found[value] for value in values}

    def _differing(self, wanted: Outputs, got: Outputs, same_db: float = SAME_DB) -> dict[str, float]:
        """SQNR of those values and parts of outputs that differ, in their order."""
        wanted, got = self._parts.split(wanted), self._parts.split(got)
        found = {v: _similarity(want, got[v]) for v, want in wanted.items()}
        return {v: db for v, db in found.items() if db < same_db}


def _least_db(own_db: float, is_part: bool) -> float:
    """What a value must have that has ``own_db`` with other last bits. Part of an output may be noise in the file."""
    if is_part and own_db < LEAST_DB:
        return own_db - OWN_DB
    return max(own_db - OWN_DB, LEAST_DB)


def _nudged(model: onnx.ModelProto, store: WeightStore) -> onnx.ModelProto:
    """A model with its vectors (such as biases) and scales changed in the last bits.

    Files whose operators work on integers may have no vectors of floats: their scales decide what lies on an edge.
    Where biases are added to integers, as the first dynamic quantizers do, they are rounded up rather than down: what
    is written from the parts adds them as they are, which is in between.
    """
    nudged = onnx.ModelProto()
    nudged.CopyFrom(model)
    scales = {v for n in model.graph.node if n.op_type.startswith(_INTEGER) for v in n.input}
    for tensor in nudged.graph.initializer:
        is_vector = len(tensor.dims) == 1 and tensor.dims[0] >= NUDGED_ELEMENTS
        if tensor.data_type == onnx.TensorProto.FLOAT and (is_vector or (not tensor.dims and tensor.name in scales)):
            held = tensor.data_location != onnx.TensorProto.EXTERNAL
            array = onnx.numpy_helper.to_array(tensor) if held else np.frombuffer(store.read(tensor), np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array * np.float32(1 + 2.0**-22), tensor.name))
    for node in _integer_biases(nudged.graph):
        node.op_type = "Ceil"
    return nudged


def _integer_biases(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes that round down what is added to sums of integers."""
    readers = {v: n for n in graph.node for v in n.input}
    for node in graph.node:
        step: onnx.NodeProto | None = node
        for op_type in ("Floor", "Cast", "Reshape", "Add"):
            if step is None or step.op_type != op_type:
                break
            step = readers.get(step.output[0])
        else:
            yield node


def _similarity(want: np.ndarray, got: np.ndarray) -> float:
    """SQNR of ``got`` in dB; of integers the share that differs. What is not a number differs from numbers only."""
    if want.shape != got.shape or want.dtype != got.dtype:
        return sqnr_db(0.0, np.inf)
    same = (want == got) | ((want != want) & (got != got))
    if want.dtype.kind != "f":
        return sqnr_db(want.size, np.count_nonzero(~same))
    noise = float(np.square(want[~same].astype(np.float64) - got[~same]).sum())
    return sqnr_db(float(np.square(want[np.isfinite(want)], dtype=np.float64).sum()), noise)
