"""Operators that reorder or repeat elements: Reshape and its kin, Transpose, SpaceToDepth, Expand, Tile, Identity."""

from __future__ import annotations

import math

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context
from inlay.tosa.quantized import Unsupported
from inlay.tosa.rules._common import expand_rank, reads_extra_outputs
from inlay.tosa.rules._movement import set_moved, transposed


def identity(context: Context, node: Node) -> None:
    """Identity, and Dropout in inference."""
    if reads_extra_outputs(context, node):
        raise Unsupported("its mask is used")
    x = context.quantized_input(node.inputs[0])
    set_moved(context, node, x, x.tensor)


def reshape(context: Context, node: Node) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze: the new shape is static, whatever computes it."""
    x = context.quantized_input(node.inputs[0])
    shape = context.shape(node.outputs[0])
    if math.prod(shape) != math.prod(context.builder.shape(x.tensor)):
        raise Unsupported("its shape is not known")
    set_moved(context, node, x, context.reshape(node.name, x.tensor, shape, node.outputs[0]))


def transpose(context: Context, node: Node) -> None:
    """Transpose."""
    x = context.quantized_input(node.inputs[0])
    rank = len(context.builder.shape(x.tensor))
    perm = tuple(int(p) for p in node.attributes.get("perm", ())) or tuple(reversed(range(rank)))
    set_moved(context, node, x, transposed(context, node, x.tensor, perm))


def space_to_depth(context: Context, node: Node) -> None:
    """SpaceToDepth: rows and columns are split in two, and the inner parts moved before the channels."""
    n, c, h, w = context.builder.shape(context.quantized_input(node.inputs[0]).tensor)
    b = int(node.attributes["blocksize"])
    if h % b or w % b:
        raise Unsupported(f"its {h} rows and {w} columns are no multiples of {b}")
    _reordered(context, node, (n, c, h // b, b, w // b, b), (0, 3, 5, 1, 2, 4))


def depth_to_space(context: Context, node: Node) -> None:
    """DepthToSpace: the channels' outer part (mode DCR) or inner part (CRD) moves behind rows and columns."""
    n, c, h, w = context.builder.shape(context.quantized_input(node.inputs[0]).tensor)
    b = int(node.attributes["blocksize"])
    if c % (b * b):
        raise Unsupported(f"its {c} channels are no multiple of {b * b}")
    if node.attributes.get("mode", "DCR") == "CRD":
        _reordered(context, node, (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3))
    else:
        _reordered(context, node, (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2))


def _reordered(context: Context, node: Node, split: tuple[int, ...], perm: tuple[int, ...]) -> None:
    """Reshape to ``split``, transpose by ``perm``, reshape to the node's own shape."""
    x, out = context.quantized_input(node.inputs[0]), node.outputs[0]
    tensor = transposed(context, node, context.reshape(node.name, x.tensor, split, f"{out}/split"), perm)
    set_moved(context, node, x, context.reshape(node.name, tensor, context.shape(out), out))


def expand(context: Context, node: Node) -> None:
    """Expand and Tile."""
    x, out = context.quantized_input(node.inputs[0]), node.outputs[0]
    shape = context.shape(out)
    aligned = expand_rank(context.builder.shape(x.tensor), len(shape))
    tensor = context.reshape(node.name, x.tensor, aligned, f"{x.tensor}/aligned")
    if aligned != shape:
        multiples = tuple(o // i for o, i in zip(shape, aligned, strict=True))
        dtype = context.builder.tensors[tensor].dtype
        tensor = context.builder.add(ir.Tile, node.name, [tensor], out, dtype, shape, x.qparams, multiples=multiples)
    set_moved(context, node, x, tensor)
