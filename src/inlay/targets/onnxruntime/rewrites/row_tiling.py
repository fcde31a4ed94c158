"""A convolution in bands of rows, where its sums would not stay in the processor's cache.

ONNX Runtime runs a Conv whose weight is off zero (:func:`inlay.quant.qparams.off_zero`) in three steps, each over the
whole image: windows are gathered, multiplied, and the int32 sums are rounded. Where the sums are larger than the second
level cache, the last step reads them from far away. Bands of rows, each a Conv of its own on the rows that it needs,
with their bytes joined behind it, take 0.5 to 0.9 of the time (x86-64 with AMX and 2 MB; 64 to 256 channels, windows
of 3x3, with a convolution of 1x1 on either side). The products are the same ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx
import onnx_ir as ir

from inlay.model.graph import Graph, Node
from inlay.quant.draft import DEQUANTIZE, QUANTIZE, Draft, set_window, until_quantized

_ROWS = 2  # axis of the rows
_SUM_BYTES = 4


@dataclass(frozen=True)
class Band:
    """Rows of a convolution's result, as a convolution of its own.

    Attributes:
        first, behind: rows of the data that it reads, ``first <= row < behind``.
        above, below: rows of padding.
    """

    first: int
    behind: int
    above: int
    below: int


def bands_of(graph: Graph, node: Node, large: int, size: int) -> tuple[Band, ...]:
    """The bands of ``node``; none where its sums are small enough, or it is no two-dimensional Conv of known height.

    Args:
        graph: the model.
        node: of it.
        large: bytes of the sums from which there are bands.
        size: bytes of the sums of one band, about.
    """
    if node.op_type != "Conv" or node.domain not in ("", "ai.onnx") or "auto_pad" in node.attributes:
        return ()
    shapes = [graph.shape(v) for v in (*node.inputs[:2], node.outputs[0])]
    sizes = [tuple(shape[1:]) if shape is not None and len(shape) == 4 else (None,) for shape in shapes]
    if any(d is None for shape in sizes for d in shape) or int(node.attributes.get("group", 1)) != 1:
        return ()
    (_, height, _), (_, window, _), (outputs, rows, columns) = ([int(d or 0) for d in shape] for shape in sizes)
    sums = _SUM_BYTES * outputs * rows * columns
    count = min(-(-sums // size), rows)
    if sums < large or count < 2:
        return ()
    step, spread, above = (
        int(node.attributes.get(name, default)[0])
        for name, default in (("strides", (1,)), ("dilations", (1,)), ("pads", (0,)))
    )
    reach = spread * (window - 1) + 1
    edges = [round(i * rows / count) for i in range(count + 1)]
    found = []
    for first, behind in pairwise(edges):
        top, bottom = first * step - above, (behind - 1) * step - above + reach
        found.append(Band(max(top, 0), min(bottom, height), max(-top, 0), max(bottom - height, 0)))
    return tuple(found) if all(b.first < b.behind for b in found) else ()


def compute_in_bands(draft: Draft, bands: Mapping[str, tuple[Band, ...]], absorbed: Collection[str]) -> None:
    """Write convolutions off zero as ``Q -> (Slice -> DQ -> Conv [-> Relu] -> Q) for each band -> Concat``.

    Args:
        draft: the candidate; is changed.
        bands: by node, the convolutions that may.
        absorbed: activations that the target folds into the convolution before them.
    """
    after = {v: n for n in draft.graph.node for v in n.input}
    unread: set[str] = set()
    stale: set[str] = set()
    for node in [n for n in draft.graph.node if n.name in bands]:
        data, weight = (draft.dequantizer(v) for v in node.input[:2])
        if data is None or weight is None or len(weight.input) < 3 or data.attribute:
            continue
        between, q = until_quantized(node, after, draft, absorbed)
        if q is None or not np.any(draft.numbers(weight.input[2])):
            continue
        whole = q.output[0]
        own, of = bands[node.name], len(bands[node.name])
        written = [_band(draft, [node, *between, q], data, b, f"band_{i}of{of}") for i, b in enumerate(own, 1)]
        del node.input[:], node.attribute[:], q.output[:]
        # the first band has the names of the whole: to people, and to whoever asks what a kernel belongs to
        node.input.extend(written[0][2].input)
        node.attribute.extend(written[0][2].attribute)
        q.output.extend(written[0][-1].output)
        draft.insert(written[0][:2], before=node)
        name = draft.free(f"{node.name}_band_{of}of{of}_Concat")
        joined = onnx.helper.make_node("Concat", [nodes[-1].output[0] for nodes in written], [whole], name, axis=_ROWS)
        draft.insert([*(n for nodes in written[1:] for n in nodes), joined], before=after[whole])
        stale.update(n.output[0] for n in (node, *between))
        draft.uses[data.output[0]] -= 1
        if not draft.uses[data.output[0]]:
            unread.add(data.name)
    draft.finish(unread)
    draft.forget(stale)


def _band(
    draft: Draft, chain: Sequence[onnx.NodeProto], data: onnx.NodeProto, band: Band, suffix: str
) -> list[onnx.NodeProto]:
    """One band: the rows that it reads, what gives them back, and copies of ``chain``, from the Conv to the Q."""
    conv = chain[0]
    rows, read = (draft.free(f"{conv.name}_{suffix}_{kind}") for kind in ("Slice", DEQUANTIZE))
    limits = [draft.constant(f"{rows}_{k}", np.array([n])) for k, n in enumerate((band.first, band.behind, _ROWS))]
    found = [
        onnx.helper.make_node("Slice", [data.input[0], *limits], [f"{rows}_rows"], rows),
        onnx.helper.make_node(DEQUANTIZE, [f"{rows}_rows", *data.input[1:]], [f"{read}_rows"], read),
    ]
    for node in chain:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = draft.free(f"{node.name}_{suffix}")
        copy.input[0] = found[-1].output[0]
        copy.output[0] = draft.free(f"{node.output[0]}_{suffix}")
        found.append(copy)
    pads = next((list(a.ints) for a in conv.attribute if a.name == "pads"), [0, 0, 0, 0])
    set_window(found[2], {"pads": (band.above, pads[1], band.below, pads[3])}, keep=True)
    return found


def join_bands(graph: ir.Graph) -> None:
    """Undo :func:`compute_in_bands` in a model that it wrote: one convolution again, by the first band's names."""
    for joined in [n for n in graph if n.op_type == "Concat" and _number(n, "axis") == _ROWS]:
        chains = [_chain(value) for value in joined.inputs]
        first, last = chains[0], chains[-1]
        if first is None or last is None or any(c is None or not _same(c, first) for c in chains):
            continue
        rows, data, conv, *_, q = first
        (above, left, _, _), (_, _, below, right) = (tuple(c[2].attributes["pads"].as_ints()) for c in (first, last))
        conv.attributes["pads"] = ir.AttrInt64s("pads", [above, left, below, right])
        data.replace_input_with(0, rows.inputs[0])
        for node in first[2:]:
            node.outputs[0].shape = None
        joined.outputs[0].replace_all_uses_with(q.outputs[0])
        q.outputs[0].shape = joined.outputs[0].shape
        graph.remove([joined, rows, *(n for c in chains[1:] for n in c or ())], safe=True)


def _chain(value: ir.Value | None) -> list[ir.Node] | None:
    """From the Slice of a band to the Q that writes ``value``; None where it is no band."""
    found: list[ir.Node] = []
    while value is not None and (node := value.producer()) is not None and node.inputs:
        found.insert(0, node)
        if node.op_type == "Slice":
            break
        value = node.inputs[0]
    kinds = [n.op_type for n in found]
    band = len(kinds) > 3 and kinds[:3] == ["Slice", DEQUANTIZE, "Conv"] and kinds[-1] == QUANTIZE
    return found if band and "pads" in found[2].attributes else None


def _same(band: list[ir.Node] | None, first: list[ir.Node]) -> bool:
    """Whether two bands read rows of the same data, and the same weight and bias."""
    return band is not None and band[0].inputs[0] is first[0].inputs[0] and band[2].inputs[1:] == first[2].inputs[1:]


def _number(node: ir.Node, name: str) -> int | None:
    return int(node.attributes[name].as_int()) if name in node.attributes else None
