"""Forms of an operator in low precision: what is rewritten in a candidate after its Q/DQ nodes are set in.

Some operators are fast, or have an integer kernel at all, only in another form, and that form is slower in float. Such
a rewriting is not a matter of the model, then, but of how low precision is written. It gives the same integers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

import numpy as np
import onnx

from inlay.model.store import WeightStore, tensor_proto

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


class Draft:
    """A candidate that is being written: who writes and who reads each value, and the numbers of its constants.

    Args:
        graph: with Q/DQ nodes, some weights in ``store``; is changed.
        store: of the weights.
        free: makes a name that the graph does not have of a wish.
    """

    def __init__(self, graph: onnx.GraphProto, store: WeightStore, free: Callable[[str], str]) -> None:
        self.graph, self.free = graph, free
        self._store = store
        self.writers = {v: n for n in graph.node for v in n.output}
        self.uses = Counter(v for n in graph.node for v in n.input) + Counter(o.name for o in graph.output)
        self._tensors = {t.name: t for t in graph.initializer}
        self._before: dict[str, list[onnx.NodeProto]] = {}

    def dequantizer(self, value: str) -> onnx.NodeProto | None:
        """The DQ that gives ``value``; None where something else does."""
        node = self.writers.get(value)
        return node if node is not None and node.op_type == DEQUANTIZE else None

    def owns(self, dq: onnx.NodeProto) -> bool:
        """Whether ``dq`` gives back a constant whose numbers and scales nobody else reads."""
        return all(v in self._tensors and self.uses[v] == 1 for v in dq.input) and self.uses[dq.output[0]] == 1

    def numbers(self, name: str) -> np.ndarray:
        """The constant called ``name``, as it is stored."""
        tensor = self._tensors[name]
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            return np.asarray(onnx.numpy_helper.to_array(tensor))
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        return np.frombuffer(self._store.read(tensor), dtype).reshape(tuple(tensor.dims))

    def put(self, name: str, make: Callable[[], np.ndarray], form: str) -> None:
        """Let the numbers that ``make`` gives take the place of the constant called ``name``.

        Of a constant in the store they are made once, for all candidates; ``form`` says what they are.
        """
        tensor = self._tensors[name]
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            where = {entry.key: entry.value for entry in tensor.external_data}
            key = f"{form}:{where['offset']}"
            shape = self._store.put_array(key, make)
            tensor.CopyFrom(self._store.reference(key, name, tensor.data_type, shape))
        else:
            tensor.CopyFrom(tensor_proto(name, make(), tensor.data_type))

    def rearrange(
        self,
        dq: onnx.NodeProto,
        weight: Callable[[np.ndarray], np.ndarray],
        channels: Callable[[np.ndarray], np.ndarray],
        form: str,
    ) -> None:
        """Rearrange the weight behind ``dq``; what is added to it stands for 0.0, wherever its zero point is.

        Args:
            dq: gives back a constant that nobody else reads.
            weight: rearranges it, output channels first; adds zeros.
            channels: rearranges numbers of its output channels.
            form: says what it becomes.
        """

        def make() -> np.ndarray:
            numbers = self.numbers(dq.input[0])
            zero = self.numbers(dq.input[2]) if len(dq.input) > 2 else np.zeros((), numbers.dtype)
            axis = next((a.i for a in dq.attribute if a.name == "axis"), 1)
            before = zero.reshape([-1 if i == axis else 1 for i in range(numbers.ndim)]) if zero.ndim else zero
            after = channels(zero).reshape(-1, *[1] * (numbers.ndim - 1)) if zero.ndim else zero
            return np.asarray(weight(numbers.astype(np.int32) - before) + after, numbers.dtype)

        self.put(dq.input[0], make, form)

    def insert(self, nodes: list[onnx.NodeProto], before: onnx.NodeProto) -> None:
        """Let ``nodes`` stand before one that is in the graph, once :meth:`finish` is called."""
        self._before.setdefault(before.name, []).extend(nodes)

    def constant(self, wish: str, numbers: np.ndarray) -> str:
        """A new constant of 64-bit integers; its name."""
        name = self.free(wish)
        self.graph.initializer.append(tensor_proto(name, numbers, onnx.TensorProto.INT64))
        return name

    def forget(self, values: Collection[str]) -> None:
        """Drop what the graph states of the shapes of ``values``: they have others now."""
        infos = [i for i in self.graph.value_info if i.name not in values]
        if len(infos) < len(self.graph.value_info):
            del self.graph.value_info[:]
            self.graph.value_info.extend(infos)

    def finish(self, unread: set[str]) -> None:
        """Write the inserted nodes, and leave out those whose names are in ``unread``."""
        if self._before:
            nodes = [m for n in self.graph.node for m in (*self._before.pop(n.name, ()), n) if m.name not in unread]
            del self.graph.node[:]
            self.graph.node.extend(nodes)


def until_quantized(
    node: onnx.NodeProto, after: Mapping[str, onnx.NodeProto], draft: Draft, absorbed: Collection[str]
) -> tuple[list[onnx.NodeProto], onnx.NodeProto | None]:
    """What stands between ``node`` and the Q that alone reads its result, activations at most; and that Q.

    Args:
        node: of the draft.
        after: by value, its only reader.
        draft: the candidate.
        absorbed: activations that the target folds into the operator before them.
    """
    between: list[onnx.NodeProto] = []
    value = node.output[0]
    while draft.uses[value] == 1 and (reader := after.get(value)) is not None:
        if reader.op_type == QUANTIZE:
            return between, reader
        if reader.op_type not in absorbed or reader.input[0] != value:
            break
        between.append(reader)
        value = reader.output[0]
    return between, None


def set_window(node: onnx.NodeProto, window: Mapping[str, tuple[int, ...]], keep: bool) -> None:
    """Give a convolution other attributes; ``keep`` those of the old that ``window`` does not name."""
    kept = [a for a in node.attribute if keep and a.name not in window]
    del node.attribute[:]
    node.attribute.extend([*kept, *(onnx.helper.make_attribute(k, v) for k, v in window.items())])
