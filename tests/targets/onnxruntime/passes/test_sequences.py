"""Convolutions of one dimension are computed over images of one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inlay.targets.onnxruntime.passes.sequences import widen_sequences
from inlay.testing import Builder
from tests.support.examples import examples
from tests.support.fixtures import RewriteModel
from tests.support.normalizing import Rewritten
from tests.support.runtime import check_and_load

CHANNELS, LENGTH = 16, 24


def conv(
    b: Builder, x: str, name: str, channels: int = CHANNELS, outputs: int = CHANNELS, taps: int = 3, **given: Any
) -> str:
    """A convolution over a sequence, as long as its input unless it is told otherwise."""
    shape = (outputs, channels // given.get("group", 1), taps)
    weight = b.constant(f"{name}_w", (b.rng.standard_normal(shape) / np.sqrt(shape[1] * taps)).astype(np.float32))
    bias = b.constant(f"{name}_b", b.rng.standard_normal(outputs).astype(np.float32))
    pads = {} if "auto_pad" in given else {"pads": [(taps - 1) // 2, taps // 2]}
    return b.node(name, "Conv", [x, weight, bias], channels=outputs, **{**pads, **given})


def ranks(done: Rewritten) -> Mapping[str, int]:
    """Of the weights of convolutions, by name; 4 for those over images."""
    found = {}
    for node in done.model.graph:
        if node.op_type == "Conv":
            weight = node.inputs[1]
            assert weight is not None
            assert weight.shape is not None
            found[str(node.name)] = len(weight.shape)
    return found


def widened(b: Builder, rewritten: RewriteModel) -> Rewritten:
    """After the rewrite, whose outputs are checked against the original's, as are their shapes."""
    done = rewritten(b.model(), widen_sequences)
    done.assert_close(rtol=1e-4, atol=1e-5)
    check_and_load(ir.to_proto(done.model))
    return done


def _other(b: Builder, name: str, draw: Callable[..., Any]) -> str:
    """An operand that is broadcast to a sequence: constant, or computed."""
    shape = draw(
        st.sampled_from([(1, CHANNELS, LENGTH), (1, 1, LENGTH), (CHANNELS, 1), (CHANNELS, LENGTH), (LENGTH,), ()])
    )
    if draw(st.booleans()):
        return b.constant(f"{name}_c", np.asarray(b.rng.standard_normal(shape), np.float32))
    return b.node(f"{name}_o", "Neg", [b.input(f"{name}_i", shape)])


def _between(b: Builder, x: str, earlier: str, name: str, draw: Callable[..., Any]) -> str:
    """What is between two convolutions, of the same shape as ``x``."""
    match draw(st.sampled_from(["function", "residual", "operand", "gate", "mean", "join", "pool", "turn", "shift"])):
        case "function":
            return b.node(name, draw(st.sampled_from(["Relu", "LeakyRelu", "Sigmoid", "Sin"])), [x])
        case "residual":
            return b.node(name, "Add", [x, earlier])
        case "operand":
            operands = [x, _other(b, name, draw)]
            return b.node(name, "Mul", operands if draw(st.booleans()) else operands[::-1])
        case "gate":
            return b.node(
                name, "Mul", [x, b.node(f"{name}_gate", "Softmax", [x], axis=draw(st.sampled_from([1, 2, -1])))]
            )
        case "mean":
            mean = b.node(f"{name}_mean", "ReduceMean", [x], axes=[draw(st.sampled_from([1, 2, -1]))])
            return b.node(name, "Sub", [x, mean])
        case "join":
            parts = b.node(f"{name}_join", "Concat", [x, earlier], axis=(axis := draw(st.sampled_from([1, 2]))))
            ends = [
                b.constant(f"{name}_{what}", np.array([n])) for what, n in (("from", 3), ("to", 3 + (0, 16, 24)[axis]))
            ]
            return b.node(name, "Slice", [parts, *ends, b.constant(f"{name}_axis", np.array([axis]))])
        case "pool":
            return b.node(name, draw(st.sampled_from(["MaxPool", "AveragePool"])), [x], kernel_shape=[3], pads=[1, 1])
        case "turn":
            return b.node(name, "Transpose", [b.node(f"{name}_t", "Transpose", [x], perm=[0, 2, 1])], perm=[0, 2, 1])
        case _:
            wide = b.node(f"{name}_pad", "Pad", [x, b.constant(f"{name}_pads", np.array([0, 0, 2, 0, 0, 0]))])
            ends = [
                b.constant(f"{name}_{what}", np.array([n])) for what, n in (("from", 0), ("to", LENGTH), ("axis", 2))
            ]
            return b.node(name, "Slice", [wide, *ends])


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_convolutions_and_what_is_between_them(data: st.DataObject, rewritten: RewriteModel) -> None:
    b = Builder()
    values = [b.input("x", (1, CHANNELS, LENGTH))]
    for i in range(data.draw(st.integers(1, 4), label="convolutions")):
        dilation = data.draw(st.sampled_from([1, 2]))
        window: dict[str, Any] = {"pads": [dilation] * 2, "dilations": [dilation]} if data.draw(st.booleans()) else {}
        values.append(conv(b, values[-1], f"conv_{i}", taps=3, **window))
        for j in range(data.draw(st.integers(0, 2), label="between")):
            values.append(_between(b, values[-1], data.draw(st.sampled_from(values)), f"n_{i}_{j}", data.draw))
    for value in {values[-1], data.draw(st.sampled_from(values[1:]), label="output")}:
        b.output(value)
    assert {*ranks(widened(b, rewritten)).values()} == {4}


