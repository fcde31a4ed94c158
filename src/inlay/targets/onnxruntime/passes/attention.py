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

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from inlay.model.normalize import Observe
from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.constants import lift_constants
from inlay.model.passes.names import fix_names
from inlay.model.passes.opset import raise_opset
from inlay.model.passes.steps import add_constant, constant_of, ints, is_standard, sole_use

ATTENTION_OPSET, ATTENTION_IR = 23, 11
"""The first opset with ``Attention``, and its IR version."""

_MASKING = -1e4  # what exporters add or put where nothing may be read: this or less
_LOWEST = (
    -1e30
)  # absorbs any product; the kernel takes float32's lowest number for no mask at all, and then gives zeros
_NOTHING = 24.0  # exp(-24) of a weight is below a thousandth of float32's precision
_LEAST_MASKED = 0.05  # of the positions in the samples: with fewer, finding the bound costs more than it saves
_SWAPPED = [0, 2, 1, 3]


def gather_attention(model: ir.Model, observe: Observe | None = None) -> tuple[ir.Model, int]:
    """Replace Softmax over products of queries and keys, and the product with values, by ``Attention``.

    Queries, keys and values must be rows of known size that a Reshape splits into heads. Between the products may be
    factors, masks that are added, and masks by Where that put a very negative number. A cache of keys and values that a
    Concat puts before the new ones becomes the operator's.

    Args:
        model: is changed, and raised to ``ATTENTION_OPSET`` where there is something to replace.
        observe: shows values of the samples; without it, masks are left as they are.
    """
    if not any(_blocks(model)):
        return model, 0
    model = lift_constants(fix_names(raise_opset(model, ATTENTION_OPSET)[0])[0])[0]
    model.ir_version = max(model.ir_version, ATTENTION_IR)
    blocks = _blocks(model)
    writer = _Writer(model.graph)
    masks = [writer.mask(block) for block in blocks]
    observed = observe(model, [m.name for m in masks if m is not None and m.name]) if observe and any(masks) else {}
    for block, mask in zip(blocks, masks, strict=True):
        writer.write(block, mask, mask is not None and _masks(observed.get(str(mask.name))))
    return model, len(blocks)


class _Heads(NamedTuple):
    """Rows of all heads, shape (batch, rows, heads * size), and by which constant they are multiplied later.

    With a cache, ``past`` is what stands before them, as heads, and ``present`` the two together.
    """

    rows: ir.Value
    heads: int
    size: int
    factor: float
    past: ir.Value | None = None
    present: ir.Value | None = None


class _Masking(NamedTuple):
    """A mask: added, or where ``kept`` is False (True where ``inverse``), put in place of a product."""

    value: ir.Value
    kept: ir.Value | None = None
    inverse: bool = False


@dataclass(frozen=True, eq=False)
class _Block:
    """One attention.

    Attributes:
        softmax: its Softmax, which gives new operators their names.
        query, key, value: rows.
        masks: what is added to the products, in order.
        factor: by which the products are multiplied.
        output: the Transpose that gives rows, shape (batch, rows, heads, size).
    """

    softmax: ir.Node
    query: _Heads
    key: _Heads
    value: _Heads
    masks: tuple[_Masking, ...]
    factor: float
    output: ir.Node


def _blocks(model: ir.Model) -> list[_Block]:
    found = [n for n in model.graph if is_standard(n, "Softmax")]
    if found:
        infer_shapes(model, strict=False)
    return [block for node in found if (block := _block(node)) is not None]


def _block(softmax: ir.Node) -> _Block | None:
    after = sole_use(softmax.outputs[0])
    products = _products(softmax.inputs[0])
    if softmax.attributes.get_int("axis", -1) not in (-1, 3) or after is None or products is None:
        return None
    transposed = sole_use(after[0].outputs[0])
    if not is_standard(after[0], "MatMul") or after[1] != 0 or transposed is None or not _swaps(transposed[0]):
        return None
    node, factor, masks = products
    query, value = _heads(node.inputs[0], _SWAPPED), _cached_heads(after[0].inputs[1])
    key = _heads(node.inputs[1], [0, 2, 3, 1]) or _transposed_heads(node.inputs[1])
    if query is None or key is None or value is None or value.factor != 1.0:
        return None
    if not query.heads == key.heads == value.heads or query.size != key.size:
        return None
    if (key.past is None) != (value.past is None):
        return None
    if any(m.value.shape is None or len(m.value.shape) > 4 for m in masks):
        return None
    return _Block(softmax, query, key, value, masks, factor * query.factor * key.factor, transposed[0])


