"""Sum becomes Add."""

from __future__ import annotations

import pytest

from inlay.testing import Builder
from tests.support.fixtures import NormalizeModel
from tests.support.normalizing import no_roll_backs
from tests.support.onnx_queries import ops


@pytest.mark.parametrize("count", [2, 3, 5])
def test_sum_becomes_add(count: int, normalized: NormalizeModel) -> None:
    b = Builder()
    b.output(b.node("sum", "Sum", [b.input(f"x{i}", (1, 3, 4, 4)) for i in range(count)]))
    proto, done = normalized(b.model())
    assert ops(proto) == ["Add"] * (count - 1)
    assert no_roll_backs(done)
