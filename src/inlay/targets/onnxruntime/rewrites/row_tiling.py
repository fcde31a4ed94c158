"""A convolution tiled into bands of rows, so that its int32 sums stay in the processor's cache.

ONNX Runtime runs a Conv whose weight has nonzero zero points (:mod:`.nonzero_zero_point`) in three steps, each over the
whole image: gather windows, multiply, round the int32 sums. Where the sums exceed the second-level cache, the last step
reads them from memory. Tiles of rows, each a Conv of its own over the rows that it needs, with their bytes concatenated
behind them, take 0.5 to 0.9 of the time. The products are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx

from inlay.model.graph import Graph, Node
from inlay.quant.qdq_graph import DEQUANTIZE, QDQGraph, path_to_quantizer, set_attributes
from inlay.quant.rewrite import Rewrite
from inlay.targets.onnxruntime.rewrites.space_to_depth import SpaceToDepth

_ROWS = 2  # axis of the rows
_MOST_TILES = 256  # each is some nodes; sums of 50 MB and more, or shapes that the model states and does not have
_SUM_BYTES = 4  # of one int32 sum
_LEAST_SHARE, _TILE_SHARE = 0.48, 0.19  # of the second-level cache; see RowTiling.source


@dataclass(frozen=True)
class Tile:
    """Rows of a convolution's output, as a convolution of its own."""

    # start, stop: rows of the data that it reads, `start <= row < stop`
    start: int
    stop: int
    # above, below: rows of padding
    above: int
    below: int


