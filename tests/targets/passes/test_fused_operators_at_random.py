"""Fused operators with random attributes, shapes and inputs: taken apart they give what the runtime itself gives.

What the runtime refuses is no case; what the rewrite leaves alone is counted, so that it does not pass for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from inlay.targets.passes.fused_operators import DOMAIN, take_fused_apart
from tests.support.examples import examples

Draw = Callable[[st.SearchStrategy[Any]], Any]
Array = np.ndarray


@dataclass(eq=False)
class Case:
    """An operator with its inputs, None for what is left out; ``constant`` says which of them stand in the model.

    Of its outputs those with a type are read: 1 for the numbers', another one as ONNX counts them.
    """

    op_type: str
    inputs: list[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[int | None, ...] = (1,)
    constant: frozenset[int] = frozenset()

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        """It, and what to feed."""
        given = {f"x{i}": a for i, a in enumerate(self.inputs) if a is not None}
        held = {f"x{i}" for i in self.constant if f"x{i}" in given}
        kind = next(helper.np_dtype_to_tensor_dtype(a.dtype) for a in given.values() if a.dtype.kind == "f")
        names = [f"x{i}" if a is not None else "" for i, a in enumerate(self.inputs)]
        while not names[-1]:
            names.pop()
        outs = [f"y{i}" if out else "" for i, out in enumerate(self.outputs)]
        node = helper.make_node(self.op_type, names, outs, "op", domain=DOMAIN, **self.attributes)
        values = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in given.items()
            if n not in held
        ]
        read = [
            helper.make_tensor_value_info(n, kind if out == 1 else out, None)
            for n, out in zip(outs, self.outputs, strict=True)
            if out
        ]
        tensors = [numpy_helper.from_array(given[n], n) for n in sorted(held)]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
        graph = helper.make_graph([node], "g", values, read, tensors)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        return model, {n: a for n, a in given.items() if n not in held}


class Draws:
    """Shapes, numbers and choices of one case."""

    def __init__(self, draw: Draw, kind: type) -> None:
        self._draw, self._kind = draw, kind
        self.rng = np.random.default_rng(draw(st.integers(0, 2**16)))

    def size(self, most: int = 5) -> int:
        return int(self._draw(st.integers(1, most)))

    def of(self, *choices: Any) -> Any:
        return self._draw(st.sampled_from(choices))

    def maybe(self, value: Any) -> Any:
        return value if self._draw(st.booleans()) else None

    def floats(self, *shape: int) -> Array:
        return self.rng.normal(0, 0.7, shape).astype(self._kind)

    def ints(self, low: int, high: int, *shape: int) -> Array:
        return self.rng.integers(low, high, shape).astype(np.int32)

    def number(self, low: float, high: float) -> float:
        return float(np.float32(self.rng.uniform(low, high)))

    def some(self, **attributes: Any) -> dict[str, Any]:
        return {k: v for k, v in attributes.items() if v is not None}

    def constant(self, *slots: int) -> frozenset[int]:
        return frozenset(s for s in slots if self._draw(st.booleans()))


def embedding(d: Draws) -> Case:
    samples, rows, width, words = d.size(3), d.size(6), d.of(4, 8), 5
    segmented, mask = d.of(True, False), d.maybe(d.ints(0, d.of(2, 3), samples, rows))
    inputs = [
        d.ints(0, words, samples, rows),
        d.ints(0, 2, samples, rows) if segmented else None,
        d.floats(words, width),
        d.floats(rows + 2, width),
        d.floats(2, width) if segmented else None,
        d.floats(width),
        d.floats(width),
        mask,
        d.maybe(d.ints(0, rows + 2, d.of(samples, 1), rows)),
    ]
    ends = TensorProto.INT32 if mask is not None and d.of(True, False) else None
    total = d.maybe(1)
    outputs = (1, ends, total) if total else (1, ends) if ends else d.of((1,), (1, None))
    epsilon = d.maybe(d.of(1e-5, 1e-3, 0.5))
    return Case("EmbedLayerNormalization", inputs, d.some(epsilon=epsilon), outputs, d.constant(2, 3, 4, 5, 6))


def skip(d: Draws) -> Case:
    samples, rows, width = d.size(3), d.size(5), d.of(4, 8)
    data = (samples, rows, width)
    shapes = d.of((data, data), (data, (1, rows, width)), (data, (rows, width)), ((rows, width), (rows, width)))
    inputs = [*(d.floats(*s) for s in shapes), d.floats(width), d.maybe(d.floats(width)), d.maybe(d.floats(width))]
    outputs = d.of((1,), (1, None, None, 1), (1, None, None, 1), (1, None, None))
    epsilon = d.maybe(d.of(1e-5, 1e-3, 0.5))
    return Case("SkipLayerNormalization", inputs, d.some(epsilon=epsilon), outputs, d.constant(1, 2, 3, 4))


def attention(d: Draws) -> Case:
    samples, rows, heads, width = d.size(3), d.size(5), d.of(1, 2), d.of(4, 8)
    sizes = d.of(None, None, [4 * heads, 4 * heads, 6 * heads])
    total = sum(sizes) if sizes else 3 * width
    first = np.arange(rows) == 0  # is kept: where nothing is, all numbers stand beside -10000, and lose their last bits
    mask = d.of(
        None,
        np.maximum(d.ints(0, 2, samples, rows), first),
        np.maximum(d.ints(-1, 3, samples, rows), first),
        d.ints(1, rows + 1, samples),
        np.concatenate([d.ints(1, rows + 1, samples), np.zeros(samples, np.int32)]),
        d.ints(0, 2, samples, rows, rows),
    )
    past = d.of(None, None, None, 3)
    pasts = None if past is None else d.floats(2, samples, heads, past, width // heads)
    bias = d.of(None, None, (samples, heads), (1, heads), (samples, 1), (1, 1))
    inputs = [
        d.floats(samples, rows, width),
        d.floats(width, total),
        d.floats(total),  # without it the runtime's own kernel ends the process
        mask,
        pasts,
        None if bias is None else d.floats(*bias, rows, rows + (past or 0)),
    ]
    attributes = d.some(
        num_heads=heads,
        qkv_hidden_sizes=sizes,
        unidirectional=d.of(None, 0, 1),
        scale=d.maybe(d.of(0.3, 1.0)),
        mask_filter_value=d.maybe(d.of(-1.0, -10000.0)),
    )
    return Case("Attention", inputs, attributes, (1, 1) if past else (1,), d.constant(1, 2, 3, 5))


def gelus(d: Draws) -> Case:
    shape, op_type = (d.size(), d.size()), d.of("BiasGelu", "FastGelu", "QuickGelu", "Gelu")
    bias = d.floats(shape[-1]) if op_type == "BiasGelu" else None
    bias = d.maybe(d.floats(shape[-1])) if op_type == "FastGelu" else bias
    alpha = d.maybe(d.of(1.0, 0.5, -1.0)) if op_type == "QuickGelu" else None
    return Case(op_type, [3 * d.floats(*shape), bias], d.some(alpha=alpha), constant=d.constant(1))


def product(d: Draws) -> Case:
    m, k, n = d.size(), d.size(), d.size()
    first, second = d.of((), (2,), (3, 1), (3, 2)), d.of((), (2,), (1, 2), (3, 2))
    turned = [d.of(0, 1), d.of(0, 1)]
    shapes = [(*first, *((k, m) if turned[0] else (m, k))), (*second, *((n, k) if turned[1] else (k, n)))]
    if d.of(False, False, True):
        slot = d.of(0, 1)
        shapes[slot] = (k,)
    batches = [d.of(None, None, 0, 1), d.of(None, None, 0, 1)]
    attributes = d.some(
        transA=turned[0],
        transB=turned[1],
        alpha=d.maybe(d.of(0.5, -2.0, 0.0)),
        transBatchA=batches[0],
        transBatchB=batches[1],
    )
    return Case("FusedMatMul", [d.floats(*s) for s in shapes], attributes, constant=d.constant(0, 1))


ACTIVATIONS = ("", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Clip", "Elu", "Softsign", "HardSwish")


def convolution(d: Draws) -> Case:
    group, dims, before, after = d.of(1, 2), d.of(1, 2), d.of(2, 4), d.of(2, 4)
    side, kernel = d.of(5, 6), d.of(1, 3)
    stride, dilation = d.of(None, 2), d.of(None, 2)
    pads = [1, 0, 0, 1] if dims == 2 else [1, 1]
    padding = d.of({}, {"pads": pads}, {"auto_pad": "SAME_UPPER"} if dilation is None else {})
    attributes = d.some(
        group=group,
        kernel_shape=d.maybe([kernel] * dims),
        strides=stride and [stride] * dims,
        dilations=dilation and [dilation] * dims,
        **padding,
    )
    data, weight = d.floats(d.size(2), before, *[side] * dims), d.floats(after, before // group, *[kernel] * dims)
    bias = d.maybe(d.floats(after))
    summand = None
    if d.of(False, True):
        values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xwy"]
        values[0] = helper.make_tensor_value_info("x", TensorProto.FLOAT, data.shape)
        values[1] = helper.make_tensor_value_info("w", TensorProto.FLOAT, weight.shape)
        plain = helper.make_graph(
            [helper.make_node("Conv", ["x", "w"], ["y"], **attributes)], "g", values[:2], values[2:]
        )
        made = helper.make_model(plain, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        (y,) = run(made, {"x": data.astype(np.float32), "w": weight.astype(np.float32)}).values()
        summand = d.floats(*y.shape)
    name = d.of(*ACTIVATIONS)
    numbers = {"LeakyRelu": [0.2], "HardSigmoid": [0.3, 0.4], "Clip": [-0.5, 0.5], "Elu": [0.7]}.get(name)
    attributes |= d.some(activation=name or None, activation_params=numbers)
    return Case("FusedConv", [data, weight, bias, summand], attributes, constant=d.constant(1, 2))


def gemm(d: Draws) -> Case:
    m, k, n = d.size(), d.size(), d.size()
    turned = d.of(0, 1), d.of(0, 1)
    shapes = (k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n)
    summand = d.of(None, (n,), (1, n), (m, 1), (m, n), (1,), ())
    name = d.of(*ACTIVATIONS)
    known = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Elu": ("alpha",)}.get(name, ())
    attributes = d.some(
        transA=turned[0],
        transB=turned[1],
        alpha=d.maybe(d.of(0.5, -1.0)),
        beta=d.maybe(d.of(0.5, 2.0)),
        activation=name or None,
        **{f"activation_{key}": d.maybe(d.of(0.3, 0.6)) for key in known},
    )
    inputs = [*(d.floats(*s) for s in shapes), None if summand is None else d.floats(*summand)]
    return Case("FusedGemm", inputs, attributes, constant=d.constant(1, 2))


def run(model: onnx.ModelProto, feed: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs by name, as the runtime computes them when it fuses nothing."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip((o.name for o in session.get_outputs()), session.run(None, dict(feed)), strict=True))


KINDS: Mapping[str, Callable[[Draws], Case]] = {
    "embedding": embedding,
    "skip": skip,
    "attention": attention,
    "gelus": gelus,
    "product": product,
    "convolution": convolution,
    "gemm": gemm,
}
"""Operators by what draws them."""


@pytest.mark.matrix(every=3)
@settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("what", KINDS)
@given(data=st.data())
def test_what_is_taken_apart_computes_the_same(what: str, kind: type, data: st.DataObject) -> None:
    case = KINDS[what](Draws(data.draw, kind))
    model, feed = case.model()
    try:
        want = run(model, feed)
    except Exception:  # the runtime refuses it: of classes without a common base
        assume(False)
    apart, done = take_fused_apart(ir.from_proto(model))
    assert {n.domain for n in apart.graph} == ({""} if done else {DOMAIN})
    got = run(ir.to_proto(apart), feed)
    assert [*got] == [*want]
    tolerance = 2e-4 if kind is np.float32 else 2e-2
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_allclose(
            got[name].astype(np.float64), array.astype(np.float64), rtol=tolerance, atol=tolerance, err_msg=str(case)
        )


TAKEN: Mapping[str, Case] = {
    "embedding": Case(
        "EmbedLayerNormalization",
        [
            np.array([[1, 0, 2]], np.int32),
            None,
            *(np.full((3, 4), n, np.float32) + np.eye(3, 4, dtype=np.float32) for n in (0.5, 0.25)),
            None,
            *np.ones((2, 4), np.float32),
        ],
        constant=frozenset({2, 3, 5, 6}),
    ),
    "convolution with a summand": Case(
        "FusedConv",
        [np.ones((1, 1, 3, 3), np.float32), np.ones((1, 1, 3, 3), np.float32), None, np.ones((1, 1, 1, 1), np.float32)],
        {"activation": "Tanh"},
        constant=frozenset({1}),
    ),
    "gemm without a summand": Case(
        "FusedGemm", [np.eye(3, dtype=np.float32)] * 2, {"activation": "Relu", "beta": 0.5}, constant=frozenset({1})
    ),
}
LEFT: Mapping[str, Case] = {
    "a turned stack and a vector": Case(
        "FusedMatMul", [np.ones((2, 3, 4), np.float32), np.ones(3, np.float32)], {"transA": 1}
    ),
    "an activation without a row": Case("FusedGemm", [np.eye(3, dtype=np.float32)] * 2, {"activation": "Softsign"}),
}


@pytest.mark.parametrize("case", [*TAKEN.values(), *LEFT.values()], ids=[*TAKEN, *LEFT])
def test_what_is_left_alone(case: Case) -> None:
    """The control: were nothing taken apart, all numbers would be the same."""
    model, _ = case.model()
    assert take_fused_apart(ir.from_proto(model))[1] == (case in TAKEN.values())
