"""Attention that is written out, gathered as the operator ``Attention`` that it is.

ONNX Runtime's CPU kernel for ``Attention`` (ONNX opset 23) reads queries, keys and values as the projections before it
leave them, rows of all heads, while the operators that exporters write transpose each of them first; the results are
equal bit for bit. With heads transposed already, the kernel gains nothing, and the operators are left as they are.
Decoders rotate queries and keys by their positions first, and let several heads of queries share one of keys: that is
``RotaryEmbedding`` over rows, and the number of heads of each.

Masked positions cost more than others in the runtime's Softmax: the exponential of a very negative number ends in
denormals, on which processors compute many times slower. Where the samples mask positions, the mask is limited to what
already leaves nothing of a position: ``|q.k| <= max|q| max|k|``, so that a mask that lies twice this bound and
``_NOTHING`` below the row's greatest leaves at most ``exp(-_NOTHING)`` of what the greatest leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from inlay.model.normalize import Observe
from inlay.model.passes.axes import rank_of
from inlay.model.passes.constants import lift_constants
from inlay.model.passes.names import fix_names
from inlay.model.passes.opset import raise_opset
from inlay.model.passes.steps import add_constant, is_standard
from inlay.targets.onnxruntime.passes.attention_blocks import MASKING, Block, Heads, find_blocks

ATTENTION_OPSET, ATTENTION_IR = 23, 11  # the first opset with `Attention`, and its IR version

# Absorbs any product; the kernel takes float32's lowest number for no mask at all, and then gives zeros.
_LOWEST = -1e30
_NOTHING = 24.0  # exp(-24) of a weight is below a thousandth of float32's precision
_LEAST_MASKED = 0.05  # of the positions in the samples: with fewer, finding the bound costs more than it saves


def gather_attention(model: ir.Model, observe: Observe | None = None) -> tuple[ir.Model, int]:
    """Replace Softmax over products of queries and keys, and the product with values, by ``Attention``.

    Queries, keys and values must be rows of known size that a Reshape splits into heads. Between the products may be
    factors, masks that are added, and masks by Where that put a very negative number. A cache of keys and values that a
    Concat puts before the new ones becomes the operator's. Positions may rotate queries and keys, and several heads of
    queries may share one of keys and values.

    Args:
        model: is changed, and raised to ``ATTENTION_OPSET`` where there is something to replace.
        observe: shows values of the samples; without it, masks are left as they are.
    """
    if not any(find_blocks(model)):
        return model, 0
    given, (model, _) = model, raise_opset(model, ATTENTION_OPSET)
    inferred = model is given
    model = lift_constants(fix_names(model)[0])[0]
    model.ir_version = max(model.ir_version, ATTENTION_IR)
    blocks = find_blocks(model, inferred)
    writer = _Writer(model.graph, _row_counts(model.graph, blocks))
    masks = [writer.mask(block) for block in blocks]
    observed = observe(model, [m.name for m in masks if m is not None and m.name]) if observe and any(masks) else {}
    for block, mask in zip(blocks, masks, strict=True):
        writer.write(block, mask, mask is not None and _masks(observed.get(str(mask.name))))
    return model, len(blocks)


class _Writer:
    """Writes operators into a graph, each before the Softmax of the block that it is for."""

    def __init__(self, graph: ir.Graph, same: Mapping[str, str]) -> None:
        self._graph, self._same = graph, same
        self._greatest: dict[ir.Value, ir.Value] = {}
        self._finite: dict[ir.Value, ir.Value] = {}
        self._written: dict[tuple[ir.Value, object, str], ir.Value] = {}  # by what they are made of, for which rows

    def mask(self, block: Block) -> ir.Value | None:
        """All masks of a block as one that is added."""
        total = None
        for number, masking in enumerate(block.masks):
            mask = masking.value
            if masking.kept is not None:
                zero = self._constant(block, "kept", np.float32(0.0))
                either = [mask, zero] if masking.inverse else [zero, mask]
                mask = self._add(block, "Where", [masking.kept, *either], f"mask{number}")
            total = mask if total is None else self._add(block, "Add", [total, mask], f"masks{number}")
        return total and self._bounded(block, total)

    def _bounded(self, block: Block, mask: ir.Value) -> ir.Value:
        if mask not in self._finite:
            lowest = self._constant(block, "lowest", np.float32(_LOWEST))
            self._finite[mask] = self._add(block, "Max", [mask, lowest], "finite")
        return self._finite[mask]

    def write(self, block: Block, mask: ir.Value | None, limit: bool) -> None:
        """Replace a block; ``limit`` its mask where it would lead to denormals."""
        parts = {"q": block.query, "k": block.key, "v": block.value}
        inputs: list[ir.Value | None] = [self._positioned(block, heads, what) for what, heads in parts.items()]
        if mask is not None:
            limit = limit and block.key.past is None and block.key.rotation is None
            mask = self._limited(block, mask) if limit else mask
            inputs.append(self._for_all_rows(block, mask))
        rows = self._attention(block, inputs)
        query, heads, size = block.query.rows, block.query.heads, block.value.size
        rows.dtype = ir.DataType.FLOAT
        rows.shape = ir.Shape([*(query.shape or ())[:2], heads * size])
        if not block.is_merged:
            sizes = self._constant(block, "heads", np.array([0, 0, heads, size], np.int64))
            rows = self._add(block, "Reshape", [rows, sizes], "split")
        _replace(block.output, rows)

    def _for_all_rows(self, block: Block, mask: ir.Value) -> ir.Value:
        """The mask with a row for each query; one for all blocks whose queries are known to be as many."""
        rows = block.query.rows
        size = _size_of(rows, 1)
        key = (mask, self._same.get(size, size) if isinstance(size, str) else size, "mask")
        if key not in self._written:
            one = self._constant(block, "one", np.array([1], np.int64))
            count = self._add(block, "Shape", [rows], "rows", start=1, end=2)
            sizes = self._add(block, "Concat", [one, one, count, one], "sizes", axis=0)
            self._written[key] = self._add(block, "Expand", [mask, sizes], "mask")
        return self._written[key]

    def _positioned(self, block: Block, heads: Heads, what: str) -> ir.Value:
        """The rows as the operator reads them: clipped, or rotated."""
        if heads.rotation is None:
            return self._clipped(block, heads, what)
        parts = {"cos": heads.rotation.cosines, "sin": heads.rotation.sines}
        angles = [self._half(block, heads, value, f"{what}_{name}") for name, value in parts.items()]
        inputs = [heads.rows, *angles]
        rows = self._add(block, "RotaryEmbedding", inputs, f"{what}_rotated", num_heads=heads.heads)
        rows.type, rows.shape = heads.rows.type, heads.rows.shape
        return rows

    def _half(self, block: Block, heads: Heads, value: ir.Value, what: str) -> ir.Value:
        """Cosines or sines of one half of a head, shape (batch, rows, half of its size)."""
        key = (value, _size_of(heads.rows, 0), f"half of {heads.size}")
        if key not in self._written:
            ends = [self._constant(block, f"{what}_{i}", np.array([n])) for i, n in enumerate((0, heads.size // 2, -1))]
            half = self._add(block, "Slice", [value, *ends], f"{what}_half")
            if value.shape is not None and len(value.shape) == 4:  # the second axis is that of heads
                axis = self._constant(block, f"{what}_heads", np.array([1]))
                half = self._add(block, "Squeeze", [half, axis], f"{what}_flat")
            batch = self._add(block, "Shape", [heads.rows], f"{what}_batch", start=0, end=1)
            ones = self._constant(block, f"{what}_ones", np.array([1, 1], np.int64))
            sizes = self._add(block, "Concat", [batch, ones], f"{what}_sizes", axis=0)
            self._written[key] = self._add(block, "Expand", [half, sizes], f"{what}_each")
        return self._written[key]

    def _clipped(self, block: Block, heads: Heads, what: str) -> ir.Value:
        if not heads.is_clipped:
            return heads.rows
        greatest = float(np.finfo(np.float32).max)
        ends = [np.float32(min(max(end, -greatest), greatest)) for end in (heads.low, heads.high)]
        names = [self._constant(block, f"{what}_{name}", end) for name, end in zip(("low", "high"), ends, strict=True)]
        return self._add(block, "Clip", [heads.rows, *names], f"{what}_clipped")

    def _attention(self, block: Block, inputs: list[ir.Value | None]) -> ir.Value:
        """The operator itself; what a cache holds afterwards takes the place of what was put together before."""
        caches = (block.key, block.value)
        if block.key.past is not None:
            inputs = [*inputs, *[None] * (4 - len(inputs)), *(cache.past for cache in caches)]
        attributes = {"q_num_heads": block.query.heads, "kv_num_heads": block.key.heads, "scale": block.factor}
        name = f"{block.softmax.name}_attention"
        presents = [cache.present for cache in caches if cache.present is not None]
        node = ir.node("Attention", inputs, attributes, num_outputs=1 + len(presents), name=name)
        for number, output in enumerate(node.outputs):
            output.name = f"{name}_value{number or ''}"
        self._graph.insert_before(block.softmax, node)
        for present, new in zip(presents, node.outputs[1:], strict=True):
            new.type, new.shape = present.type, present.shape
            _replace(present, new)
        return node.outputs[0]

    def _limited(self, block: Block, mask: ir.Value) -> ir.Value:
        last = self._constant(block, "last", np.array([-1], np.int64))
        squares = [self._longest(block, rows, last, what) for rows, what in ((block.query, "q"), (block.key, "k"))]
        longest = self._add(block, "Sqrt", [self._add(block, "Mul", squares, "square")], "longest")
        twice = self._constant(block, "twice", np.float32(2.0 * block.factor))
        spread = self._add(block, "Mul", [longest, twice], "spread")
        if mask not in self._greatest:
            self._greatest[mask] = self._add(block, "ReduceMax", [mask, last], "greatest", keepdims=1)
        more = self._add(
            block, "Sub", [self._greatest[mask], self._constant(block, "nothing", np.float32(_NOTHING))], "d"
        )
        least = self._add(block, "Sub", [more, spread], "least")
        return self._add(block, "Max", [mask, least], "limited")

    def _longest(self, block: Block, heads: Heads, last: ir.Value, what: str) -> ir.Value:
        """The greatest squared length of a row of a head."""
        sizes = self._constant(block, f"{what}_heads", np.array([0, 0, heads.heads, heads.size], np.int64))
        split = self._add(block, "Reshape", [heads.rows, sizes], f"{what}_split")
        squares = self._add(block, "Mul", [split, split], f"{what}_squares")
        lengths = self._add(block, "ReduceSum", [squares, last], f"{what}_lengths", keepdims=0)
        return self._add(block, "ReduceMax", [lengths], f"{what}_longest", keepdims=0)

    def _add(
        self, block: Block, op_type: str, inputs: list[ir.Value], what: str, **attributes: int | float
    ) -> ir.Value:
        node = ir.node(op_type, inputs, attributes, num_outputs=1, name=f"{block.softmax.name}_{what}")
        node.outputs[0].name = f"{node.name}_value"
        self._graph.insert_before(block.softmax, node)
        return node.outputs[0]

    def _constant(self, block: Block, what: str, array: np.ndarray | np.generic) -> ir.Value:
        return add_constant(self._graph, f"{block.softmax.name}_{what}", np.asarray(array))


def _size_of(value: ir.Value | None, axis: int) -> int | str | ir.Value | None:
    """What a size is known to be: a number or a symbol; else what stands for this one alone."""
    if value is None or value.shape is None or len(value.shape) <= axis:
        return value
    size = value.shape[axis]
    known = size.value if isinstance(size, ir.SymbolicDim) else size
    return value if known is None else known


def _row_counts(graph: ir.Graph, blocks: Sequence[Block]) -> Mapping[str, str]:
    """Symbols for numbers of rows that are others': attention has a row for each query, and sums are as long as both.

    Shape inference gives each result of a written-out attention a symbol of its own, and all that is added to it.
    """
    same, queries = dict[str, str](), {block.output: block.query.rows for block in blocks}

    def of(value: ir.Value | None) -> int | str | ir.Value | None:
        size = _size_of(value, 1)
        return same.get(size, size) if isinstance(size, str) else size

    for node in graph:
        value = node.outputs[0] if node.outputs else None
        own = _size_of(value, 1)
        if value is None or not isinstance(own, str):
            continue
        sizes = {of(queries[value])} if value in queries else set[object]()
        ranks = [rank_of(v) for v in node.inputs]
        if is_standard(node, "Add", "Sub", "Mul", "Div") and all(r in (0, 1, rank_of(value)) for r in ranks):
            sizes = {of(v) for v, rank in zip(node.inputs, ranks, strict=True) if rank == rank_of(value)} - {1}
        if len(sizes) == 1 and isinstance(size := sizes.pop(), str) and size != own:
            same[own] = size
    return same


def _masks(mask: np.ndarray | None) -> bool:
    """Whether an observed mask keeps out enough positions."""
    if mask is None or not mask.size:
        return False
    return bool(np.mean(mask <= mask.max(axis=-1, keepdims=True) + MASKING) >= _LEAST_MASKED)


def _replace(value: ir.Value, new: ir.Value) -> None:
    if value.is_graph_output():
        new.name, value.name = value.name, f"{value.name}_written_out"
    value.replace_all_uses_with(new, replace_graph_outputs=True)
