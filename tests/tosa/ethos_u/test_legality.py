"""Ethos-U55's limits against Vela itself: it rejects what the table forbids, and compiles what the table allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ethosu", reason="the extra arm is not installed")

from inlay.errors import CompileFailed
from inlay.tosa import ir
from inlay.tosa.ethos_u import vela
from inlay.tosa.ethos_u.rules import legality_for
from inlay.tosa.ir import Array
from inlay.tosa.rescale import multiplier_and_shift
from inlay.tosa.serialize import serialize

U55 = vela.Accelerator.of("ethos-u55-128")


Graph = tuple[list[ir.Op], dict[str, ir.Tensor], dict[str, Array]]


def graph(
    kind: type[ir.Op],
    shape: tuple[int, ...],
    out: tuple[int, ...],
    constants: Sequence[Array] = (),
    out_dtype: str = "int8",
    **attributes: Any,
) -> Graph:
    """One operator; an int32 result gets a RESCALE, as the lowering always gives it."""
    tensors = {
        "x": ir.Tensor("x", "int8", shape),
        "y": ir.Tensor("y", out_dtype, out),
        "z": ir.Tensor("z", "int8", out),
    }
    arrays = {f"c{i}": c for i, c in enumerate(constants)}
    tensors.update({n: ir.Tensor(n, c.dtype.name, c.shape) for n, c in arrays.items()})
    ops: list[ir.Op] = [kind(source="n", inputs=("x", *arrays), outputs=("y",), **attributes)]
    if out_dtype == "int32":
        ops.append(ir.Rescale(source="n", inputs=("y",), outputs=("z",), multiplier=(1 << 30,), shift=(38,)))
    return ops, tensors, arrays


def conv(stride: int = 1, kernel: tuple[int, int] = (3, 3), size: int = 12) -> Graph:
    out = tuple((s - k) // stride + 1 for s, k in zip((size, size), kernel, strict=True))
    arrays = (np.ones((4, 4, *kernel), np.int8), np.zeros(4, np.int32))
    return graph(
        ir.Conv2d,
        (1, 4, size, size),
        (1, 4, *out),
        arrays,
        "int32",
        pads=(0, 0, 0, 0),
        strides=(stride, stride),
        dilations=(1, 1),
    )


def transpose_conv(stride: int) -> Graph:
    side = 5 * stride + 3
    arrays = (np.ones((4, 4, 3, 3), np.int8), np.zeros(4, np.int32))
    return graph(
        ir.TransposeConv2d,
        (1, 4, 6, 6),
        (1, 4, side, side),
        arrays,
        "int32",
        out_pads=(0, 0, 0, 0),
        strides=(stride, stride),
    )


def pool(kind: type[ir.Op], stride: int = 1, kernel: int = 3, pads: int = 0) -> Graph:
    out = (16 + 2 * pads - kernel) // stride + 1
    return graph(
        kind, (1, 4, 16, 16), (1, 4, out, out), kernel=(kernel, kernel), strides=(stride, stride), pads=(pads,) * 4
    )


def resize(up: int, mode: str = "nearest", offset: int | None = None) -> Graph:
    n, d = 2 * up, 2
    offset = (d - n) // 2 if offset is None else offset
    border = (6 * up - 1) * d + offset - 5 * n
    return graph(
        ir.Resize, (1, 4, 6, 6), (1, 4, 6 * up, 6 * up), (), "int8" if mode == "nearest" else "int32",
        mode=mode, scale=(n, d, n, d), offset=(offset, offset), border=(border, border),
    )  # fmt: skip


def reverse(axis: int) -> Graph:
    return graph(ir.Reverse, (1, 4, 6, 6), (1, 4, 6, 6), axis=axis)


def gather() -> Graph:
    return graph(ir.Gather, (1, 9, 16), (1, 5, 16), [np.array([[8, 0, 0, 3, 1]], np.int32)])


CASES = {
    "conv": (conv(), True),
    "conv stride 3": (conv(3, size=12), True),
    "conv stride 4": (conv(4, size=11), True),
    "conv 64 rows": (conv(kernel=(64, 3), size=70), True),
    "conv 65 rows": (conv(kernel=(65, 3), size=70), True),
    "transposed conv stride 2": (transpose_conv(2), True),
    "transposed conv stride 3": (transpose_conv(3), False),
    "max pool stride 3": (pool(ir.MaxPool, 3, 4), True),
    "max pool stride 4": (pool(ir.MaxPool, 4, 4), True),
    "average pool": (pool(ir.AvgPool, 1, 3, 1), True),
    "average pool, padded window of 9": (pool(ir.AvgPool, 1, 9, 1), False),
    "nearest 2x": (resize(2), True),
    "nearest 4x": (resize(4), True),
    "nearest 2x, corners": (resize(2, offset=0), False),
    "bilinear 2x": (resize(2, "bilinear"), False),
    "reverse rows": (reverse(2), True),
    "reverse columns": (reverse(3), True),
    "reverse channels": (reverse(1), False),
    "gather": (gather(), False),
}


@pytest.mark.parametrize("name", CASES)
def test_table_agrees_with_vela(name: str) -> None:
    (ops, tensors, constants), allowed = CASES[name]
    legality = legality_for("EthosU55")
    reasons = [r for op in ops if (r := legality(op, tensors, constants))]
    assert (not reasons) == allowed, reasons
    binary = serialize(ops, tensors, constants, ["x"], [ops[-1].out])
    if allowed:
        assert vela.estimate(binary.data, U55).cycles > 0
    else:
        with pytest.raises(CompileFailed):
            vela.estimate(binary.data, U55)
    # U85 takes all of it.
    assert legality_for("EthosU85")(ops[0], tensors, constants) is None
    assert vela.estimate(binary.data, vela.Accelerator.of("ethos-u85-256")).cycles > 0


def words(part: Any) -> Array:
    return np.frombuffer(bytes(getattr(part, "data", part)), np.uint32)


def output_scales(command_stream: Any) -> list[tuple[int, int]]:
    """(multiplier, shift) of each NPU_SET_OFM_SCALE in a command stream (cmd1 code 0x24: shift in the upper half)."""
    stream, at = words(command_stream), 0
    found: list[tuple[int, int]] = []
    while at < len(stream):
        word = int(stream[at])
        long = word >> 14 & 3 == 1
        if long and word & 0x3FF == 0x24:
            found.append((int(stream[at + 1]), word >> 16 & 63))
        at += 2 if long else 1
    return found


@pytest.mark.parametrize("factor", [0.25, 0.37, 3.0])
@pytest.mark.parametrize("name", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"])
def test_vela_supports_int32_to_int32_rescales(name: str, factor: float) -> None:
    """Reported elsewhere to give zeros. This version keeps multiplier and shift: in constants (U55, U65) or a register.

    The lowering emits no such RESCALE all the same (``tests.tosa.comparison.three_ways``).
    """
    shape = (1, 8, 8, 8)
    kinds = {"x": "int8", "wide": "int32", "scaled": "int32", "y": "int8"}
    tensors = {n: ir.Tensor(n, d, shape) for n, d in kinds.items()}
    (middle, shift), (last, last_shift) = (multiplier_and_shift(f) for f in (factor, 0.7))
    ops = [
        ir.Rescale(source="a", inputs=("x",), outputs=("wide",), multiplier=(1 << 30,), shift=(30,), in_zp=3),
        ir.Rescale(source="b", inputs=("wide",), outputs=("scaled",), multiplier=(middle,), shift=(shift,)),
        ir.Rescale(source="c", inputs=("scaled",), outputs=("y",), multiplier=(last,), shift=(last_shift,), out_zp=5),
    ]
    binary = serialize(ops, tensors, {}, ["x"], ["y"])
    compiled = vela.compile_raw(binary.data, vela.Accelerator.of(name))
    scales = output_scales(compiled.command_stream)
    assert shift in [s for _, s in scales]
    constants = set(words(compiled.read_only).tolist())
    assert middle in constants | {m for m, _ in scales}
