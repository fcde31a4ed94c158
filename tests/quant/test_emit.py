"""STYLE's properties 1-3: extract is emit's inverse, nobody outside the placement notices, models are valid."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from inlay.errors import Late, ModelError, RunFailed
from inlay.installed import __version__
from inlay.model.graph import build_graph
from inlay.model.store import embed_weights
from inlay.quant.transfer import transfer
from inlay.testing import Builder, concat_model, random_feed, run_reference, small_model, sqnr
from inlay.types import GRAPH_OUTPUT, Placement, Port, QType
from tests.support.examples import examples
from tests.support.fixtures import MakeWorkspace
from tests.support.float_models import graphs, placements
from tests.support.onnx_queries import constants, producers, readers, through_qdq
from tests.support.runtime import CAN_MOVE_8_BITS, check_and_load
from tests.support.workspace import Workspace

MANY = settings(max_examples=examples(30))


@contextmanager
def drawn(data: st.DataObject) -> Iterator[tuple[Workspace, Placement]]:
    """A random model and a random placement in it."""
    with tempfile.TemporaryDirectory() as folder:
        space = Workspace(data.draw(graphs()), Path(folder))
        yield space, data.draw(placements(space))


@MANY
@given(st.data())
def test_extract_is_the_inverse_of_emit(data: st.DataObject) -> None:
    with drawn(data) as (space, placement):
        found = space.extract(space.emit(placement))
        assert found.placement == placement
        assert found.leftovers == ()
        for (value, qtype), params in found.qparams.items():
            assert params == space.table.params(value, qtype)


@MANY
@given(st.data())
def test_what_extract_leaves_is_the_float_model(data: st.DataObject) -> None:
    """Up to the rounding of constants, which is part of the quantized file: emitting again gives the same file."""
    with drawn(data) as (space, placement):
        proto = space.emit(placement)
        found = space.extract(proto)
        left = ir.to_proto(found.model)
        assert [n.op_type for n in left.graph.node] == [n.op_type for n in space.prepared.emitter.base.graph.node]
        assert not {"QuantizeLinear", "DequantizeLinear"} & {n.op_type for n in left.graph.node}
        for feed in space.feeds[:1]:
            want = run_reference(space.prepared.emitter.base, feed) if _self_contained(space) else None
            got = run_reference(left, feed)
            assert want is None or all(sqnr(want[k], got[k]) > 25.0 for k in want)


@MANY
@given(st.data())
def test_consumers_outside_the_placement_read_the_original(data: st.DataObject) -> None:
    with drawn(data) as (space, placement):
        proto = space.emit(placement)
        made = producers(proto)
        base = {n.name: n for n in space.prepared.emitter.base.graph.node}
        after = {n.name: n for n in proto.graph.node}
        assert base.keys() <= after.keys()
        # a graph output in the placement keeps its name for the DQ; the float value is what the producer makes now
        for name, node in base.items():
            for slot, value in enumerate(node.input):
                read = after[name].input[slot]
                if Port(name, slot) in placement:
                    assert made[read].op_type == "DequantizeLinear"
                elif read != value:
                    old, new = producers(space.prepared.emitter.base)[value], made[read]
                    assert (new.name, list(new.output).index(read)) == (old.name, list(old.output).index(value))
        for slot, output in enumerate(proto.graph.output):
            quantized = made[output.name].op_type == "DequantizeLinear"
            assert quantized == (Port(GRAPH_OUTPUT, slot) in placement)


@MANY
@given(st.data())
def test_inputs_and_outputs_never_change(data: st.DataObject) -> None:
    with drawn(data) as (space, placement):
        proto, base = space.emit(placement), space.prepared.emitter.base
        assert list(proto.graph.input) == list(base.graph.input)
        assert list(proto.graph.output) == list(base.graph.output)


@MANY
@given(st.data())
def test_every_model_is_valid_and_close_to_float(data: st.DataObject) -> None:
    with drawn(data) as (space, placement):
        session = check_and_load(space.emit(placement))
        got = dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(space.feeds[0])), strict=True))
        want = run_reference(space.path, space.feeds[0])
        assert list(got) == list(want)
        for name in want:
            assert got[name].shape == want[name].shape
            assert np.isfinite(got[name]).all()


@MANY
@given(st.data())
def test_one_pair_per_value_and_type(data: st.DataObject) -> None:
    with drawn(data) as (space, placement):
        proto = space.emit(placement)
        made = producers(proto)
        pairs = [(n.input[0], _zero_type(proto, n)) for n in proto.graph.node if n.op_type == "QuantizeLinear"]
        assert len(set(pairs)) == len(pairs)
        wanted = {
            (space.graph.value_of(p), q) for p, q in placement if not space.graph.is_constant(space.graph.value_of(p))
        }
        assert len(pairs) == len(wanted)
        for node in proto.graph.node:
            if node.op_type == "DequantizeLinear":
                source = made.get(node.input[0])
                assert source is None or list(source.input[1:]) == list(node.input[1:])


@MANY
@given(st.data())
def test_activation_scales_are_scalars(data: st.DataObject) -> None:
    """Shape ``[1]`` keeps some runtimes from fusing."""
    with drawn(data) as (space, placement):
        proto = space.emit(placement)
        dims = {t.name: list(t.dims) for t in proto.graph.initializer}
        quantizes = [n for n in proto.graph.node if n.op_type == "QuantizeLinear"]
        assert all(dims[v] == [] for n in quantizes for v in n.input[1:])


@MANY
@given(st.data())
def test_emitting_nothing_is_the_identity(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as text:
        space = Workspace(data.draw(graphs()), Path(text))
        emitter = space.prepared.emitter
        assert emitter.emit(Placement(), space.table).SerializeToString() == emitter.base.SerializeToString()
        model = space.prepared.normalized.model
        whole = embed_weights(emitter.emit(Placement(), space.table), space.prepared.store)
        assert whole.SerializeToString() == ir.to_proto(model).SerializeToString()


@MANY
@given(st.data())
def test_emitting_is_repeatable_and_leaves_no_traces(data: st.DataObject) -> None:
    """A candidate's bytes depend neither on what was emitted before nor on the order of the ports."""
    with drawn(data) as (space, placement):
        first = space.emit(placement).SerializeToString()
        space.emit(space.full())
        space.emit(Placement())
        again = Placement(reversed(list(placement)))
        assert again.digest == placement.digest
        assert space.emit(again).SerializeToString() == first