def _products(value: ir.Value | None) -> tuple[ir.Node, float, tuple[_Masking, ...]] | None:
    """The product of queries and keys that ``value`` is made of, by which factor, and the masks behind it."""
    node = None if value is None or sole_use(value) is None else value.producer()
    if node is None:
        return None
    if is_standard(node, "MatMul"):
        return node, 1.0, ()
    if (scaled := _scaled(node)) is not None:
        inner = _products(scaled[0])
        return None if inner is None or inner[2] else (inner[0], inner[1] * scaled[1], ())
    for slot, mask in _maskings(node):
        if (inner := _products(node.inputs[slot])) is not None:
            return inner[0], inner[1], (*inner[2], mask)
    return None


def _maskings(node: ir.Node) -> list[tuple[int, _Masking]]:
    """Slots of ``node`` that may hold products, each with the mask that it then puts on them."""
    if is_standard(node, "Add"):
        pairs = [(0, node.inputs[1]), (1, node.inputs[0])]
        return [(s, _Masking(m)) for s, m in pairs if m is not None and m.dtype is ir.DataType.FLOAT]
    if not is_standard(node, "Where"):
        return []
    kept, *values = node.inputs
    found = []
    for slot, other in ((1, values[1]), (2, values[0])):
        array = constant_of(other)
        if kept is not None and other is not None and array is not None and array.size == 1 and array.max() <= _MASKING:
            found.append((slot, _Masking(other, kept, inverse=slot == 2)))
    return found


def _scaled(node: ir.Node) -> tuple[ir.Value, float] | None:
    """What a multiplication or division by one constant multiplies, and by which factor."""
    if is_standard(node, "Mul", "Div"):
        for slot in (1, 0) if node.op_type == "Mul" else (1,):
            array, other = constant_of(node.inputs[slot]), node.inputs[1 - slot]
            if array is not None and array.size == 1 and other is not None and float(array.reshape(())) > 0.0:
                number = float(array.reshape(()))
                return other, number if node.op_type == "Mul" else 1.0 / number
    return None


def _unscaled(value: ir.Value | None) -> tuple[ir.Value | None, float]:
    factor = 1.0
    while value is not None and (node := value.producer()) is not None and (scaled := _scaled(node)) is not None:
        value, factor = scaled[0], factor * scaled[1]
    return value, factor


def _heads(value: ir.Value | None, perm: list[int]) -> _Heads | None:
    """The rows that ``value`` is the heads of: reshaped, and transposed by ``perm``."""
    value, late = _unscaled(value)
    node = None if value is None else value.producer()
    if node is None or not is_standard(node, "Transpose") or ints(node, "perm", ()) != perm:
        return None
    split, early = _unscaled(node.inputs[0])
    reshape = None if split is None else split.producer()
    if reshape is None or not is_standard(reshape, "Reshape") or split is None or split.shape is None:
        return None
    rows, sizes = reshape.inputs[0], [d if isinstance(d, int) else 0 for d in split.shape]
    if rows is None or rows.dtype is not ir.DataType.FLOAT or rows.shape is None or len(sizes) != 4:
        return None
    # With as many rows in each batch as before, only the last axis was split.
    last = rows.shape[-1] if len(rows.shape) == 3 else None
    if sizes[2] < 1 or sizes[3] < 1 or last != sizes[2] * sizes[3] or not _keeps_rows(reshape, rows.shape, split.shape):
        return None
    return _Heads(rows, sizes[2], sizes[3], early * late)


def _keeps_rows(reshape: ir.Node, before: ir.Shape, after: ir.Shape) -> bool:
    """Whether the first two axes stay as they are: one of them does, and the product of the others is the same."""
    given = constant_of(reshape.inputs[1])
    zero = reshape.attributes.get_int("allowzero", 0) == 0
    copied = [zero and given is not None and given[axis] == 0 for axis in range(2)]
    return any(copied) or any(_is_same(before[axis], after[axis]) for axis in range(2))


def _is_same(size: int | ir.SymbolicDim, other: int | ir.SymbolicDim) -> bool:
    if isinstance(size, int) or isinstance(other, int):
        return size == other
    return size.value is not None and size.value == other.value


def _transposed_heads(value: ir.Value | None) -> _Heads | None:
    """As :func:`_heads`, where the last two axes are exchanged afterwards."""
    value, factor = _unscaled(value)
    node = None if value is None else value.producer()
    if node is None or not is_standard(node, "Transpose") or ints(node, "perm", ()) != [0, 1, 3, 2]:
        return None
    heads = _cached_heads(node.inputs[0])
    return heads and heads._replace(factor=heads.factor * factor)