@pytest.mark.parametrize(
    ("given", "rank"),
    [
        pytest.param({}, 4, id="3 taps"),
        pytest.param({"strides": [2], "taps": 5}, 4, id="strided"),
        pytest.param({"channels": 32, "group": 2}, 4, id="two groups"),
        pytest.param({"group": CHANNELS, "taps": 5}, 4, id="depthwise"),
        pytest.param({"group": CHANNELS}, 3, id="depthwise, few taps"),
        pytest.param({"taps": 1}, 3, id="one tap"),
        pytest.param({"outputs": 24}, 3, id="outputs that fill no block"),
        pytest.param({"channels": 24}, 3, id="inputs that fill no block"),
        pytest.param({"auto_pad": "SAME_UPPER", "strides": [2]}, 4, id="pads that an earlier pass writes out"),
    ],
)
def test_which_are(given: dict[str, Any], rank: int, rewritten: RewriteModel) -> None:
    b = Builder()
    x = b.input("x", (2, given.get("channels", CHANNELS), LENGTH))
    b.output(conv(b, x, "conv", **given))
    assert ranks(widened(b, rewritten)) == {"conv": rank}


def test_one_tap_is_where_values_are_in_blocks_already(rewritten: RewriteModel) -> None:
    b = Builder()
    first = conv(b, b.input("x", (1, CHANNELS, LENGTH)), "first", taps=1)
    b.output(conv(b, b.node("relu", "Relu", [conv(b, first, "second")]), "third", taps=1))
    done = widened(b, rewritten)
    assert ranks(done) == {"first": 3, "second": 4, "third": 4}
    assert done.operators == ["Conv", "Unsqueeze", "Conv", "Relu", "Conv", "Squeeze"]


def test_lengths_that_are_not_known_and_outputs_within_keep_names(rewritten: RewriteModel) -> None:
    b = Builder()
    inner = b.node("relu", "Relu", [conv(b, b.input("x", (1, CHANNELS, "length")), "first")])
    b.output(inner)
    b.output(conv(b, inner, "second"))
    model = b.model()
    feed = {"x": b.rng.standard_normal((1, CHANNELS, 37)).astype(np.float32)}
    done = rewritten(model, widen_sequences, feed)
    done.assert_close(rtol=1e-4, atol=1e-5)
    assert [v.name for v in done.model.graph.outputs] == [v.name for v in model.graph.output]
    assert ranks(done) == {"first": 4, "second": 4}


def test_a_weight_with_two_readers_stays_one(rewritten: RewriteModel) -> None:
    b = Builder()
    weight = b.constant("w", b.rng.standard_normal((CHANNELS, CHANNELS, 3)).astype(np.float32))
    x = b.input("x", (1, CHANNELS, LENGTH))
    b.output(b.node("second", "Conv", [b.node("first", "Conv", [x, weight], channels=16), weight], channels=16))
    done = widened(b, rewritten)
    first, second = (n.inputs[1] for n in done.model.graph if n.op_type == "Conv")
    assert first is second
