"""A QuantizeLinear and the DequantizeLinear behind it, as new nodes of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir


def add_pair(
    graph: ir.Graph,
    value: ir.Value,
    numbers: Sequence[ir.Value | None],
    kind: ir.TypeProtocol | None,
    prefix: str,
    attributes: Mapping[str, ir.Attr] | None = None,
) -> tuple[ir.Node, ir.Value]:
    """Put a pair right behind what writes ``value``, or first in ``graph``; nothing reads it yet.

    Args:
        graph: is changed.
        value: what is quantized.
        numbers: scale and zero point.
        kind: type of the integers.
        prefix: of all names; no other pair has it.
        attributes: of the QuantizeLinear.

    Returns:
        The QuantizeLinear, and what the pair makes of ``value``.
    """
    low = ir.Value(name=f"{prefix}_quantized", type=kind, shape=value.shape)
    high = ir.Value(name=f"{prefix}_dequantized", type=value.type, shape=value.shape)
    quantize = ir.node("QuantizeLinear", [value, *numbers], attributes, outputs=[low], name=f"{prefix}_q")
    back = ir.node("DequantizeLinear", [low, *numbers], outputs=[high], name=f"{prefix}_dq")
    writer = value.producer()  # right behind it: whatever reads the value may then read the pair, too
    if writer is None:
        graph.insert_before(graph[0], [quantize, back])
    else:
        graph.insert_after(writer, [quantize, back])
    return quantize, high
