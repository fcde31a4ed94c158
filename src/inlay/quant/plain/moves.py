"""Operators that only move elements, from integers to the floats that these stand for."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import constant_of, is_standard
from inlay.quant.plain.graph import NotPlain, Operand, Params, PlainGraph, float_name, input_of, take_place
from inlay.quant.qdq_graph import DEQUANTIZE, DYNAMIC_QUANTIZE, QUANTIZE

_KEEP_ALL = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""They lose no element, so the range of a value is that of the result."""

_MOVES = _KEEP_ALL | {
    "Concat", "DepthToSpace", "Expand", "Gather", "GatherElements", "GatherND", "MaxPool", "Pad", "Resize", "Slice",
    "SpaceToDepth", "Split", "Tile",
}  # fmt: skip
_PICKS = frozenset({"ArgMax", "ArgMin"})
_ASKS = frozenset({"Shape", "Size"})


def write_move(node: ir.Node, plain: PlainGraph) -> None:
    """Let ``node`` move dequantized values, where it moves quantized ones.

    Raises:
        NotPlain: it cannot.
    """
    source = node.inputs[0] if node.inputs else None
    if source is not None and is_standard(node, "Clip"):
        _write_clip(node, source, plain)
    if source is None or not is_standard(node, *_MOVES, *_PICKS, *_ASKS):
        return
    maker = source.producer()
    quantized = maker is not None and maker.op_type in (QUANTIZE, DYNAMIC_QUANTIZE) and source is maker.outputs[0]
    if maker is not None and not quantized:
        return
    if node.op_type in _ASKS:
        if maker is not None:
            node.replace_input_with(0, maker.inputs[0])
    elif maker is not None and maker.op_type == DYNAMIC_QUANTIZE:
        _move_dynamic(node, maker, plain)
    elif (params := _params(source, plain)) is not None:
        _move(node, params, plain)


def follow(node: ir.Node, plain: PlainGraph) -> None:
    """Let ``node``, a DequantizeLinear, read the scale that was computed anew behind a move."""
    maker = None if node.inputs[0] is None else node.inputs[0].producer()
    if maker is not None and maker.op_type == DYNAMIC_QUANTIZE and maker.outputs[1] in plain.equal:
        if not plain.same(maker.outputs[1], node.inputs[1]):
            raise NotPlain("its scale is not that of its value")
        node.replace_input_with(1, maker.outputs[1])
        node.replace_input_with(2, maker.outputs[2])


def _move(node: ir.Node, params: Params, plain: PlainGraph) -> None:
    moved = [v for v in node.inputs if v is not None] if node.op_type == "Concat" else list(node.inputs[:1])
    if any(v is None or _params(v, plain) != params for v in moved):
        raise NotPlain("its inputs have several scales")
    rounded = all(v in plain.rounded or v.producer() is None for v in moved if v is not None)
    rest = list(node.inputs[len(moved) :])
    if node.op_type == "Pad" and len(rest) > 1 and rest[1] is not None:
        rest[1] = _dequantized_constant(rest[1], params, plain)
    read = [plain.rounded.get(v) or plain.dequantized(node, v, *params) for v in moved if v is not None]
    result = None if node.op_type in _PICKS else params
    new = plain.replace(node, node.op_type, [*read, *rest], node.attributes.values(), node.domain, result)
    if rounded and result is not None:
        for output in new.outputs:
            _drop_pairs(output, params, plain)


