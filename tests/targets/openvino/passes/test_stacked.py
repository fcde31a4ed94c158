"""Values that a Concat stacks along the last axis are joined as whole images."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from inlay.targets.openvino.passes import join_stacked
from inlay.testing import Builder
from tests.support.fixtures import RewriteModel

JOINED = ["Squeeze", "Unsqueeze", "Squeeze", "Unsqueeze", "Squeeze", "Unsqueeze", "Concat", "Transpose"]


@pytest.mark.parametrize(
    ("shape", "axis", "operators"),
    [
        ((1, 32, 32, 1), 3, JOINED),
        ((1, 32, 32, 1), -1, JOINED),
        ((2, 512, 1), -1, JOINED),
        (("n", 40, 5, 1), -1, JOINED),
        ((1, 31, 33, 1), -1, ["Concat"]),
        ((1, 32, 32, 2), -1, ["Concat"]),
        ((1, 32, 32, 1), 2, ["Concat"]),
        ((1024, 1), -1, ["Concat"]),
    ],
)
def test_stacks_of_many_elements_are_joined_as_images(
    shape: tuple[int | str, ...], axis: int, operators: list[str], rewritten: RewriteModel
) -> None:
    b = Builder()
    names = [b.input(f"x{i}", shape) for i in range(3)]
    b.output(b.node("stack", "Concat", names, axis=axis))
    sizes = [d if isinstance(d, int) else 2 for d in shape]
    rng = np.random.default_rng(0)
    feed = {name: rng.standard_normal(sizes).astype(np.float32) for name in names}
    done = rewritten(b.model(), join_stacked, feed)
    assert sorted(done.operators) == sorted(operators)
    assert "stack" in {n.name for n in done.model.graph}, "recipes and imported models name it"
    done.assert_close(rtol=0, atol=0)


def test_other_types_and_old_opsets_are_left_alone() -> None:
    for opset, kind, edits in ((17, 1, 1), (17, 7, 0), (12, 1, 0)):
        b = Builder(opset=opset)
        names = [b.input(name, (1, 2000, 1), kind) for name in "xy"]
        b.output(b.node("stack", "Concat", names, axis=2), kind)
        assert join_stacked(ir.from_proto(b.model()))[1] == edits
