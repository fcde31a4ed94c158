"""Constants that would be broadcast along short rows are written out."""

from __future__ import annotations

import numpy as np
import pytest

from inlay.targets.onnxruntime.passes.broadcast_constants import write_out_constants, written_out
from inlay.testing import Builder
from tests.support.fixtures import RewriteModel


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("shape", "own", "wanted"),
    [
        ((1, 70, 80, 1), (1,), (1, 1, 1, 1)),
        ((1, 70, 80, 1), (), (1, 1, 1, 1)),
        ((1, 70, 80, 2), (1, 1, 80, 1), (1, 1, 80, 2)),
        ((2, 50, 60, 3), (3,), (1, 1, 60, 3)),
        ((2, 50, 20, 3), (3,), (1, 50, 20, 3)),
        ((2, 40, 60, 3), (40, 1, 1), (40, 1, 1)),  # broadcast along 180 elements
        ((2, 40, 60, 3), (), ()),  # along all of them
        ((1, 64, 100), (100,), (100,)),
        ((1, 60, 60, 1), (1,), (1,)),  # few elements
        ((2, 50, 60, 1), (2, 50, 60, 5), (2, 50, 60, 5)),  # the constant is what is larger
        ((1, 90000, 2), (90000, 1), (90000, 1)),  # more than may be written out
    ],
)
def test_constants_are_written_out_along_short_rows(
    op_type: str,
    first: bool,
    shape: tuple[int, ...],
    own: tuple[int, ...],
    wanted: tuple[int, ...],
    rewritten: RewriteModel,
) -> None:
    b = Builder()
    x, c = b.input("x", shape), b.constant("c", np.asarray(b.rng.uniform(0.5, 2.0, own), np.float32))
    b.output(b.node("node", op_type, [c, x] if first else [x, c]))
    model = b.model()
    feed = {"x": np.random.default_rng(0).uniform(0.5, 2.0, shape).astype(np.float32)}
    done = rewritten(model, write_out_constants, feed)
    (constant,) = done.model.graph.initializers.values()
    assert constant.shape is not None
    assert tuple(constant.shape) == wanted
    done.assert_close(rtol=0.0)


def test_sizes_that_are_not_known_are_not_written_out() -> None:
    assert written_out([None, None, 100, 3], [3]) is None  # 300 elements are known
    assert written_out([None, 2000, 3], [3]) == [1, 2000, 3]
    assert written_out([5000, None, 3], [3]) is None
    assert written_out([5000, None], [1]) is None
