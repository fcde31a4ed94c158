"""The opset is raised to what Q/DQ nodes need."""

from __future__ import annotations

import numpy as np
import pytest

from inlay.testing import Builder
from tests.support.fixtures import NormalizeModel
from tests.support.normalizing import no_roll_backs
from tests.support.onnx_queries import ops


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("op_type", "opset"), [("Upsample", 9), ("Resize", 10)])
def test_raising_the_opset_keeps_asymmetric_coordinates(
    op_type: str, opset: int, mode: str, normalized: NormalizeModel
) -> None:
    """The converter drops them: half-pixel coordinates give other results."""
    b = Builder(opset=opset)
    x = b.conv("conv", b.input("x", (1, 3, 5, 5)), 4)
    scales = b.constant("scales", np.array([1, 1, 2, 2], np.float32))
    b.output(b.conv("last", b.node("up", op_type, [x, scales], mode=mode), 2))
    proto, done = normalized(b.model())
    assert "Resize" in ops(proto)
    assert next(o.version for o in proto.opset_import if o.domain == "") >= 13
    assert no_roll_backs(done)


def test_raising_the_opset_keeps_every_resize_its_own_name(normalized: NormalizeModel) -> None:
    """Outputs of one shape would be swapped unnoticed by all but a numeric comparison."""
    b = Builder(opset=9)
    x = b.input("x", (1, 3, 5, 5))
    scales = b.constant("scales", np.array([1, 1, 2, 2], np.float32))
    for i in range(6):
        b.output(b.node(f"up{i}", "Upsample", [b.conv(f"conv{i}", x, 4), scales], mode="nearest"))
    proto, done = normalized(b.model())
    assert ops(proto).count("Resize") == 6
    assert no_roll_backs(done)
