"""The opset is raised to what Q/DQ nodes need."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from inlay.model.passes.opset import _only_wider, raise_opset
from inlay.testing import Builder
from tests.support.fixtures import NormalizeModel
from tests.support.normalizing import no_roll_backs
from tests.support.onnx_queries import ops


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("op_type", "opset"), [("Upsample", 9), ("Resize", 10)])
def test_raising_the_opset_keeps_asymmetric_coordinates(
    op_type: str, opset: int, mode: str, normalized: NormalizeModel
) -> None:
    """The converter drops them: half-pixel coordinates give other results."""
    b = Builder(opset=opset)
    x = b.conv("conv", b.input("x", (1, 3, 5, 5)), 4)
    scales = b.constant("scales", np.array([1, 1, 2, 2], np.float32))
    b.output(b.conv("last", b.node("up", op_type, [x, scales], mode=mode), 2))
    proto, done = normalized(b.model())
    assert "Resize" in ops(proto)
    assert next(o.version for o in proto.opset_import if o.domain == "") >= 13
    assert no_roll_backs(done)


def test_raising_the_opset_keeps_every_resize_its_own_name(normalized: NormalizeModel) -> None:
    """Outputs of one shape would be swapped unnoticed by all but a numeric comparison."""
    b = Builder(opset=9)
    x = b.input("x", (1, 3, 5, 5))
    scales = b.constant("scales", np.array([1, 1, 2, 2], np.float32))
    for i in range(6):
        b.output(b.node(f"up{i}", "Upsample", [b.conv(f"conv{i}", x, 4), scales], mode="nearest"))
    proto, done = normalized(b.model())
    assert ops(proto).count("Resize") == 6
    assert no_roll_backs(done)


def meaning(node: onnx.NodeProto) -> tuple[object, ...]:
    """All that a node says, without attributes at their default, which the converter writes out."""
    defaults = onnx.defs.get_schema(node.op_type, 21, "").attributes
    said = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    usual = {n: helper.get_attribute_value(a.default_value) for n, a in defaults.items() if a.default_value.name}
    return node.op_type, [*node.input], [*node.output], {n: v for n, v in said.items() if usual.get(n) != v}


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize(("before", "after"), [(8, 9), (9, 10), (11, 12), (13, 17), (14, 19), (17, 21), (17, 23)])
def test_operators_that_only_take_more_types_are_left_alone_by_the_converter_too(before: int, after: int) -> None:
    """So that it need not be asked, which takes it a time that grows with the square of the model."""
    types = {
        s.name
        for s in onnx.defs.get_all_schemas()
        if s.domain == "" and s.min_input == s.max_input == s.max_output == 1
    }
    skipped = 0
    for op_type in sorted(types - {"Constant", "If", "Loop", "Optional", "SequenceMap"}):
        if not _only_wider(op_type, before, after):
            continue
        attributes: dict[str, Any] = {"to": 1} if op_type.startswith("Cast") else {}
        node = helper.make_node(op_type, ["x"], ["y"], "node", **attributes)
        ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3, 4, 4]) for name in ("x", "y")]
        graph = helper.make_graph([node], "g", ports[:1], ports[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", before)], ir_version=8)
        (converted,) = onnx.version_converter.convert_version(model, after).graph.node
        assert meaning(converted) == meaning(node), op_type
        skipped += 1
    assert skipped > 15
    assert not _only_wider("Softmax", 12, 13), "another axis by default"
    assert not _only_wider("Squeeze", 11, 13), "axes become an input"
    assert not _only_wider("Dropout", 7, 10), "its mask has another type"
    assert not _only_wider("Upsample", 9, 10), "it is gone"


@pytest.mark.parametrize("opset", [13, 17, 20])
def test_raising_does_as_the_converter_does(opset: int) -> None:
    b = Builder(opset=opset)
    x = b.conv("conv", b.input("x", (1, 3, 5, 5)), 4, relu=True)
    b.output(b.node("flat", "Flatten", [b.node("moved", "Transpose", [x], perm=[0, 2, 3, 1])]))
    proto = b.model()
    model = ir.from_proto(proto)
    raised, changed = raise_opset(model, 21)
    assert changed == 1
    found, wanted = ir.to_proto(raised), onnx.version_converter.convert_version(proto, 21)
    assert found.opset_import == wanted.opset_import
    assert [*map(meaning, found.graph.node)] == [*map(meaning, wanted.graph.node)]
