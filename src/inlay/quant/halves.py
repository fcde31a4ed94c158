"""Operators in half precision, in a graph of float32: the Casts around them, their constants, and how they are read.

A strongly typed runtime computes each operator in the type of what it reads. So between operators in half precision
values are halves; a Cast stands where one of them meets an operator in float32, an input or an output of the model; and
a DequantizeLinear gives halves to those that compute in them, by a scale that is one. No scale loses bits by that:
tables on a base of half precision hold numbers that such floats represent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir

from inlay.model.graph import Graph
from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.half import has_halves, widen_halves
from inlay.model.passes.steps import add_constant
from inlay.model.store import WeightStore, tensor_proto
from inlay.quant.qdq_graph import DEQUANTIZE, QUANTIZE
from inlay.quant.qparams import STORAGE
from inlay.space.halves import ANY_TYPE, HalfForm, half_form, half_form_of
from inlay.types import Placement, Port, QType

_ONNX = {t: int(getattr(onnx.TensorProto, t.element.upper())) for t in QType if t.half}
_FLOAT = int(onnx.TensorProto.FLOAT)
_BY_IR = {ir.DataType[t.element.upper()]: t for t in _ONNX}
_SUFFIXES = tuple(f"_{t.value}" for t in _ONNX)


def halves_of(placement: Placement, able: Mapping[str, Sequence[tuple[Port, QType]]]) -> dict[str, QType]:
    """The nodes that compute in half precision under ``placement``, each with its type.

    What reads quantized values alone does where others do, if it is ``able`` to: those have the ports that read halves.
    """
    named = {port.node: qtype for port, qtype in placement if qtype.half}
    if named:
        others = dict.fromkeys(port.node for port, _ in placement if port.node in able and port.node not in named)
        whole = (node for node in others if all(port in placement for port, _ in able[node]))
        named.update((node, able[node][0][1]) for node in whole)
    return named


@dataclass(eq=False)
class HalfWriter:
    """Writes operators of an emitted graph in half precision.

    Args:
        index: the graph before anything was emitted into it.
        store: where large constants live.
        free: a new name for a value.
    """

    index: Graph
    store: WeightStore
    free: Callable[[str], str]
    _graph: onnx.GraphProto = field(init=False)
    _halves: dict[tuple[str, QType], str] = field(init=False)  # the half of a value, by its name and type
    _native: dict[str, QType] = field(init=False)  # values that are halves themselves
    _floats: dict[str, str] = field(init=False)  # the float32 of such a value
    _constants: dict[str, onnx.TensorProto] = field(init=False)

    def write(self, graph: onnx.GraphProto, types: Mapping[str, QType]) -> None:
        """Let the nodes that ``types`` names compute in those types; changes ``graph``."""
        self._graph, self._halves, self._floats = graph, {}, {}
        self._constants = {t.name: t for t in graph.initializer}
        known = {number: qtype for qtype, number in _ONNX.items()}
        given = {v.name: v.type.tensor_type.elem_type for v in graph.input}
        self._native = {name: known[kind] for name, kind in given.items() if kind in known}
        wide = {v.name for v in graph.output if v.type.tensor_type.elem_type == _FLOAT} | self.index.captured
        nodes = self._split(list(graph.node), types)
        passed = self._passed(nodes, types)
        del graph.node[:]
        for node in nodes:
            if node.name in passed:
                continue
            qtype = types.get(node.name)
            form = None if qtype is None else half_form_of(self.index, self.index.node(node.name), qtype)
            if qtype is not None and form is not None:
                self._write_half(node, qtype, form, wide)
                continue
            if node.op_type == QUANTIZE and node.input[0] in self._native and not self.index.has_node(node.name):
                node.input[1] = self._constant(node.input[1], self._native[node.input[0]])
                node.input[0] = self._name(node.input[0])
            elif node.op_type in ANY_TYPE:
                node.input[0] = self._name(node.input[0])
            else:
                for slot, value in enumerate(node.input):
                    node.input[slot] = self._float(value)
            graph.node.append(node)
        self._drop_unread()
        for info in graph.value_info:
            if info.name in self._native and info.name not in wide and info.type.tensor_type.elem_type == _FLOAT:
                info.type.tensor_type.elem_type = _ONNX[self._native[info.name]]

    def _split(self, nodes: list[onnx.NodeProto], types: Mapping[str, QType]) -> list[onnx.NodeProto]:
        """``nodes`` with a DequantizeLinear for each type that readers of emitted ones compute in."""
        readers: defaultdict[str, list[tuple[onnx.NodeProto, int]]] = defaultdict(list)
        for node in nodes:
            for slot, value in enumerate(node.input):
                readers[value].append((node, slot))
        outputs, found = {v.name for v in self._graph.output}, list[onnx.NodeProto]()
        for node in nodes:
            found.append(node)
            scaled = node.op_type == DEQUANTIZE and node.input[1] in self._constants
            stored = self._constants.get(node.input[0]) if scaled else None
            if stored is not None and stored.data_type == onnx.TensorProto.INT32:
                continue  # a bias: its scale is a product of two, and no half
            if not scaled or self.index.has_node(node.name):
                continue
            read = node.output[0]
            wishes: defaultdict[QType | None, list[tuple[onnx.NodeProto, int]]] = defaultdict(list)
            for reader, slot in readers[read]:
                wishes[self._wish(reader, slot, types)].append((reader, slot))
            if read in outputs or read in self.index.captured:
                wishes[None] += []
            for number, (qtype, places) in enumerate(sorted(wishes.items(), key=lambda each: each[0] is not None)):
                if qtype is None:
                    continue
                if number:  # others read it, too
                    own = onnx.NodeProto()
                    own.CopyFrom(node)
                    own.name, own.output[0] = f"{node.name}_{qtype.value}", self.free(f"{read}_{qtype.value}")
                    for reader, slot in places:
                        reader.input[slot] = own.output[0]
                    found.append(own)
                else:
                    own = node
                own.input[1] = self._constant(node.input[1], qtype)
                self._native[own.output[0]] = qtype
        return found

    def _wish(self, reader: onnx.NodeProto, slot: int, types: Mapping[str, QType]) -> QType | None:
        qtype = types.get(reader.name)
        form = None if qtype is None else half_form_of(self.index, self.index.node(reader.name), qtype)
        return qtype if form is not None and form.takes(slot) else None

    def _passed(self, nodes: list[onnx.NodeProto], types: Mapping[str, QType]) -> dict[str, str]:
        """Casts of the model to the type that what they read is in already: by their names, what they give.

        Only those whose operand nothing else reads: its producer then writes what they gave.
        """
        count: defaultdict[str, int] = defaultdict(int)
        for node in nodes:
            for value in node.input:
                count[value] += 1
        outputs = {v.name for v in self._graph.output} | self.index.captured
        found: dict[str, str] = {}
        for node in nodes:
            to = next((a.i for a in node.attribute if a.name == "to"), 0)
            producer = self.index.producer(node.input[0]) if node.op_type == "Cast" else None
            qtype = None if producer is None else types.get(producer.name)
            if qtype is not None and _ONNX[qtype] == to and count[node.input[0]] == 1 and node.input[0] not in outputs:
                found[node.name] = node.output[0]
                self._halves[node.input[0], qtype] = node.output[0]
        return found

    def _write_half(self, node: onnx.NodeProto, qtype: QType, form: HalfForm, wide: set[str]) -> None:
        for slot, value in enumerate(node.input):
            if value and form.takes(slot):
                node.input[slot] = self._half(value, qtype)
            elif value:
                node.input[slot] = self._float(value)
        kept: list[tuple[str, str]] = []
        for slot, value in enumerate(node.output):
            if not value or not form.gives(slot) or not self._is_float(value):
                continue
            self._native[value] = qtype
            if value in wide:  # it keeps its name as float32
                self._halves[value, qtype], self._floats[value] = self.free(f"{value}_{qtype.value}"), value
                kept.append((self._halves[value, qtype], value))
            node.output[slot] = self._name(value)
        self._graph.node.append(node)
        for half, value in kept:
            self._cast(half, value, _FLOAT)

    def _is_float(self, value: str) -> bool:
        """Whether ``value`` was float32 before; what emitting renamed is an output that was."""
        return self.index.is_float(value) or value not in self.index.dtypes

    def _name(self, value: str) -> str:
        """``value`` as its producer wrote it."""
        return self._halves.get((value, self._native[value]), value) if value in self._native else value

    def _half(self, value: str, qtype: QType) -> str:
        if self._native.get(value) is qtype:
            return self._name(value)
        if value in self._constants:
            return self._constant(value, qtype) if self._constants[value].data_type == _FLOAT else value
        if not self._is_float(value):
            return value
        key = value, qtype
        if key not in self._halves:
            producer = self.index.producer(value)
            source = producer.inputs[0] if producer is not None and producer.op_type == "Cast" else ""
            if self._native.get(source) is qtype:  # the model's own Cast from halves
                self._halves[key] = self._name(source)
            else:
                self._halves[key] = self.free(f"{value}_{qtype.value}")
                self._cast(self._name(value), self._halves[key], _ONNX[qtype])
        return self._halves[key]

    def _float(self, value: str) -> str:
        if value not in self._native or value in self.index.inputs:  # what reads a half of the model's reads it still
            return value
        if value not in self._floats:
            self._floats[value] = self.free(f"{value}_float32")
            self._cast(self._name(value), self._floats[value], _FLOAT)
        return self._floats[value]

    def _cast(self, source: str, made: str, to: int) -> None:
        name = f"{made}_Cast"
        self._graph.node.append(onnx.helper.make_node("Cast", [source], [made], name=name, to=to))

    def _constant(self, value: str, qtype: QType) -> str:
        """The constant called ``value`` in ``qtype``: beside it, since others may read it."""
        key = value, qtype
        if key not in self._halves:
            name, tensor = self.free(f"{value}_{qtype.value}"), self._constants[value]
            self._halves[key] = name
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                dims, stored = tuple(tensor.dims), f"{qtype.value}:{value}"

                def narrowed() -> bytes:
                    return np.frombuffer(self.store.read(tensor), np.float32).astype(STORAGE[qtype]).tobytes()

                self.store.put(stored, narrowed)
                half = self.store.reference(stored, name, _ONNX[qtype], dims)
            else:
                half = tensor_proto(name, onnx.numpy_helper.to_array(tensor).astype(STORAGE[qtype]), _ONNX[qtype])
            self._graph.initializer.append(half)
        return self._halves[key]

    def _drop_unread(self) -> None:
        """Leave out constants, and Casts of the model's inputs, that only halves are read of now."""
        graph = self._graph
        read = {v for n in graph.node for v in n.input} | {v.name for v in graph.output} | self.index.captured
        idle = {value for value, _ in self._halves if value not in read}
        tensors = [t for t in graph.initializer if t.name not in idle]
        casts = [n for n in graph.node if not (n.op_type == "Cast" and n.output[0] in idle)]
        del graph.initializer[:], graph.node[:]
        graph.initializer.extend(tensors)
        graph.node.extend(casts)


