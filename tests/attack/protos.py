"""Mutations of protobuf messages: field by field, by their descriptors, and by what the fields mean in ONNX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import TensorProto, helper

from tests.attack.choices import Choices

Model = onnx.ModelProto

TEXTS = (
    "", "x", "conv", "file", "a b", "[/layer2]", "[red]a[/red]", "\x1b[31mred\x1b[0m", "\x9b31m", "a\nb", "a\rb",
    "\x00", "\u202e", "☃", "\ud7ff", "../../secret.bin", "../secret.bin", "/etc/passwd", "weights.bin", ".", "..",
    "a/b", "%s{}", "'\"", "~", "$HOME", "n" * 5000, "ai.onnx", "com.microsoft", "Conv", "If", "Loop", "QuantizeLinear",
    "allow_pickle", "args", "self",
)  # fmt: skip
"""Names that something along the way may trip over: paths, markup, control characters, parameter names, operators."""
NUMBERS = (
    0, 1, 2, 3, 7, 8, 11, 16, 127, 128, 255, 1000, -1, -2, 2**15, 2**31 - 1, -(2**31), 2**31, 2**40, 2**62, 2**63 - 1,
    -(2**63),
)  # fmt: skip
FLOATS = (0.0, 1.0, -1.0, 1e-30, 1e30, 3.4e38, float("nan"), float("inf"), -float("inf"))
_INTS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}


def mutate(model: Model, choose: Choices) -> None:
    """Change ``model`` in one to five places."""
    for _ in range(1 + min(choose.below(6), choose.below(6))):
        if choose.one_in(3):
            choose.among(MEANINGFUL)(model, choose)
        else:
            change_field(model, choose)


def change_field(model: Message, choose: Choices) -> None:
    """Change any field of any message in ``model``, which may be a part of one."""
    message = choose.among(list(_messages(model)))
    field: Any = choose.among(list(message.DESCRIPTOR.fields))
    if _repeated(field):
        _change_list(getattr(message, field.name), field, choose)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        if choose.one_in(2):
            message.ClearField(field.name)
        else:
            getattr(message, field.name).SetInParent()
    elif choose.one_in(4):
        message.ClearField(field.name)
    else:
        _set(message, field, _value(field, choose, model if isinstance(model, Model) else None))


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for inner in value if _repeated(field) else [value]:
                yield from _messages(inner)


def _repeated(field: Any) -> bool:
    label = getattr(field, "is_repeated", None)  # the successor of ``label`` in newer releases
    return bool(label) if label is not None else field.label == FieldDescriptor.LABEL_REPEATED


def _change_list(items: Any, field: Any, choose: Choices) -> None:
    action = choose.below(5)
    if action == 0 and len(items):
        del items[choose.below(len(items))]
    elif action == 1 and len(items):
        _append(items, items[choose.below(len(items))], field)
    elif action == 2 and len(items) > 1:
        kept = list(items)
        kept.insert(choose.below(len(kept)), kept.pop(choose.below(len(kept))))
        copies = [type(k).FromString(k.SerializeToString()) if isinstance(k, Message) else k for k in kept]
        del items[:]
        items.extend(copies)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        items.add()
    elif action == 3 and len(items):
        items[choose.below(len(items))] = _value(field, choose, None)
    else:
        items.append(_value(field, choose, None))


def _append(items: Any, item: Any, field: Any) -> None:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        items.add().CopyFrom(item)
    else:
        items.append(item)


def _set(message: Message, field: Any, value: Any) -> None:
    try:
        setattr(message, field.name, value)
    except ValueError:  # closed enums take their own values only
        message.ClearField(field.name)


def _value(field: Any, choose: Choices, model: Model | None) -> Any:
    if field.cpp_type in _INTS:
        low, high = _INTS[field.cpp_type]
        return min(max(choose.among(NUMBERS), low), high)
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return choose.among(FLOATS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return bool(choose.below(2))
    text = choose.among(values(model)) if model is not None and choose.one_in(2) else choose.among(TEXTS)
    return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text


# --- what the fields mean ---------------------------------------------------------------------------------------------


def values(model: Model) -> list[str]:
    """Names of values in the main graph."""
    graph = model.graph
    named = [*(i.name for i in graph.input), *(t.name for t in graph.initializer)]
    return [*named, *(v for n in graph.node for v in n.output)] or [""]


def _node(model: Model, choose: Choices) -> onnx.NodeProto:
    return choose.among(list(model.graph.node)) if model.graph.node else model.graph.node.add()


def _tensor(model: Model, choose: Choices) -> onnx.TensorProto:
    return choose.among(list(model.graph.initializer)) if model.graph.initializer else model.graph.initializer.add()


def rewire(model: Model, choose: Choices) -> None:
    """A node reads another value, perhaps its own output or a later one."""
    node = _node(model, choose)
    name = choose.among(values(model))
    if node.input and not choose.one_in(5):
        node.input[choose.below(len(node.input))] = name
    else:
        node.input.append(name)


def collide(model: Model, choose: Choices) -> None:
    """Two values, or two nodes, of one name."""
    node = _node(model, choose)
    if node.output and choose.one_in(2):
        node.output[0] = choose.among(values(model))
    else:
        node.name = _node(model, choose).name


def rename(model: Model, choose: Choices) -> None:
    """A value gets a strange name wherever it is mentioned."""
    old, new = choose.among(values(model)), choose.among(TEXTS)
    for node in model.graph.node:
        node.name = f"{new}{node.name}" if choose.one_in(3) else node.name
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = new if name == old else name
    graph: Any = model.graph
    for named in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        named.name = new if named.name == old else named.name


def retype(model: Model, choose: Choices) -> None:
    """An input, output or weight gets another type or shape."""
    graph = model.graph
    if choose.one_in(2) or not [*graph.input, *graph.output]:
        tensor = _tensor(model, choose)
        if choose.one_in(2):
            tensor.data_type = choose.among(range(-1, 30))
        else:
            tensor.dims[:] = [choose.among(NUMBERS) for _ in range(choose.below(6))]
        return
    kind = choose.among([*graph.input, *graph.output]).type.tensor_type
    action = choose.below(4)
    if action == 0:
        kind.elem_type = choose.among(range(-1, 30))
    elif action == 1:
        kind.ClearField("shape")
    else:
        del kind.shape.dim[:]
        for _ in range(choose.below(7)):
            dim = kind.shape.dim.add()
            if choose.one_in(3):
                dim.dim_param = choose.among(TEXTS)
            else:
                dim.dim_value = choose.among(NUMBERS)


def move_data(model: Model, choose: Choices) -> None:
    """A weight lies in a file: a missing one, another one, outside, at an odd place."""
    tensor = _tensor(model, choose)
    tensor.data_location = TensorProto.EXTERNAL
    if choose.one_in(2):
        tensor.ClearField("raw_data")
    if choose.one_in(2):
        del tensor.external_data[:]
    for key in ("location", "offset", "length", "checksum", "basepath"):
        if choose.one_in(2):
            text = choose.among(TEXTS) if key == "location" or choose.one_in(4) else str(choose.among(NUMBERS))
            tensor.external_data.add(key=key, value=text)


def reversion(model: Model, choose: Choices) -> None:
    """Another opset, IR version or domain."""
    if choose.one_in(3):
        model.ir_version = choose.among(NUMBERS)
    elif choose.one_in(4) or not model.opset_import:
        model.opset_import.add(domain=choose.among(TEXTS), version=choose.among(range(30)))
    else:
        choose.among(list(model.opset_import)).version = choose.among((*range(30), 2**40, -1))


def nest(model: Model, choose: Choices) -> None:
    """A node becomes the body of Ifs in Ifs."""
    node = _node(model, choose)
    if not node.output:
        return
    out = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    for _ in range(choose.among((1, 2, 5, 20, 90))):
        body = helper.make_graph([inner], "nested", [], [out])
        inner = helper.make_node(
            "If", [choose.among(values(model))], [node.output[0]], then_branch=body, else_branch=body
        )
        if inner.ByteSize() > 200_000:  # both branches hold all that is within
            break
    node.CopyFrom(inner)


def forever(model: Model, choose: Choices) -> None:
    """A Loop that does not end, or not soon."""
    node = _node(model, choose)
    if not node.output or not node.input:
        return
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Relu", ["s"], ["t"])],
        "forever",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("s", TensorProto.FLOAT, None)],
        [info("on", TensorProto.BOOL, []), info("t", TensorProto.FLOAT, None)],
    )
    count = choose.among((2**63 - 1, 10**10))  # both take longer than any call may; with 10**7 the model is only slow
    model.graph.initializer.append(helper.make_tensor("many", TensorProto.INT64, [], [count]))
    model.graph.initializer.append(helper.make_tensor("true", TensorProto.BOOL, [], [True]))
    node.CopyFrom(
        helper.make_node("Loop", ["many", "true", node.input[0]], [node.output[0]], body=body, name=node.name)
    )


def expand(model: Model, choose: Choices) -> None:
    """Functions that call one another: in a circle, or doubling at each level."""
    node = _node(model, choose)
    if not node.output or not node.input:
        return
    levels = choose.among((1, 3, 20, 200))
    fan = choose.among((1, 2, 3)) if levels <= 20 else 1
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    last = choose.among(("Relu", "F0"))
    for level in range(levels):
        callee, domain = (f"F{level + 1}", "f") if level + 1 < levels else (last, "f" if last == "F0" else "")
        calls = [
            helper.make_node(callee, ["a" if i == 0 else f"v{i}"], [f"v{i + 1}"], domain=domain) for i in range(fan)
        ]
        calls[-1].output[0] = "b"
        model.functions.append(helper.make_function("f", f"F{level}", ["a"], ["b"], calls, imports))
    model.opset_import.add(domain="f", version=1)
    node.CopyFrom(helper.make_node("F0", [node.input[0]], [node.output[0]], domain="f", name=node.name))


def enlarge(model: Model, choose: Choices) -> None:
    """A small constant asks for a huge tensor."""
    node = _node(model, choose)
    if not node.output:
        return
    size = choose.among((2**20, 2**31, 2**40, 2**62))
    model.graph.initializer.append(helper.make_tensor("size", TensorProto.INT64, [1], [size]))
    value = helper.make_tensor("v", TensorProto.FLOAT, [1], [0.0])
    node.CopyFrom(helper.make_node("ConstantOfShape", ["size"], [node.output[0]], value=value, name=node.name))


def reorder(model: Model, choose: Choices) -> None:
    """Nodes in another order, which is against the standard but common."""
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in model.graph.node]
    for i in range(len(nodes) - 1, 0, -1):
        j = choose.below(i + 1)
        nodes[i], nodes[j] = nodes[j], nodes[i]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def set_attribute(model: Model, choose: Choices) -> None:
    """An attribute gets another value, or another type."""
    node = _node(model, choose)
    attribute = choose.among(list(node.attribute)) if node.attribute else node.attribute.add(name=choose.among(TEXTS))
    name = attribute.name
    value = choose.among((choose.among(NUMBERS), choose.among(FLOATS), choose.among(TEXTS), None))
    numbers = [choose.among(NUMBERS) for _ in range(choose.below(7))] or [0]
    attribute.CopyFrom(helper.make_attribute(name or "a", numbers if value is None else value))


def hole(model: Model, choose: Choices) -> None:
    """Weights that are not numbers, or infinite, or all the same."""
    tensor = _tensor(model, choose)
    if tensor.raw_data:
        pattern = choose.among(
            (b"\0\0\0\0", b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xff", b"\xff\xff\x7f\x7f", b"\1\0\0\0")
        )
        if choose.one_in(2):
            tensor.raw_data = pattern * (len(tensor.raw_data) // 4)
        else:
            tensor.raw_data = pattern + tensor.raw_data[4:]


MEANINGFUL = (
    rewire, collide, rename, retype, move_data, reversion, nest, forever, expand, enlarge, reorder, set_attribute,
    hole,
)  # fmt: skip
