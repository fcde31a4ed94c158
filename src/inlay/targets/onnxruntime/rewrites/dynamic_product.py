"""Products whose activation is quantized in each inference, in the form that ONNX Runtime has a kernel for.

The plain form, ``DynamicQuantizeLinear -> DequantizeLinear -> MatMul`` with a dequantized weight, is fused only where
no bias follows: the runtime makes a float Gemm of the two before it looks for integer kernels. Written as
``DynamicQuantizeLinear -> MatMulInteger -> Cast -> Mul`` it becomes one kernel, or two where several products read one
value. The integers are the same; the scales are multiplied behind the sum rather than before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx
import onnx_ir as ir

from inlay.model.graph import Graph, Node
from inlay.model.passes.steps import add_constant
from inlay.quant.qdq_graph import DEQUANTIZE, DYNAMIC_QUANTIZE, QDQGraph
from inlay.quant.rewrite import Rewrite
from inlay.targets.conditions import plain_product
from inlay.targets.onnxruntime.rewrites._undo import producer_of, set_constant
from inlay.types import Port

PRODUCT = "MatMulInteger"
_TURNED = "_turned"  # ends the name of a product whose weight was transposed


@dataclass(frozen=True)
class DynamicProduct(Rewrite[bool]):
    """``MatMul`` and ``Gemm`` of a dynamically quantized activation and a quantized weight, as ``MatMulInteger``."""

    name = "dynamic product"
    exact = False
    reason = "ONNX Runtime fuses it to DynamicQuantizeMatMul; dequantized operands are multiplied in float"
    source = "128x384 by 384x1536: 0.84 ms, in float 2.57, in the plain form 3.48 (ONNX Runtime 1.31, AVX512-VNNI)"

    def applies(self, graph: Graph, node: Node) -> bool | None:
        """Whether ``node`` is such a product once it is quantized; the value says whether its weight is transposed."""
        if node.op_type not in ("MatMul", "Gemm") or plain_product(graph, node) is not None:
            return None
        return bool(node.op_type == "Gemm" and node.attributes.get("transB", 0))

    def apply(self, qdq: QDQGraph, forms: Mapping[str, bool]) -> None:
        """Rewrite products both of whose operands are dequantized, the first one from DynamicQuantizeLinear."""
        replaced: set[str] = set()
        for node in list(qdq.graph.node):
            data, weight = (qdq.dequantizer(v) for v in node.input[:2]) if node.name in forms else (None, None)
            if data is None or weight is None or not qdq.owns(weight):
                continue
            if data.input[0] not in qdq.producers or qdq.producers[data.input[0]].op_type != DYNAMIC_QUANTIZE:
                continue
            turned = forms[node.name]
            if turned:
                qdq.set_constant(weight.input[0], partial(_transposed, qdq, weight.input[0]), PRODUCT)
            made = _integer(node, data, weight, turned, qdq)
            node.name = qdq.unique(f"{node.name}_float")  # it goes, and its name stays with the last of the others
            qdq.insert(made, before=node)
            replaced.add(node.name)
            for dq in (data, weight):
                qdq.uses[dq.output[0]] -= 1
                if not qdq.uses[dq.output[0]]:
                    replaced.add(dq.name)
        if replaced:
            qdq.finish(unused=replaced)

    def undo(self, graph: ir.Graph) -> Iterable[Port]:
        """Write such products with dequantized operands again."""
        dequantized: dict[ir.Value, ir.Value] = {}
        for product in [n for n in graph if n.op_type == PRODUCT]:
            _undo(product, graph, dequantized)
        return ()


def _transposed(qdq: QDQGraph, name: str) -> np.ndarray:
    return np.ascontiguousarray(qdq.constant(name).T)


def _integer(
    node: onnx.NodeProto, data: onnx.NodeProto, weight: onnx.NodeProto, turned: bool, qdq: QDQGraph
) -> list[onnx.NodeProto]:
    """The operators that compute what ``node`` does, the last of them with its name."""
    bias = node.input[2] if len(node.input) > 2 else ""

    def value(what: str) -> str:
        return qdq.unique(f"{node.name}_{what}")

    names = value("integers"), value("sums"), value("scale"), value("product") if bias else node.output[0]
    integers, sums, scale, product = names
    own = [qdq.unique(f"{node.name}_{PRODUCT}") + (_TURNED if turned else ""), value("Cast"), value("Scale")]
    make = onnx.helper.make_node
    zeros = [data.input[2], *weight.input[2:3]]
    made = [
        make(PRODUCT, [data.input[0], weight.input[0], *zeros], [integers], own[0]),
        make("Cast", [integers], [sums], own[1], to=onnx.TensorProto.FLOAT),
        make("Mul", [data.input[1], weight.input[1]], [scale], own[2]),
        make("Mul", [sums, scale], [product], value("Mul") if bias else node.name),
    ]
    return [*made, make("Add", [product, bias], [node.output[0]], node.name)] if bias else made


def _undo(product: ir.Node, graph: ir.Graph, dequantized: dict[ir.Value, ir.Value]) -> None:
    """Undo one product, where its neighbors have the form that ``apply`` gives them, or other tools do."""
    source = producer_of(product.inputs[0], DYNAMIC_QUANTIZE)
    cast = _only_reader(product.outputs[0], "Cast")
    scaled = None if cast is None else _only_reader(cast.outputs[0], "Mul")
    weight = product.inputs[1]
    if source is None or cast is None or scaled is None or weight is None or weight.const_value is None:
        return
    scale = next((producer_of(v, "Mul") for v in scaled.inputs if v is not cast.outputs[0]), None)
    given = [] if scale is None else [v for v in scale.inputs if v is not source.outputs[1]]
    if scale is None or len(given) != 1 or given[0] is None or given[0].const_value is None:
        return
    scales, zero = given[0], product.inputs[3] if len(product.inputs) > 3 else None
    turned = str(product.name).endswith(_TURNED)
    if turned:
        set_constant(weight, weight.const_value.numpy().T)
    if source.outputs[0] not in dequantized:
        read = ir.node(DEQUANTIZE, source.outputs, name=f"{source.name}_{DEQUANTIZE}")
        read.outputs[0].name, read.outputs[0].type = f"{source.outputs[0].name}_dequantized", scaled.outputs[0].type
        graph.insert_after(source, read)
        dequantized[source.outputs[0]] = read.outputs[0]
    if zero is None:
        zero = add_constant(
            graph, f"{weight.name}_zero_point", np.zeros(_shape(scales), weight.const_value.dtype.numpy())
        )
    axis = {"axis": 0 if turned else 1} if len(_shape(scales)) == 1 else {}
    values = ir.node(DEQUANTIZE, [weight, scales, zero], axis, name=f"{product.name}_weight")
    values.outputs[0].name, values.outputs[0].type = f"{weight.name}_dequantized", scaled.outputs[0].type
    end, inputs, op_type, attributes = scaled, [dequantized[source.outputs[0]], values.outputs[0]], "MatMul", {}
    add = _only_reader(scaled.outputs[0], "Add")
    if add is not None and str(scaled.name).startswith(f"{add.name}_Mul"):
        end, op_type, attributes = add, "Gemm", {"transB": 1} if turned else {}
        inputs.append(next(v for v in add.inputs if v is not None and v is not scaled.outputs[0]))
    new = ir.node(op_type, inputs, attributes, name=end.name)
    old = end.outputs[0]
    new.outputs[0].name, new.outputs[0].type, new.outputs[0].shape = old.name, old.type, old.shape
    graph.insert_before(end, [values, new])
    old.replace_all_uses_with(new.outputs[0], replace_graph_outputs=True)
    gone = [end] if end is scaled else [add, scaled]
    graph.remove([n for n in (*gone, scale, cast, product) if n is not None], safe=True)


def _shape(value: ir.Value) -> tuple[int, ...]:
    assert value.const_value is not None
    return tuple(value.const_value.shape.numpy())


def _only_reader(value: ir.Value, op_type: str) -> ir.Node | None:
    """The only node that reads ``value``, if it is an ``op_type``."""
    users = [use.node for use in value.uses()]
    alone = len(users) == 1 and not value.is_graph_output() and users[0].op_type == op_type
    return users[0] if alone else None