@CAN_MOVE_8_BITS
def test_the_default_model_gets_pairs(workspace: MakeWorkspace) -> None:
    """The properties above are not about empty placements only."""
    space = workspace(small_model())
    proto = space.emit(space.full())
    assert sum(n.op_type == "QuantizeLinear" for n in proto.graph.node) >= 8
    assert sum(n.op_type == "DequantizeLinear" for n in proto.graph.node) >= 18
    session = check_and_load(proto)
    want = run_reference(space.path, space.feeds[0])
    got = session.run(None, dict(space.feeds[0]))[0]
    assert 15.0 < sqnr(next(iter(want.values())), got) < 100.0


def test_mul_of_a_value_with_itself_can_be_split(workspace: MakeWorkspace) -> None:
    b = Builder()
    x = b.input("x", (1, 3, 4, 4))
    b.output(b.node("square", "Mul", [x, x]))
    space = workspace(b.model())
    half = Placement([(Port("square", 1), QType.UINT8)])
    proto = space.emit(half)
    node = next(n for n in proto.graph.node if n.name == "square")
    assert node.input[0] == "x"
    assert through_qdq(proto, node.input[1]) == "x"
    assert space.extract(proto).placement == half


def test_a_shared_weight_is_stored_once(workspace: MakeWorkspace) -> None:
    b = Builder()
    x = b.input("x", (1, 4, 6, 6))
    first = b.conv("first", x, 4)
    b.output(b.node("second", "Conv", [first, "first_weight"], channels=4, pads=[1, 1, 1, 1]))
    space = workspace(b.model())
    proto = space.emit(space.full())
    eights = [t for t in proto.graph.initializer if t.data_type == onnx.TensorProto.INT8 and len(t.dims) == 4]
    assert len(eights) == 1
    assert "first_weight" not in constants(proto)
    half = space.emit(space.label("first"))
    assert "first_weight" in constants(half), "the float consumer still needs the float weight"
    assert [n.name for n in readers(half, "first_weight")] == ["second"]


