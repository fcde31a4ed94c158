"""What the HTP runs in 8 and 16 bits: a table, each row verified in both by the provider's partitioning; rewrites.

The provider takes an operator with a DequantizeLinear on each input and a QuantizeLinear on each output as one integer
operator, also at the graph's outputs. ``tests/targets/ort_ep/test_htp.py`` builds each row's operator in that form and
looks where it went. Weights are symmetric int8, per channel for Conv, ConvTranspose, Gemm and MatMul; biases are int32.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from inlay.model.graph import Graph, Node
from inlay.model.normalize import FloatRewrite
from inlay.space.rules import Condition, OpRule, ResultRange, Rules
from inlay.targets.conditions import constant_bias, constant_weight, moves_activation, one_output
from inlay.targets.passes.gathered import GELU_OPSET, LAYER_NORMALIZATION_OPSET, gather_gelu, gather_layer_normalization
from inlay.types import QType

SOURCE = "partitioning of onnxruntime-qnn 2.7.0"


def _two_dimensional(graph: Graph, node: Node) -> str | None:
    shape = graph.shape(node.inputs[0])
    wrong = shape is not None and len(shape) not in (3, 4)
    return "it has more than 2 spatial dimensions" if wrong else None


def _no_thin_windows(graph: Graph, node: Node) -> str | None:
    """In 2.7.0 the emulator gives a constant for such a convolution in 8 bits; tried with 1 to 8 channels."""
    shape, groups = graph.shape(node.inputs[1]) or (), node.attributes.get("group", 1)
    outputs, channels, *window = [n or 0 for n in shape] or [0, 0]
    thin = channels == 1 and outputs == groups and 2 <= groups <= 4 and max(window, default=0) <= 2
    halved = [*node.attributes.get("strides", ())] == [2, 2]
    return (
        "a window of up to 2x2 for each of 2 to 4 channels, with stride 2, comes out wrong" if thin and halved else None
    )


def _no_rest(graph: Graph, node: Node) -> str | None:
    """In 2.7.0 the emulator's means of windows that reach beyond the data and the padding are wrong in 8 bits."""
    shape, window = graph.shape(node.inputs[0]) or (), [*node.attributes.get("kernel_shape", ())]
    rank = len(window)
    pads, strides = (
        [*node.attributes.get(name, default)] for name, default in (("pads", [0, 0] * rank), ("strides", [1] * rank))
    )
    sizes = zip(shape[2:], pads[:rank], pads[rank:], window, strides, strict=False)
    rest = any(n is None or (n + before + after - k) % step for n, before, after, k, step in sizes)
    return "with ceil_mode its last windows come out wrong" if node.attributes.get("ceil_mode", 0) and rest else None


def _plain_gemm(graph: Graph, node: Node) -> str | None:
    if node.attributes.get("transA", 0):
        return "it reads its first input transposed"
    scaled = node.attributes.get("alpha", 1.0) != 1.0 or node.attributes.get("beta", 1.0) != 1.0
    return "its product or its bias is scaled" if scaled else None


def _constant_parameters(graph: Graph, node: Node) -> str | None:
    constant = all(graph.is_constant(v) for v in node.inputs[1:] if v)
    return None if constant else "its other inputs are computed at run time"


def _pads_with_itself(graph: Graph, node: Node) -> str | None:
    mode = node.attributes.get("mode", "constant")
    if mode == "constant":
        return "the NPU pads with the integer 0, whatever that stands for"
    return None if mode in ("edge", "reflect") else f"it pads by {mode}"


def _whole_powers(graph: Graph, node: Node) -> str | None:
    exponents = graph.constant(node.inputs[1])
    whole = exponents is not None and (exponents >= 1).all() and (exponents % 1 == 0).all()
    return None if whole else "its exponents are not known to be whole numbers from 1 on"


def _euclidean(graph: Graph, node: Node) -> str | None:
    return "it goes by sums of magnitudes" if node.attributes.get("p", 2) != 2 else None


def _last_axis(graph: Graph, node: Node) -> str | None:
    shape, axis = graph.shape(node.inputs[0]), node.attributes.get("axis", -1)
    return (
        None if axis == -1 or (shape is not None and axis == len(shape) - 1) else "it does not go along the last axis"
    )


