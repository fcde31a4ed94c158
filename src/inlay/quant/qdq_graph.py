"""An emitted Q/DQ graph under edit: the view that a target's rewrites (:mod:`inlay.quant.rewrite`) work on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

import numpy as np
import onnx

from inlay.model.store import WeightStore, tensor_proto, unpacked
from inlay.quant.notes import Inverse

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
DYNAMIC_QUANTIZE = "DynamicQuantizeLinear"


class QDQGraph:
    """A Q/DQ graph with the producer and the number of readers of each value, and access to its constants.

    Args:
        graph: edited in place; larger weights are references into ``store``.
        unique: derives from a wished name one that the graph does not use yet.
    """

    def __init__(self, graph: onnx.GraphProto, store: WeightStore, unique: Callable[[str], str]) -> None:
        self.graph, self.unique = graph, unique
        self.inverses: dict[str, Inverse] = {}  # how to have back the constants that were set, by name
        self._store = store
        self.producers = {v: n for n in graph.node for v in n.output}
        self.uses = Counter(v for n in graph.node for v in n.input) + Counter(o.name for o in graph.output)
        self._tensors = {t.name: t for t in graph.initializer}
        self._before: dict[str, list[onnx.NodeProto]] = {}
        self._unused = set[str]()  # nodes and initializers

    def dequantizer(self, value: str) -> onnx.NodeProto | None:
        """The DequantizeLinear that produces ``value``, or None."""
        node = self.producers.get(value)
        return node if node is not None and node.op_type == DEQUANTIZE else None

    def owns(self, dq: onnx.NodeProto) -> bool:
        """Whether ``dq`` dequantizes a constant, and is the only reader of it, its scale and its zero point."""
        return all(v in self._tensors and self.uses[v] == 1 for v in dq.input) and self.uses[dq.output[0]] == 1

    def element(self, name: str) -> int | None:
        """ONNX's number of the element type of the initializer ``name``; None where it is computed."""
        tensor = self._tensors.get(name)
        return None if tensor is None else tensor.data_type

    def in_bytes(self, node: onnx.NodeProto) -> bool:
        """Whether a QuantizeLinear or DequantizeLinear states integers of 8 bits, which integer kernels take."""
        kinds = {self.element(zero) for zero in node.input[2:]}
        return kinds <= {onnx.TensorProto.UINT8, onnx.TensorProto.INT8} and bool(kinds)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the initializer ``name``."""
        return tuple(self._tensors[name].dims)

    def constant(self, name: str) -> np.ndarray:
        """The stored array of the initializer ``name``."""
        tensor = self._tensors[name]
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            return np.asarray(onnx.numpy_helper.to_array(tensor))
        if tensor.data_type == onnx.TensorProto.INT4:
            return unpacked(self._store.read(tensor), tuple(tensor.dims))
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        return np.frombuffer(self._store.read(tensor), dtype).reshape(tuple(tensor.dims))

    def set_constant(self, name: str, make: Callable[[], np.ndarray], rewrite: str, inverse: Inverse) -> None:
        """Replace the initializer ``name`` by the array that ``make`` returns.

        For a weight in the store, ``make`` runs once for all candidates: ``rewrite`` and the place of the original in
        the store are the key of the result. ``inverse`` says how to have the original back; without it, the original is
        kept in a note, which is for small ones.
        """
        tensor = self._tensors[name]
        if inverse:
            self.inverses[name] = (*inverse, *self.inverses.get(name, ()))
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            where = {entry.key: entry.value for entry in tensor.external_data}
            key = f"{rewrite}:{where['offset']}"
            shape = self._store.put_array(key, make)
            tensor.CopyFrom(self._store.reference(key, name, tensor.data_type, shape))
        else:
            tensor.CopyFrom(tensor_proto(name, make(), tensor.data_type))

    def rearrange(
        self,
        dq: onnx.NodeProto,
        weight: Callable[[np.ndarray], np.ndarray],
        channels: Callable[[np.ndarray], np.ndarray],
        rewrite: str,
        inverse: Inverse,
    ) -> None:
        """Rearrange the quantized weight that ``dq`` reads; padding gets the zero point, so that it stands for 0.0.

        Args:
            dq: dequantizes a constant that :meth:`owns` holds for.
            weight: rearranges integers relative to the zero point, and pads with 0; output channels first in its
                result.
            channels: rearranges one value per output channel likewise.
            rewrite: as of :meth:`set_constant`.
            inverse: as of :meth:`set_constant`.
        """

        def make() -> np.ndarray:
            stored = self.constant(dq.input[0])
            zero = self.constant(dq.input[2]) if len(dq.input) > 2 else np.zeros((), stored.dtype)
            axis = next((a.i for a in dq.attribute if a.name == "axis"), 1)
            before = zero.reshape([-1 if i == axis else 1 for i in range(stored.ndim)]) if zero.ndim else zero
            after = channels(zero).reshape(-1, *[1] * (stored.ndim - 1)) if zero.ndim else zero
            return np.asarray(weight(stored.astype(np.int32) - before) + after, stored.dtype)

        self.set_constant(dq.input[0], make, rewrite, inverse)

    def insert(self, nodes: list[onnx.NodeProto], before: onnx.NodeProto) -> None:
        """Insert ``nodes`` before a node of the graph when :meth:`finish` is called."""
        self._before.setdefault(before.name, []).extend(nodes)

    def add_constant(self, wish: str, array: np.ndarray) -> str:
        """Add an initializer and return its name."""
        name = self.unique(wish)
        self.graph.initializer.append(tensor_proto(name, array, onnx.helper.np_dtype_to_tensor_dtype(array.dtype)))
        return name

    def release(self, dq: onnx.NodeProto) -> None:
        """Count one reader of what ``dq`` writes less; :meth:`finish` removes it where none is left."""
        self.uses[dq.output[0]] -= 1
        if not self.uses[dq.output[0]]:
            self._unused.add(dq.name)

    def drop(self, name: str) -> None:
        """Remove an initializer that nothing reads any more, when :meth:`finish` is called."""
        self._unused.add(name)

    def drop_shapes(self, values: Collection[str]) -> None:
        """Drop the stated shapes of ``values``, which a rewrite has changed."""
        infos = [i for i in self.graph.value_info if i.name not in values]
        if len(infos) < len(self.graph.value_info):
            del self.graph.value_info[:]
            self.graph.value_info.extend(infos)

    def finish(self, unused: Collection[str] = ()) -> None:
        """Place the inserted nodes, and remove the nodes named in ``unused`` and what was dropped."""
        gone = {*unused, *self._unused}
        if self._before or gone:
            nodes = [m for n in self.graph.node for m in (*self._before.pop(n.name, ()), n) if m.name not in gone]
            del self.graph.node[:]
            self.graph.node.extend(nodes)
        if self._unused:
            tensors = [t for t in self.graph.initializer if t.name not in self._unused]
            del self.graph.initializer[:]
            self.graph.initializer.extend(tensors)


def path_to_quantizer(
    node: onnx.NodeProto, sole_reader: Mapping[str, onnx.NodeProto], qdq: QDQGraph, absorbed: Collection[str]
) -> tuple[list[onnx.NodeProto], onnx.NodeProto | None]:
    """The activations between ``node`` and the only QuantizeLinear that reads it, and that; None where there is none.

    Args:
        sole_reader: by value, a node that reads it.
        absorbed: operators that the target fuses into the one before them; others end the search.
    """
    between: list[onnx.NodeProto] = []
    value = node.output[0]
    while qdq.uses[value] == 1 and (reader := sole_reader.get(value)) is not None:
        if reader.op_type == QUANTIZE:
            return between, reader
        if reader.op_type not in absorbed or reader.input[0] != value:
            break
        between.append(reader)
        value = reader.output[0]
    return between, None


def set_attributes(node: onnx.NodeProto, attributes: Mapping[str, tuple[int, ...]], keep: bool) -> None:
    """Set integer-list ``attributes`` of ``node``; ``keep`` the others that it has."""
    kept = [a for a in node.attribute if keep and a.name not in attributes]
    del node.attribute[:]
    node.attribute.extend([*kept, *(onnx.helper.make_attribute(k, v) for k, v in attributes.items())])