def _write_clip(node: ir.Node, source: ir.Value, plain: PlainGraph) -> None:
    """Clip before quantizing, where ``node`` clips integers: to fewer bits, or to as many as exporters state anyway."""
    maker = source.producer()
    if maker is None or maker.op_type != QUANTIZE:
        return
    kind = constant_of(input_of(maker, 2))
    if kind is None or kind.dtype not in (np.int8, np.uint8, np.int16, np.uint16):
        raise NotPlain("it clips integers of a type that is not known")
    limits, ends = np.iinfo(kind.dtype), [constant_of(input_of(node, slot)) for slot in (1, 2)]
    if any(end is None and input_of(node, slot) is not None for slot, end in enumerate(ends, 1)):
        raise NotPlain("it clips to what is computed at run time")
    whole = (limits.min, limits.max)
    low, high = (whole[i] if end is None else int(end.reshape(-1)[0]) for i, end in enumerate(ends))
    value, scale, zero = (input_of(maker, slot) for slot in (0, 1, 2))
    if (low, high) != whole:
        scales, zeros = constant_of(scale), np.zeros(1, np.int64) if zero is None else constant_of(zero)
        if value is None or scales is None or zeros is None:
            raise NotPlain("it clips integers whose scale is computed at run time")
        rank, axis = 0 if value.shape is None else len(value.shape), maker.attributes.get_int("axis", 1)
        if scales.size > 1 and axis not in range(-rank, rank):
            raise NotPlain("it clips integers of several scales, along an axis that is not known")
        along = [-1 if i == axis % rank else 1 for i in range(rank)] if scales.size > 1 else []
        for op_type, end in (("Max", low), ("Min", high)):  # Clip takes one number
            bound = np.asarray((end - zeros.astype(np.float32)) * scales, np.float32).reshape(along)
            limit = plain.constant(f"{value.name}_{op_type}", bound)
            value = plain.insert(maker, op_type, [value, limit], f"{source.name}_{op_type}", value.shape)
        kept = [v for v in (value, scale, zero) if v is not None]
        attributes = {a.name: a for a in maker.attributes.values()}
        again = plain.insert(node, QUANTIZE, kept, f"{source.name}_clipped", source.shape, attributes)
        again.type, source = source.type, again
    node.outputs[0].replace_all_uses_with(source, replace_graph_outputs=True)
    plain.graph.remove(node, safe=True)


def _move_dynamic(node: ir.Node, maker: ir.Node, plain: PlainGraph) -> None:
    """Quantize behind the move rather than before it: the range is the same."""
    if node.op_type not in _KEEP_ALL:
        raise NotPlain("it moves a part of what is quantized in each inference")
    (old,) = node.outputs
    inputs = [maker.inputs[0], *node.inputs[1:]]
    attributes = {a.name: a for a in node.attributes.values()}
    moved = plain.insert(node, node.op_type, inputs, float_name(old), old.shape, attributes)
    again = plain.quantized_dynamically(node, moved)
    plain.knows(again)
    plain.equal.update(zip(again.outputs[1:], maker.outputs[1:], strict=True))
    take_place(again.outputs[0], old)
    plain.graph.remove(node, safe=True)


def _params(value: ir.Value, plain: PlainGraph) -> Params | None:
    """Scale and zero point of integers: as they are made, or, of a constant, as they are read."""
    producer = value.producer()
    if producer is not None:
        scale = producer.inputs[1] if producer.op_type == QUANTIZE else None
        return None if scale is None else (scale, input_of(producer, 2))
    if value.const_value is None or value.const_value.dtype not in (ir.DataType.INT8, ir.DataType.UINT8):
        return None
    return _as_read(value, plain)


def _as_read(value: ir.Value, plain: PlainGraph) -> Params | None:
    for use in value.uses():
        node, row = use.node, plain.row(use.node)
        found: Params | None = None
        slots = next((o for o in row.inputs if isinstance(o, Operand) and o.value == use.idx), None) if row else None
        if slots is None and is_standard(node, DEQUANTIZE) and use.idx == 0:
            slots = Operand(0, 1, 2)
        if slots is not None and (scale := input_of(node, slots.scale)) is not None:
            found = scale, input_of(node, slots.zero)
        elif row is not None and row.read is not None:
            found = row.read(node, use.idx)
        elif is_standard(node, *_MOVES) and use.idx == 0:
            found = _as_read(node.outputs[0], plain)
        scales = None if found is None else constant_of(found[0])
        if scales is not None and scales.size == 1:
            return found
    return None


def _dequantized_constant(value: ir.Value, params: Params, plain: PlainGraph) -> ir.Value:
    integers, scale = constant_of(value), constant_of(params[0])
    zero = np.zeros(1, np.int64) if params[1] is None else constant_of(params[1])
    if integers is None or scale is None or zero is None:
        raise NotPlain("the value that it pads with is computed at run time")
    steps = integers.astype(np.int64).reshape(()) - zero.reshape(-1)[0]
    return plain.constant(f"{value.name}_float", np.asarray(steps * scale.reshape(-1)[0], np.float32))


def _drop_pairs(value: ir.Value, params: Params, plain: PlainGraph) -> None:
    """Let what reads moved constants behind a pair of these params read them directly: the pair changes nothing."""
    for quantizer in [use.node for use in value.uses() if use.node.op_type == QUANTIZE]:
        plain.rounded[quantizer.outputs[0]] = value
        for reader in [use.node for use in quantizer.outputs[0].uses()]:
            if reader.op_type == DEQUANTIZE and (reader.inputs[1], input_of(reader, 2)) == params:
                reader.outputs[0].replace_all_uses_with(value)