def test_two_types_of_one_value(workspace: MakeWorkspace) -> None:
    b = Builder()
    x = b.input("x", (1, 3, 4, 4))
    b.output(b.node("add", "Add", [x, x]))
    space = workspace(b.model())
    mixed = Placement([(Port("add", 0), QType.UINT8), (Port("add", 1), QType.INT8)])
    proto = space.emit(mixed)
    check_and_load(proto)
    assert space.extract(proto).placement == mixed


def test_names_that_are_taken(workspace: MakeWorkspace) -> None:
    """A model whose own values are called like the ones that emit would add."""
    b = Builder()
    x = b.input("x", (1, 3, 4, 4))
    y = b.node("x_QuantizeLinear", "Relu", [x], ["x_quantized"])
    z = b.node("x_DequantizeLinear", "Sigmoid", [y], ["x_DequantizeLinear"])
    w = b.node("w", "Mul", [z, x], ["x_scale"])
    b.output(w)
    space = workspace(b.model())
    placement = Placement((p, QType.UINT8) for p in space.activation_ports())
    proto = space.emit(placement)
    check_and_load(proto)
    names = [n.name for n in proto.graph.node]
    assert len(set(names)) == len(names)
    assert space.extract(proto).placement == placement


def test_ports_that_do_not_exist(workspace: MakeWorkspace) -> None:
    space = workspace(concat_model())
    for port in (Port("nobody", 0), Port("join", 9), Port(GRAPH_OUTPUT, 7)):
        with pytest.raises(ModelError, match="does not have"):
            space.emit(Placement([(port, QType.UINT8)]))


def test_values_that_cannot_be_quantized(workspace: MakeWorkspace) -> None:
    b = Builder()
    x = b.input("x", (1, 3, 4, 4))
    shape = b.constant("shape", np.array([1, 48]))
    b.output(b.node("reshape", "Reshape", [x, shape]))
    space = workspace(b.model())
    with pytest.raises(ModelError, match="cannot be quantized"):
        space.emit(Placement([(Port("reshape", 1), QType.UINT8)]))


def test_a_graph_input_that_is_an_output_stays(workspace: MakeWorkspace) -> None:
    b = Builder()
    x = b.input("x", (1, 3, 4, 4))
    b.output(b.conv("conv", x, 3))
    b.output(x)
    space = workspace(b.model())
    proto = space.emit(space.full())
    check_and_load(proto)
    got = run_reference(proto, space.feeds[0])
    assert np.array_equal(got["x"], space.feeds[0]["x"])
    with pytest.raises(ModelError, match="owns the value"):
        space.emit(Placement([(Port(GRAPH_OUTPUT, 1), QType.UINT8)]))


def test_subgraphs_read_the_original(workspace: MakeWorkspace) -> None:
    """A value that an If's bodies capture is never replaced under their feet."""
    b = Builder()
    x = b.input("x", (1, 3, 4, 4))
    flag = b.input("flag", (), onnx.TensorProto.BOOL)
    conv = b.conv("conv", x, 3)
    value = helper.make_tensor_value_info("then_out", onnx.TensorProto.FLOAT, [1, 3, 4, 4])
    then = helper.make_graph([helper.make_node("Relu", ["conv_out"], ["then_out"], name="t")], "then", [], [value])
    value = helper.make_tensor_value_info("else_out", onnx.TensorProto.FLOAT, [1, 3, 4, 4])
    other = helper.make_graph([helper.make_node("Neg", ["conv_out"], ["else_out"], name="e")], "else", [], [value])
    chosen = b.node("choose", "If", [flag], then_branch=then, else_branch=other)
    b.output(b.node("add", "Add", [chosen, conv]))
    space = workspace(b.model())
    assert next(u for u in space.prepared.units if u.name == "conv").rejection == (
        "a subgraph reads its output conv_out, which therefore must stay float"
    )
    proto = space.emit(Placement([(Port("add", 1), QType.UINT8)]))
    check_and_load(proto)
    inside = next(n for n in proto.graph.node if n.op_type == "If").attribute[0].g.node[0]
    assert inside.input[0] == "conv_out"
    assert next(n for n in proto.graph.node if n.name == "conv").output[0] == "conv_out"


