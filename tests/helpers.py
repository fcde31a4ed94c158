"""A model prepared for placing and emitting, and small oracles that share no code with what they check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from inlay.calibrate.tables import observe, table_from
from inlay.data import Samples
from inlay.model.load import load
from inlay.model.store import embed
from inlay.prepare.model import prepare
from inlay.quant.qparams import QParamsTable
from inlay.space.rules import Rules
from inlay.targets.base import Feed
from inlay.targets.onnxruntime.rules import rules_for
from inlay.testing import random_feed
from inlay.types import GRAPH_OUTPUT, Placement, Port


class Workspace:
    """One model: prepared, calibrated on ``samples`` random feeds, and able to emit self-contained models."""

    def __init__(
        self,
        model: onnx.ModelProto,
        folder: Path,
        rules: Rules | None = None,
        samples: int = 2,
        feeds: tuple[Feed, ...] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "given.onnx"
        path.write_bytes(model.SerializeToString())
        self.path = path
        self.feeds = feeds or tuple(random_feed(model, seed) for seed in range(samples))
        self.prepared = prepare(load(path), rules or rules_for("x86_64"), self.feeds[0], folder)
        self.graph = self.prepared.graph
        self.observed = observe(self.prepared, Samples(tuple(map(dict, self.feeds)), "feeds", "test"))
        self.table: QParamsTable = table_from(self.prepared, self.observed, "minmax")

    def full(self) -> Placement:
        """Every selectable unit in low precision."""
        return self.prepared.label(frozenset(u.name for u in self.prepared.selectable))

    def observe_also(self, placement: Placement) -> None:
        """Calibrate what an imported placement reads, too."""
        samples = Samples(tuple(map(dict, self.feeds)), "feeds", "test")
        self.observed = observe(self.prepared, samples, [placement])
        self.table = table_from(self.prepared, self.observed, "minmax")

    def label(self, *names: str) -> Placement:
        return self.prepared.label(frozenset(names))

    def emit(self, placement: Placement, table: QParamsTable | None = None) -> onnx.ModelProto:
        """A model with its weights inside."""
        return embed(self.prepared.emitter.emit(placement, table or self.table), self.prepared.store)

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


def check_and_load(model: onnx.ModelProto) -> ort.InferenceSession:
    """The model passes ONNX's full checker (types and shapes too) and builds in ONNX Runtime."""
    onnx.checker.check_model(model, full_check=True)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def optimized(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """The graph as ONNX Runtime rewrites it for this CPU."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "optimized.onnx")


def producers(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    return {v: n for n in model.graph.node for v in n.output if v}


def readers(model: onnx.ModelProto, value: str) -> list[onnx.NodeProto]:
    return [n for n in model.graph.node for v in n.input if v == value]


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def through_qdq(model: onnx.ModelProto, value: str) -> str:
    """The float value behind a DQ (of a Q), or the name of the constant behind a DQ; ``value`` where there is no DQ."""
    made = producers(model)
    dq = made.get(value)
    if dq is None or dq.op_type != "DequantizeLinear":
        return value
    q = made.get(dq.input[0])
    return dq.input[0] if q is None else q.input[0]


def sandwich(model: onnx.ModelProto, scales: dict[str, tuple[float, int]] | None = None) -> onnx.ModelProto:
    """Q/DQ (uint8) around every float activation by hand: each input read and each output of each node.

    Independent of ``inlay.quant.emit``. ``scales`` gives scale and zero point by value; 0.05 and 128 elsewhere.
    """
    inferred = onnx.shape_inference.infer_shapes(model)
    types = {v.name: v.type.tensor_type.elem_type for v in (*inferred.graph.value_info, *inferred.graph.input)}
    types |= {v.name: v.type.tensor_type.elem_type for v in inferred.graph.output}
    graph = onnx.GraphProto()
    graph.CopyFrom(model.graph)
    del graph.node[:]
    given = {t.name for t in graph.initializer}
    made: dict[str, str] = {}
    outputs = {o.name for o in graph.output}

    def pair(value: str, read: str, source: str) -> Iterator[onnx.NodeProto]:
        scale, zero = (scales or {}).get(value, (0.05, 128))
        graph.initializer.append(numpy_helper.from_array(np.float32(scale), f"{value}_s"))
        graph.initializer.append(numpy_helper.from_array(np.uint8(zero), f"{value}_z"))
        yield helper.make_node("QuantizeLinear", [source, f"{value}_s", f"{value}_z"], [f"{value}_q"])
        yield helper.make_node("DequantizeLinear", [f"{value}_q", f"{value}_s", f"{value}_z"], [read])

    for value in [i.name for i in graph.input if i.name not in given]:
        if types.get(value) == onnx.TensorProto.FLOAT:
            made[value] = f"{value}_dq"
            graph.node.extend(pair(value, made[value], value))
    for node in model.graph.node:
        new = graph.node.add()
        new.CopyFrom(node)
        for i, value in enumerate(node.input):
            new.input[i] = made.get(value, value)
        for i, value in enumerate(node.output):
            if value and types.get(value) == onnx.TensorProto.FLOAT:
                new.output[i] = f"{value}_float"
                made[value] = value if value in outputs else f"{value}_dq"
                graph.node.extend(pair(value, made[value], f"{value}_float"))
    done = onnx.ModelProto()
    done.CopyFrom(model)
    done.graph.CopyFrom(graph)
    return done
