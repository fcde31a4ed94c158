"""No convolution is left with windows that fill the rows of AMX tiles, which the runtime gets wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from inlay.targets.base import Capabilities
from inlay.targets.openvino.float_rewrites import float_rewrites_for
from inlay.targets.openvino.passes import fills_rows, leave_a_rest
from inlay.targets.openvino.rules import rules_for
from inlay.testing import Builder, full_int8, random_feed
from tests.support.fixtures import RewriteModel, SaveModel
from tests.targets.openvino.conftest import InRuntime

Case = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]
"""Shapes of the values and the weight, without the batch, and the attributes."""
WRONG: dict[str, Case] = {
    "rows of pairs": ((8, 12, 40), (4, 8, 3, 8), {}),
    "rows of fours": ((16, 12, 40), (4, 16, 3, 8), {}),
    "uneven pads, and strides": ((12, 9, 41), (5, 12, 2, 8), {"pads": [1, 2, 0, 3], "strides": [1, 2]}),
    "a window for each result": ((8, 16, 24), (8, 8, 8, 8), {"strides": [8, 8]}),
    "groups": ((16, 8, 40), (6, 8, 1, 12), {"group": 2}),
    "one dimension": ((8, 64), (8, 8, 8), {"pads": [3, 4]}),
    "rows apart": ((8, 14, 40), (4, 8, 3, 8), {"dilations": [2, 1]}),
}
RIGHT: dict[str, Case] = {
    "one tile row": ((8, 12, 40), (4, 8, 3, 4), {}),
    "a rest": ((8, 12, 40), (4, 8, 3, 9), {}),
    "odd channels": ((5, 12, 80), (4, 5, 1, 64), {}),
    "columns apart": ((8, 12, 40), (4, 8, 3, 8), {"dilations": [1, 2]}),
    "many channels": ((32, 12, 40), (4, 32, 3, 8), {}),
}
ROWS = frozenset(float_rewrites_for(frozenset({"amx_bf16"}))) - frozenset(float_rewrites_for(frozenset()))


def convolution(x: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, Any]) -> onnx.ModelProto:
    b = Builder()
    array = b.rng.standard_normal(weight).astype(np.float32)
    constants = [b.constant("w", array), b.constant("b", np.ones(weight[0], np.float32))]
    b.output(b.node("conv", "Conv", [b.input("x", (1, *x)), *constants], channels=weight[0], **attributes))
    return b.model()


@pytest.mark.parametrize("case", WRONG)
def test_the_sums_stay_the_same(case: str, rewritten: RewriteModel) -> None:
    """Against ONNX Runtime, which gets them right."""
    done = rewritten(convolution(*WRONG[case]), leave_a_rest)
    (conv,) = done.model.graph
    weight = conv.inputs[1]
    assert weight is not None
    assert weight.shape is not None
    assert weight.shape.numpy()[-1] == WRONG[case][1][-1] + 1
    done.assert_close(rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", RIGHT)
def test_others_are_left_alone(case: str) -> None:
    assert leave_a_rest(ir.from_proto(convolution(*RIGHT[case])))[1] == 0


def test_what_was_widened_fills_no_rows() -> None:
    filling = [(c, k) for c in range(1, 65) for k in range(1, 65) if fills_rows(c, k)]
    assert {(8, 8), (16, 8)} <= {*filling}
    assert not any(fills_rows(channels, columns + 1) for channels, columns in filling)


def test_only_processors_with_tiles_need_it() -> None:
    assert [row.apply for row in ROWS] == [leave_a_rest]


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("case", [*WRONG, *RIGHT])
def test_the_runtime_gets_exactly_these_wrong(
    case: str, quantized: bool, tmp_path: Path, save: SaveModel, in_amx: InRuntime
) -> None:
    """In bfloat16, and in 8 bits where the channels come in fours and fill more than a row of bytes."""
    x, weight, attributes = WRONG.get(case) or RIGHT[case]
    bytes_fill = weight[1] % 4 == 0 and weight[1] * weight[-1] > 64 and weight[1] * weight[-1] % 64 == 0
    wrong = case in WRONG and (bytes_fill if quantized else weight[1] < 16)
    given = convolution(x, weight, attributes)
    plain, wider = save(given), save(ir.to_proto(leave_a_rest(ir.from_proto(given))[0]), "wider.onnx")
    feed = random_feed(plain)
    if quantized:
        rules = rules_for()
        db = in_amx(full_int8(plain, Capabilities(rules), feed, tmp_path), feed, "f32")
        wider_db = in_amx(full_int8(plain, Capabilities(rules, tuple(ROWS)), feed, tmp_path), feed, "f32")
    else:
        db, wider_db = in_amx(plain, feed, "bf16"), in_amx(wider, feed, "bf16")
    assert (db < 10.0) == wrong
    assert wider_db > 30.0
