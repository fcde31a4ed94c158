"""Layouts: the symbolic checks against real arrays, and the transposes that must not appear."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.tosa import layout
from inlay.tosa.emitter import Emitter
from inlay.tosa.lowering import lower
from tests.support.examples import examples
from tests.tosa.nets import Net, random_weights

Case = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@st.composite
def reshapes(draw: st.DrawFn) -> Case:
    """Two shapes of one size, and a permutation of each."""
    primes = draw(st.lists(st.sampled_from([1, 2, 2, 3, 5]), min_size=1, max_size=6))

    def shape() -> tuple[int, ...]:
        cuts = sorted(draw(st.lists(st.integers(0, len(primes)), max_size=4)))
        parts = [primes[a:b] for a, b in zip([0, *cuts], [*cuts, len(primes)], strict=True)]
        return tuple(math.prod(p) for p in parts)

    a, b = shape(), shape()
    return a, tuple(draw(st.permutations(range(len(a))))), b, tuple(draw(st.permutations(range(len(b)))))


@settings(max_examples=examples(300), deadline=None)
@given(reshapes())
def test_a_reshape_that_keeps_bytes(case: Case) -> None:
    shape_a, layout_a, shape_b, layout_b = case
    elements = np.arange(math.prod(shape_a))
    stored_a = elements.reshape(shape_a).transpose(layout_a).reshape(-1)
    stored_b = elements.reshape(shape_b).transpose(layout_b).reshape(-1)
    if layout.reshape_keeps_bytes(shape_a, layout_a, shape_b, layout_b):
        np.testing.assert_array_equal(stored_a, stored_b)


@given(st.permutations(range(4)), st.permutations(range(4)), st.permutations(range(4)))
def test_stored_permutation(perm: list[int], source: list[int], target: list[int]) -> None:
    x = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    stored = x.transpose(source)
    moved = stored.transpose(layout.stored_permutation(perm, tuple(source), tuple(target)))
    np.testing.assert_array_equal(moved, x.transpose(perm).transpose(target))


def operators(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """TOSA operators written for ``model``, counted."""
    count: Counter[str] = Counter()
    original = Emitter._append

    def counting(self: Emitter, op: str, *args: Any) -> Any:
        count[op] += 1
        return original(self, op, *args)

    monkeypatch.setattr(Emitter, "_append", counting)
    lower(model)
    return count


def conv(n: Net, x: str, channels: int, out: int) -> str:
    w = random_weights(np.random.default_rng(0), out, channels, 3, 3)
    return n.qdq(n.op("Relu", [n.op("Conv", [x, n.weight(w, 0.002)], pads=[1] * 4)]), 0.05, -128)


def test_convolutions_need_no_transposes(monkeypatch: pytest.MonkeyPatch) -> None:
    n = Net()
    x = n.qdq(n.input([1, 4, 8, 8]), 0.05, 3)
    y = conv(n, conv(n, x, 4, 6), 6, 8)
    y = n.qdq(n.op("Concat", [y, y], axis=1), 0.05, -128)
    n.output(n.qdq(n.op("MaxPool", [y], kernel_shape=[2, 2], strides=[2, 2]), 0.05, -128))
    assert operators(n.model(), monkeypatch)["TRANSPOSE"] == 0


def test_an_exporters_own_transpose_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head of a detector: NCHW to NHWC, then boxes in rows."""
    n = Net()
    x = n.qdq(n.input([1, 4, 8, 8]), 0.05, 3)
    y = n.op("Transpose", [conv(n, x, 4, 8)], perm=[0, 2, 3, 1])
    n.output(n.qdq(n.op("Reshape", [y, n.i64(1, -1, 4)]), 0.05, -128))
    assert operators(n.model(), monkeypatch)["TRANSPOSE"] == 0


def test_flatten_before_a_product_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    n = Net()
    y = n.op("Flatten", [conv(n, n.qdq(n.input([1, 4, 8, 8]), 0.05, 3), 4, 8)])
    w = random_weights(np.random.default_rng(0), 512, 10)
    n.output(n.qdq(n.op("MatMul", [y, n.weight(w, 0.002, axis=1)]), 0.05, 0))
    assert operators(n.model(), monkeypatch)["TRANSPOSE"] == 0


def test_a_channel_shuffle_costs_one_transpose(monkeypatch: pytest.MonkeyPatch) -> None:
    n = Net()
    y = conv(n, n.qdq(n.input([1, 4, 8, 8]), 0.05, 3), 4, 8)
    y = n.op("Transpose", [n.op("Reshape", [y, n.i64(1, 2, 4, 8, 8)])], perm=[0, 2, 1, 3, 4])
    n.output(conv(n, n.qdq(n.op("Reshape", [y, n.i64(1, 8, 8, 8)]), 0.05, -128), 8, 8))
    assert operators(n.model(), monkeypatch)["TRANSPOSE"] == 1
