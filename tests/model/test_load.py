"""Reading model files: what is wrong is said, and nothing outside the model's folder is touched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from inlay.errors import ModelError
from inlay.model.load import load
from inlay.testing import Builder, residual_model, small_model


def external(folder: Path, location: str = "weights.bin", name: str = "model.onnx") -> tuple[Path, onnx.ModelProto]:
    """The residual model with its largest tensor in an external file."""
    model = residual_model()
    tensor = max(model.graph.initializer, key=lambda t: len(t.raw_data))
    data = numpy_helper.to_array(tensor).tobytes()
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(len(data)))):
        tensor.external_data.add(key=key, value=value)
    if "/" not in location:
        (folder / location).write_bytes(data)
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path, model


def test_a_good_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(residual_model().SerializeToString())
    file = load(path)
    assert file.external == ()
    assert file.size == path.stat().st_size
    assert load(path).sha256 == file.sha256


def test_a_dimension_of_minus_one_is_unknown(tmp_path: Path) -> None:
    model = residual_model()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    graph = load(path).model.graph
    first = [value.shape[0] for value in (*graph.inputs, *graph.outputs) if value.shape is not None]
    assert len(first) >= 2
    assert not [d for d in first if isinstance(d, int)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\x00" * 64, "ONNX model"),
        (b"<html>not found</html>", "ONNX model"),
        (residual_model().SerializeToString()[:-5], "bad.onnx"),
        (residual_model().SerializeToString()[:1000], "bad.onnx"),
    ],
)
def test_files_that_are_no_models(content: bytes, message: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        load(bad)
    assert "bad.onnx" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_truncation_is_rejected_or_loads(tmp_path: Path) -> None:
    """No cut of a file raises anything but ModelError."""
    whole = residual_model().SerializeToString()
    refused = 0
    for length in range(0, len(whole), 61):
        path = tmp_path / "cut.onnx"
        path.write_bytes(whole[:length])
        try:
            load(path)
        except ModelError:
            refused += 1
    assert refused > 20


def test_folders_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(ModelError, match="no such file"):
        load(tmp_path / "missing.onnx")


def test_external_data_belongs_to_the_digest(tmp_path: Path) -> None:
    path, _ = external(tmp_path)
    file = load(path)
    assert [p.name for p in file.external] == ["weights.bin"]
    data = tmp_path / "weights.bin"
    data.write_bytes(bytes(len(data.read_bytes())))
    assert load(path).sha256 != file.sha256


def test_external_data_that_is_missing_or_short(tmp_path: Path) -> None:
    path, _ = external(tmp_path)
    data = tmp_path / "weights.bin"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"weights.bin is too short for tensor"):
        load(path)
    data.unlink()
    with pytest.raises(ModelError, match=r"weights.bin of tensor \w+ is missing"):
        load(path)


@pytest.mark.parametrize("location", ["../secret.bin", "a/../../secret.bin", "/etc/hostname"])
def test_external_data_outside_the_folder(location: str, tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(b"\0" * 100_000)
    inner = tmp_path / "inner"
    inner.mkdir()
    path, _ = external(inner, location)
    with pytest.raises(ModelError, match=r"outside the model's folder$"):
        load(path)


def test_links_that_lead_outside(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path, _ = external(inner)
    (inner / "weights.bin").rename(tmp_path / "elsewhere.bin")
    (inner / "weights.bin").symlink_to(tmp_path / "elsewhere.bin")
    with pytest.raises(ModelError, match=r"a link that leads outside the model's folder: copy .*\(cp -rL\)"):
        load(path)
    shutil.copytree(inner, tmp_path / "copy")  # which resolves links
    load(tmp_path / "copy" / path.name)


@pytest.mark.parametrize("location", ["nul\0character", "x" * 5000, "circle/weights.bin"])
def test_external_data_at_what_is_no_path(location: str, tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    model = residual_model()
    tensor = max(model.graph.initializer, key=lambda t: len(t.raw_data))
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=r"weight|missing|no path"):
        load(tmp_path / "model.onnx")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="not a regular file"):
        load(tmp_path / "model.onnx")


def test_nodes_in_any_order_are_sorted(tmp_path: Path) -> None:
    wanted = residual_model()
    for seed in range(5):
        model = residual_model()
        order = np.random.default_rng(seed).permutation(len(wanted.graph.node))
        del model.graph.node[:]
        model.graph.node.extend(wanted.graph.node[i] for i in order)
        onnx.save(model, tmp_path / "model.onnx")
        onnx.checker.check_model(ir.to_proto(load(tmp_path / "model.onnx").model))


def test_an_order_that_runs_is_kept(tmp_path: Path) -> None:
    b = Builder()
    x = b.input("x", (1, 4))
    for i in (3, 1, 4, 2):
        b.output(b.node(f"n{i}", "Relu", [x]))
    onnx.save(b.model(), tmp_path / "model.onnx")
    assert [n.name for n in load(tmp_path / "model.onnx").model.graph] == ["n3", "n1", "n4", "n2"]


def test_nodes_that_a_body_reads_come_before_it(tmp_path: Path) -> None:
    """The body of an If reads the outer ``late``, which stands behind it in the file."""
    out = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4]) for n in ("t", "e")]
    body = [
        helper.make_graph([helper.make_node(op, ["late"], [o.name])], op, [], [o])
        for op, o in zip(("Relu", "Neg"), out, strict=True)
    ]
    nodes = [
        helper.make_node("If", ["flag"], ["y"], "choose", then_branch=body[0], else_branch=body[1]),
        helper.make_node("Abs", ["x"], ["late"], "abs"),
    ]
    x, flag = (
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4]),
        helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, []),
    )
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x, flag], [y])), tmp_path / "model.onnx")
    assert [n.op_type for n in load(tmp_path / "model.onnx").model.graph] == ["Abs", "If"]


def test_a_cycle_is_named(tmp_path: Path) -> None:
    model = residual_model()
    by_name = {n.name: n for n in model.graph.node}
    by_name["stem"].input[0] = by_name["add"].output[0]
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=r"form a cycle: .*stem.*-> ") as caught:
        load(tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)
    assert "head" not in str(caught.value)


@pytest.mark.parametrize("inside", [False, True])
def test_a_reference_to_an_attribute_of_no_function(inside: bool, tmp_path: Path) -> None:
    model = residual_model()
    node = next(n for n in model.graph.node if n.name == "branch")
    node.attribute[0].ref_attr_name = "of_a_function"
    if inside:  # a body of the main graph is no function either
        out = helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, None)
        body = helper.make_graph([onnx.NodeProto.FromString(node.SerializeToString())], "body", [], [out])
        node.CopyFrom(helper.make_node("If", ["x"], list(node.output), name="if", then_branch=body, else_branch=body))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=r"attribute .* of node branch refers to of_a_function"):
        load(tmp_path / "model.onnx")


def reshaping_model() -> onnx.ModelProto:
    """A model whose shapes and axes are initializers."""
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 8, 8)), 32, relu=True)
    x = b.node("flat", "Reshape", [x, b.constant("shape", np.array([1, 32, 64]))])
    b.output(b.node("mean", "ReduceSum", [x, b.constant("axes", np.array([2]))], keepdims=0))
    return b.model()


@pytest.mark.parametrize("threshold", [0, 100, 1 << 20])
def test_small_external_tensors_are_read_in(threshold: int, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    ir.save(ir.from_proto(reshaping_model()), path, external_data="data.bin", size_threshold_bytes=threshold)
    file = load(path)
    whole = {t.name: t for t in reshaping_model().graph.initializer}
    tensors = {name: v.const_value for name, v in file.model.graph.initializers.items()}
    assert {n for n, t in tensors.items() if isinstance(t, ir.ExternalTensor)} == (
        set() if threshold == 1 << 20 else {"conv_weight"}
    )
    for name, tensor in tensors.items():
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), numpy_helper.to_array(whole[name]))


def test_external_tensors_of_bodies_and_constants_are_read_in(tmp_path: Path) -> None:
    """Only initializers of the main graph are kept in a file of their own; a runtime reads the rest with the model."""
    numbers = np.arange(1024, dtype=np.float32)
    (tmp_path / "data.bin").write_bytes(numbers.tobytes())
    tensor = onnx.TensorProto(name="c", data_type=1, dims=[1024], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="data.bin")
    b = Builder()
    b.output(b.node("add", "Add", [b.input("x", (1024,)), b.node("constant", "Identity", [b.constant("k", numbers)])]))
    model = b.model()
    node = next(n for n in model.graph.node if n.name == "constant")
    node.op_type = "Constant"
    del node.input[:]
    node.attribute.append(helper.make_attribute("value", tensor))
    onnx.save(model, tmp_path / "model.onnx")
    (constant,) = (n for n in load(tmp_path / "model.onnx").model.graph if n.op_type == "Constant")
    held = constant.attributes["value"].as_tensor()
    assert not isinstance(held, ir.ExternalTensor)
    np.testing.assert_array_equal(held.numpy(), numbers)


def test_a_value_that_nothing_computes_is_named(tmp_path: Path) -> None:
    model = residual_model()
    model.graph.node[3].input[0] = "nowhere"
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="reads nowhere, which nothing computes"):
        load(tmp_path / "m.onnx")


def test_an_output_that_nothing_computes_is_named(tmp_path: Path) -> None:
    model = residual_model()
    model.graph.output[0].name = "nowhere"
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"nowhere is an output of graph .*, and nothing computes it"):
        load(tmp_path / "m.onnx")


def test_metadata_that_is_no_text_is_left_out(tmp_path: Path) -> None:
    model = residual_model()
    model.metadata_props.add(key="aekey", value="v")
    model.metadata_props.add(key="other", value="v")
    data = model.SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data.replace(b"aekey", b"a\xffkey"[:5]))
    assert load(tmp_path / "m.onnx").model.metadata_props == {"other": "v"}


@pytest.mark.parametrize("order", [("", "ai.onnx"), ("ai.onnx", ""), ("ai.onnx",)])
def test_the_default_domain_has_one_name(order: Sequence[str], tmp_path: Path) -> None:
    """As ONNX Runtime takes it: of two versions the last."""
    model = residual_model()
    del model.opset_import[:]
    versions = dict(zip(order, (12, 17), strict=False)) if len(order) > 1 else {order[0]: 17}
    model.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in versions.items())
    for node in model.graph.node:
        node.domain = "ai.onnx"
    onnx.save(model, tmp_path / "m.onnx")
    loaded = load(tmp_path / "m.onnx").model
    assert dict(loaded.opset_imports) == {"": 17}
    assert {node.domain for node in loaded.graph} == {""}


def test_a_constant_has_the_shape_of_its_tensor(tmp_path: Path) -> None:
    """As runtimes see it, who warn of another one."""
    model = small_model()
    bias = next(t for t in model.graph.initializer if t.name.endswith("bias"))
    stated = onnx.helper.make_tensor_value_info(bias.name, onnx.TensorProto.FLOAT, [1, *bias.dims])
    model.graph.value_info.append(stated)
    onnx.save(model, tmp_path / "m.onnx")
    value = load(tmp_path / "m.onnx").model.graph.initializers[bias.name]
    assert value.shape is not None
    assert value.shape.numpy() == tuple(bias.dims)


@pytest.mark.parametrize("opset", [5, 17])
def test_attributes_have_their_types_in_opsets_too_that_lack_the_operator(opset: int, tmp_path: Path) -> None:
    node = onnx.helper.make_node("QuantizeLinear", ["x", "s"], ["y"], axis="where")
    x, y = (onnx.helper.make_tensor_value_info(n, t, [2]) for n, t in (("x", 1), ("y", 2)))
    scale = onnx.numpy_helper.from_array(np.ones(2, np.float32), "s")
    graph = onnx.helper.make_graph([node], "g", [x], [y], [scale])
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8),
        tmp_path / "m.onnx",
    )
    with pytest.raises(ModelError, match="attribute axis of node QuantizeLinear has the wrong type STRING"):
        load(tmp_path / "m.onnx")


def test_operators_in_functions_have_the_form_of_their_own_opset(tmp_path: Path) -> None:
    """A Slice of opset 1 there, whose bounds are attributes, lacks no input."""
    node = helper.make_node("Slice", ["a"], ["b"], starts=[0], ends=[1])
    function = helper.make_function("own", "First", ["a"], ["b"], [node], [helper.make_opsetid("", 9)])
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in ("x", "y"))
    graph = helper.make_graph([helper.make_node("First", ["x"], ["y"], domain="own")], "g", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    assert load(tmp_path / "m.onnx").model.graph.num_nodes() == 1
