"""Notes of rewrites: by them a file is read back, and one in which they do not fit is read as it stands."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from inlay.model.load import load
from inlay.prepare.strip_qdq import strip_qdq
from inlay.quant.extract import extract
from inlay.quant.notes import NOTE, SELECTED, WHOLE
from inlay.testing import Builder, upsampling_model
from tests.support.workspace import Workspace


def rewritten(folder: Path) -> tuple[Workspace, onnx.ModelProto]:
    """A transposed convolution in blocks, with weights of other zero points where that is possible."""
    space = Workspace(upsampling_model(), folder)
    proto = space.emit(space.full().with_rewrites(space.prepared.selectable_rewrites))
    assert "DepthToSpace" in {n.op_type for n in proto.graph.node}
    return space, proto


def notes(proto: onnx.ModelProto) -> list[onnx.StringStringEntryProto]:
    return [m for n in proto.graph.node for m in n.metadata_props if m.key == WHOLE]


def changed(edit: Callable[[onnx.GraphProto], object]) -> Callable[[str], str]:
    """What makes of the text of a note that of a changed one."""

    def change(text: str) -> str:
        note = onnx.GraphProto.FromString(zlib.decompress(base64.b64decode(text)))
        edit(note)
        return base64.b64encode(zlib.compress(note.SerializeToString())).decode()

    return change


def read_unknown(note: onnx.GraphProto) -> None:
    note.node.add(op_type="Relu", name="other", input=["nobody"], output=["other_out"])


def write_known(note: onnx.GraphProto) -> None:
    note.node.add(op_type="Relu", name="other", input=["x"], output=["x"])


def invert_otherwise(text: str) -> Callable[[onnx.GraphProto], None]:
    def edit(note: onnx.GraphProto) -> None:
        for entry in note.metadata_props:
            entry.value = text

    return edit


def in_a_circle(note: onnx.GraphProto) -> None:
    note.node.add(op_type="Relu", name="one", input=["two_out"], output=["one_out"])
    note.node.add(op_type="Relu", name="two", input=["one_out"], output=["two_out"])


def read_a_file(note: onnx.GraphProto) -> None:
    """A constant in a file beside the model, or anywhere."""
    tensor = note.initializer.add(name="stem_weight_quantized", data_type=onnx.TensorProto.INT8, dims=[1])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/hostname")


def hold_a_body(note: onnx.GraphProto) -> None:
    body = onnx.helper.make_graph([], "body", [], [])
    note.node.append(onnx.helper.make_node("If", ["x"], ["either"], "if", then_branch=body, else_branch=body))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "no base64",
        lambda text: base64.b64encode(b"not compressed").decode(),
        lambda text: base64.b64encode(zlib.compress(b"no message")).decode(),
        changed(lambda note: note.ClearField("node")),
        changed(read_unknown),
        changed(write_known),
        changed(in_a_circle),
        changed(invert_otherwise("[")),
        changed(invert_otherwise('[["no such step", 1]]')),
        changed(invert_otherwise('[["reshape", [7, 7]]]')),
        changed(invert_otherwise('[["crop", 3]]')),
        changed(invert_otherwise("3")),
        changed(invert_otherwise("[" * 100_000)),
        changed(read_a_file),
        changed(hold_a_body),
        lambda text: base64.b64encode(zlib.compress(bytes(1 << 25))).decode(),
    ],
)
def test_a_file_in_which_notes_do_not_fit_is_read_as_it_stands(change: Callable[[str], str], tmp_path: Path) -> None:
    space, proto = rewritten(tmp_path)
    assert space.extract(proto).placement.rewrites
    (note,) = notes(proto)
    note.value = change(note.value)
    found = space.extract(proto)
    assert "DepthToSpace" in {n.op_type for n in found.model.graph}
    assert not found.placement.rewrites
    assert not any(n.metadata_props for n in found.model.graph)


def test_a_file_that_lost_some_notes_is_read_as_it_stands(tmp_path: Path) -> None:
    space, proto = rewritten(tmp_path)
    noted = [i for i, n in enumerate(proto.graph.node) if {NOTE, WHOLE} & {m.key for m in n.metadata_props}]
    assert len(noted) > 1
    for left_out in noted:
        part = onnx.ModelProto()
        part.CopyFrom(proto)
        del part.graph.node[left_out].metadata_props[:]
        found = space.extract(part)
        assert "DepthToSpace" in {n.op_type for n in found.model.graph}
        assert not any(n.metadata_props for n in found.model.graph)


def test_a_file_without_notes_is_taken_apart_as_one_of_other_origin(tmp_path: Path) -> None:
    """As an older one: what was rewritten stays as it is, and computes the same."""
    space, proto = rewritten(tmp_path)
    for node in proto.graph.node:
        del node.metadata_props[:]
    proto.metadata_props.add(key="inlay.version", value="0.0")
    onnx.save(proto, tmp_path / "old.onnx")
    found = strip_qdq(load(tmp_path / "old.onnx"), space.feeds, tmp_path)
    assert found is not None
    assert not found.opaque
    assert not found.leftovers
    assert len(found.placement) > 5
    assert "DepthToSpace" in {n.op_type for n in found.model.graph}


def test_undone_a_model_has_its_metadata_again(tmp_path: Path) -> None:
    b = Builder()
    b.output(b.conv("only", b.input("x", (1, 3, 16, 16)), 64))
    model = b.model()
    for node in model.graph.node:
        node.metadata_props.add(key="origin", value="layer")
        node.doc_string = "said of it"
    space = Workspace(model, tmp_path)
    proto = space.emit(space.full().with_rewrites(space.prepared.selectable_rewrites))
    assert {m.key for n in proto.graph.node for m in n.metadata_props} >= {WHOLE, SELECTED, "origin"}
    (undone,) = extract(ir.from_proto(proto)).model.graph
    assert dict(undone.metadata_props) == {"origin": "layer"}
    assert undone.doc_string == "said of it"
