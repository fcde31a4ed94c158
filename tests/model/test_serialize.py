"""Models as protos: what is written in a shorter way is what the library writes, byte for byte."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, parser

from inlay.model.serialize import proto_with
from inlay.testing import Builder, concat_model, residual_model


def _annotated() -> onnx.ModelProto:
    """All that is written by the library itself: symbols, sequences, texts, annotations, nodes with metadata."""
    b = Builder()
    x = b.input("x", ("rows", 4))
    y = b.node("scaled", "Mul", [x, b.constant("two", np.full(4, 2.0))])
    parts = b.node("parts", "SplitToSequence", [y], axis=1)
    b.output(b.node("joined", "ConcatFromSequence", [parts], axis=1))
    model = b.model()
    graph = model.graph
    graph.node[0].doc_string = "a text"
    graph.node[1].metadata_props.add(key="from", value="here")
    graph.value_info.append(helper.make_tensor_value_info(y, TensorProto.FLOAT, ["rows", None], "of unknown width"))
    graph.value_info.append(helper.make_tensor_sequence_value_info(parts, TensorProto.FLOAT, None))
    annotation = graph.quantization_annotation.add(tensor_name=y)
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="two")
    return model


def _with_function() -> onnx.ModelProto:
    return parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        main (float[2, 3] x) => (float[2, 3] y) <float[3] z = {1, 2, 3}> {
            w = own.twice <n = 2> (x)
            y = Add(w, z)
        }
        <opset_import: ["" : 17], domain: "own">
        twice <n> (a) => (b) { c = Cast <to = 1> (a)  b = Add(c, c) }
    """)


def _residual_with_function() -> onnx.ModelProto:
    """What the library writes, since there is a function, with constants beside it."""
    model = residual_model()
    function = model.functions.add(name="twice", domain="own", input=["a"], output=["b"])
    function.node.add(op_type="Add", input=["a", "a"], output=["b"])
    for opsets in (model.opset_import, function.opset_import):
        opsets.add(domain="own", version=1)
    return model


def _branches() -> onnx.ModelProto:
    return parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        main (bool c, float[2, 3] x) => (float[2, 3] y) {
            h = HardSigmoid <alpha = -0.0, beta = 0.0> (x)
            y = If (c) <then_branch = first () => (float[2, 3] t) { t = Neg(h) },
                        else_branch = second () => (float[2, 3] e) { e = Mul(h, x) }>
        }
    """)


@pytest.mark.parametrize("make", [residual_model, concat_model, _annotated, _with_function, _branches])
@pytest.mark.parametrize("inferred", [False, True])
def test_it_is_what_the_library_writes(make: Callable[[], onnx.ModelProto], inferred: bool) -> None:
    proto = make()
    if inferred:
        proto = onnx.shape_inference.infer_shapes(proto)
    model = ir.from_proto(proto)
    want = ir.to_proto(model)
    got = proto_with(model, lambda _, tensor: tensor)
    assert got == want
    assert got.SerializeToString(deterministic=True) == want.SerializeToString(deterministic=True)


@pytest.mark.parametrize("make", [residual_model, _residual_with_function])
def test_constants_become_others_or_inputs(make: Callable[[], onnx.ModelProto]) -> None:
    model = ir.from_proto(make())
    before = ir.to_proto(model)
    names = [t.name for t in before.graph.initializer]
    zero = onnx.numpy_helper.from_array(np.zeros(3, np.float32), names[1])

    def given(name: str, tensor: ir.TensorProtocol) -> ir.TensorProtocol | onnx.TensorProto | None:
        return None if name == names[0] else zero if name == names[1] else tensor

    proto = proto_with(model, given, ir_version=9)
    assert proto.ir_version == 9
    assert [t.name for t in proto.graph.initializer] == names[1:]
    assert list(proto.graph.initializer[0].dims) == [3]
    assert [i.name for i in proto.graph.input] == [*(i.name for i in before.graph.input), names[0]]
    assert ir.to_proto(model) == before
