"""Models that are unlike others must work, or fail with a message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from inlay.testing import Builder, residual_model, run_reference, small_model
from tests.support.command_line import FAST, RunCommand, failed, nothing_written
from tests.support.fixtures import SaveModel
from tests.support.hand_written_qdq import insert_qdq_everywhere


def _fp16() -> onnx.ModelProto:
    b = Builder()
    half = onnx.TensorProto.FLOAT16
    w = b.constant("w", np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float16))
    y = b.node("conv", "Conv", [b.input("x", (1, 3, 8, 8), half), w])
    b.output(b.node("relu", "Relu", [y]), half)
    return b.model()


def _with_if() -> onnx.ModelProto:
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 8, 8)), 4)
    flag = b.node("flag", "Greater", [b.node("sum", "ReduceSum", [x], keepdims=0), b.constant("zero", 0.0)])
    out = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 4, 8, 8]) for n in ("t", "e")]
    then = helper.make_graph([helper.make_node("Relu", [x], ["t"])], "then", [], out[:1])
    other = helper.make_graph([helper.make_node("Neg", [x], ["e"])], "else", [], out[1:])
    y = b.node("choose", "If", [flag], then_branch=then, else_branch=other)
    b.output(b.conv("last", b.node("add", "Add", [y, x], channels=4), 2))
    return b.model()


def _int64_inputs() -> onnx.ModelProto:
    b = Builder()
    table = b.constant("table", np.random.default_rng(0).standard_normal((10, 8)).astype(np.float32))
    words = b.node("embed", "Gather", [table, b.input("ids", (1, 6), onnx.TensorProto.INT64)])
    w = b.constant("w", np.random.default_rng(1).standard_normal((8, 5)).astype(np.float32))
    b.output(b.node("matmul", "MatMul", [words, w]))
    return b.model()


def _no_float_ops() -> onnx.ModelProto:
    b = Builder()
    int64 = onnx.TensorProto.INT64
    x = b.input("ids", (1, 6), int64)
    b.output(b.node("add", "Add", [x, b.constant("one", np.array([1], np.int64))]), int64)
    return b.model()


def _zero_batch() -> onnx.ModelProto:
    b = Builder()
    b.output(b.conv("conv", b.input("x", (0, 3, 8, 8)), 4))
    return b.model()


def _unnamed() -> onnx.ModelProto:
    model = small_model()
    for node in model.graph.node:
        node.name = ""
    return model


def _twins() -> onnx.ModelProto:
    model = small_model()
    for node in model.graph.node:
        node.name = "twin"
    return model


def _constant_input_range() -> onnx.ModelProto:
    """A value that is zero whatever comes in."""
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 8, 8)), 4)
    nothing = b.node("nothing", "Mul", [x, b.constant("zero", np.zeros((1, 4, 1, 1)))])
    b.output(b.conv("last", nothing, 4))
    return b.model()


def _huge() -> onnx.ModelProto:
    b = Builder()
    x = b.node("scale", "Mul", [b.input("x", (1, 3, 8, 8)), b.constant("big", 1e30)])
    y = b.conv("conv", x, 4)
    b.output(b.node("back", "Mul", [y, b.constant("small", 1e-30)]))
    return b.model()


def _identity() -> onnx.ModelProto:
    b = Builder()
    x = b.input("x", (1, 3, 8, 8))
    b.output(b.node("same", "Identity", [x]))
    return b.model()


def _sequence() -> onnx.ModelProto:
    """A value that is no tensor, inside."""
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 8, 8)), 4)
    pair = b.node("pair", "SequenceConstruct", [x, x])
    b.output(b.node("join", "ConcatFromSequence", [pair], axis=1))
    return b.model()


def _split_sequence(*, taken: bool) -> onnx.ModelProto:
    """As older exporters write a split; of the second one, nobody can say how long it is without running it."""
    b = Builder()
    x = b.node("first", "MatMul", [b.input("x", (1, 4, 32)), b.constant("w", b.rng.normal(0, 0.2, (32, 32)))])
    parts = b.node("split", "SplitToSequence", [x], axis=1)
    if taken:
        y = b.node("at", "SequenceAt", [parts, b.constant("one", np.array(1))])
    else:
        y = b.node("join", "ConcatFromSequence", [b.node("more", "SequenceInsert", [parts, x])], axis=1)
    b.output(b.node("last", "MatMul", [y, b.constant("v", b.rng.normal(0, 0.2, (32, 16)))]))
    model = b.model(check=False)
    del model.graph.value_info[:]
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info(model.graph.output[0].name, onnx.TensorProto.FLOAT, [1, 1 if taken else 8, 16])
    )
    return model


def _local_function() -> onnx.ModelProto:
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 8, 8)), 4)
    b.output(b.node("call", "Twice", [x], domain="local"))
    model = b.model(check=False)
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    model.functions.append(helper.make_function("local", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("call_out", onnx.TensorProto.FLOAT, [1, 4, 8, 8]))
    return model


def _runtimes_own_operator() -> onnx.ModelProto:
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 8, 8)), 4)
    y = b.node("gelu", "Gelu", [x], domain="com.microsoft")
    b.output(b.conv("last", y, 4))
    model = b.model(check=False)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("last_out", onnx.TensorProto.FLOAT, [1, 4, 8, 8]))
    return model


UNUSUAL: dict[str, Callable[[], onnx.ModelProto]] = {
    "FP16": _fp16,
    "If": _with_if,
    "int64 inputs": _int64_inputs,
    "no float operators": _no_float_ops,
    "no names": _unnamed,
    "a constant tensor": _constant_input_range,
    "a huge range": _huge,
    "nothing but Identity": _identity,
    "a sequence": _sequence,
    "a split as a sequence": lambda: _split_sequence(taken=True),
    "a sequence that stays": lambda: _split_sequence(taken=False),
    "a local function": _local_function,
    "an operator of the runtime's own domain": _runtimes_own_operator,
    "quantized already": lambda: insert_qdq_everywhere(residual_model()),
}


@pytest.mark.parametrize(
    "name",
    [
        *("FP16", "If", "no float operators", "a constant tensor", "quantized already"),
        *("a split as a sequence", "a sequence that stays"),
    ],
)
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_unusual_models(name: str, run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    model = UNUSUAL[name]()
    path = save(model)
    options = [*FAST, "--no-bound"]
    code, _, err = run("tune", path, "-o", tmp_path / "out", *options)
    assert code == 0, err
    assert err == ""
    done = onnx.load(tmp_path / "out" / "model.onnx")
    assert [i.name for i in done.graph.input] == [i.name for i in model.graph.input]
    assert [o.name for o in done.graph.output] == [o.name for o in model.graph.output]
    onnx.checker.check_model(done, full_check=True)


@pytest.mark.parametrize("name", UNUSUAL)
@pytest.mark.matrix
def test_unusual_models_quantize(name: str, run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    model = UNUSUAL[name]()
    path = save(model)
    code, _, err = run("quantize", path, "-o", tmp_path / "q.onnx")
    assert code == 0, err
    done = onnx.load(tmp_path / "q.onnx")
    onnx.checker.check_model(done, full_check=True)
    rng = np.random.default_rng(0)
    feed = {}
    for i in model.graph.input:
        kind = i.type.tensor_type
        shape = [d.dim_value for d in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        feed[i.name] = (rng.integers(0, 2, shape) if dtype.kind in "iu" else rng.standard_normal(shape)).astype(dtype)
    want, got = run_reference(model, feed), run_reference(done, feed)
    for output in want:
        assert want[output].shape == got[output].shape
        assert want[output].dtype == got[output].dtype
        assert np.isfinite(got[output].astype(np.float64)).all()


def test_what_is_inside_local_functions_is_quantized(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    """Layers as functions, as exporters write modules: each is an operator of its own domain."""
    b = Builder()
    x = b.input("x", (8, 64))
    for layer in range(3):
        weight = b.constant(f"w{layer}", b.rng.normal(0, 0.2, (64, 64)))
        x = b.node(f"layer{layer}", "Layer", [x, weight], domain="own")
    model = b.model(check=False)
    body = [helper.make_node("MatMul", ["a", "w"], ["m"]), helper.make_node("Relu", ["m"], ["b"])]
    model.functions.append(helper.make_function("own", "Layer", ["a", "w"], ["b"], body, [helper.make_opsetid("", 17)]))
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.output.append(helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, [8, 64]))
    path = save(model)
    code, out, err = run("inspect", path)
    assert (code, err) == (0, "")
    assert "3 of 3 MatMul" in out
    assert "Layer" not in out.split("Samples")[0].split("can run")[1]
    code, _, err = run("quantize", path, "--recipe", "full-int8", "-o", tmp_path / "q.onnx")
    assert code == 0, err
    done = onnx.load(tmp_path / "q.onnx")
    onnx.checker.check_model(done, full_check=True)
    assert sum(n.op_type == "DequantizeLinear" for n in done.graph.node) >= 6


def test_functions_that_call_themselves(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    """The runtime refuses them; what the file is can be said all the same."""
    model = _local_function()
    model.functions[0].node[0].op_type, model.functions[0].node[0].domain = "Twice", "local"
    del model.functions[0].node[0].input[1]
    path = save(model)
    code, out, err = run("inspect", path)
    assert (code, err) == (0, "")
    assert "Note: its local function Twice calls itself" in out
    failed(run("quantize", path, "-o", tmp_path / "q.onnx"), 1)


@pytest.mark.matrix
@pytest.mark.parametrize("taken", [True, False], ids=["split", "stays"])
def test_what_is_around_a_sequence_is_quantized(taken: bool, run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    path = save(_split_sequence(taken=taken))
    code, out, err = run("inspect", path)
    assert (code, err) == (0, "")
    assert "2 of 2 MatMul" in out
    code, _, err = run("quantize", path, "--recipe", "full-int8", "-o", tmp_path / "q.onnx")
    assert code == 0, err
    operators = [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node]
    assert operators.count("DequantizeLinear") >= 4
    assert ("SplitToSequence" in operators) is not taken
    assert run("explain", path, "--budget", "5s", "--target", "ort-cpu").code == 0


def test_what_the_checker_refuses_is_told(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    """The runtime takes an output that says nothing of its type: so is it taken here."""
    model = small_model()
    code, out, _ = run("inspect", save(model))
    assert (code, "ONNX's checker" in out) == (0, False)
    model.graph.output[0].ClearField("type")
    path = save(model)
    code, out, _ = run("inspect", path)
    assert code == 0
    assert "ONNX's checker refuses this model" in out
    assert run("quantize", path, "-o", tmp_path / "q.onnx").code == 0


def test_what_is_no_tensor_is_told_so(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    """A sequence that is handed out, and a constant that is stored sparse."""
    model = _split_sequence(taken=True)
    del model.graph.node[2:]
    model.graph.output[0].CopyFrom(
        helper.make_tensor_sequence_value_info(model.graph.node[1].output[0], onnx.TensorProto.FLOAT, None)
    )
    sequence = save(model)
    code, out, _ = run("inspect", sequence)
    assert code == 0
    assert f"output {model.graph.output[0].name} is a sequence, and only tensors can be compared" in " ".join(
        out.split()
    )
    failed(run("quantize", sequence, "-o", tmp_path / "q.onnx", "--target", "ort-cpu"), 1, "is a sequence")
    model = _split_sequence(taken=True)
    (place,) = (i for i, t in enumerate(model.graph.initializer) if t.name == "v")
    del model.graph.initializer[place]
    values = helper.make_tensor("v", onnx.TensorProto.FLOAT, [2], [1.0, 2.0])
    where = helper.make_tensor("where", onnx.TensorProto.INT64, [2], [0, 40])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, where, [32, 16]))
    failed(run("inspect", save(model, "sparse.onnx")), 1, "the constant v is sparse")


@pytest.mark.exhaustive
def test_one_name_for_all_nodes(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    """The runtime refuses such a model itself: the message names the node."""
    failed(run("tune", save(_twins()), "-o", tmp_path / "out", *FAST), 1, "two nodes with same node name", "twin")
    nothing_written(tmp_path / "out")


@pytest.mark.exhaustive
def test_a_batch_of_zero(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    """Nothing can be measured on nothing: a message, or a result; never a traceback."""
    code, _, err = run("tune", save(_zero_batch()), "-o", tmp_path / "out", *FAST)
    assert code in (0, 1, 2)
    assert "Traceback" not in err
    if code:
        assert len(err.strip().splitlines()) == 1


@pytest.mark.exhaustive
def test_inputs_with_the_names_of_parameters(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    """``numpy.savez`` takes names as keywords, and has some of its own."""
    b = Builder()
    x, y = (b.input(name, (1, 3, 8, 8)) for name in ("file", "allow_pickle"))
    b.output(b.conv("conv", b.node("args", "Add", [x, y]), 4))
    code, _, err = run("tune", save(b.model()), "-o", tmp_path / "out", *FAST)
    assert code == 0, err


def _of_words() -> onnx.ModelProto:
    """Strings in, strings out, with products in between."""
    b = Builder()
    text, ml = onnx.TensorProto.STRING, "ai.onnx.ml"
    words = [f"word {i}" for i in range(20)]
    ids = b.node("ids", "LabelEncoder", [b.input("words", (1, 8), text)], domain=ml, keys_strings=words,
                 values_int64s=list(range(20)), default_int64=0)  # fmt: skip
    rng = np.random.default_rng(0)
    table = b.constant("table", rng.standard_normal((20, 64)).astype(np.float32))
    w = b.constant("w", rng.standard_normal((64, 20)).astype(np.float32))
    scores = b.node("product", "MatMul", [b.node("embed", "Gather", [table, ids]), w])
    best = b.node("best", "ArgMax", [scores], axis=-1, keepdims=0)
    b.output(
        b.node("label", "LabelEncoder", [best], domain=ml, keys_int64s=list(range(20)), values_strings=words), text
    )
    model = b.model(check=False)
    model.opset_import.append(helper.make_opsetid(ml, 3))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(model.graph.output[0].name, text, [1, 8]))
    onnx.checker.check_model(model)
    return model


@pytest.mark.exhaustive
def test_words_in_and_words_out(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "s.npz", words=np.array([[f"word {i}" for i in rng.integers(0, 25, 8)] for _ in range(12)]))
    path, data = save(_of_words()), ("--data", tmp_path / "s.npz")
    code, out, err = run("quantize", path, *data, "--recipe", "full-int8", "-o", tmp_path / "q.onnx")
    assert code == 0, err
    assert "2 quantized inputs" in out
    code, out, err = run("tune", path, *data, "--no-bound", *FAST, "-o", tmp_path / "out")
    assert code == 0, err


def test_maps_as_outputs_are_named(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    model = small_model()
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(7, helper.make_tensor_type_proto(1, [])))
    model.graph.node.append(helper.make_node("ZipMap", [model.graph.output[0].name], ["maps"], domain="ai.onnx.ml"))
    model.graph.output[0].CopyFrom(helper.make_value_info("maps", kind))
    failed(run("inspect", save(model)), 1, "maps", "zipmap")


def test_a_model_without_operators_of_onnx_itself_is_told(run: RunCommand, save: SaveModel) -> None:
    """As converters of trees write them: they import no version of ONNX's own operators, and there is none to raise."""
    ml = "ai.onnx.ml"
    node = helper.make_node("Scaler", ["x"], ["y"], "scale", domain=ml, offset=[0.5], scale=[2.0])
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, 3]) for name in "xy")
    graph = helper.make_graph([node], "g", [x], [y])
    path = save(helper.make_model(graph, opset_imports=[helper.make_opsetid(ml, 1)], ir_version=8))
    code, out, err = run("inspect", path)
    assert code == 0, err
    assert "1 x float: the model has no operator of ONNX's own domain, which Q/DQ nodes are of" in out
    assert "opset 0" not in out
