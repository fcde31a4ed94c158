"""Reading model files: what is wrong is said, and nothing outside the model's folder is touched."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from inlay.errors import ModelError
from inlay.model.load import load
from inlay.testing import residual_model


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
    with pytest.raises(ModelError, match="outside the model's folder"):
        load(path)


def test_links_that_lead_outside(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path, _ = external(inner)
    (inner / "weights.bin").rename(tmp_path / "elsewhere.bin")
    (inner / "weights.bin").symlink_to(tmp_path / "elsewhere.bin")
    with pytest.raises(ModelError, match="outside the model's folder"):
        load(path)
