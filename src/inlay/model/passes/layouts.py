"""Transposes moved to where they are fewest and smallest: models of channels last, and others that turn their tensors.

Operators that work on each element, or along axes that they are told, compute the same in any order of axes. Values
that such operators and Transposes connect are one part of the graph; each such operator takes the order with which the
part moves fewest bytes. What has an order of its own (Conv, MatMul, Reshape, inputs and outputs of the model) keeps
it. A part changes only where it moves fewer bytes afterwards, with no more Transposes than before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.axes import Order, carried, reorder_operands, reordered, take
from inlay.model.passes.layout_labels import best_orders
from inlay.model.passes.layout_parts import Costs, Labels, Part, Read, is_carried, is_free, parts_of, reads_of, turned
from inlay.model.passes.steps import add_constant, constant_of, insert_behind, ints, is_standard

_FIRST_OPSET = 13  # from which the table of operators holds


def settle_layouts(model: ir.Model) -> tuple[ir.Model, int]:
    """Give operators between Transposes the order of axes with which fewest bytes are moved."""
    graph = model.graph
    if model.opset_imports.get("", 0) < _FIRST_OPSET or not any(is_standard(n, "Transpose") for n in graph):
        return model, 0
    if any(v.shape is None for n in graph for v in n.outputs if v.name):
        infer_shapes(model)
    moved = sum(_settle(part, graph) for part in parts_of(graph))
    return model, moved + sum(_without_moving(n, graph) for n in list(graph) if is_standard(n, "Transpose"))


def _settle(part: Part, graph: ir.Graph) -> int:
    """Change a part to its best orders; how many Transposes went or operators changed, 0 where it stays as it is."""
    costs = Costs(part)
    labels, before = best_orders(costs), costs.now()
    after = costs.of(labels)
    if after == before or any(a > b for a, b in zip(after, before, strict=True)):
        return 0
    turns = set(part.turns)
    reads = {s.value: [(r, part.frames.of(r.value)[1]) for r in reads_of(s.value, turns)] for s in costs.sources}
    moved = 0
    for node, order in labels.items():
        if order != part.nodes[node]:
            _reorder(node, graph, turned(order, part.nodes[node]))
            moved += 1
    for source in costs.sources:
        made = source.order if source.maker is None else labels[source.maker]
        _serve(_Served(source.value, made, graph), reads[source.value], labels)
    for turn in reversed(part.turns):
        if not turn.outputs[0].uses() and not turn.outputs[0].is_graph_output():
            graph.remove(turn, safe=True)
    return moved + before[1] - after[1]


def _reorder(node: ir.Node, graph: ir.Graph, order: Order) -> None:
    change, found = reordered(node, order), carried(node)
    assert change is not None
    assert found is not None
    reorder_operands(node, graph, order)
    change.apply(node, graph)
    for value in found[1]:
        assert value.shape is not None
        value.shape = ir.Shape([value.shape[i] for i in order])


class _Served:
    """A value in each order in which it is read: with one Transpose for each that is not its own."""

    def __init__(self, value: ir.Value, made: Order, graph: ir.Graph) -> None:
        self.value, self.made, self.graph = value, made, graph
        self._given = {made: value}

    def has(self, order: Order) -> bool:
        return order in self._given

    def get(self, order: Order, like: ir.Value) -> ir.Value:
        """The value in an order; what is made for that is called like what was read before."""
        if order not in self._given:
            perm = turned(order, self.made)
            sizes = self.value.shape
            assert sizes is not None
            made = ir.Value(name=f"{like.name}turned", type=self.value.type, shape=ir.Shape([sizes[i] for i in perm]))
            maker = like.producer()
            name = maker.name if maker is not None and is_standard(maker, "Transpose") else f"{like.name}_turn"
            turn = ir.node("Transpose", [self.value], {"perm": perm}, outputs=[made], name=name)
            insert_behind(self.value, turn, self.graph)
            self._given[order] = made
        return self._given[order]


def _serve(served: _Served, reads: Sequence[tuple[Read, Order]], labels: Labels) -> None:
    """Let each reader read the value in the order that it has now."""
    rest = []
    for read, order in reads:
        if is_carried(read, labels):
            assert read.node is not None
            order = labels[read.node]
        elif is_free(read):
            rest.append((read, order))
            continue
        value = served.get(order, read.value)
        if read.node is not None:
            read.node.replace_input_with(read.slot, value)
        elif value is not read.value:
            _become_output(read.value, value, served)
    for read, order in rest:
        assert read.node is not None
        if served.has(order):
            read.node.replace_input_with(read.slot, served.get(order, read.value))
        else:
            _take_sizes(read.node, served, order)


def _become_output(output: ir.Value, value: ir.Value, served: _Served) -> None:
    """Let ``value`` be the output of the graph that ``output`` is, under its name."""
    graph, name = served.graph, output.name
    if value.producer() is None or value.is_graph_output():
        again = ir.Value(name=f"{name}_again", type=value.type, shape=value.shape)
        insert_behind(value, ir.node("Identity", [value], outputs=[again], name=f"{name}_again"), graph)
        value = again
    graph.outputs[list(graph.outputs).index(output)] = value
    output.name, value.name = f"{name}_inside", name
    value.shape = output.shape if value.shape is None else value.shape


def _take_sizes(shape: ir.Node, served: _Served, order: Order) -> None:
    """Let a Shape be that of the value as it is made, of which the sizes are taken in another order."""
    begin = shape.attributes.get_int("start", 0)
    end = shape.attributes.get_int("end", len(order))
    places = [served.made.index(axis) for axis in order][begin:end]
    sizes, graph = shape.outputs[0], served.graph
    whole = ir.Value(name=f"{sizes.name}_whole", type=sizes.type, shape=ir.Shape([len(order)]))
    graph.insert_before(shape, ir.node("Shape", [served.value], outputs=[whole], name=f"{shape.name}_whole"))
    taken = take(graph, shape, whole, places, str(shape.name))
    name = sizes.name
    sizes.replace_all_uses_with(taken, replace_graph_outputs=True)
    graph.remove(shape, safe=True)
    taken.name = name


def _without_moving(turn: ir.Node, graph: ir.Graph) -> bool:
    """Turn channels that are alone, as means are, by a Reshape: it joins others, and moves nothing."""
    x, y = turn.inputs[0], turn.outputs[0]
    shape = None if x is None else x.shape
    if x is None or shape is None or not any(_is_reshape(n) for n in (x.producer(), *(u.node for u in y.uses()))):
        return False
    perm = ints(turn, "perm", ())
    last = (0, *range(2, len(shape)), 1)
    wide = [a for a in perm if shape[a] != 1]
    if tuple(perm) not in (last, tuple(np.argsort(last))) or wide != sorted(wide):
        return False
    sizes = [d if isinstance(d := shape[a], int) else -1 for a in perm]
    if sizes.count(-1) > 1 or 0 in sizes:
        return False
    target = add_constant(graph, f"{turn.name}_sizes", np.array(sizes, np.int64))
    maker = x.producer()
    if maker is not None and _is_reshape(maker) and maker.inputs[0] is not None:
        x = maker.inputs[0]
    flat = ir.Value(name=f"{y.name}_flat", type=y.type, shape=y.shape)
    graph.insert_before(turn, ir.node("Reshape", [x, target], outputs=[flat], name=turn.name))
    name = y.name
    y.replace_all_uses_with(flat, replace_graph_outputs=True)
    graph.remove(turn, safe=True)
    flat.name = name
    for use in tuple(flat.uses()):
        numbers = constant_of(use.node.inputs[1]) if is_standard(use.node, "Reshape") else None
        if numbers is not None and numbers.all():
            use.node.replace_input_with(0, x)
    return True


def _is_reshape(node: ir.Node | None) -> bool:
    return node is not None and is_standard(node, "Reshape", "Unsqueeze", "Squeeze", "Flatten")
