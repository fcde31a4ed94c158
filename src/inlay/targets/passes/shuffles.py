"""Channel shuffles, taken out where a convolution can hold them, or moved to where they are smallest.

A shuffle (ShuffleNet, arXiv:1707.01083) is written as Reshape, Transpose and Reshape, and moves the whole image. What
works on each channel by itself, as a depthwise convolution does, may as well come before it as behind it, with its
weights in the other order. So a shuffle can be moved along the graph: into the outputs of a convolution of one group
before it, into the inputs of one behind it, and otherwise behind a stride, where it has a quarter of the pixels to
move, and next to the grouped convolution that it is there for. The results are the same sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.steps import FUNCTIONS, add_constant, constant_of, is_standard, sole_use

_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})


@dataclass(frozen=True, eq=False)
class _Shuffle:
    """Three operators that deal the channels of an image out.

    Attributes:
        nodes: Reshape, Transpose, Reshape.
        channels: of the image.
        groups: into which they are dealt out.
    """

    nodes: tuple[ir.Node, ir.Node, ir.Node]
    channels: int
    groups: int

    @property
    def order(self) -> np.ndarray:
        """Of the channel that each channel of the result is; shape (channels,)."""
        return np.arange(self.channels).reshape(self.groups, -1).T.ravel()

    @property
    def given(self) -> ir.Value:
        """The image before."""
        image = self.nodes[0].inputs[0]
        assert image is not None
        return image

    @property
    def result(self) -> ir.Value:
        """The image with its channels in the other order."""
        return self.nodes[2].outputs[0]


def settle_shuffles(model: ir.Model) -> tuple[ir.Model, int]:
    """Take out or move each shuffle of the channels of a float32 image with known pixels, as the module says."""
    if not any(_three(n) for n in model.graph):
        return model, 0
    infer_shapes(model)
    found = [s for s in (_shuffle(n) for n in list(model.graph) if _three(n)) if s is not None]
    return model, sum(_settle(s) for s in found)


def _settle(shuffle: _Shuffle) -> bool:
    before, behind = list(_before(shuffle.given)), list(_behind(shuffle.result))
    inverse = np.argsort(shuffle.order)
    if before and _is_whole(before[-1]):
        _reorder(before, shuffle.order, outputs=True)
        _take_out(shuffle)
    elif behind and _is_whole(behind[-1]):
        _reorder(behind[:-1], inverse, outputs=True)
        _reorder(behind[-1:], inverse, outputs=False)
        _take_out(shuffle)
    else:
        place = _smallest(behind, shuffle)
        if place is None:
            return False
        _reorder(behind[: behind.index(place) + 1], inverse, outputs=True)
        _take_out(shuffle)
        _shuffle_behind(place, shuffle)
    return True


# --- what there is --------------------------------------------------------------------------------------------------


def _three(first: ir.Node) -> tuple[ir.Node, ir.Node, ir.Node] | None:
    """A Reshape, the Transpose that alone reads it, and the Reshape that alone reads that."""
    found = [first]
    for op_type in ("Transpose", "Reshape"):
        use = sole_use(found[-1].outputs[0]) if is_standard(first, "Reshape") else None
        if use is None or use[1] or not is_standard(use[0], op_type):
            return None
        found.append(use[0])
    return found[0], found[1], found[2]


def _shuffle(first: ir.Node) -> _Shuffle | None:
    nodes, x = _three(first), first.inputs[0]
    if nodes is None or x is None or x.dtype is not ir.DataType.FLOAT:
        return None
    shapes = [_sizes(v) for v in (x, *(n.outputs[0] for n in nodes))]
    groups = groups_dealt(shapes, nodes[1].attributes.get_ints("perm", []))
    return _Shuffle(nodes, (shapes[0] or [0, 0])[1] or 0, groups) if groups > 1 else None


def _sizes(value: ir.Value) -> list[int | None] | None:
    return None if value.shape is None else [d if isinstance(d, int) else None for d in value.shape]


def groups_dealt(shapes: Sequence[Sequence[int | None] | None], perm: Sequence[int]) -> int:
    """Into how many groups a Reshape, a Transpose and a Reshape deal the channels of an image out; 1 for none.

    Args:
        shapes: of the image and of the three results, None where they are not known.
        perm: of the Transpose.
    """
    image, apart, _, result = ([] if s is None else list(s) for s in shapes)
    if len(image) < 3 or len(apart) < 4 or result != image or list(perm) != [0, 2, 1, *range(3, len(apart))]:
        return 1
    groups, each, (before, behind) = apart[1] or 0, apart[2] or 0, (image[2:], apart[3:])
    stays = math.prod(d or 0 for d in before) == math.prod(d or 0 for d in behind) > 0
    return groups if stays and apart[0] == image[0] and groups * each == image[1] else 1


def _before(value: ir.Value) -> Iterator[ir.Node]:
    """The operators that alone led to ``value``, the last one first, to a convolution of one group."""
    node = value.producer()
    while node is not None and sole_use(node.outputs[0]) is not None and (_keeps_apart(node) or _is_whole(node)):
        yield node
        if _is_whole(node):
            return
        source = node.inputs[0]
        node = None if source is None else source.producer()


def _behind(value: ir.Value) -> Iterator[ir.Node]:
    """The operators that alone read ``value``, one behind the other, to a convolution of one group."""
    use = sole_use(value)
    while use is not None and not use[1] and (_keeps_apart(use[0]) or _is_whole(use[0])):
        yield use[0]
        if _is_whole(use[0]):
            return
        use = sole_use(use[0].outputs[0])


def _keeps_apart(node: ir.Node) -> bool:
    """Whether ``node`` computes each channel of its result from the same channel alone, by numbers of its own."""
    if is_standard(node, *FUNCTIONS):
        return all(v is None or (v.const_value is not None and v.const_value.size == 1) for v in node.inputs[1:])
    if is_standard(node, *_POOLS):
        return len(node.outputs) == 1 or not (node.outputs[1].uses() or node.outputs[1].is_graph_output())
    weight = _weight(node)
    return weight is not None and weight.shape[1] == 1 and node.attributes.get_int("group", 1) == len(weight) > 1


def _is_whole(node: ir.Node) -> bool:
    """Whether ``node`` is a convolution of one group."""
    return _weight(node) is not None and node.attributes.get_int("group", 1) == 1


def _weight(node: ir.Node) -> np.ndarray | None:
    """The float32 weight of a convolution whose weight and bias are constants."""
    if not is_standard(node, "Conv") or any(constant_of(v) is None for v in node.inputs[1:] if v is not None):
        return None
    weight = constant_of(node.inputs[1])
    return weight if weight is not None and weight.dtype == np.float32 else None


def _smallest(behind: Sequence[ir.Node], shuffle: _Shuffle) -> ir.Node | None:
    """The operator behind which there is least to move, the last of several; None where it is at the shuffle."""
    least, place = _pixels(shuffle.result), None
    for node in behind:
        pixels = _pixels(node.outputs[0])
        if pixels is None or least is None:
            break
        if pixels <= least:
            least, place = pixels, node
    return place


def _pixels(image: ir.Value) -> int | None:
    sizes = [] if image.shape is None else [d for d in image.shape[2:] if isinstance(d, int)]
    return math.prod(sizes) if image.shape is not None and len(sizes) == len(image.shape) - 2 else None


# --- what is done ---------------------------------------------------------------------------------------------------


def _reorder(nodes: Sequence[ir.Node], order: np.ndarray, outputs: bool) -> None:
    """Put the outputs (or the inputs) of the convolutions among ``nodes`` in another order."""
    for node in nodes:
        weight, graph = _weight(node), node.graph
        if weight is None or not isinstance(graph, ir.Graph):
            continue
        new = weight[order] if outputs else weight[:, order]
        node.replace_input_with(1, add_constant(graph, f"{node.name}_weight", np.ascontiguousarray(new)))
        bias = constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
        if bias is not None and outputs:
            node.replace_input_with(2, add_constant(graph, f"{node.name}_bias", bias[order]))


def _take_out(shuffle: _Shuffle) -> None:
    graph, given, result = shuffle.nodes[0].graph, shuffle.given, shuffle.result
    assert isinstance(graph, ir.Graph)
    result.replace_all_uses_with(given, replace_graph_outputs=True)
    graph.remove(shuffle.nodes, safe=True)


def _shuffle_behind(node: ir.Node, shuffle: _Shuffle) -> None:
    """Shuffle what ``node`` computes, by operators of the same names."""
    graph, image = node.graph, node.outputs[0]
    assert isinstance(graph, ir.Graph)
    assert image.shape is not None
    shape, groups, channels = image.shape, shuffle.groups, shuffle.channels
    shuffled = ir.Value(name=image.name, type=image.type, shape=shape)
    image.replace_all_uses_with(shuffled, replace_graph_outputs=True)
    image.name = f"{image.name}_unshuffled"
    sizes = [int(d) for d in shape[2:] if isinstance(d, int)]
    parts = ir.Shape([shape[0], groups, channels // groups, *sizes])
    dealt = ir.Shape([shape[0], channels // groups, groups, *sizes])
    first, second, third = shuffle.nodes
    apart = add_constant(graph, f"{first.name}_apart", np.array([0, *parts[1:]], np.int64))
    together = add_constant(graph, f"{third.name}_together", np.array([0, channels, *sizes], np.int64))
    values = [
        ir.Value(name=old.outputs[0].name, type=image.type, shape=new) for old, new in ((first, parts), (second, dealt))
    ]
    perm = [0, 2, 1, *range(3, len(parts))]
    operators = [
        ir.node("Reshape", [image, apart], outputs=values[:1], name=first.name),
        ir.node("Transpose", values[:1], {"perm": perm}, outputs=values[1:], name=second.name),
        ir.node("Reshape", [values[1], together], outputs=[shuffled], name=third.name),
    ]
    graph.insert_after(node, operators)
