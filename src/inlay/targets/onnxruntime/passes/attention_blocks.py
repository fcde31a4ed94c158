"""Attention as exporters write it out: Softmax over products of queries and keys, and its product with values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import onnx_ir as ir

from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.steps import axes_of, constant_of, ints, is_standard, sole_use
from inlay.targets.onnxruntime.passes.rotary import Rotation, rotated

MASKING = -1e4  # what exporters add or put where nothing may be read: this or less
_SWAPPED = [0, 2, 1, 3]


class Heads(NamedTuple):
    """Rows of all heads, shape (batch, rows, heads * size), and by which constant they are multiplied later.

    With a cache, ``past`` is what stands before them, as heads, and ``present`` the two together. ``low`` and ``high``
    are what rows are clipped to, as by Q/DQ pairs that were taken out. ``readers`` is how many heads of queries read
    each head (grouped queries), and ``rotation`` what positions rotate them by.
    """

    rows: ir.Value
    heads: int
    size: int
    factor: float
    past: ir.Value | None = None
    present: ir.Value | None = None
    low: float = -math.inf
    high: float = math.inf
    readers: int = 1
    rotation: Rotation | None = None

    @property
    def is_clipped(self) -> bool:
        """Whether anything can be clipped."""
        return self.low > -math.inf or self.high < math.inf


class Masking(NamedTuple):
    """A mask: added, or where ``kept`` is False (True where ``inverse``), put in place of a product."""

    value: ir.Value
    kept: ir.Value | None = None
    inverse: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Block:
    """One attention."""

    softmax: ir.Node  # its Softmax, which gives new operators their names
    # query, key, value: rows
    query: Heads
    key: Heads
    value: Heads
    masks: tuple[Masking, ...]  # what is added to the products, in order
    factor: float  # by which the products are multiplied
    output: ir.Value  # what it gives, shape (batch, rows, heads, size)
    is_merged: bool  # whether `output` is those rows with the heads put together, shape (batch, rows, heads * size)


def find_blocks(model: ir.Model, inferred: bool = False) -> list[Block]:
    """Every attention that one operator can stand for; shapes are ``inferred``, or it is done here."""
    found = [n for n in model.graph if is_standard(n, "Softmax")]
    if found and not inferred:
        infer_shapes(model, strict=False)
    return [block for node in found if (block := _block(node)) is not None]


def _block(softmax: ir.Node) -> Block | None:
    after = sole_use(softmax.outputs[0])
    products = _products(softmax.inputs[0])
    if softmax.attributes.get_int("axis", -1) not in (-1, 3) or after is None or products is None:
        return None
    transposed = sole_use(after[0].outputs[0])
    if not is_standard(after[0], "MatMul") or after[1] != 0 or transposed is None or not _swaps(transposed[0]):
        return None
    node, factor, masks = products
    query, value = _rotated_heads(node.inputs[0]), _repeated_heads(after[0].inputs[1])
    key = _heads(node.inputs[1], [0, 2, 3, 1]) or _transposed_heads(node.inputs[1])
    if query is None or key is None or value is None or value.factor != 1.0 or value.rotation is not None:
        return None
    if query.heads != key.heads * key.readers or query.size != key.size:
        return None
    if (key.heads, key.readers) != (value.heads, value.readers):
        return None
    if (key.past is None) != (value.past is None):
        return None
    if any(m.value.shape is None or len(m.value.shape) > 4 for m in masks):
        return None
    output = transposed[0].outputs[0]
    use = sole_use(output)
    is_merged = use is not None and _merges(use[0], query.rows.shape, query.heads * value.size)
    if use is not None and is_merged:
        output = use[0].outputs[0]
    factor *= query.factor * key.factor
    return Block(
        softmax=softmax,
        query=query,
        key=key,
        value=value,
        masks=masks,
        factor=factor,
        output=output,
        is_merged=is_merged,
    )


def _products(value: ir.Value | None) -> tuple[ir.Node, float, tuple[Masking, ...]] | None:
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


def _maskings(node: ir.Node) -> list[tuple[int, Masking]]:
    """Slots of ``node`` that may hold products, each with the mask that it then puts on them."""
    if is_standard(node, "Add"):
        pairs = [(0, node.inputs[1]), (1, node.inputs[0])]
        return [(s, Masking(m)) for s, m in pairs if m is not None and m.dtype is ir.DataType.FLOAT]
    if not is_standard(node, "Where"):
        return []
    kept, *values = node.inputs
    found = []
    for slot, other in ((1, values[1]), (2, values[0])):
        array = constant_of(other)
        if kept is not None and other is not None and array is not None and array.size == 1 and array.max() <= MASKING:
            found.append((slot, Masking(other, kept, inverse=slot == 2)))
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


class _Inner(NamedTuple):
    """What is clipped first, and then multiplied."""

    value: ir.Value | None
    factor: float = 1.0
    low: float = -math.inf
    high: float = math.inf


def _unscaled(value: ir.Value | None, outer: _Inner | None = None) -> _Inner:
    """What ``value`` is made of by factors and clips, and then by ``outer``, as one clip and one factor."""
    found = _Inner(value) if outer is None else outer._replace(value=value)
    while found.value is not None and (node := found.value.producer()) is not None:
        if (scaled := _scaled(node)) is not None:
            inner, factor = scaled
            found = _Inner(inner, found.factor * factor, found.low / factor, found.high / factor)
        elif (clipped := _clipped(node)) is not None:
            inner, low, high = clipped
            low, high = (min(max(end, found.low), found.high) for end in (low, high))
            found = found._replace(value=inner, low=low, high=high)
        else:
            break
    return found


def _clipped(node: ir.Node) -> tuple[ir.Value, float, float] | None:
    """What a Relu or a Clip by constants clips, and to what."""
    value = node.inputs[0] if node.inputs else None
    if value is None or not is_standard(node, "Relu", "Clip"):
        return None
    if node.op_type == "Relu":
        return value, 0.0, math.inf
    ends = [constant_of(end) for end in node.inputs[1:]]
    if any(end is None or end.size != 1 for end in ends):
        return None
    low, high = [float(end.reshape(())) for end in ends if end is not None] + [-math.inf, math.inf][len(ends) :]
    return (value, low, high) if low <= 0.0 <= high else None  # which makes no row longer


def _heads(value: ir.Value | None, perm: list[int]) -> Heads | None:
    """The rows that ``value`` is the heads of: reshaped, and transposed by ``perm``."""
    late = _unscaled(value)
    node = None if late.value is None else late.value.producer()
    if node is None or not is_standard(node, "Transpose") or ints(node, "perm", ()) != perm:
        return None
    split, factor, low, high = _unscaled(node.inputs[0], late)
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
    return Heads(rows, sizes[2], sizes[3], factor, low=low, high=high)


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


def _transposed_heads(value: ir.Value | None) -> Heads | None:
    """As :func:`_heads`, where the last two axes are exchanged afterwards."""
    outer = _unscaled(value)
    node = None if outer.value is None else outer.value.producer()
    if node is None or not is_standard(node, "Transpose") or ints(node, "perm", ()) != [0, 1, 3, 2]:
        return None
    heads = _repeated_heads(node.inputs[0])
    clipped = outer.low > -math.inf or outer.high < math.inf
    if heads is None or (clipped and (heads.factor != 1.0 or heads.past is not None or heads.rotation is not None)):
        return None
    low, high = (min(max(end, outer.low), outer.high) for end in (heads.low, heads.high))
    return heads._replace(factor=heads.factor * outer.factor, low=low, high=high)


def _repeated_heads(value: ir.Value | None) -> Heads | None:
    """As :func:`_cached_heads`, where each head may be repeated for the queries that share it."""
    reshape = None if value is None else value.producer()
    expand = _maker_of(reshape, "Reshape")
    unsqueeze = _maker_of(expand, "Expand")
    if reshape is None or expand is None or unsqueeze is None or not is_standard(unsqueeze, "Unsqueeze"):
        return _cached_heads(value)
    heads, wide, joined = _cached_heads(unsqueeze.inputs[0]), expand.outputs[0].shape, reshape.outputs[0].shape
    if heads is None or wide is None or joined is None or len(wide) != 5 or len(joined) != 4:
        return None
    times, one, sizes = wide[2], unsqueeze.outputs[0].shape, (heads.heads, heads.size)
    if axes_of(unsqueeze) != [2] or not isinstance(times, int) or one is None or not _is_same(one[0], wide[0]):
        return None
    if isinstance(one[3], int) and isinstance(wide[3], int) and one[3] != wide[3]:
        return None
    if (wide[1], wide[4]) != sizes or (joined[1], joined[3]) != (times * heads.heads, heads.size):
        return None
    return heads._replace(readers=times) if _is_same(wide[0], joined[0]) else None


def _maker_of(node: ir.Node | None, op_type: str) -> ir.Node | None:
    """What makes the data of ``node``, where that is of the given type."""
    if node is None or not is_standard(node, op_type) or node.inputs[0] is None:
        return None
    return node.inputs[0].producer()


def _rotated_heads(value: ir.Value | None) -> Heads | None:
    """As :func:`_heads`, where positions may rotate them, before or behind factors."""
    outer = _unscaled(value)
    found = rotated(outer.value)
    if found is None:
        return _heads(value, _SWAPPED)
    heads = _heads(found[0], _SWAPPED)
    if heads is None or heads.is_clipped or outer.low > -math.inf or outer.high < math.inf:
        return None
    return heads._replace(factor=heads.factor * outer.factor, rotation=found[1])


def _cached_heads(value: ir.Value | None) -> Heads | None:
    """As :func:`_rotated_heads`, where others may stand before them, and one product alone reads the two together."""
    node = None if value is None else value.producer()
    if node is None or not is_standard(node, "Concat"):
        return _rotated_heads(value)
    if node.attributes.get_int("axis", 0) not in (2, -2) or len(node.inputs) != 2 or len(node.outputs[0].uses()) != 1:
        return None
    past, heads = node.inputs[0], _rotated_heads(node.inputs[1])
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
