"""Parts of a graph in which tensors may have their axes in any order, and what the orders of their operators cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from inlay.model.passes.axes import Order, carried, rank_of, reordered, works_along_other_than_last
from inlay.model.passes.steps import ints, is_standard

TURN_BYTES = 1024  # what a Transpose costs beside the bytes that it moves: as many are moved while a kernel is called
Labels = Mapping[ir.Node, Order]  # the order of axes of each operator, as axes of the part that it is in


class _Frames:
    """The axes of each value, as those of another: a union-find whose links are permutations."""

    def __init__(self) -> None:
        self._above: dict[ir.Value, tuple[ir.Value, Order]] = {}

    def of(self, value: ir.Value) -> tuple[ir.Value, Order]:
        """The value that stands for all that are connected, and which axis of it each axis of ``value`` is."""
        chain, order = [value], tuple(range(len(value.shape or ())))
        while chain[-1] in self._above:
            chain.append(self._above[chain[-1]][0])
        for below in reversed(chain[:-1]):
            order = tuple(order[i] for i in self._above[below][1])
            self._above[below] = (chain[-1], order)
        return chain[-1], order

    def join(self, first: ir.Value, second: ir.Value, perm: Order) -> bool:
        """Say that axis ``i`` of ``second`` is axis ``perm[i]`` of ``first``; False where it is known to be another."""
        (above, one), (below, two) = self.of(first), self.of(second)
        axes = tuple(one[p] for p in perm)
        if above is below:
            return axes == two
        self._above[below] = (above, tuple(axes[two.index(i)] for i in range(len(two))))
        return True


@dataclass(eq=False)
class Part:
    """Values that Transposes and operators of any order connect."""

    frames: _Frames  # of all values
    turns: list[ir.Node] = field(default_factory=list)  # the Transposes
    nodes: dict[ir.Node, Order] = field(default_factory=dict)  # the operators, with the order in which they are written
    sources: list[ir.Value] = field(default_factory=list)  # what is no result of these Transposes


def parts_of(graph: ir.Graph) -> list[Part]:
    """Those parts of a graph in which there are Transposes."""
    frames, turns, nodes = _Frames(), list[ir.Node](), dict[ir.Node, list[ir.Value]]()
    for node in graph:
        if is_standard(node, "Transpose"):
            x, y, perm = node.inputs[0], node.outputs[0], _perm(node)
            if x is not None and perm is not None and rank_of(y) == len(perm) and frames.join(x, y, perm):
                turns.append(node)
        elif (found := carried(node)) is not None:
            values = [*(v for slot in found[0] if (v := node.inputs[slot]) is not None), *found[1]]
            same = tuple(range(len(values[0].shape or ())))
            if all(frames.join(values[0], v, same) for v in values[1:]):
                nodes[node] = values
    parts: dict[ir.Value, Part] = {}
    for turn in turns:
        part = parts.setdefault(frames.of(turn.outputs[0])[0], Part(frames))
        part.turns.append(turn)
    turned = {turn.outputs[0] for turn in turns}
    for node, values in nodes.items():
        above, order = frames.of(values[0])
        if above in parts:
            parts[above].nodes[node] = order
    values_read = [v for t in turns if (v := t.inputs[0]) is not None]
    for value in dict.fromkeys([*(v for values in nodes.values() for v in values), *values_read]):
        above, _ = frames.of(value)
        if above in parts and value not in turned:
            parts[above].sources.append(value)
    return list(parts.values())


def _perm(turn: ir.Node) -> Order | None:
    rank = rank_of(turn.inputs[0])
    return None if rank is None else tuple(ints(turn, "perm", range(rank - 1, -1, -1)))


# --- costs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Source:
    """A value that may be read in several orders."""

    value: ir.Value  # itself
    bytes: int  # what a Transpose of it moves; unknown dimensions count as 1
    maker: ir.Node | None  # the operator of any order that computes it; None for others
    order: Order  # in which it is written
    # operators of any order that read it, and None for each order that others ask for, with that order
    readers: tuple[tuple[ir.Node | None, Order], ...]


@dataclass(frozen=True, eq=False)
class Read:
    """An input, or an output of the graph (``node`` is None), that reads a value directly or through Transposes."""

    value: ir.Value
    node: ir.Node | None
    slot: int


def reads_of(source: ir.Value, turns: set[ir.Node]) -> Iterator[Read]:
    """Who reads a value, directly or through these Transposes."""
    values = [source]
    for value in values:
        for use in value.uses():
            if use.node in turns:
                values.append(use.node.outputs[0])
            else:
                yield Read(value, use.node, use.idx)
        if value.is_graph_output():
            yield Read(value, None, 0)


def is_free(read: Read) -> bool:
    """Whether any order will do, whatever the reader is: of a shape, the sizes are taken one by one."""
    return read.node is not None and is_standard(read.node, "Shape") and isinstance(read.node.graph, ir.Graph)


def is_carried(read: Read, nodes: Mapping[ir.Node, Order]) -> bool:
    """Whether one of ``nodes`` reads it in an order that is its own to choose."""
    if read.node not in nodes or read.node is None:
        return False
    found = carried(read.node)
    return found is not None and read.slot in found[0]


def _source(part: Part, value: ir.Value, turns: set[ir.Node]) -> _Source:
    readers: list[tuple[ir.Node | None, Order]] = []
    for read in reads_of(value, turns):
        order = part.frames.of(read.value)[1]
        if is_carried(read, part.nodes):
            readers.append((read.node, order))
        elif not is_free(read):
            readers.append((None, order))
    sizes = [d if isinstance(d, int) else 1 for d in value.shape or ()]
    wide = sum(d != 1 for d in value.shape or ()) > 1
    itemsize = 4 if value.dtype is None else value.dtype.itemsize
    maker = value.producer()
    maker = maker if maker in part.nodes else None
    order = part.frames.of(value)[1]
    return _Source(value, int(np.prod(sizes) * itemsize) if wide else 0, maker, order, tuple(readers))


def turned(order: Order, written: Order) -> Order:
    """The order in which a node's axes are, as those that are ``written``."""
    return tuple(written.index(axis) for axis in order)