_row = partial(OpRule, source=SOURCE)


def _move(op_type: str, *conditions: Condition) -> OpRule:
    return _row(op_type, conditions=(moves_activation, *conditions), moves_data=True)


_ROWS: Iterable[OpRule] = (
    _row("Conv", conditions=(constant_weight, constant_bias, _two_dimensional, _no_thin_windows), weight=1, bias=2),
    _row("ConvTranspose", conditions=(constant_weight, constant_bias, _two_dimensional), weight=1, bias=2),
    _row("Gemm", conditions=(constant_weight, constant_bias, _plain_gemm), weight=1, bias=2),
    _row("MatMul", weight=1),
    *(_row(op, activations=(0, 1)) for op in ("Add", "Sub", "Mul", "Div")),
    *(_row(op, activations=None) for op in ("Min", "Max", "Concat")),
    *(_row(op) for op in ("Relu", "Clip", "Sigmoid", "Tanh", "Elu", "LeakyRelu", "HardSwish", "Gelu")),
    *(_row(op) for op in ("HardSigmoid", "Selu", "Softplus")),
    _row("PRelu", conditions=(_constant_parameters,)),
    _row("Pow", conditions=(_whole_powers,)),
    *(_row(op) for op in ("Exp", "Log", "Sqrt", "Reciprocal", "Abs", "Neg", "Sign", "Sin", "Cos", "Atan")),
    *(_row(op) for op in ("Floor", "Ceil", "Round")),
    # in 8 bits the emulator ignores another zero point of the output
    _row("Softmax", conditions=(_last_axis,), result=ResultRange(begins_at_zero=True)),
    _row("LogSoftmax", conditions=(_last_axis,)),
    # scale and shift stay as they are
    _row("LayerNormalization", conditions=(_last_axis, _constant_parameters, one_output)),
    *(
        _row(op, conditions=(_two_dimensional, _constant_parameters))
        for op in ("BatchNormalization", "InstanceNormalization")
    ),
    _row("LpNormalization", conditions=(_last_axis, _euclidean)),
    _row("AveragePool", conditions=(_two_dimensional, _no_rest)),
    _row("GlobalAveragePool", conditions=(_two_dimensional,)),
    *(_row(op, conditions=(_constant_parameters,)) for op in ("ReduceMean", "ReduceSum", "ReduceL2")),
    _move("MaxPool", _two_dimensional, one_output),
    _move("GlobalMaxPool", _two_dimensional),
    _move("Pad", _constant_parameters, _pads_with_itself),
    _move("GatherElements", _constant_parameters),
    *(_move(op, _constant_parameters) for op in ("ReduceMax", "ReduceMin")),
    *(
        _move(op, _constant_parameters)
        for op in ("Reshape", "Squeeze", "Unsqueeze", "Slice", "Split", "Tile", "Expand")
    ),
    *(_move(op) for op in ("Flatten", "Transpose", "Gather", "DepthToSpace", "SpaceToDepth", "Resize")),
)

_OPS = {row.op_type: row for row in _ROWS}
RULES = Rules(
    activation=QType.UINT8,
    ops=_OPS,
    share=frozenset({"Concat"}),
    other_activations=frozenset({QType.INT8}),
    fast={QType.UINT16: frozenset(_OPS)},
    unfold_cost=0.0,
)
"""Relu and Clip between an operator and its Q are part of the operator: the type's limits clamp."""

FLOAT_REWRITES: tuple[FloatRewrite, ...] = (
    FloatRewrite(
        "gather LayerNormalization",
        gather_layer_normalization,
        "the operator runs in 8 bits as a whole; of its parts, each would be rounded",
        "partitioning of onnxruntime-qnn 2.7.0",
        opset=LAYER_NORMALIZATION_OPSET,
    ),
    FloatRewrite(
        "gather Gelu",
        gather_gelu,
        "the operator runs on the NPU; Erf, of which it is made, only on the host",
        "a BERT of two layers: 1 partition in place of 3",
        opset=GELU_OPSET,
    ),
)
"""Those that keep a model on the NPU, in the order in which they run."""
