"""Concat."""

from __future__ import annotations

from inlay.model.graph import Node
from inlay.tosa import ir
from inlay.tosa.context import Context
from inlay.tosa.quantized import QuantizedTensor, Unsupported
from inlay.tosa.rules._movement import set_moved


def concat(context: Context, node: Node) -> None:
    """Concat: inputs whose qparams differ from the output's are requantized one by one."""
    xs = [context.quantized_input(v) for v in node.inputs]
    shape = context.shape(node.outputs[0])
    axis = int(node.attributes["axis"]) % len(shape)
    if any(x.qparams is None for x in xs):
        if len({x.unsigned for x in xs}) > 1 or any(x.qparams is not None for x in xs):
            raise Unsupported("it joins integer tensors of different types")
        names, first = [x.tensor for x in xs], xs[0]
    else:
        try:
            to = context.output_qparams(node.outputs[0])
        except Unsupported:
            if len({x.known_qparams for x in xs}) > 1:
                raise
            to = xs[0].known_qparams
        names = [context.requantize(node.name, x, to, f"{x.tensor}/same") for x in xs]
        first = QuantizedTensor(names[0], to)
    tensor = names[0]
    if len(names) > 1:
        dtype = context.builder.tensors[tensor].dtype
        tensor = context.builder.add(
            ir.Concat, node.name, names, node.outputs[0], dtype, shape, first.qparams, axis=axis
        )
    set_moved(context, node, first, tensor)
