"""A model that states shapes that it does not have, as where its batch was changed at the input alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import inlay
from inlay.testing import concat_model, random_feed
from tests.support.fixtures import SaveModel

BATCH = 5


@pytest.fixture
def model(save: SaveModel) -> Path:
    found = onnx.shape_inference.infer_shapes(concat_model(), data_prop=True)
    found.graph.input[0].type.tensor_type.shape.dim[0].dim_value = BATCH
    join = next(n for n in found.graph.node if n.op_type == "Concat")
    longer = next(v for v in found.graph.value_info if v.name == join.input[0]).type.tensor_type.shape
    longer.dim.add().dim_value = 1
    return save(found)


def test_what_is_written_runs(model: Path, tmp_path: Path) -> None:
    """Negative control: the given model runs as well, and is read leniently."""
    rng = np.random.default_rng(0)
    feeds = [random_feed(onnx.load(model), seed) for seed in range(2)]
    assert all(len(a) == BATCH for feed in feeds for a in feed.values())
    inlay.quantize(model, out=tmp_path / "q.onnx", target="null", data=feeds)
    feed = {k: rng.normal(size=a.shape).astype(a.dtype) for k, a in feeds[0].items()}
    outputs = [ort.InferenceSession(f).run(None, feed) for f in (model, tmp_path / "q.onnx")]
    assert [a.shape for a in outputs[0]] == [a.shape for a in outputs[1]]
    assert "QuantizeLinear" in {n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node}
    stated = {v.name: v.type.tensor_type.shape for v in onnx.load(tmp_path / "q.onnx").graph.value_info}
    assert all(shape.dim[0].dim_value in (0, BATCH) for name, shape in stated.items() if name.endswith("_out"))
