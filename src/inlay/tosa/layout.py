"""Memory layout of each tensor of a TOSA partition, chosen so that as few bytes as possible are transposed.

A layout is a permutation: axis ``i`` of the stored tensor is axis ``layout[i]`` of the ONNX tensor. Convolution,
pooling and resizing require channels last (NHWC), matrix products and lookups the ONNX order; element-wise operators,
Concat and Slice take any, as long as all their tensors agree, so tensors fall into groups with one layout each. Only
Reshape and Transpose connect groups; they are free when the bytes are the same on both sides (often they are: an ONNX
export's own NCHW → NHWC Transpose vanishes). Groups without a requirement take the layout that moves fewest bytes.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from scipy.cluster.hierarchy import DisjointSet

from inlay.tosa import ir
from inlay.tosa.ir import Op, Shape, Tensor

Layout = tuple[int, ...]

_OPTIONS: Mapping[int, tuple[Layout, ...]] = {
    2: ((0, 1), (1, 0)),
    3: ((0, 1, 2), (0, 2, 1), (2, 0, 1), (2, 1, 0), (1, 2, 0), (1, 0, 2)),
    4: ((0, 1, 2, 3), (0, 2, 3, 1)),
    5: ((0, 1, 2, 3, 4), (0, 2, 3, 4, 1), (0, 3, 4, 1, 2), (3, 4, 0, 1, 2), (1, 3, 4, 0, 2), (0, 1, 3, 4, 2)),
}
"""Layouts offered by rank. Of rank 5: those in which rows and columns come before channels that were split in two, as
in a channel shuffle."""

_CHANNELS_LAST = (ir.Conv2d, ir.TransposeConv2d, ir.MaxPool, ir.AvgPool, ir.Resize)

_OWN_ORDER = (ir.MatMul, ir.Gather)  # operators whose tensors differ in rank or meaning, each in ONNX's order
_SWEEPS = 8  # rounds of local improvement; real graphs converge within three


def identity(rank: int) -> Layout:
    """ONNX's axis order."""
    return tuple(range(rank))


def layouts(rank: int) -> tuple[Layout, ...]:
    """Layouts that a tensor of this rank may take."""
    return _OPTIONS.get(rank, (identity(rank),))


def stored_shape(shape: Shape, layout: Layout) -> Shape:
    """Dimensions in memory order."""
    return tuple(shape[i] for i in layout)


def assign_layouts(ops: Sequence[Op], tensors: Mapping[str, Tensor], constants: Iterable[str]) -> dict[str, Layout]:
    """A layout for every tensor that ``ops`` read or write; constants are stored as their consumer needs them."""
    constant = set(constants)
    groups: DisjointSet[str] = DisjointSet()
    required: dict[str, set[Layout]] = defaultdict(set)
    edges: list[Op] = []
    for op in ops:
        live = [n for n in (*op.inputs, *op.outputs) if n not in constant]
        for name in live:
            groups.add(name)
        if isinstance(op, (ir.Reshape, ir.Transpose)):
            edges.append(op)
            continue
        for first, second in itertools.pairwise(live):
            if not isinstance(op, _OWN_ORDER):
                groups.merge(first, second)
        for name in live:
            layout = _required_layout(op, name, tensors)
            if layout is not None:
                required[name].add(layout)
    fixed: dict[str, Layout] = {}
    for name, choices in required.items():
        # One group never has two different requirements: each is the only layout that its rank's channel operators
        # take, and matrix products and lookups have groups of their own behind a Reshape.
        for layout in choices:
            fixed.setdefault(groups[name], layout)
    chosen = _improve(groups, fixed, edges, tensors)
    return {name: chosen[groups[name]] for name in groups}


