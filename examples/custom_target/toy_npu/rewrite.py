"""The accelerator's own rewrite: a Conv computes whole lanes of output channels, and a Slice drops the extra ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from inlay.model.graph import Graph, Node
from inlay.quant.qdq_graph import QDQGraph, path_to_quantizer
from inlay.quant.rewrite import Rewrite


@dataclass(frozen=True)
class FullLanes(Rewrite[int]):
    """``DQ -> Conv [-> Relu] -> Q`` becomes ``DQ -> Conv with its last channel repeated [-> Relu] -> Q -> Slice``."""

    lanes: int  # output channels that the int8 kernel computes at a time
    absorbed: tuple[str, ...]  # activations that the accelerator fuses into the Conv before them

    name = "full lanes"
    selectable = True
    reason = "the int8 Conv computes several output channels at a time only where their number is a multiple"
    source = "costs.yaml, int8_full_lanes against int8; the search profiles whether that outweighs the Slice"

    def applies(self, graph: Graph, node: Node) -> int | None:
        """How many output channels a Conv of one group with a constant weight lacks."""
        if node.op_type != "Conv" or not graph.is_constant(node.inputs[1]) or node.attributes.get("group", 1) != 1:
            return None
        return -(graph.shape(node.inputs[1]) or (0,))[0] % self.lanes or None

    def apply(self, qdq: QDQGraph, forms: Mapping[str, int]) -> None:
        """Extend Convs whose data, constants and output are quantized."""
        sole_reader = {v: n for n in qdq.graph.node for v in n.input}
        stale: set[str] = set()
        for node in [n for n in qdq.graph.node if n.name in forms]:
            data, *constants = (qdq.dequantizer(v) for v in node.input)
            between, q = path_to_quantizer(node, sole_reader, qdq, self.absorbed)
            if q is None or data is None or not all(dq is not None and qdq.owns(dq) for dq in constants):
                continue
            channels = qdq.constant(constants[0].input[0]).shape[0]
            for name in [v for dq in constants for v in dq.input]:  # integers, scales and zero points
                array = qdq.constant(name)
                if array.ndim:
                    more = [(0, forms[node.name]), *[(0, 0)] * (array.ndim - 1)]
                    first = (("crop", ((0, channels),)),)  # what undoes it; nodes are noted by who writes the model
                    qdq.set_constant(name, partial(np.pad, array, more, mode="edge"), self.name, first)
            whole, name = q.output[0], qdq.unique(f"{node.name}_full_lanes_Slice")
            q.output[0] = qdq.unique(f"{node.name}_full_lanes")
            bounds = [qdq.add_constant(f"{name}_{i}", np.array([n], np.int64)) for i, n in enumerate((0, channels, 1))]
            cut = onnx.helper.make_node("Slice", [q.output[0], *bounds], [whole], name)
            qdq.insert([cut], before=sole_reader[whole])
            stale.update(n.output[0] for n in (node, *between))
        qdq.finish()
        qdq.drop_shapes(stale)