def _cached_heads(value: ir.Value | None) -> _Heads | None:
    """As :func:`_heads`, where others may stand before them, and only the one product reads the two together."""
    node = None if value is None else value.producer()
    if node is None or not is_standard(node, "Concat"):
        return _heads(value, _SWAPPED)
    if node.attributes.get_int("axis", 0) not in (2, -2) or len(node.inputs) != 2 or len(node.outputs[0].uses()) != 1:
        return None
    past, heads = node.inputs[0], _heads(node.inputs[1], _SWAPPED)
    if heads is None or heads.factor != 1.0 or past is None or past.dtype is not ir.DataType.FLOAT:
        return None
    return heads._replace(past=past, present=node.outputs[0])


def _swaps(node: ir.Node) -> bool:
    return is_standard(node, "Transpose") and ints(node, "perm", ()) == _SWAPPED


def _merges(node: ir.Node, rows: ir.Shape | None, size: int) -> bool:
    """Whether ``node`` puts heads together to rows of ``size`` elements, and nothing else."""
    shape = node.outputs[0].shape if is_standard(node, "Reshape") else None
    if shape is None or rows is None or len(shape) != 3 or shape[2] != size:
        return False
    return _keeps_rows(node, rows, shape)


def _masks(mask: np.ndarray | None) -> bool:
    """Whether an observed mask keeps out enough positions."""
    if mask is None or not mask.size:
        return False
    return bool(np.mean(mask <= mask.max(axis=-1, keepdims=True) + _MASKING) >= _LEAST_MASKED)


def _replace(value: ir.Value, new: ir.Value) -> None:
    if value.is_graph_output():
        new.name, value.name = value.name, f"{value.name}_written_out"
    value.replace_all_uses_with(new, replace_graph_outputs=True)


class _Writer:
    """Writes operators into a graph, each before the Softmax of the block that it is for."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._greatest: dict[ir.Value, ir.Value] = {}
        self._finite: dict[ir.Value, ir.Value] = {}

    def mask(self, block: _Block) -> ir.Value | None:
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

    def _bounded(self, block: _Block, mask: ir.Value) -> ir.Value:
        if mask not in self._finite:
            array = constant_of(mask)
            if array is None:
                lowest = self._constant(block, "lowest", np.float32(_LOWEST))
                self._finite[mask] = self._add(block, "Max", [mask, lowest], "finite")
            else:
                self._finite[mask] = self._constant(block, "finite", np.maximum(array, np.float32(_LOWEST)))
        return self._finite[mask]

    def write(self, block: _Block, mask: ir.Value | None, limit: bool) -> None:
        """Replace a block; ``limit`` its mask where it would lead to denormals."""
        inputs: list[ir.Value | None] = [block.query.rows, block.key.rows, block.value.rows]
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
        merged = block.output.outputs[0]
        use = sole_use(merged)
        if use is not None and _merges(use[0], query.shape, heads * size):
            merged = use[0].outputs[0]
        else:
            sizes = self._constant(block, "heads", np.array([0, 0, heads, size], np.int64))
            rows = self._add(block, "Reshape", [rows, sizes], "split")
        _replace(merged, rows)

    def _attention(self, block: _Block, inputs: list[ir.Value | None]) -> ir.Value:
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

    def _limited(self, block: _Block, mask: ir.Value) -> ir.Value:
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

    def _longest(self, block: _Block, heads: _Heads, last: ir.Value, what: str) -> ir.Value:
        """The greatest squared length of a row of a head."""
        sizes = self._constant(block, f"{what}_heads", np.array([0, 0, heads.heads, heads.size], np.int64))
        split = self._add(block, "Reshape", [heads.rows, sizes], f"{what}_split")
        squares = self._add(block, "Mul", [split, split], f"{what}_squares")
        lengths = self._add(block, "ReduceSum", [squares, last], f"{what}_lengths", keepdims=0)
        return self._add(block, "ReduceMax", [lengths], f"{what}_longest", keepdims=0)

    def _add(
        self, block: _Block, op_type: str, inputs: list[ir.Value], what: str, **attributes: int | float
    ) -> ir.Value:
        node = ir.node(op_type, inputs, attributes, num_outputs=1, name=f"{block.softmax.name}_{what}")
        node.outputs[0].name = f"{node.name}_value"
        self._graph.insert_before(block.softmax, node)
        return node.outputs[0]

    def _constant(self, block: _Block, what: str, array: np.ndarray | np.generic) -> ir.Value:
        return add_constant(self._graph, f"{block.softmax.name}_{what}", np.asarray(array))
