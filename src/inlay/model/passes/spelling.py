"""Operators in other operators, which runtimes quantize and fuse, or know at all.

Old opsets have operators that newer ones no longer have: ONNX called them experimental and removed them with opset 10;
runtimes still take them in models of older opsets. ``Sum`` is ``Add``, ``Gemm`` loses its factors, and sequences of
tensors, as exporters write ``torch.split`` and ``torch.stack``, become Split and Concat where every reader takes an
element at a constant position, or joins all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.steps import Steps, add_constant, constant_of, ints, is_standard, sole_use

_TO_THE_END = 2**31 - 1  # as the end of a slice


def replace_removed(model: ir.Model) -> tuple[ir.Model, int]:
    """Write each removed operator on float32 values in others."""
    done = 0
    for node in list(model.graph):
        write, x = _FORMS.get(node.op_type), node.inputs[0] if node.inputs else None
        if write is None or x is None or not is_standard(node, *_FORMS) or not isinstance(node.graph, ir.Graph):
            continue
        if x.dtype in (None, ir.DataType.FLOAT):
            write(node, x, Steps(node, node.graph, x))
            done += 1
    return model, done


def _affine(node: ir.Node, x: ir.Value, steps: Steps) -> None:
    alpha, beta = (np.array(_number(node, name, default)) for name, default in (("alpha", 1.0), ("beta", 0.0)))
    scaled = steps.add("Mul", [x, steps.constant("alpha", alpha)], "scaled")
    _become(node, "Add", [scaled, steps.constant("beta", beta)])


def _image_scaler(node: ir.Node, x: ir.Value, steps: Steps) -> None:
    bias = np.array(node.attributes["bias"].as_floats()).reshape(-1, 1, 1)
    scaled = steps.add("Mul", [x, steps.constant("scale", np.array(_number(node, "scale", 1.0)))], "scaled")
    _become(node, "Add", [scaled, steps.constant("offsets", bias)])


def _scale(node: ir.Node, x: ir.Value, steps: Steps) -> None:
    _become(node, "Mul", [x, steps.constant("scale", np.array(_number(node, "scale", 1.0)))])


def _scaled(function: str) -> Callable[[ir.Node, ir.Value, Steps], None]:
    """``alpha * function(beta * x)``."""

    def write(node: ir.Node, x: ir.Value, steps: Steps) -> None:
        alpha, beta = (np.array(_number(node, name, 1.0)) for name in ("alpha", "beta"))
        inner = steps.add("Mul", [x, steps.constant("beta", beta)], "scaled")
        outer = steps.add(function, [inner], "function")
        _become(node, "Mul", [outer, steps.constant("alpha", alpha)])

    return write


def _crop(node: ir.Node, x: ir.Value, steps: Steps) -> None:
    """The border is given as left, top, right, bottom; with a size, only left and top count."""
    left, top, right, bottom = ints(node, "border", [0, 0, 0, 0])
    size = ints(node, "scale", [])
    ends = [top + size[0], left + size[1]] if size else [-bottom or _TO_THE_END, -right or _TO_THE_END]
    _become(node, "Slice", [x])
    for name, values in (("starts", [top, left]), ("ends", ends), ("axes", [2, 3])):
        node.attributes[name] = ir.AttrInt64s(name, values)


_FORMS: dict[str, Callable[[ir.Node, ir.Value, Steps], None]] = {
    "Affine": _affine,
    "Crop": _crop,
    "ImageScaler": _image_scaler,
    "ParametricSoftplus": _scaled("Softplus"),
    "Scale": _scale,
    "ScaledTanh": _scaled("Tanh"),
}


def _number(node: ir.Node, name: str, default: float) -> float:
    return float(node.attributes[name].as_float()) if name in node.attributes else default


def _become(node: ir.Node, op_type: str, inputs: Sequence[ir.Value]) -> None:
    """Turn ``node`` into another operator that computes the same outputs."""
    node.op_type = op_type
    node.attributes.clear()
    node.resize_inputs(len(inputs))
    for i, value in enumerate(inputs):
        node.replace_input_with(i, value)


def split_sums(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each ``Sum`` by n - 1 ``Add`` nodes (n = 1: its input), adding from the left as Sum does."""
    done = 0
    for node in [n for n in model.graph if is_standard(n, "Sum")]:
        left, *others = [v for v in node.inputs if v is not None]
        if not others:
            continue  # an identity by another name; left, since it may feed a graph output
        output = node.outputs[0]
        for i, right in enumerate(others, 1):
            part = "" if i == len(others) else f"_sum{i}"
            total = ir.Value(name=f"{output.name}{part}", type=output.type, shape=output.shape)
            add = ir.node("Add", [left, right], outputs=[total], name=f"{node.name}{part}")
            model.graph.insert_before(node, add)
            left = total
        output.replace_all_uses_with(left, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        done += 1
    return model, done


def fold_gemm_factors(model: ir.Model) -> tuple[ir.Model, int]:
    """Make the factors of ``alpha A B + beta C`` 1 where their operand is a constant of their own, or is not there.

    Rows of targets ask for plain products, and exporters write ``beta = 0`` where there is no C at all. A C that
    ``beta = 0`` leaves without effect is dropped; where it is not finite, what the operator makes of it is up to the
    runtime.
    """
    folded = 0
    for node in model.graph:
        if is_standard(node, "Gemm"):
            folded += _fold_factor(node, "alpha", 1)
            folded += _fold_factor(node, "beta", 2)
    return model, folded


def _fold_factor(node: ir.Node, name: str, slot: int) -> bool:
    factor = node.attributes.get_float(name, 1.0)
    if factor == 1.0:
        return False
    operand = node.inputs[slot] if len(node.inputs) > slot else None
    array = constant_of(operand)
    if operand is not None and factor == 0.0 and slot == 2:
        node.resize_inputs(slot)
    elif operand is not None:
        if array is None or not np.issubdtype(array.dtype, np.floating) or sole_use(operand) is None:
            return False
        operand.const_value = ir.Tensor((array * array.dtype.type(factor)).astype(array.dtype), name=operand.name)
    node.attributes.pop(name)
    return True


_MOST_PARTS = 256  # a Split of more outputs than that is no layer of a network


def fold_sequences(model: ir.Model) -> tuple[ir.Model, int]:
    """Replace each sequence whose elements are known one by one."""
    graph = model.graph
    made = [
        n for n in graph if is_standard(n, "SplitToSequence", "SequenceConstruct") and _is_plain(n.outputs[0], graph)
    ]
    if any(n.inputs[0] is not None and n.inputs[0].shape is None for n in made):
        infer_shapes(model, strict=False)
    folded = 0
    for node in made:
        sizes = None if node.op_type == "SequenceConstruct" else _sizes(node)
        count = len(node.inputs) if node.op_type == "SequenceConstruct" else len(sizes or ())
        readers = [use.node for use in node.outputs[0].uses()]
        if not 0 < count <= _MOST_PARTS or not all(_is_known(reader, count) for reader in readers):
            continue
        parts = [v for v in node.inputs if v is not None] if sizes is None else _split(node, sizes, graph)
        for reader in readers:
            _replace(reader, parts, graph)
        folded += 1
    if folded:
        RemoveUnusedNodesPass()(model)
    return model, folded


def _is_plain(value: ir.Value, graph: ir.Graph) -> bool:
    """Whether only operators of ``graph`` read a sequence."""
    return not value.is_graph_output() and all(use.node.graph is graph for use in value.uses())


def _sizes(node: ir.Node) -> Sequence[int] | None:
    """How large the parts of a SplitToSequence are along its axis; None where that is not known."""
    split = constant_of(node.inputs[1]) if len(node.inputs) > 1 else np.array(1)
    if split is None or (len(node.inputs) > 1 and node.inputs[1] is None) or not split.size:
        return None
    if split.ndim == 1:
        return [int(n) for n in split]
    axis, x = node.attributes.get_int("axis", 0), node.inputs[0]
    dims = () if x is None or x.shape is None else tuple(x.shape)
    whole = dims[axis] if -len(dims) <= axis < len(dims) else None
    each = int(split)
    if not isinstance(whole, int) or each < 1 or whole < 1 or whole > each * _MOST_PARTS:
        return None
    return [min(each, whole - start) for start in range(0, whole, each)]


def _is_known(reader: ir.Node, count: int) -> bool:
    """Whether ``reader`` takes one element of a sequence of ``count`` by a constant, or joins them."""
    if is_standard(reader, "ConcatFromSequence"):
        return True
    at = constant_of(reader.inputs[1]) if is_standard(reader, "SequenceAt") else None
    return at is not None and at.size == 1 and -count <= int(at.reshape(-1)[0]) < count


def _split(node: ir.Node, sizes: Sequence[int], graph: ir.Graph) -> list[ir.Value]:
    """The parts of a SplitToSequence, by a Split."""
    name, axis = str(node.name), node.attributes.get_int("axis", 0)
    lengths = add_constant(graph, f"{name}_sizes", np.array(sizes, np.int64))
    split = ir.node("Split", [node.inputs[0], lengths], {"axis": axis}, num_outputs=len(sizes), name=f"{name}_split")
    graph.insert_before(node, split)
    for number, part in enumerate(split.outputs):
        part.name = f"{name}_part{number}"
    kept = node.attributes.get_int("keepdims", 1) != 0
    if len(node.inputs) > 1 or kept:
        return list(split.outputs)
    axes = add_constant(graph, f"{name}_axis", np.array([axis], np.int64))
    return [_one(f"{part.name}_squeezed", "Squeeze", [part, axes], node, graph) for part in split.outputs]


def _replace(reader: ir.Node, parts: Sequence[ir.Value], graph: ir.Graph) -> None:
    """Put an operator on tensors in the place of one that reads a sequence."""
    if reader.op_type == "SequenceAt":
        at = constant_of(reader.inputs[1])
        assert at is not None, "it is known"
        reader.op_type = "Identity"
        taken = [parts[int(at.reshape(-1)[0])]]
        if not reader.outputs[0].is_graph_output():
            reader.outputs[0].replace_all_uses_with(taken[0])
    else:
        axis, taken = reader.attributes.get_int("axis", 0), list(parts)
        if reader.attributes.get_int("new_axis", 0):
            axes = add_constant(graph, f"{reader.name}_axes", np.array([axis], np.int64))
            names = (f"{reader.name}_unsqueezed{number}" for number in range(len(parts)))
            taken = [_one(name, "Unsqueeze", [p, axes], reader, graph) for name, p in zip(names, parts, strict=True)]
        reader.op_type = "Concat"
        reader.attributes.pop("new_axis", None)
    reader.resize_inputs(len(taken))
    for slot, value in enumerate(taken):
        reader.replace_input_with(slot, value)


def _one(name: str, op_type: str, inputs: Sequence[ir.Value], before: ir.Node, graph: ir.Graph) -> ir.Value:
    made = ir.node(op_type, inputs, name=name)
    made.outputs[0].name = name
    graph.insert_before(before, made)
    return made.outputs[0]