def read_halves(model: ir.Model) -> dict[Port, QType]:
    """Let ``model`` compute in float32 instead; the ports that read halves, without those behind Casts and Q/DQ nodes.

    Constants that were written as halves have their names again, and the values that are left of them.
    """
    if not has_halves(model):
        return {}
    infer_shapes(model)
    graph, found = model.graph, dict[Port, QType]()
    opset = model.opset_imports.get("", 0)
    for node in graph:
        kinds = {_BY_IR[v.dtype] for v in node.inputs if v is not None and v.dtype in _BY_IR}
        if len(kinds) != 1 or node.domain not in ("", "ai.onnx"):
            continue
        (qtype,) = kinds
        form = half_form(node.op_type, opset, qtype, len(node.outputs))
        for slot, value in enumerate(node.inputs):
            if form is not None and form.takes(slot) and value is not None and value.dtype in _BY_IR:
                found[Port(str(node.name), slot)] = qtype
    for value in list(graph.initializers.values()):
        stem = next((str(value.name).removesuffix(s) for s in _SUFFIXES if str(value.name).endswith(s)), "")
        if not stem or value.dtype not in _BY_IR or value.const_value is None:
            continue
        wide = graph.initializers.get(stem)
        if wide is None:
            wide = add_constant(graph, stem, np.asarray(value.const_value.numpy()).astype(np.float32))
        value.replace_all_uses_with(wide)
        del graph.initializers[str(value.name)]
    widen_halves(model)
    return found
