"""Padding that an AveragePool counts, which the runtime takes for the least integer in 8 bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from inlay.targets.base import Artifact, Capabilities
from inlay.targets.openvino.rules import rules_for
from inlay.testing import Builder, full_int8, random_feed, run_reference, sqnr
from tests.support.fixtures import SaveModel
from tests.support.workspace import Workspace


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
def test_the_runtime_gets_exactly_this_wrong(case: str, tmp_path: Path, save: SaveModel) -> None:
    """Quantized by rules that do not know it."""
    openvino = pytest.importorskip("inlay.targets.openvino.target", reason="the extra openvino is not installed")
    pytest.importorskip("openvino", reason="the extra openvino is not installed")
    rules = rules_for()
    unaware = replace(rules, ops={**rules.ops, "AveragePool": replace(rules.ops["AveragePool"], conditions=())})
    plain, wrong = save(CASES[case][0]), CASES[case][1]
    feed = random_feed(plain)
    found = {}
    for name, known in (("by the rules", rules), ("unaware", unaware)):
        folder = tmp_path / name
        folder.mkdir()
        path = full_int8(plain, Capabilities(known), feed, folder)
        executable = openvino.OpenVinoCpuTarget(precision="f32").compile(Artifact(path, name))
        try:
            (want,), (got,) = run_reference(path, feed).values(), executable.run(feed).values()
        finally:
            executable.close()
        found[name] = sqnr(want, got)
    assert found["by the rules"] > 25.0
    assert (found["unaware"] < 15.0) == wrong, found
