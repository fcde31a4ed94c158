"""Write a placement into a model: the only writer of what is measured and delivered.

(Two kinds of probe write Q/DQ nodes of their own into models that are never delivered: :mod:`inlay.quant.fake_quant`,
with switches, and :mod:`inlay.calibrate.ranges`, with qparams as inputs.)

For each value and type there is one QuantizeLinear (a DynamicQuantizeLinear for a dynamic type) and one
DequantizeLinear; the selected consumers read the latter, all others the original value. Constants are stored quantized,
with a DequantizeLinear alone. Operators in half precision are written next (:mod:`inlay.quant.halves`). The empty
placement is the identity, bit for bit. A target's rewrites (:mod:`inlay.quant.rewrite`) are applied last.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from inlay.errors import Late, ModelError, TargetError
from inlay.installed import __version__
from inlay.model.graph import Graph
from inlay.model.metadata import cloned
from inlay.model.passes.names import free_name
from inlay.model.passes.opset import LEAST_IR, raise_opset
from inlay.model.store import INLINE_BYTES, WeightStore, externalize_weights, packed, tensor_proto
from inlay.quant.gptq import Steps
from inlay.quant.halves import HalfWriter, halves_of
from inlay.quant.notes import Inverse, Unwritten
from inlay.quant.qdq_graph import DEQUANTIZE, DYNAMIC_QUANTIZE, QUANTIZE, QDQGraph
from inlay.quant.qparams import STORAGE, STORED, QParamsTable, quantize, scale_shape
from inlay.quant.rewrite import Rewrite
from inlay.types import GRAPH_OUTPUT, Placement, Port, QParams, QType

ONNX_TYPE = {t: int(getattr(onnx.TensorProto, t.element.upper())) for t in QType}


@dataclass(frozen=True, eq=False)
class _Site:
    """One Q/DQ pair (or one DQ of a constant) and the ports that read it; ``prefix`` begins all its names.

    ``params`` is None where the type is dynamic.
    ``moved``: a DQ has taken over the value's name, since a graph output reads it; the float value has another.
    ``array``: what is quantized in place of the constant's own values (a corrected bias).
    ``steps``: how far its integers are from the nearest ones.
    """

    value: str
    qtype: QType
    params: QParams | None
    ports: tuple[Port, ...]
    prefix: str
    moved: bool = False
    array: np.ndarray | None = None
    steps: Steps | None = None

    @property
    def at_output(self) -> bool:
        """Whether an output of the graph reads it."""
        return any(p.node == GRAPH_OUTPUT for p in self.ports)


@dataclass(frozen=True)
class _Parts:
    """What a site adds to the model: made once, then copied into each candidate."""

    read: str  # the value that the site's ports read
    nodes: tuple[onnx.NodeProto, ...]
    tensors: tuple[onnx.TensorProto, ...]


class Emitter:
    """Writes candidates of one model; each weight is quantized and stored once, and candidates refer to it.

    Args:
        store: where weights live; candidates must be built in its folder.
        rewrites: of the target, in the order in which they are applied.
        shapes: the graph by whose shapes rewrites decide whether they apply; ``graph`` by default.
        base: ``model`` with its weights in ``store``, where the caller has it already.
    """

    def __init__(
        self,
        model: ir.Model,
        graph: Graph,
        store: WeightStore,
        rewrites: Sequence[Rewrite[Any]] = (),
        shapes: Graph | None = None,
        base: onnx.ModelProto | None = None,
    ) -> None:
        self._graph = graph
        self._store = store
        self._targets_rewrites, self._fixed = rewrites, shapes or graph
        self._model = model
        self.base = externalize_weights(model, store) if base is None else base
        # keyed by the identity of the qparams too: the tuple keeps them alive
        self._parts: dict[tuple[str, bool, bool, int, int], tuple[_Site, _Parts]] = {}  # held: no other gets its ids
        self._raised: dict[int, onnx.ModelProto] = {}  # by opset
        # by node, the ports that read halves where it computes in half precision, of those that may
        self.able: Mapping[str, Sequence[tuple[Port, QType]]] = {}

    @cached_property
    def _rewrites(self) -> list[tuple[Rewrite[Any], dict[str, Any]]]:
        """Each rewrite with the form that it has at each node that it applies to."""
        fixed = self._fixed
        return [
            (rewrite, {n.name: form for n in fixed.nodes if (form := rewrite.applies(fixed, n)) is not None})
            for rewrite in self._targets_rewrites
        ]

    def base_for(self, types: Iterable[QType]) -> onnx.ModelProto:
        """``base`` in the first opset that has Q/DQ nodes in all ``types``; raised only where some of them ask for it.

        Raises:
            ModelError: it cannot be raised.
        """
        newest = max(types, key=lambda t: t.opset, default=QType.INT8)
        if newest.opset and newest.opset not in self._raised:
            self._raised[newest.opset] = self._raise(newest)
        return self._raised.get(newest.opset, self.base)

    def _raise(self, qtype: QType) -> onnx.ModelProto:
        what = "blocks of weights need" if qtype.block else f"{qtype.value} needs"
        try:
            model, changed = raise_opset(cloned(self._model), qtype.opset)
        except Late:
            raise
        except TargetError as error:
            raise ModelError(f"{what} opset {qtype.opset}: {error}") from error
        base = externalize_weights(model, self._store) if changed else self.base
        left = {(n.name, *n.output) for n in base.graph.node}
        lost = next((n for n in self.base.graph.node if (n.name, *n.output) not in left), None)
        if lost is not None:
            raise ModelError(f"{what} opset {qtype.opset}, in which {lost.op_type} {lost.name} no longer exists")
        if base.ir_version >= LEAST_IR[qtype.opset]:
            return base
        newer = onnx.ModelProto()
        newer.CopyFrom(base)
        newer.ir_version = LEAST_IR[qtype.opset]
        return newer

    @cached_property
    def _values(self) -> set[str]:
        graph = self.base.graph
        given = {t.name for t in graph.initializer} | {i.name for i in graph.input}
        return given.union(v for n in graph.node for v in (*n.input, *n.output))

    @cached_property
    def _node_names(self) -> set[str]:
        return {n.name for n in self.base.graph.node}

    @cached_property
    def _names(self) -> set[str]:
        return self._values | self._node_names

    def selectable_rewrites(self, node: str) -> list[str]:
        """Names of the selectable rewrites that apply to ``node``."""
        return [rewrite.name for rewrite, forms in self._rewrites if rewrite.selectable and node in forms]

    def emit(
        self, placement: Placement, table: QParamsTable, metadata: Mapping[str, str] | None = None
    ) -> onnx.ModelProto:
        """The model with ``placement`` set in; its larger tensors refer to the store.

        Raises:
            ModelError: a port that the model does not have, or whose value cannot be quantized; or a type that needs
                an opset to which the model cannot be raised.
        """
        sites = self._sites(placement, table)
        halves = halves_of(placement, self.able)
        proto, base = onnx.ModelProto(), self.base_for({*(site.qtype for site in sites), *halves.values()})
        for field in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
            if base.HasField(field):
                setattr(proto, field, getattr(base, field))
        proto.opset_import.extend(base.opset_import)
        facts = dict(metadata or {})
        if len(placement):  # so that extract knows that no activation was dropped for a Q
            facts.setdefault("inlay.version", __version__)
        proto.metadata_props.extend(entry for entry in base.metadata_props if entry.key not in facts)
        proto.functions.extend(base.functions)
        for key, text in facts.items():
            proto.metadata_props.add(key=key, value=text)
        self._write_graph(proto.graph, base.graph, sites)
        if halves:
            HalfWriter(self._graph, self._store, self._free).write(proto.graph, halves)
        if sites:
            self._rewrite(proto.graph, placement)
        known = {opset.domain for opset in proto.opset_import} | {"ai.onnx", ""}
        for domain in sorted({node.domain for node in proto.graph.node} - known):
            proto.opset_import.add(domain=domain, version=1)
        return proto

    def _rewrite(self, graph: onnx.GraphProto, placement: Placement) -> None:
        """Apply the rewrites in turn and leave notes; one named where it does not apply changes nothing."""
        before = Unwritten(graph) if any(forms for _, forms in self._rewrites) else None
        inverses: dict[str, Inverse] = {}
        selected: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for rewrite, forms in self._rewrites:
            if rewrite.selectable:
                chosen = [r.port for r in placement.rewrites if r.name == rewrite.name and r.port.node in forms]
                forms = {port.node: forms[port.node] for port in chosen}
                for port in chosen:
                    selected[port.node][rewrite.name].append(port.slot)
            if forms:
                qdq = QDQGraph(graph, self._store, self._new_name)
                rewrite.apply(qdq, forms)
                inverses.update((v, (*inverse, *inverses.get(v, ()))) for v, inverse in qdq.inverses.items())
        if before is not None:
            before.note(graph, inverses, selected)

    def _sites(self, placement: Placement, table: QParamsTable) -> list[_Site]:
        readers: defaultdict[tuple[str, QType], list[Port]] = defaultdict(list)
        sites: list[_Site] = []
        for port, qtype in placement:
            try:
                value = self._graph.value_of(port)
            except KeyError:
                raise ModelError(f"the placement names port {port}, which the model does not have") from None
            if qtype.half:
                continue
            if qtype is QType.INT32:
                of_bias = table.bias_params(port, placement)
                bias = table.bias(port, placement)
                sites.append(_Site(value, qtype, of_bias, (port,), f"{value}_{port.node}", array=bias))
            else:
                readers[value, qtype].append(port)
        types = Counter(value for value, _ in readers)
        moved = {value for (value, _), ports in readers.items() if any(p.node == GRAPH_OUTPUT for p in ports)}
        for (value, qtype), ports in readers.items():
            known = not self._graph.is_constant(value) if qtype.dynamic else table.knows(value)
            if not self._graph.is_float(value) or not known:
                raise ModelError(f"port {ports[0]} reads {value}, which cannot be quantized")
            prefix = value if types[value] == 1 else f"{value}_{qtype.value.replace(' ', '_').replace('/', '_')}"
            params = None if qtype.dynamic else table.params(value, qtype)
            steps = table.steps(value, qtype) if params is not None and self._graph.is_constant(value) else None
            site = _Site(value, qtype, params, tuple(ports), prefix, value in moved, steps=steps)
            owned = value not in self._graph.captured and self._graph.producer(value) is not None
            if site.at_output and not owned:
                raise ModelError(f"graph output {value} cannot be quantized: a subgraph or the caller owns the value")
            sites.append(site)
        return sites

    def _write_graph(self, graph: onnx.GraphProto, base: onnx.GraphProto, sites: Iterable[_Site]) -> None:
        redirect: defaultdict[str, dict[int, str]] = defaultdict(dict)
        renamed: dict[str, str] = {}
        at_start: list[onnx.NodeProto] = []
        after: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
        tensors: list[onnx.TensorProto] = []
        replaced: set[str] = set()
        for site in sites:
            key = (site.prefix, site.at_output, site.moved, id(site.params), id(site.steps))
            if key not in self._parts:
                self._parts[key] = (site, self._new_parts(site))
            parts = self._parts[key][1]
            tensors.extend(parts.tensors)
            if site.at_output:  # the graph's output keeps its name: the float value gets another
                renamed[site.value] = self._float_name(site.value)
            for port in site.ports:
                if port.node != GRAPH_OUTPUT:
                    redirect[port.node][port.slot] = parts.read
            producer = self._graph.producer(site.value)
            (after[producer.name] if producer is not None else at_start).extend(parts.nodes)
            if self._graph.is_constant(site.value) and self._all_read(site):
                replaced.add(site.value)
        graph.name = base.name
        if base.HasField("doc_string"):
            graph.doc_string = base.doc_string
        graph.input.extend(base.input)
        graph.output.extend(base.output)
        graph.value_info.extend(base.value_info)
        graph.node.extend(at_start)
        around = (p.node for v in renamed for p in self._graph.consumers(v))
        makers = (n for v in renamed if (n := self._graph.producer(v)) is not None)
        touched = {*around, *(n.name for n in makers), *redirect}
        for node in base.node:
            graph.node.append(node)
            name = node.name
            if name in touched:
                _rewire(graph.node[-1], redirect.get(name, {}), renamed)
            if name in after:
                graph.node.extend(after[name])
        graph.initializer.extend(t for t in base.initializer if t.name not in replaced)
        graph.initializer.extend(tensors)
        graph.sparse_initializer.extend(base.sparse_initializer)
        graph.quantization_annotation.extend(base.quantization_annotation)
        graph.metadata_props.extend(base.metadata_props)

    def _all_read(self, site: _Site) -> bool:
        """Whether no consumer of a constant is left that reads its float form."""
        if site.value in self._graph.captured:
            return False
        return set(self._graph.consumers(site.value)) == set(site.ports)

    def _new_parts(self, site: _Site) -> _Parts:
        params = site.params
        names = [self._free(f"{site.prefix}_{suffix}") for suffix in ("scale", "zero_point", "quantized")]
        scale_name, zero_name, quantized = names
        read = site.value if site.at_output else self._free(f"{site.prefix}_{DEQUANTIZE}")
        source = self._float_name(site.value) if site.moved else site.value
        if params is None:  # scale and zero point are computed from the value itself
            made = [quantized, scale_name, zero_name]
            q = onnx.helper.make_node(DYNAMIC_QUANTIZE, [source], made, self._free_node(site, DYNAMIC_QUANTIZE))
            return _Parts(read, (q, _node(DEQUANTIZE, made, read, self._free_node(site, DEQUANTIZE), {})), ())
        # runtimes fuse scalars; [1] breaks some kernels
        shape = scale_shape(self._graph.shape(site.value) or (), params)
        scale = np.asarray(params.scale, np.float32).reshape(shape)
        zero = np.asarray(params.zero_point, STORAGE[params.qtype]).reshape(shape)
        axis: dict[str, int] = {} if params.axis is None else {"axis": params.axis}
        if params.qtype.block:
            axis["block_size"] = params.qtype.block
        tensors = [tensor_proto(scale_name, scale, onnx.TensorProto.FLOAT)]
        grid = [scale_name, zero_name]
        if params.qtype.block and not zero.any():
            grid.pop()  # one for each block would be read, and kept in the file
        else:
            tensors.append(tensor_proto(zero_name, zero, ONNX_TYPE[params.qtype]))
        nodes = [_node(DEQUANTIZE, [quantized, *grid], read, self._free_node(site, DEQUANTIZE), axis)]
        if self._graph.is_constant(site.value):
            tensors.append(self._constant(site, quantized))
        else:
            reads = [source, scale_name, zero_name]
            nodes.insert(0, _node(QUANTIZE, reads, quantized, self._free_node(site, QUANTIZE), axis))
        return _Parts(read, tuple(nodes), tuple(tensors))

    def _constant(self, site: _Site, name: str) -> onnx.TensorProto:
        """The quantized form of a constant, stored once for each of its qparams."""
        array = self._graph.constant(site.value) if site.array is None else site.array
        assert array is not None
        assert site.params is not None
        params = site.params
        dtype = ONNX_TYPE[site.qtype]
        if array.size * site.qtype.bits // 8 < INLINE_BYTES:
            return tensor_proto(name, quantize(array, params, site.steps), dtype)
        key = f"{site.qtype.value}:{site.prefix}:{hash(params)}"
        if site.array is not None:
            key += f":{hashlib.sha256(array.tobytes()).hexdigest()}"
        if site.steps is not None:
            key += f":{site.steps.digest}"
        self._store.put(key, lambda: packed(quantize(array, params, site.steps).astype(STORED[params.qtype])))
        return self._store.reference(key, name, dtype, tuple(array.shape))

    def _float_name(self, value: str) -> str:
        """Name of a graph output's value before it is quantized."""
        return self._free(f"{value}_float")

    def _free(self, wish: str) -> str:
        return free_name(wish, self._values)

    def _new_name(self, wish: str) -> str:
        return free_name(wish, self._names)

    def _free_node(self, site: _Site, op_type: str) -> str:
        return free_name(f"{site.prefix}_{op_type}", self._node_names)


def _node(op_type: str, inputs: list[str], output: str, name: str, attributes: Mapping[str, int]) -> onnx.NodeProto:
    node = onnx.NodeProto(op_type=op_type, name=name, input=inputs, output=[output])
    node.attribute.extend(onnx.helper.make_attribute(k, v) for k, v in attributes.items())
    return node


def _rewire(node: onnx.NodeProto, slots: Mapping[int, str], renamed: Mapping[str, str]) -> None:
    for slot, value in enumerate(node.input):
        new = slots.get(slot) or renamed.get(value)
        if new is not None:
            node.input[slot] = new
    for slot, value in enumerate(node.output):
        if value in renamed:
            node.output[slot] = renamed[value]
