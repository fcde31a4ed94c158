"""Q/DQ files taken apart: the float model inside, checked by numbers before anything is built on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from inlay.errors import InlayError, Late, ModelError, TargetError
from inlay.files import scratch
from inlay.model.flow import in_bodies
from inlay.model.graph import Graph, build_graph
from inlay.model.load import ModelFile
from inlay.model.metadata import cloned
from inlay.model.nesting import nested
from inlay.model.passes.constants import lift_constants, with_constants
from inlay.model.passes.names import fix_names
from inlay.model.passes.opset import QDQ_OPSET
from inlay.model.pieces import PiecewiseSession
from inlay.model.reference import ConstantEvaluator, Session
from inlay.model.store import WeightStore, externalize_weights
from inlay.prepare.same_parts import first_difference
from inlay.quant.emit import Emitter
from inlay.quant.extract import Extraction, extract, is_ours
from inlay.quant.plain.fakes import may_hold_fakes, write_fakes
from inlay.quant.plain.form import is_quantized, known_integer
from inlay.quant.plain.graph import Leftover
from inlay.quant.qparams import QParamsTable
from inlay.quant.saturation import Form, reached
from inlay.quant.transfer import Transferred, transfer
from inlay.space.rules import Rules
from inlay.targets.base import Feed
from inlay.targets.registry import known_operators
from inlay.types import Port, QType

FEEDS = 8
"""Samples that show where pairs saturate: a range that a model really uses up is reached in most of them."""


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
        feeds: samples, at least one: they show where pairs saturate, and the first one checks the result.
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
        if not found.placement and not is_quantized(file.model, known_operators()):
            return None  # its roundings are part of what it computes
        settled = found.settled(_forms(found, store, feeds) if forms is None else forms)
        if forms is not None:
            return settled
        difference = first_difference(file.model, given, _written(settled, store), store, feeds[0])
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
        readable, fakes = _readable(model, folder)
        found = extract(readable, known_operators())
        return replace(found, leftovers=(*found.leftovers, *fakes))
    except Late:
        raise
    except Exception as error:
        return Extraction.nothing(model, known_operators(), _failure(error))


def _failure(error: Exception) -> str:
    """Whatever it is, it must not cost the user the run: the file itself may well run."""
    kind = "" if isinstance(error, InlayError) else f"{type(error).__name__}: "
    return f"the model cannot be taken apart: {kind}{error}".splitlines()[0]


def _readable(model: ir.Model, folder: Path) -> tuple[ir.Model, Sequence[Leftover]]:
    """``model`` with its fake quantization as Q/DQ nodes and constants as initializers, wherever they stand.

    Exporters of fake quantization write scales and zero points as nodes, or compute them from a weight. In a model of
    our own they are initializers already. With it what rounds like fake quantization, and is none.
    """
    if is_ours(model):
        return model, ()
    evaluate, reads, left = ConstantEvaluator(folder), known_integer(known_operators()), tuple[Leftover, ...]()
    if may_hold_fakes(model.graph):
        model, _ = lift_constants(fix_names(cloned(model))[0])
        _, left = write_fakes(model, evaluate)
    return with_constants(model, evaluate, reads), left


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
    """Whether there is something to take apart: Q/DQ nodes, or operators on integers of ONNX or of a known runtime.

    What rounds between factors may be fake quantization: only numbers tell.
    """
    foreign = any(node.domain not in ("", "ai.onnx") for node in in_bodies(file.model.graph))
    if is_quantized(file.model, known_operators() if foreign else ()):
        return True
    return not is_ours(file.model) and may_hold_fakes(file.model.graph)


def is_quantized_file(file: ModelFile) -> bool:
    """Whether ``file`` is quantized: what rounds between factors counts where its numbers are those of fakes."""
    if not holds_quantized(file) or is_quantized(file.model, known_operators()):
        return holds_quantized(file)
    with scratch() as folder:
        found = parts_of(file.model, folder)
    return bool(found.opaque or found.placement)


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
