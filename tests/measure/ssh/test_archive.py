"""What a board is sent: few modules, which import nothing but numpy and a runtime, and which old Pythons understand."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from inlay.measure.ssh import standin
from inlay.measure.ssh.archive import Archive, is_light
from inlay.targets.registry import available
from inlay.testing import concat_model, small_model
from tests.support.ssh_server import bare_packages

LIGHT = {"ort-cpu": "onnxruntime", "openvino-cpu": "", "command": "", "null": "onnxruntime"}
"""Targets whose workers need nothing else, each with the package that loading its module takes."""
HEAVY = "ethos-u85-256"


@pytest.mark.parametrize("target", LIGHT)
def test_few_modules_which_need_no_package_but_the_runtime(target: str) -> None:
    archive = Archive([target])
    assert archive.foreign - {"numpy"} == {LIGHT[target]} - {""}
    assert len(archive.modules) <= 40
    assert len(archive.data) < 200_000
    assert archive.data == Archive([target]).data, "equal modules make equal archives"
    assert is_light(available()[target])


def test_a_target_that_needs_the_graph_library_is_not_light() -> None:
    archive = Archive([HEAVY])
    assert {"onnx", "onnx_ir"} <= archive.foreign
    assert not is_light(available()[HEAVY])


@pytest.mark.parametrize("target", LIGHT)
def test_python_3_9_understands_all_of_it(target: str) -> None:
    for name, text in Archive([target]).modules.items():
        assert list(too_new(text)) == [], name


def too_new(text: str) -> Iterator[str]:
    """What of a module Python 3.9 does not take. Of lengths that differ ``zip`` does not tell there."""
    tree = ast.parse(text, feature_version=(3, 9))
    assert "from __future__ import annotations" in text
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in ("kw_only", "slots"):
            yield f"{node.lineno}: {node.arg}"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            yield from (f"{node.lineno}: |" for each in ast.walk(node) if isinstance(each, ast.BitOr))
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.BitOr):
            yield f"{node.lineno}: |"


@pytest.mark.parametrize(
    "text", ["X = int | str", "f(isinstance(x, int | str))", "@dataclass(slots=True)\nclass A: ..."]
)
def test_what_is_too_new_is_found(text: str) -> None:
    assert [*too_new(f"from __future__ import annotations\n{text}")]


def test_a_worker_runs_with_numpy_and_the_runtime_alone(tmp_path: Path) -> None:
    """No ``onnx``: the model is read, built, identified, run, timed and profiled."""
    path = tmp_path / "worker.zip"
    path.write_bytes(Archive(["ort-cpu"]).data)
    onnx.save(small_model(), tmp_path / "model.onnx")
    model = {"key": "k", "path": str(tmp_path / "model.onnx"), "digest": "k"}
    code = f"""
import json, sys
import numpy as np
from inlay.measure.worker import Service
from inlay.data.archives import save_feed
from pathlib import Path
feed = {str(tmp_path / "feed.npz")!r}
import onnx
graph = onnx.load({model["path"]!r}).graph
shape = [d.dim_value or 1 for d in graph.input[0].type.tensor_type.shape.dim]
save_feed(Path(feed), {{graph.input[0].name: np.zeros(shape, np.float32)}})
service = Service()
works = [("target", dict(name="ort-cpu", options={{}})), ("load", dict({model!r}, identify=True)),
         ("run", dict(key="k", feeds=[feed], out=feed + ".out.npz")),
         ("time", dict(keys=["k"], feed=feed, slot_ns=1000, seed=0)), ("profile", dict(key="k", feed=feed, repeats=1))]
