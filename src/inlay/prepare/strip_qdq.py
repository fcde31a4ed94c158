"""Q/DQ files taken apart: the float model inside, checked by numbers before anything is built on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from inlay.errors import InlayError, Late, ModelError, TargetError
from inlay.model.flow import in_branches
from inlay.model.graph import Graph, build_graph
from inlay.model.joins import joins_of
from inlay.model.load import ModelFile
from inlay.model.nesting import nested
from inlay.model.passes.constants import with_constants
from inlay.model.passes.opset import QDQ_OPSET
from inlay.model.pieces import PiecewiseSession
from inlay.model.reference import ConstantEvaluator, Session, with_outputs
from inlay.model.store import WeightStore, externalize_weights
from inlay.quant.accuracy import Outputs, sqnr_db
from inlay.quant.emit import Emitter
from inlay.quant.extract import Extraction, extract, is_ours
from inlay.quant.parts import Parts
from inlay.quant.plain.form import is_quantized, known_integer
from inlay.quant.qparams import QParamsTable
from inlay.quant.saturation import Form, reached
from inlay.quant.transfer import Transferred, transfer
from inlay.space.rules import Rules
from inlay.targets.base import Feed
from inlay.targets.registry import known_operators
from inlay.types import Port, QType

FEEDS = 8
"""Samples that show where pairs saturate: a range that a model really uses up is reached in most of them."""

VALUES_AT_ONCE = 32
"""Values that are compared at once to find the first one that differs."""

SAME_DB = 30.0
"""Least SQNR between a Q/DQ file and what is written from its parts.