class Costs:
    """What the orders of a part's operators cost: bytes that are moved, and Transposes."""

    def __init__(self, part: Part) -> None:
        turns = set(part.turns)
        self.part = part
        self.sources = [_source(part, value, turns) for value in part.sources]
        self.bytes = {s.value: s.bytes for s in self.sources}
        self._may: dict[tuple[ir.Node, Order], bool] = {}

    def may(self, node: ir.Node, order: Order) -> bool:
        """Whether a node can be computed in this order."""
        written, key = self.part.nodes[node], (node, order)
        if key not in self._may:
            self._may[key] = order == written or reordered(node, turned(order, written)) is not None
        return self._may[key]

    def own(self, node: ir.Node, order: Order) -> int:
        """Bytes that the node's kernel moves for the sake of the order."""
        if not works_along_other_than_last(node, turned(order, self.part.nodes[node])):
            return 0
        value = node.inputs[0]
        shape = () if value is None or value.shape is None else value.shape
        return 2 * 4 * int(np.prod([d if isinstance(d, int) else 1 for d in shape]))

    def of(self, labels: Labels) -> tuple[int, int]:
        """Bytes that are moved, and the number of Transposes."""
        moved, count = sum(self.own(node, order) for node, order in labels.items()), 0
        for source in self.sources:
            made = source.order if source.maker is None else labels[source.maker]
            wanted = {order if node is None else labels[node] for node, order in source.readers} - {made}
            moved, count = moved + len(wanted) * source.bytes, count + len(wanted)
        return moved, count

    def now(self) -> tuple[int, int]:
        """The same of the part as it is."""
        sizes = dict[ir.Value, int]()
        for turn in self.part.turns:  # each behind what it reads
            x = turn.inputs[0]
            sizes[turn.outputs[0]] = 0 if x is None else sizes.get(x, self.bytes.get(x, 0))
        own = sum(self.own(node, order) for node, order in self.part.nodes.items())
        return own + sum(sizes.values()), len(self.part.turns)


def price_of(cost: tuple[int, int]) -> int:
    """Bytes and Transposes as one number."""
    return cost[0] + TURN_BYTES * cost[1]