answers = [service.handle({{"do": do, "with": given}}) for do, given in works]
print(json.dumps([answers, sorted({{name.partition(".")[0] for name in sys.modules}}), onnx.__file__]))
"""
    environment = {"PYTHONPATH": f"{path}:{bare_packages(tmp_path / 'site')}"}
    command = [str(Path(sys.executable).resolve()), "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    answers, loaded, where = json.loads(done.stdout)
    assert [a for a in answers if "error" in a] == []
    assert answers[1]["graph"]
    assert any(nodes for _, _, _, _, nodes, _, _ in answers[4]["kernels"])
    assert where.startswith(str(path))
    assert not {"google", "onnx_ir", "scipy", "ml_dtypes", "yaml"} & {*loaded}


# --- models without the package -------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def fields() -> None:
    standin.use(standin.table(onnx.ModelProto.DESCRIPTOR.file.message_types_by_name.values()))


def of_everything() -> onnx.ModelProto:
    """A model with attributes of each kind, a body, and tensors in each form."""
    body = helper.make_graph([helper.make_node("Identity", ["a"], ["b"], name="inner")], "body", [], [])
    attributes: dict[str, Any] = {"f": 0.1, "i": -3, "s": "text", "fs": [0.5, -1.5], "ints": [1, -2, 1 << 40]}
    node = helper.make_node("Odd", ["x", ""], ["y"], name="odd", domain="own", **attributes, g=body, strings=["a", "ü"])
    packed = helper.make_tensor("packed", onnx.TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    outside = onnx.TensorProto(name="outside", data_type=1, dims=[2], data_location=onnx.TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="weights")
    raw = numpy_helper.from_array(np.arange(6, dtype=np.int64).reshape(2, 3), "raw")
    sides = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", 3]) for n in "xy"]
    graph = helper.make_graph([node], "all", sides[:1], sides[1:], [packed, outside, raw])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def assert_same(ours: Any, theirs: Any) -> None:
    """Every field of a message, and of those in it."""
    for field in theirs.DESCRIPTOR.fields:
        found, wanted = getattr(ours, field.name), getattr(theirs, field.name)
        many = not isinstance(wanted, (str, bytes)) and hasattr(wanted, "__len__")
        if field.message_type is not None:
            if not many:
                assert ours.HasField(field.name) == theirs.HasField(field.name)
            pairs = zip(found, wanted, strict=True) if many else [(found, wanted)] * theirs.HasField(field.name)
            for pair in pairs:
                assert_same(*pair)
        else:
            assert (found == list(wanted)) if many else (found == wanted), field.name


@pytest.mark.parametrize("make", [of_everything, small_model, concat_model])
def test_every_field_is_read_as_the_package_reads_it(make: Any) -> None:
    model = make()
    data = model.SerializeToString()
    ours = standin.load_model_from_string(data)
    assert_same(ours, model)
    again = onnx.ModelProto.FromString(ours.SerializeToString())
    assert again == model
    tensor = ours.graph.initializer[0]
    copy = standin.TensorProto()  # type: ignore[attr-defined]
    copy.CopyFrom(tensor)
    copy.ClearField("name")
    assert (copy.name, tensor.name != "") == ("", True)
    assert onnx.TensorProto.FromString(copy.SerializeToString()).dims == tensor.dims
    assert standin.TensorProto.EXTERNAL == onnx.TensorProto.EXTERNAL  # type: ignore[attr-defined]
    assert isinstance(ours.graph, standin.GraphProto)  # type: ignore[attr-defined]
    assert not isinstance(ours, standin.GraphProto)  # type: ignore[attr-defined]


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_a_file_that_is_cut_short_is_a_value_error(cut: int) -> None:
    data = small_model().SerializeToString()
    with pytest.raises(ValueError, match=r"cut short|written in way"):
        standin.load_model_from_string(data[:-cut])


def test_types_of_arrays_are_those_of_the_package() -> None:
    for name, kind in onnx.TensorProto.DataType.items():
        if name in ("FLOAT", "INT8", "UINT8", "INT64", "BOOL", "DOUBLE", "FLOAT16", "STRING"):
            assert standin.helper.tensor_dtype_to_np_dtype(kind) == helper.tensor_dtype_to_np_dtype(kind)


def test_the_archive_is_a_zip_of_packages() -> None:
    with zipfile.ZipFile(io.BytesIO(Archive(["ort-cpu"]).data)) as archive:
        names = archive.namelist()
    assert {"onnx/__init__.py", "inlay/__init__.py", "inlay/measure/worker.py"} <= {*names}
