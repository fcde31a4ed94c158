"""Grouped convolutions of sizes that the runtime gets wrong in 8 bits with AMX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay.targets.base import Capabilities
from inlay.targets.openvino.rules import rules_for
from inlay.testing import Builder, full_int8, random_feed
from tests.support.fixtures import MakeWorkspace, SaveModel
from tests.targets.openvino.conftest import InRuntime

VNNI = frozenset({"avx512_vnni"})
AMX = VNNI | {"amx_int8"}


def grouped(
    before: str = "", channels: int = 48, outputs: int = 64, group: int = 2, kernel: int = 3
) -> onnx.ModelProto:
    """A convolution of groups, with an operator before it."""
    b = Builder()
    x = b.input("x", (1, channels, 28, 43))
    if before in ("Relu", "Tanh"):
        x = b.node("before", before, [x])
    elif before == "MaxPool":
        x = b.node("before", before, [x], kernel_shape=[1, 1])
    elif before == "Clip":
        x = b.node("before", before, [x, b.constant("low", np.float32(0)), b.constant("high", np.float32(6))])
    elif before:
        parts = [b.node("relu", "Relu", [x]), x if before == "half positive" else b.node("other", "Sigmoid", [x])]
        x = b.node("turned", "Transpose", [b.node("before", "Concat", parts, axis=2)], perm=[0, 1, 3, 2])
    b.output(b.conv("conv", x, outputs, kernel=kernel, group=group))
    return b.model()


WRONG = {
    "a zero point": grouped(),
    "signed behind an operator": grouped("Tanh"),
    "signed and moved": grouped("MaxPool"),
    "odd channels": grouped(channels=60),
    "single pixels": grouped(channels=136, kernel=1),
    "single pixels without a zero point": grouped("Relu", channels=136, kernel=1),
}
MAYBE = {"partly signed": grouped("half positive")}
"""Not of these sizes."""
RIGHT = {
    "from zero": grouped("Relu"),
    "cut off at zero": grouped("Clip"),
    "joined and turned, from zero": grouped("positive"),
    "few outputs": grouped(outputs=32),
    "many channels": grouped(channels=64),
    "one group": grouped(group=1),
    "a group for each channel": grouped(channels=64, group=64),
    "single pixels of few channels": grouped(kernel=1),
    "single pixels of whole rows": grouped(channels=256, kernel=1),
}


@pytest.mark.parametrize("case", [*WRONG, *MAYBE, *RIGHT])
def test_they_stay_in_float_where_they_would_be_wrong(case: str, workspace: MakeWorkspace) -> None:
    model = {**WRONG, **MAYBE, **RIGHT}[case]
    for flags in (AMX, VNNI):
        units = workspace(model, Capabilities(rules_for("x86_64", flags))).prepared.units
        (conv,) = [u for u in units if u.name == "conv"]
        assert conv.selectable == (case in RIGHT or flags is VNNI)
        assert conv.selectable or "with AMX, groups of" in conv.rejection


@pytest.mark.parametrize("case", [*WRONG, *RIGHT])
def test_the_runtime_gets_exactly_these_wrong(case: str, tmp_path: Path, save: SaveModel, in_amx: InRuntime) -> None:
    """Quantized by the rules of a processor without AMX."""
    plain = save(WRONG.get(case) or RIGHT[case])
    feed = random_feed(plain)
    found = in_amx(full_int8(plain, Capabilities(rules_for("x86_64", VNNI)), feed, tmp_path), feed, "f32")
    assert found < 10.0 if case in WRONG else found > 30.0
