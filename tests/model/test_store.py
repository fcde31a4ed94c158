"""Weights in a store: a model is written with them piece by piece as the library would write it at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.model.load import load
from inlay.model.store import WeightStore, embed_weights, externalize_weights, write_embedded
from inlay.testing.models import Builder, small_model


@given(
    sizes=st.lists(st.integers(0, 20_000), max_size=6),
    text=st.text(max_size=300),
    is_documented=st.booleans(),
)
def test_a_model_is_written_as_the_library_writes_it(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], text: str, is_documented: bool
) -> None:
    """Byte for byte, with stored tensors of any size, and with all other fields of the model."""
    b = Builder()
    value = b.input("x", (1,))
    for i, size in enumerate(sizes):
        value = b.node(f"n{i}", "Concat", [value, b.constant(f"weight{i}", np.arange(size, dtype=np.float32))], axis=0)
    b.output(value)
    proto = b.model(check=False)
    proto.metadata_props.add(key="about", value=text)
    if is_documented:
        proto.doc_string = proto.graph.doc_string = text
    folder = tmp_path_factory.mktemp("store")
    onnx.save(proto, folder / "given.onnx")
    store = WeightStore(folder)
    stored = externalize_weights(load(folder / "given.onnx").model, store)
    write_embedded(stored, store, folder / "written.onnx")
    assert (folder / "written.onnx").read_bytes() == embed_weights(stored, store).SerializeToString()
    assert any(t.external_data for t in stored.graph.initializer) == any(size >= 256 for size in sizes)


def test_a_written_model_stands_alone(tmp_path: Path) -> None:
    """It is valid, and needs no store."""
    onnx.save(small_model(), tmp_path / "given.onnx")
    (tmp_path / "store").mkdir()
    store = WeightStore(tmp_path / "store")
    write_embedded(externalize_weights(load(tmp_path / "given.onnx").model, store), store, tmp_path / "written.onnx")
    store.path.unlink()
    onnx.checker.check_model(onnx.load(tmp_path / "written.onnx"), full_check=True)
