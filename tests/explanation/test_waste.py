"""What to do about a conversion, by who writes and reads the value."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import parser

from inlay.explanation.executed import Executed, Ran
from inlay.explanation.waste import wasted

MODEL = """
    <ir_version: 9, opset_import: ["" : 17]>
    net (float[2, 4] x, float s, uint8 z) => (float[2, 4] y, int64[2] n) {
      xq = QuantizeLinear (x, s, z)
      xd = DequantizeLinear (xq, s, z)
      [product] h = Relu (xd)
      hq = QuantizeLinear (h, s, z)
      hd = DequantizeLinear (hq, s, z)
      [low] y = Relu (hd)
      [other] n = READER (hd)
    }
"""


@pytest.mark.parametrize(
    ("reader", "advice"),
    [
        ("Shape", "let Shape other read the integers of h: their sizes are the same"),
        ("ArgMax <axis = 1, keepdims = 0>", "quantize ArgMax other"),
    ],
)
def test_an_operator_that_reads_sizes_only_is_not_told_to_be_quantized(reader: str, advice: str) -> None:
    graph = ir.from_proto(parser.parse_model(MODEL.replace("READER", reader))).graph
    operators = {name: Ran("int8", "kernel", 1e6) for name in ("product", "low")}
    found = wasted(graph, Executed(operators, {("h", "dequantize"): 1e6}, 0.0, 3e6))
    assert [(w.kind, w.value, w.advice) for w in found] == [("leaves-int8", "h", advice)]
