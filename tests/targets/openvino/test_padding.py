"""Padding that an AveragePool counts, which the runtime takes for the least integer in 8 bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from inlay.targets.base import Capabilities
from inlay.targets.openvino.rules import rules_for
from inlay.testing import Builder, full_int8, random_feed
from tests.support.fixtures import SaveModel
from tests.support.workspace import Workspace
from tests.targets.openvino.conftest import InRuntime


def pooled(before: str, **attributes: Any) -> onnx.ModelProto:
    """A pool between convolutions, behind an operator."""
    b = Builder()
    x = b.node("before", before, [b.conv("first", b.input("x", (1, 4, 9, 9)), 8)])
    given = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1, **attributes}
    b.output(b.conv("last", b.node("pool", "AveragePool", [x], **given), 4, kernel=1))
    return b.model()


CASES = {
    "signed": (pooled("Tanh"), True),
    "from zero": (pooled("Relu"), False),
    "not counted": (pooled("Tanh", count_include_pad=0), False),
    "none": (pooled("Tanh", pads=[0, 0, 0, 0]), False),
}


@pytest.mark.parametrize("case", CASES)
def test_it_stays_in_float_where_it_would_be_wrong(case: str, tmp_path: Path) -> None:
    model, stays = CASES[case]
    (pool,) = [u for u in Workspace(model, tmp_path, Capabilities(rules_for())).prepared.units if u.name == "pool"]
    assert pool.selectable != stays
    assert ("zero point" in pool.rejection) == stays


@pytest.mark.parametrize("case", CASES)
def test_the_runtime_gets_exactly_this_wrong(case: str, tmp_path: Path, save: SaveModel, in_runtime: InRuntime) -> None:
    """Quantized by rules that do not know it."""
    rules = rules_for()
    unaware = replace(rules, ops={**rules.ops, "AveragePool": replace(rules.ops["AveragePool"], conditions=())})
    plain, wrong = save(CASES[case][0]), CASES[case][1]
    feed, found = random_feed(plain), {}
    for name, known in (("by the rules", rules), ("unaware", unaware)):
        (folder := tmp_path / name).mkdir()
        found[name] = in_runtime(full_int8(plain, Capabilities(known), feed, folder), feed, "f32")
    assert found["by the rules"] > 25.0
    assert (found["unaware"] < 15.0) == wrong, found
