"""A ready ``measure`` of any target."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from inlay.autotune import measurer
from inlay.errors import TargetError, UsageError
from inlay.testing import small_model


def test_milliseconds_of_paths_models_and_bytes(tmp_path: Path) -> None:
    """The target of known costs tells what must come out."""
    model = small_model()
    onnx.save(model, tmp_path / "model.onnx")
    with measurer("null", scale=1.0) as measure, measurer("null", scale=3.0) as slower:
        found = {measure(tmp_path / "model.onnx"), measure(str(tmp_path / "model.onnx")), measure(model)}
        (ms,) = found | {measure(model.SerializeToString())}
        assert ms > 0
        assert slower(model) == pytest.approx(3 * ms)
        assert measure.facts["scale"] == "1.0"
        broken = small_model()
        broken.graph.node[0].op_type = "Unheard"
        broken.graph.node[0].domain = "some.vendor"
        broken.opset_import.append(onnx.helper.make_opsetid("some.vendor", 1))
    with measurer("ort-cpu") as measure, pytest.raises(TargetError):
        measure(broken)
    with pytest.raises(UsageError, match="there is no such target"):
        measurer("no-such-target")
