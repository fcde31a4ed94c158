"""Lowered operators that only move or repeat elements, compared three ways like those of ``test_ops``."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.tosa.lowering import lower
from tests.support.examples import examples
from tests.tosa.comparison import three_ways
from tests.tosa.nets import Net, shape_of
from tests.tosa.one_op import ScaleZero, check, few, scale_zeros, seeds


@few
@given(data=st.data(), seed=seeds, yq=scale_zeros, same=st.booleans())
def test_concat(data: st.DataObject, seed: int, yq: ScaleZero, same: bool) -> None:
    draw = data.draw
    shape = [draw(st.integers(1, 4)) for _ in range(draw(st.integers(1, 4)))]
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    n = Net()
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        own = list(shape)
        own[axis] = draw(st.integers(1, 3))
        parts.append(n.qdq(n.input(own), *(yq if same else draw(scale_zeros))))
    check(n, n.op("Concat", parts, axis=axis), yq, seed)


@few
@given(data=st.data(), seed=seeds, xq=scale_zeros)
@pytest.mark.parametrize(
    "kind",
    [
        "Reshape",
        "Flatten",
        "Transpose",
        "Squeeze",
        "Unsqueeze",
        "Expand",
        "Tile",
        "Slice",
        "Pad",
        "Split",
        "Gather",
        "Identity",
        "SpaceToDepth",
        "DepthToSpace",
    ],
)
@pytest.mark.matrix
def test_movement(kind: str, data: st.DataObject, seed: int, xq: ScaleZero) -> None:
    draw = data.draw
    shape = [draw(st.integers(1, 6)) for _ in range(4)]
    n = Net()
    x = n.input(shape)
    q = n.qdq(x, *xq)
    match kind:
        case "Reshape":
            y = n.op(kind, [q, n.i64(*draw(st.permutations([shape[0], shape[1] * shape[2], shape[3]])))])
        case "Flatten":
            y = n.op(kind, [q], axis=draw(st.integers(0, 4)))
        case "Transpose":
            y = n.op(kind, [q], perm=draw(st.permutations(range(4))))
        case "Squeeze":
            q = n.op("Slice", [q, n.i64(0), n.i64(1), n.i64(2)])
            y = n.op(kind, [q, n.i64(2)])
        case "Unsqueeze":
            y = n.op(kind, [n.op("Squeeze", [n.op("Slice", [q, n.i64(0), n.i64(1), n.i64(1)]), n.i64(1)]), n.i64(0)])
        case "Expand":
            q = n.op("Slice", [q, n.i64(0), n.i64(1), n.i64(1)])
            y = n.op(kind, [q, n.i64(shape[0], 3, shape[2], shape[3])])
        case "Tile":
            y = n.op(kind, [q, n.i64(*(draw(st.integers(1, 2)) for _ in range(4)))])
        case "Slice":
            axis = draw(st.integers(0, 3))
            step = draw(st.sampled_from([1, 2, 3, -1, -2, -3]))
            start = draw(st.integers(0, shape[axis] - 1))
            end = 99 if step > 0 else -99
            y = n.op(kind, [q, n.i64(start), n.i64(end), n.i64(axis - draw(st.sampled_from([0, 4]))), n.i64(step)])
        case "Pad":
            mode = draw(st.sampled_from(["constant", "edge", "reflect"]))
            least = [min(2, d - 1) if mode == "reflect" else 2 for d in shape]
            pads = [draw(st.integers(0, m)) for m in least * 2]
            if mode != "reflect" and shape[3] > 1:
                pads[7] = -1  # crops
            y = n.op(kind, [q, n.i64(*pads)], mode=mode)
        case "Split":
            axis = draw(st.integers(0, 3))
            q = n.op("Tile", [q, n.i64(*(3 if i == axis else 1 for i in range(4)))])
            first, second = draw(st.integers(1, shape[axis])), draw(st.integers(1, shape[axis]))
            sizes = [first, second, 3 * shape[axis] - first - second]
            y, *others = n.ops(kind, [q, n.i64(*sizes)], 3, axis=axis)
            for other in others:
                n.output(n.qdq(other, *xq))
        case "Gather":
            axis = draw(st.integers(0, 3))
            first, last = (draw(st.integers(0, shape[axis] - 1)) for _ in range(2))
            step = draw(st.integers(1, 3)) * (1 if last >= first else -1)
            listed = np.arange(first, last + np.sign(step), step, dtype=np.int64)
            y = n.op(kind, [q, n.const(draw(st.sampled_from([listed, listed[:1].reshape(())])))], axis=axis)
        case "SpaceToDepth":
            size = draw(st.integers(1, 3))
            y = n.op(kind, [n.op("Tile", [q, n.i64(1, 1, size, size)])], blocksize=size)
        case "DepthToSpace":
            size = draw(st.integers(1, 3))
            q = n.op("Tile", [q, n.i64(1, size * size, 1, 1)])
            y = n.op(kind, [q], blocksize=size, mode=draw(st.sampled_from(["DCR", "CRD"])))
        case _:
            y = n.op(kind, [q])
    check(n, y, xq, seed, limit=0.001)


@few
@given(data=st.data(), seed=seeds, xq=scale_zeros)
def test_gather_by_a_list_without_a_common_step(data: st.DataObject, seed: int, xq: ScaleZero) -> None:
    shape = [data.draw(st.integers(1, 5)) for _ in range(data.draw(st.integers(1, 4)))]
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    of = data.draw(st.lists(st.integers(-shape[axis], shape[axis] - 1), min_size=1, max_size=6))
    listed = np.array(of, np.int64).reshape(data.draw(st.sampled_from([(-1,), (1, -1), (-1, 1)])))
    n = Net()
    y = n.op("Gather", [n.qdq(n.input(shape), *xq), n.const(listed)], axis=axis)
    check(n, y, xq, seed, limit=0.001)


@few
@given(data=st.data(), seed=seeds, xq=scale_zeros, table=st.booleans())
@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("profile", ["INT", "INT+FP"])
def test_gather_by_indices_that_only_a_run_tells(
    kind: str, profile: str, data: st.DataObject, seed: int, xq: ScaleZero, table: bool
) -> None:
    """An embedding, or rows of an activation; the host counts indices from the end anew, and the lookup is TOSA's."""
    shape = [data.draw(st.integers(1, 5)) for _ in range(data.draw(st.integers(1, 4)))]
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    rng = np.random.default_rng(seed)
    n = Net()
    x = n.weight(rng.integers(-127, 128, shape).astype(np.int8), xq[0]) if table else n.qdq(n.input(shape), *xq)
    indices = n.input([data.draw(st.integers(1, 3)) for _ in range(data.draw(st.integers(0, 2)))], kind)
    y = n.qdq(n.op("Gather", [x, indices], axis=axis), xq[0], 0 if table else xq[1])
    n.output(n.qdq(n.op("Sigmoid", [y]), 1 / 256, -128))  # without work for it the accelerator is not called
    model = n.model()
    lowered = lower(model, profile)
    assert not lowered.not_lowered
    assert [p.kind for p in lowered.partitions] == ["host", "tosa"]
    feed = {
        v.name: rng.normal(size=shape_of(v)).astype(np.float32) * 3
        if v.name != indices
        else rng.integers(-shape[axis], shape[axis], shape_of(v)).astype(kind)
        for v in model.graph.input
    }
    three_ways(model, feed, profile, lsb=1 / 256)


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), seed=seeds, xq=scale_zeros, same=st.booleans())
def test_resize(data: st.DataObject, seed: int, xq: ScaleZero, same: bool) -> None:
    draw = data.draw
    mode = draw(st.sampled_from(["nearest", "linear"]))
    shape = [1, draw(st.integers(1, 3)), draw(st.integers(2, 6)), draw(st.integers(2, 6))]
    factors = [draw(st.sampled_from([2.0, 3.0, 4.0, 0.5])) for _ in range(2)]
    if any(int(s * f) < 1 for s, f in zip(shape[2:], factors, strict=True)):
        return
    n = Net()
    x = n.qdq(n.input(shape), *xq)
    y = n.op(
        "Resize", [x, "", n.const(np.array([1, 1, *factors], np.float32))], mode=mode,
        coordinate_transformation_mode=draw(
            st.sampled_from(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
        ),
        nearest_mode=draw(st.sampled_from(["floor", "round_prefer_floor"])),
    )  # fmt: skip
    n.output(n.qdq(y, *(xq if same else (xq[0] * 1.3, 5))))
    lowered = lower(n.model())
    if lowered.not_lowered:  # a form that TOSA does not have: refused with that reason, never approximated
        assert "TOSA has no" in lowered.not_lowered[0].reason
        return
    n.outputs.pop()
    check(n, y, xq if same else (xq[0] * 1.3, 5), seed)


@pytest.mark.parametrize("value", [-np.inf, np.inf, 0.123, 50.0])
@pytest.mark.parametrize("pooled", [False, True])
def test_pad_with_what_the_input_has_no_integer_for(value: float, pooled: bool) -> None:
    """Minus infinity before a MaxPool, say: rounded and saturated as the quantizer behind it does."""
    n = Net()
    x = n.qdq(n.input([1, 2, 5, 5]), 0.05, 3)
    y = n.op("Pad", [x, n.i64(0, 0, 1, 1, 0, 0, 1, 1), n.f32(value)])
    if pooled:
        y = n.op("MaxPool", [y], kernel_shape=[3, 3])
    check(n, y, (0.06, -5), 0)


def test_pad_with_what_is_no_number() -> None:
    n = Net()
    y = n.op("Pad", [n.qdq(n.input([1, 2, 5, 5]), 0.05, 3), n.i64(0, 0, 1, 1, 0, 0, 1, 1), n.f32(np.nan)])
    n.output(n.qdq(y, 0.05, 3))
    assert [r.reason for r in lower(n.model()).not_lowered] == ["it pads with what is not a number"]