Both round at the same places, so they differ only where a value lies on a rounding edge and float sums differ in their
last bit: a few elements by one step, above 40 dB on the models tried. A lost activation costs 10 dB and more. In deep
models whose ranges are those of each inference such steps add up: see :data:`OWN_DB`.
"""

OWN_DB = 6.0
"""By how much a Q/DQ file and what is written from its parts may differ more than the file does from itself with other
last bits. A BERT of six layers by ``quantize_dynamic``: 26.0 dB against 25.6 dB."""

NUDGED_ELEMENTS = 8
"""Elements from which on a vector of a file gets other last bits: smaller ones may be sizes."""

_INTEGER = ("QLinear", "QGemm")
"""Beginnings of the names of operators that read scales beside integers, and give integers."""

LEAST_DB = 10.0
"""SQNR below which two models are never the same: lost activations gave -1.7 to 5 dB."""


def strip_qdq(
    file: ModelFile,
    feeds: Sequence[Feed],
    folder: Path,
    forms: Mapping[str, Form] | None = None,
    opaque: str | None = None,
) -> Extraction | None:
    """The float model in a Q/DQ file of any origin, with its placement and qparams; None for a float model.

    Where the parts do not compute what the file computes, the file is taken as it is: as one opaque model.

    Args:
        file: the model.
        feeds: samples, at least one: they show where pairs saturate, and the first one checks the result.
        folder: for scratch files.
        forms: of the saturations that stay, where known from an earlier call; it checked the result.
        opaque: why an earlier call took the file as it is.

    Raises:
        ModelError: the file does not run.
    """
    if not holds_quantized(file):
        return None
    if opaque:
        return Extraction.nothing(file.model, known_operators(), opaque)
    folder = folder / "apart"
    folder.mkdir(exist_ok=True)
    store = WeightStore(folder)
    given = externalize_weights(file.model, store)
    try:
        found = parts_of(file.model, folder)
        if found.opaque:
            return found
        settled = found.settled(_forms(found, store, feeds) if forms is None else forms)
        if forms is not None:
            return settled
        difference = _first_difference(file.model, given, _written(settled, store), store, feeds[0])
        if not difference:
            return settled
        why = f"written from its parts, the model would compute something else: {difference}"
    except Late:
        raise
    except Exception as error:
        why = _failure(error)
        try:
            Session(given, store, fuse_qdq=False, briefly=True).run(feeds[0])
        except Late:
            raise
        except TargetError as broken:
            raise ModelError(f"{file.path} does not run: {broken}") from broken
    finally:
        store.path.unlink(missing_ok=True)
    return Extraction.nothing(file.model, known_operators(), why)


def parts_of(model: ir.Model, folder: Path) -> Extraction:
    """What :func:`~inlay.quant.extract.extract` finds, unchecked; nothing where it fails."""
    try:
        return extract(_readable(model, folder), known_operators())
    except Late:
        raise
    except Exception as error:
        return Extraction.nothing(model, known_operators(), _failure(error))


def _failure(error: Exception) -> str:
    """Whatever it is, it must not cost the user the run: the file itself may well run."""
    kind = "" if isinstance(error, InlayError) else f"{type(error).__name__}: "
    return f"the model cannot be taken apart: {kind}{error}".splitlines()[0]


def _readable(model: ir.Model, folder: Path) -> ir.Model:
    """``model`` with constants as initializers, wherever they stand.

    Exporters of fake quantization write scales and zero points as nodes, or compute them from a weight. In a model of
    our own they are initializers already.
    """
    if is_ours(model):
        return model
    reads = known_integer(known_operators())
    return with_constants(model, ConstantEvaluator(folder), reads)


def _forms(found: Extraction, store: WeightStore, feeds: Sequence[Feed]) -> Mapping[str, Form]:
    """The forms of the saturations that ``feeds`` show."""
    values = sorted({s.value for s in found.saturations})
    proto = externalize_weights(found.model, store)
    return reached(found.saturations, _computed(proto, store, values, feeds[:FEEDS]))


def _written(found: Extraction, store: WeightStore) -> onnx.ModelProto:
    """What is found, set together again."""
    graph = build_graph(found.model)
    moved = transfer(found, graph, graph)
    table = QParamsTable(graph, Rules(QType.UINT8, ops={}), {}, moved.qparams)
    checked = moved.placement.without({*found.anew, *_unstated(moved, graph)})
    return nested(Emitter(found.model, graph, store).emit(checked, table))


def _unstated(moved: Transferred, graph: Graph) -> Iterator[Port]:
    """Ports of constants whose channels or blocks no DequantizeLinear can state in the opset of ``graph``.

    They are dequantized already, so that the outputs are the same without them.
    """
    nodes = set()
    for port, qtype in moved.placement:
        params = moved.qparams.get((graph.value_of(port), qtype))
        if params is not None and params.axis is not None and graph.opset < max(qtype.opset, QDQ_OPSET):
            nodes.add(port.node)
            yield port
    yield from (port for port, qtype in moved.placement if qtype is QType.INT32 and port.node in nodes)


def holds_quantized(file: ModelFile) -> bool:
    """Whether there is something to take apart: Q/DQ nodes, or operators on integers of ONNX or of a known runtime."""
    foreign = any(node.domain not in ("", "ai.onnx") for node in in_branches(file.model.graph))
    return is_quantized(file.model, known_operators() if foreign else ())


def _computed(
    proto: onnx.ModelProto, store: WeightStore, values: Sequence[str], feeds: Sequence[Feed]
) -> Iterator[Mapping[str, np.ndarray]]:
    given = {i.name for i in proto.graph.input}
    computed = [v for v in values if v not in given]
    session = PiecewiseSession(proto, store, computed) if computed else None
    for feed in feeds:
        yield {v: feed[v] for v in values if v in given}
        if session is not None:
            yield session.run(feed)


def _first_difference(
    model: ir.Model, given: onnx.ModelProto, written: onnx.ModelProto, store: WeightStore, feed: Feed
) -> str:
    """The first value in which ``written`` differs from ``given``; empty where the outputs agree, and all their parts.

    Args:
        model: the same as ``given``.
        given: the file.
        written: from its parts.
        store: has the weights of both.
        feed: what they are run on.
    """
    names = [o.name for o in given.graph.output]
    outputs = _run(given, names, store, feed)
    parts = Parts.of([outputs], joins_of(model, feed))

    def divided(values: Outputs) -> dict[str, np.ndarray]:
        return {**values, **parts.split(values)}

    differing = _differing(divided(outputs), divided(_run(written, names, store, feed)))
    if not differing:
        return ""
    first, second = divided(outputs), divided(_run(_nudged(given, store), names, store, feed))
    own = {v: _similarity(first[v], second[v]) for v in differing}
    if all(db >= _least_db(own[v], v in parts.names) for v, db in differing.items()):
        return ""
    ours = {v for n in written.graph.node for v in n.output}
    shared = [v for n in given.graph.node for v in n.output if v in ours]
    for start in range(0, len(shared), VALUES_AT_ONCE):
        some = shared[start : start + VALUES_AT_ONCE]
        for value, db in _differing(*(_run(m, some, store, feed) for m in (given, written))).items():
            return f"the first value that differs is {value} ({db:.1f} dB)"
    return f"output {min(differing, key=lambda v: differing[v] - own[v])} differs"


def _run(model: onnx.ModelProto, values: Sequence[str], store: WeightStore, feed: Feed) -> dict[str, np.ndarray]:
    found = Session(with_outputs(model, values), store, fuse_qdq=False, briefly=True).run(feed)
    return {value: found[value] for value in values}


def _differing(wanted: Outputs, got: Outputs) -> dict[str, float]:
    """SQNR of those values that differ, in their order."""
    found = {v: _similarity(want, got[v]) for v, want in wanted.items()}
    return {v: db for v, db in found.items() if db < SAME_DB}


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