def _required_layout(op: Op, name: str, tensors: Mapping[str, Tensor]) -> Layout | None:
    """The only layout in which ``op`` can read or write the tensor ``name``; None where any will do."""
    if isinstance(op, _CHANNELS_LAST):
        return (0, 2, 3, 1)
    if isinstance(op, _OWN_ORDER):
        return identity(len(tensors[name].dims))
    if isinstance(op, ir.Reverse) and len(tensors[op.out].dims) == 4:
        return (0, 2, 3, 1)  # Ethos-U turns rows and columns only
    if isinstance(op, ir.Rescale) and op.axis is not None:
        rank = len(tensors[op.out].dims)
        # TOSA scales per channel along the last stored axis.
        return next((o for o in layouts(rank) if o[-1] == op.axis), identity(rank))
    return None


def _improve(
    groups: DisjointSet[str], fixed: Mapping[str, Layout], edges: Sequence[Op], tensors: Mapping[str, Tensor]
) -> dict[str, Layout]:
    """A layout for every group: the fixed ones, and what moves fewest elements through the ``edges`` between groups."""
    chosen = dict(fixed)
    touching: dict[str, list[Op]] = defaultdict(list)
    for edge in edges:
        for name in {groups[edge.inputs[0]], groups[edge.out]}:
            touching[name].append(edge)

    def cost(group: str, layout: Layout) -> int:
        total = 0
        for edge in touching[group]:
            a, b = (layout if g == group else chosen.get(g) for g in (groups[edge.inputs[0]], groups[edge.out]))
            if a is not None and b is not None and not moves_no_bytes(edge, tensors, a, b):
                total += math.prod(tensors[edge.out].dims)
        return total

    free = [n for n in groups if groups[n] == n and n not in fixed]
    for _ in range(_SWEEPS):
        before = dict(chosen)
        for group in free:
            chosen[group] = min(layouts(len(tensors[group].dims)), key=partial(cost, group))
        if chosen == before:
            break
    return chosen


def moves_no_bytes(op: Op, tensors: Mapping[str, Tensor], source: Layout, target: Layout) -> bool:
    """Whether a Reshape or Transpose between two layouts keeps every byte at its address."""
    if isinstance(op, ir.Transpose):
        return is_trivial(stored_permutation(op.perm, source, target), stored_shape(tensors[op.inputs[0]].dims, source))
    return reshape_keeps_bytes(tensors[op.inputs[0]].dims, source, tensors[op.out].dims, target)


def stored_permutation(perm: Sequence[int], source: Layout, target: Layout) -> Layout:
    """The permutation of stored axes that a permutation of ONNX axes amounts to."""
    return tuple(source.index(perm[axis]) for axis in target)


def is_trivial(perm: Layout, shape: Shape) -> bool:
    """Whether a permutation only moves axes of size 1."""
    kept = [p for p in perm if shape[p] > 1]
    return kept == sorted(kept)


def reshape_keeps_bytes(shape_a: Shape, layout_a: Layout, shape_b: Shape, layout_b: Layout) -> bool:
    """Whether a row-major reshape between two ONNX shapes keeps every byte at its address in these layouts too.

    Both shapes are split into common factors; each layout then orders the factors, and the orders must agree.
    """
    parts_a, parts_b = _factors(shape_a, shape_b)
    if parts_a is None or parts_b is None:
        return is_trivial(layout_a, shape_a) and is_trivial(layout_b, shape_b)
    return [f for axis in layout_a for f in parts_a[axis]] == [f for axis in layout_b for f in parts_b[axis]]


def _factors(a: Shape, b: Shape) -> tuple[list[list[int]] | None, list[list[int]] | None]:
    """Numbered common factors of each axis (factors of 1 left out), or None when the axes do not nest."""
    parts_a: list[list[int]] = [[] for _ in a]
    parts_b: list[list[int]] = [[] for _ in b]
    i = j = count = 0
    left_a, left_b = list(a), list(b)
    while i < len(a) and j < len(b):
        if left_a[i] == 1:
            i += 1
            continue
        if left_b[j] == 1:
            j += 1
            continue
        small, large = sorted((left_a[i], left_b[j]))
        if large % small:
            return None, None
        left_a[i] //= small
        left_b[j] //= small
        parts_a[i].append(count)
        parts_b[j].append(count)
        count += 1
    return parts_a, parts_b
