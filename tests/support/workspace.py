"""A model prepared for placing and emitting in a test."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from inlay.calibrate.observe import observe
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import Samples
from inlay.model.load import load
from inlay.model.nesting import nested
from inlay.model.store import embed_weights
from inlay.prepare.model import prepare
from inlay.quant.extract import Extraction, extract
from inlay.quant.qparams import QParamsTable
from inlay.targets.base import Capabilities, Feed
from inlay.targets.onnxruntime.target import capabilities_for
from inlay.testing import random_feed
from inlay.types import GRAPH_OUTPUT, Placement, Port
from tests.support.runtime import passes_checker


class Workspace:
    """One model: prepared, calibrated on ``samples`` random feeds, and able to emit self-contained models."""

    def __init__(
        self,
        model: onnx.ModelProto,
        folder: Path,
        target: Capabilities | None = None,
        samples: int = 2,
        feeds: tuple[Feed, ...] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "given.onnx"
        self.path.write_bytes(model.SerializeToString())
        self._given_passes = passes_checker(model)
        self.feeds = feeds or tuple(random_feed(model, seed) for seed in range(samples))
        target = target or capabilities_for("x86_64")
        self.prepared = prepare(load(self.path), target, self.feeds[0], folder)
        self.graph = self.prepared.graph
        self.calibrate()

    def full(self) -> Placement:
        """Every selectable unit in low precision."""
        return self.prepared.label(frozenset(u.name for u in self.prepared.selectable))

    def calibrate(self, *placements: Placement) -> None:
        """Calibrate again (minmax), including what ``placements`` read: an imported placement may read other values."""
        samples = Samples(tuple(map(dict, self.feeds)), "feeds", "test")
        self.observed = observe(self.prepared, samples, placements)
        self.table: QParamsTable = CalibrationChoice("minmax").table(self.prepared, self.observed)

    def label(self, *names: str) -> Placement:
        """The units of these names in low precision."""
        return self.prepared.label(frozenset(names))

    def emit(self, placement: Placement, table: QParamsTable | None = None) -> onnx.ModelProto:
        """A model with its weights inside, which passes ONNX's full checker where the given one does."""
        model = embed_weights(nested(self.prepared.emitter.emit(placement, table or self.table)), self.prepared.store)
        if self._given_passes:
            onnx.checker.check_model(model, full_check=True)
        return model

    def extract(self, emitted: onnx.ModelProto) -> Extraction:
        """What a model that ``emit`` wrote holds, with the target's rewrites undone."""
        return extract(ir.from_proto(emitted))

    def activation_ports(self) -> list[Port]:
        """Every port that may read a quantized activation."""
        graph = self.graph
        ports = [p for n in graph.nodes for p, _ in n.input_ports()]
        ports += [Port(GRAPH_OUTPUT, i) for i in range(len(graph.outputs))]
        return [p for p in ports if self._can_be_quantized(p)]

    def _can_be_quantized(self, port: Port) -> bool:
        value = self.graph.value_of(port)
        if self.graph.is_constant(value) or not self.graph.is_float(value) or not self.table.knows(value):
            return False
        owned = self.graph.producer(value) is not None and value not in self.graph.captured
        return port.node != GRAPH_OUTPUT or owned
