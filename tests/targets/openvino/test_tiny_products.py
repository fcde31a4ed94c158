"""Small products without bias in a row, whose 8 bits between them the runtime reads as something else."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from inlay.targets.base import Capabilities
from inlay.targets.machine import cpu_flags
from inlay.targets.openvino.rules import rules_for
from inlay.targets.openvino.wrong_kernels import not_tiny
from inlay.testing import Builder, full_int8, random_feed
from tests.support.fixtures import SaveModel
from tests.support.workspace import Workspace
from tests.targets.openvino.conftest import InRuntime, unaware


def products(
    rows: int = 1, channels: int = 64, bias: bool = False, between: str = "", rank: int = 2
) -> onnx.ModelProto:
    b = Builder()
    x = b.input("x", (*(1,) * (rank - 2), rows, channels))
    for name, outputs in (("one", 64), ("two", 32)):
        weight = b.rng.standard_normal((channels, outputs)) / channels**0.5
        x = b.node(name, "MatMul", [x, b.constant(f"{name}_w", weight.astype("f4"))])
        if bias:
            x = b.node(
                f"{name}_added", "Add", [x, b.constant(f"{name}_b", b.rng.standard_normal(outputs).astype("f4"))]
            )
        if between and name == "one":
            x = b.node("between", between, [x])
        channels = outputs
    b.output(x)
    return b.model()


HAS_VNNI = not {"avx512_vnni", "avx_vnni"}.isdisjoint(cpu_flags())
WRONG = {"one row": products(), "eight rows": products(8), "a Relu between": products(between="Relu")}
RIGHT = {
    "nine rows": products(9),
    "many channels": products(channels=300),
    "a bias": products(bias=True),
    "rank 3": products(rank=3),
}


@pytest.mark.parametrize("case", [*WRONG, *RIGHT])
def test_they_stay_in_float(case: str, tmp_path: Path) -> None:
    space = Workspace((WRONG | RIGHT)[case], tmp_path, Capabilities(rules_for()))
    (first,) = [u for u in space.prepared.units if u.name == "one"]
    assert first.selectable == (case in RIGHT), first.rejection
    assert ("without a bias" in first.rejection) == (case in WRONG)


@pytest.mark.parametrize("case", [*WRONG, *RIGHT])
def test_the_runtime_gets_exactly_these_wrong(
    case: str, tmp_path: Path, save: SaveModel, in_runtime: InRuntime
) -> None:
    """Quantized by rules that do not know it, as far as there are any in 8 bits; without VNNI the kernel is another."""
    rules = rules_for()
    plain = save((WRONG | RIGHT)[case])
    feed, found = random_feed(plain), {}
    for name, known in (("by the rules", rules), ("unaware", unaware(rules, "MatMul", not_tiny))):
        (folder := tmp_path / name).mkdir()
        found[name] = in_runtime(full_int8(plain, Capabilities(known), feed, folder), feed, "f32")
    assert found["by the rules"] > 30.0
    assert (found["unaware"] < 0.0) == (case in WRONG and HAS_VNNI), found
