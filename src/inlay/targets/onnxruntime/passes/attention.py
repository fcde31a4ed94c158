"""Attention that is written out, gathered as the operator ``Attention`` that it is.

ONNX Runtime's CPU kernel for ``Attention`` (ONNX opset 23) reads queries, keys and values as the projections before it
leave them, rows of all heads, while the operators that exporters write transpose each of them first; the results are
equal bit for bit. With heads transposed already, the kernel gains nothing, and the operators are left as they are.

Masked positions cost more than others in the runtime's Softmax: the exponential of a very negative number ends in
denormals, on which processors compute many times slower. Where the samples mask positions, the mask is limited to what
already leaves nothing of a position: ``|q.k| <= max|q| max|k|``, so that a mask that lies twice this bound and
``_NOTHING`` below the row's greatest leaves at most ``exp(-_NOTHING)`` of what the greatest leaves.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from inlay.model.normalize import Observe
from inlay.model.passes.constants import lift_constants
from inlay.model.passes.names import fix_names
from inlay.model.passes.opset import raise_opset
from inlay.model.passes.steps import add_constant
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
    Concat puts before the new ones becomes the operator's.

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
    writer = _Writer(model.graph)
    masks = [writer.mask(block) for block in blocks]
    observed = observe(model, [m.name for m in masks if m is not None and m.name]) if observe and any(masks) else {}
    for block, mask in zip(blocks, masks, strict=True):
        writer.write(block, mask, mask is not None and _masks(observed.get(str(mask.name))))
    return model, len(blocks)


class _Writer:
    """Writes operators into a graph, each before the Softmax of the block that it is for."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._greatest: dict[ir.Value, ir.Value] = {}
        self._finite: dict[ir.Value, ir.Value] = {}

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
        inputs: list[ir.Value | None] = [self._clipped(block, heads, what) for what, heads in parts.items()]
        if mask is not None:
            mask = self._limited(block, mask) if limit and block.key.past is None else mask
            one = self._constant(block, "one", np.array([1], np.int64))
            rows = self._add(block, "Shape", [block.query.rows], "rows", start=1, end=2)
            sizes = self._add(block, "Concat", [one, one, rows, one], "sizes", axis=0)
            inputs.append(self._add(block, "Expand", [mask, sizes], "mask"))
        rows = self._attention(block, inputs)
        query, heads, size = block.query.rows, block.query.heads, block.value.size
        rows.dtype = ir.DataType.FLOAT
        rows.shape = ir.Shape([*(query.shape or ())[:2], heads * size])
        if not block.is_merged:
            sizes = self._constant(block, "heads", np.array([0, 0, heads, size], np.int64))
            rows = self._add(block, "Reshape", [rows, sizes], "split")
        _replace(block.output, rows)

    def _clipped(self, block: Block, heads: Heads, what: str) -> ir.Value:
        if heads.low == -math.inf and heads.high == math.inf:
            return heads.rows
        greatest = float(np.finfo(np.float32).max)
        ends = [np.float32(min(max(end, -greatest), greatest)) for end in (heads.low, heads.high)]
        names = [self._constant(block, f"{what}_{name}", end) for name, end in zip(("low", "high"), ends, strict=True)]
        return self._add(block, "Clip", [heads.rows, *names], f"{what}_clipped")

    def _attention(self, block: Block, inputs: list[ir.Value | None]) -> ir.Value:
        """The operator itself; what a cache holds afterwards takes the place of what was put together before."""
        heads, caches = block.query.heads, (block.key, block.value)
        if block.key.past is not None:
            inputs = [*inputs, *[None] * (4 - len(inputs)), *(cache.past for cache in caches)]
        attributes = {"q_num_heads": heads, "kv_num_heads": heads, "scale": block.factor}
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


def _masks(mask: np.ndarray | None) -> bool:
    """Whether an observed mask keeps out enough positions."""
    if mask is None or not mask.size:
        return False
    return bool(np.mean(mask <= mask.max(axis=-1, keepdims=True) + MASKING) >= _LEAST_MASKED)


def _replace(value: ir.Value, new: ir.Value) -> None:
    if value.is_graph_output():
        new.name, value.name = value.name, f"{value.name}_written_out"
    value.replace_all_uses_with(new, replace_graph_outputs=True)