@dataclass(frozen=True)
class RowTiling(Rewrite[tuple[Tile, ...]]):
    """``Q -> DQ -> Conv [-> Relu] -> Q`` becomes ``Q -> (Slice -> DQ -> Conv [-> Relu] -> Q) per tile -> Concat``."""

    absorbed: frozenset[str]  # activations that the runtime fuses into the convolution before them
    unless: SpaceToDepth | None  # a rewrite that takes precedence: what it applies to is not tiled
    least_sum_bytes: int  # bytes of a Conv's sums from which it is tiled
    tile_sum_bytes: int  # bytes of the sums of one tile, about

    name = "row tiling"
    reason = "the int32 sums of the whole image would not stay in the processor's cache"
    source = (
        "shares of the second-level cache, measured on two processors. With 2 MB (and AMX): tiles take 0.91 of the "
        "time of 1.6 MB at once, 0.5 to 0.7 of that of 2.3 MB and more; tiles of 0.1 to 0.4 MB are within 4 % of each "
        "other, 1.2 MB takes 9 to 19 % longer. With 1 MB: tiles of 0.2 MB take 0.85 to 0.92 of the time of 0.5 MB and "
        "more at once, those of 0.8 MB 3 to 4 % longer; windows of 1x1 gain nothing (six shapes, ONNX Runtime 1.31)"
    )

    @classmethod
    def for_cache(cls, cache_bytes: int, absorbed: frozenset[str], unless: SpaceToDepth | None) -> RowTiling:
        """Tiles that stay in a second-level cache of so many bytes, beside the windows that they are made of."""
        return cls(absorbed, unless, int(_LEAST_SHARE * cache_bytes), int(_TILE_SHARE * cache_bytes))

    def applies(self, graph: Graph, node: Node) -> tuple[Tile, ...] | None:
        """The tiles of a two-dimensional Conv of one group and known height whose sums are large enough."""
        if node.op_type != "Conv" or node.domain not in ("", "ai.onnx") or "auto_pad" in node.attributes:
            return None
        if self.unless is not None and self.unless.applies(graph, node) is not None:
            return None
        shapes = [graph.shape(v) for v in (*node.inputs[:2], node.outputs[0])]
        sizes = [tuple(shape[1:]) if shape is not None and len(shape) == 4 else (None,) for shape in shapes]
        if any(d is None for shape in sizes for d in shape) or int(node.attributes.get("group", 1)) != 1:
            return None
        (_, height, _), (_, window, _), (outputs, rows, columns) = ([int(d or 0) for d in shape] for shape in sizes)
        sums = _SUM_BYTES * outputs * rows * columns
        count = min(-(-sums // self.tile_sum_bytes), rows)
        if sums < self.least_sum_bytes or not 2 <= count <= _MOST_TILES:
            return None
        step, dilation, above = (
            int(node.attributes.get(name, default)[0])
            for name, default in (("strides", (1,)), ("dilations", (1,)), ("pads", (0,)))
        )
        reach = dilation * (window - 1) + 1
        edges = [round(i * rows / count) for i in range(count + 1)]
        tiles = []
        for first, stop in pairwise(edges):
            top, bottom = first * step - above, (stop - 1) * step - above + reach
            tiles.append(Tile(max(top, 0), min(bottom, height), max(-top, 0), max(bottom - height, 0)))
        return tuple(tiles) if all(t.start < t.stop for t in tiles) else None

    def apply(self, qdq: QDQGraph, forms: Mapping[str, tuple[Tile, ...]]) -> None:
        """Tile those convolutions whose weight has nonzero zero points and whose output is quantized."""
        sole_reader = {v: n for n in qdq.graph.node for v in n.input}
        stale: set[str] = set()
        for node in [n for n in qdq.graph.node if n.name in forms]:
            data, weight = (qdq.dequantizer(v) for v in node.input[:2])
            if data is None or weight is None or len(weight.input) < 3 or data.attribute or not qdq.in_bytes(data):
                continue
            between, q = path_to_quantizer(node, sole_reader, qdq, self.absorbed)
            if q is None or not np.any(qdq.constant(weight.input[2])):
                continue
            whole = q.output[0]
            tiles, of = forms[node.name], len(forms[node.name])
            chain = [node, *between, q]
            written = [_tile(qdq, chain, data, t, f"band_{i}of{of}") for i, t in enumerate(tiles, 1)]
            del node.input[:], node.attribute[:], q.output[:]
            # the first tile takes the names of the whole, for people and for the attribution of profiles
            node.input.extend(written[0][2].input)
            node.attribute.extend(written[0][2].attribute)
            q.output.extend(written[0][-1].output)
            qdq.insert(written[0][:2], before=node)
            name = qdq.unique(f"{node.name}_band_{of}of{of}_Concat")
            parts = [nodes[-1].output[0] for nodes in written]
            joined = onnx.helper.make_node("Concat", parts, [whole], name, axis=_ROWS)
            qdq.insert([*(n for nodes in written[1:] for n in nodes), joined], before=sole_reader[whole])
            stale.update(n.output[0] for n in (node, *between))
            qdq.release(data)
        qdq.finish()
        qdq.drop_shapes(stale)


def _tile(
    qdq: QDQGraph, chain: Sequence[onnx.NodeProto], data: onnx.NodeProto, tile: Tile, suffix: str
) -> list[onnx.NodeProto]:
    """The rows that a tile reads, their DequantizeLinear, and copies of ``chain``, from the Conv to the Q."""
    conv = chain[0]
    rows, read = (qdq.unique(f"{conv.name}_{suffix}_{kind}") for kind in ("Slice", DEQUANTIZE))
    bounds = (tile.start, tile.stop, _ROWS)
    limits = [qdq.add_constant(f"{rows}_{k}", np.array([n], np.int64)) for k, n in enumerate(bounds)]
    found = [
        onnx.helper.make_node("Slice", [data.input[0], *limits], [f"{rows}_rows"], rows),
        onnx.helper.make_node(DEQUANTIZE, [f"{rows}_rows", *data.input[1:]], [f"{read}_rows"], read),
    ]
    for node in chain:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = qdq.unique(f"{node.name}_{suffix}")
        copy.input[0] = found[-1].output[0]
        copy.output[0] = qdq.unique(f"{node.output[0]}_{suffix}")
        found.append(copy)
    pads = next((list(a.ints) for a in conv.attribute if a.name == "pads"), [0, 0, 0, 0])
    set_attributes(found[2], {"pads": (tile.above, pads[1], tile.below, pads[3])}, keep=True)
    return found
