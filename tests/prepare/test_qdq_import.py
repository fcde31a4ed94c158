"""Given Q/DQ models become placements of the normalized model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay.autotune import placement_of
from inlay.errors import UsageError
from inlay.prepare.qdq_import import import_qdq, read_baseline
from inlay.testing import Builder, residual_model, small_model
from tests.support.fixtures import MakeWorkspace
from tests.support.hand_written_qdq import insert_qdq_everywhere
from tests.support.onnx_queries import ops


def test_a_baseline_of_our_own_comes_back_whole(workspace: MakeWorkspace, tmp_path: Path) -> None:
    """With the target's rewrites undone, of which this model has at least one."""
    space = workspace(small_model())
    proto = space.emit(space.full())
    assert "SpaceToDepth" in ops(proto), "a rewrite was taken"
    onnx.save(proto, tmp_path / "baseline.onnx")
    baseline = read_baseline(tmp_path / "baseline.onnx", space.prepared.file)
    found = import_qdq(space.prepared, baseline, (), space.feeds, tmp_path)
    assert found.placements == (("qdq-baseline", space.full()),)
    assert found.missing == ()


def test_a_baseline_of_another_model_is_refused(workspace: MakeWorkspace, tmp_path: Path) -> None:
    other = workspace(residual_model())
    onnx.save(other.emit(other.full()), tmp_path / "baseline.onnx")
    with pytest.raises(UsageError):
        read_baseline(tmp_path / "baseline.onnx", workspace(small_model()).prepared.file)


def test_a_site_inside_a_fused_operator_is_not_lost_where_that_is_quantized() -> None:
    """Negative control: where the operator that takes the BatchNormalization in stays in float, its site is lost."""
    rng = np.random.default_rng(0)
    b = Builder()
    weight = b.constant("w", rng.normal(size=(16, 8, 3, 3)).astype(np.float32))
    value = b.node("conv", "Conv", [b.input("x", (1, 8, 12, 12)), weight], pads=[1] * 4)
    parts = [b.constant(n, rng.uniform(0.5, 2.0, 16).astype(np.float32)) for n in ("scale", "shift", "mean", "var")]
    b.output(b.node("relu", "Relu", [b.node("bn", "BatchNormalization", [value, *parts])]))
    model = b.model()
    whole = insert_qdq_everywhere(model, dict.fromkeys(("conv_out", "bn_out", "relu_out"), (0.6, 128)))
    report = placement_of(whole, model)
    assert report.lost == ()
    assert "bn[0]" in {site for site, _ in report.within}
    alone = onnx.ModelProto.FromString(whole.SerializeToString())
    conv = next(n for n in alone.graph.node if n.op_type == "Conv")
    conv.input[:] = ["x", "w"]
    report = placement_of(alone, model)
    assert "bn[0]" in {site for site, _ in report.lost}