def test_metadata(workspace: MakeWorkspace) -> None:
    model = concat_model()
    model.metadata_props.add(key="author", value="someone")
    model.doc_string = "kept"
    space = workspace(model)
    proto = space.prepared.emitter.emit(space.full(), space.table, {"inlay.placement": space.full().digest})
    assert {e.key: e.value for e in proto.metadata_props} == {
        "author": "someone",
        "inlay.placement": space.full().digest,
        "inlay.version": __version__,
    }
    assert proto.doc_string == "kept"


def test_transfer_to_a_normalized_model(workspace: MakeWorkspace) -> None:
    """What was extracted from an emitted file finds its ports in the float model again, with its qparams."""
    space = workspace(small_model())
    found = space.extract(space.emit(space.full()))
    moved = transfer(found, build_graph(found.model), space.graph)
    assert moved.placement == space.full()
    assert moved.missing == ()
    assert all(space.table.params(v, q) == params for (v, q), params in moved.qparams.items())


def _self_contained(space: Workspace) -> bool:
    return all(t.data_location != onnx.TensorProto.EXTERNAL for t in space.prepared.emitter.base.graph.initializer)


def _zero_type(proto: onnx.ModelProto, node: onnx.NodeProto) -> int:
    return next(t.data_type for t in proto.graph.initializer if t.name == node.input[2])


def test_random_feed_is_seeded() -> None:
    model = concat_model()
    first, second, other = random_feed(model, 1), random_feed(model, 1), random_feed(model, 2)
    assert np.array_equal(first["x"], second["x"])
    assert not np.array_equal(first["x"], other["x"])


def test_blocks_raise_the_opset_of_the_models_that_have_them(tmp_path: Path) -> None:
    """ReduceMean takes its axes otherwise there; the other candidates stay as they are."""
    b = Builder(opset=13)
    x = b.input("x", (4, 128))
    weight = b.constant("w", b.rng.standard_normal((128, 64)).astype(np.float32))
    y = b.node("mean", "ReduceMean", [b.node("product", "MatMul", [x, weight])], axes=[1], keepdims=1)
    b.output(y)
    space = Workspace(b.model(), tmp_path)
    versions = {}
    for form in ("", "weight-only", "weight-only int4/32", "weight-only int8/128"):
        placement = space.prepared.label({"product": form} if form else {})
        written = space.emit(placement)
        versions[form] = next(o.version for o in written.opset_import if o.domain == "")
        session = check_and_load(written)
        plain = check_and_load(space.emit(Placement()))
        got, want = (np.stack([s.run(None, dict(f))[0] for f in space.feeds]) for s in (session, plain))
        assert sqnr(want, got) > (10 if "int4" in form else 30)
        found = space.extract(written)
        assert (found.placement, found.leftovers) == (placement, ())
        assert {"mean", "product"} <= {n.name for n in written.graph.node}
    assert versions == {"": 13, "weight-only": 13, "weight-only int4/32": 21, "weight-only int8/128": 21}


def test_an_operator_that_no_newer_opset_has_keeps_blocks_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder(opset=17)
    weight = b.constant("w", b.rng.standard_normal((128, 64)).astype(np.float32))
    b.output(b.node("product", "MatMul", [b.input("x", (4, 128)), weight]))
    space = Workspace(b.model(), tmp_path)

    def fails(model: ir.Model, least: int) -> tuple[ir.Model, int]:
        raise RunFailed("no adapter")

    monkeypatch.setattr("inlay.quant.emit.raise_opset", fails)
    with pytest.raises(ModelError, match="blocks of weights need opset 21: no adapter"):
        space.emit(space.prepared.label({"product": "weight-only int4/32"}))
    space.emit(space.prepared.label({"product": "weight-only"}))

    def is_late(model: ir.Model, least: int) -> tuple[ir.Model, int]:
        raise Late("there is no time left for it")

    monkeypatch.setattr("inlay.quant.emit.raise_opset", is_late)
    with pytest.raises(Late):  # which says nothing of the model
        space.emit(space.prepared.label({"product": "weight-only int4/32"}))
