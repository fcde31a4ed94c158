"""Given Q/DQ models become placements of the normalized model."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from inlay.errors import UsageError
from inlay.prepare.qdq_import import import_qdq, read_baseline
from inlay.testing import residual_model, small_model
from tests.support.fixtures import MakeWorkspace
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
