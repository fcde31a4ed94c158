"""The integer graph computed in numpy: an exact oracle, independent of the TOSA reference model.

Integer operators are computed in int64 and checked against the width that the hardware has, so a result is exact or
an error, never wrapped. Formulas: TOSA 1.0 specification, pseudocode of each operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from inlay.errors import RunFailed
from inlay.quant.qparams import dequantize, quantize
from inlay.tosa import ir, rescale
from inlay.tosa.ir import Array, Executor, Op, Tensor
from inlay.types import QParams

Tensors = Mapping[str, Tensor]


def compute(ops: Iterable[Op], values: dict[str, Array], tensors: Tensors) -> None:
    """Compute ``ops`` in turn, from and into ``values`` by tensor name.

    Raises:
        RunFailed: an accumulator overflows int32.
    """
    for op in ops:
        values[op.out] = evaluate(op, [values[name] for name in op.inputs], tensors)


def evaluate(op: Op, args: Sequence[Array], tensors: Tensors) -> Array:
    """One operator's output; ``tensors`` holds at least its own inputs and output."""
    out = tensors[op.out]
    if isinstance(op, _NOT_WIDENED) or op.executor is not Executor.TOSA:
        return np.asarray(_FUNCTIONS[type(op)](op, args, tensors)).astype(out.dtype, copy=False)
    wide = [a.astype(np.int64) if a.dtype.kind in "iu" else a for a in args]
    result = _FUNCTIONS[type(op)](op, wide, tensors)
    saturated = isinstance(op, ir.Rescale) and out.dtype != "int32"
    if out.dtype in _LIMITS and result.size and not saturated:
        low, high = _LIMITS[out.dtype]
        if int(result.min()) < low or int(result.max()) > high:
            raise RunFailed(f"{op.source}: {type(op).__name__} leaves {out.dtype} ({result.min()} … {result.max()})")
    return result.astype(out.dtype)


_FLOAT32_EXACT = 1 << 24  # largest magnitude up to which float32 holds every integer (24-bit significand)
_UNROLLED_ELEMENTS = 1 << 22  # elements of unrolled convolution windows in memory at a time: 16 MiB in float32

_LIMITS = {
    "int8": (-128, 127),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint8": (0, 255),
    "int32": (-(1 << 31), (1 << 31) - 1),
}


def _windows(x: Array, kernel: tuple[int, int], strides: tuple[int, int], dilations: tuple[int, int]) -> Array:
    """All windows of x[N,C,H,W] as a view [N,C,OH,OW,kh,kw]."""
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    view: Array = np.lib.stride_tricks.sliding_window_view(x, reach, axis=(2, 3))  # type: ignore[call-overload]
    return view[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]


def _padded(x: Array, pads: tuple[int, int, int, int], value: float) -> Array:
    top, bottom, left, right = pads
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)


def _conv2d(op: ir.Conv2d, args: Sequence[Array], tensors: Tensors) -> Array:
    x, w, b = args
    if x.dtype.kind != "f":
        return _integer_conv2d(op, x, w, b, tensors)
    acc = _convolved(op, _padded(x - op.in_zp, op.pads, 0), w - op.w_zp, tensors[op.out].dims)
    return np.asarray(acc + b.reshape(1, -1, 1, 1))


def _integer_conv2d(op: ir.Conv2d, x: Array, w: Array, b: Array, tensors: Tensors) -> Array:
    """Exact int32 sums by a float matrix product, which numpy hands to BLAS (it has none for integers).

    Every partial sum of a channel is an integer of at most Σ|w|·max|x − zp|: float32 holds it exactly up to 2^24,
    float64 up to 2^53, in whatever order it is summed.
    """
    limits = np.iinfo(x.dtype)
    wide = w.astype(np.int64) - op.w_zp
    largest = max(limits.max - op.in_zp, op.in_zp - limits.min)
    bound = int(np.abs(wide).sum(axis=(1, 2, 3)).max(initial=0)) * largest
    kind = np.float32 if bound <= _FLOAT32_EXACT else np.float64
    # Padding reads the input's zero point, so that it adds nothing.
    real = np.asarray(np.subtract(x, op.in_zp, dtype=kind))
    acc = _convolved(op, _padded(real, op.pads, 0), wide.astype(kind), tensors[op.out].dims)
    total = acc.astype(np.int64)
    total += b.astype(np.int64).reshape(1, -1, 1, 1)
    if bound + int(np.abs(b.astype(np.int64)).max(initial=0)) >= 1 << 31:
        low, high = _LIMITS["int32"]
        if int(total.min()) < low or int(total.max()) > high:
            raise RunFailed(f"{op.source}: Conv2d leaves int32 ({total.min()} … {total.max()})")
    return total


def _convolved(op: ir.Conv2d, x: Array, w: Array, shape: tuple[int, ...]) -> Array:
    """Products of a padded x[N,C,H,W] and w, summed over windows, without the bias."""
    n, out, oh, ow = shape
    channels = x.shape[1]
    acc = np.zeros(shape, x.dtype)
    if op.depthwise:
        for i in range(w.shape[2]):
            for j in range(w.shape[3]):
                y, z = i * op.dilations[0], j * op.dilations[1]
                rows = slice(y, y + (oh - 1) * op.strides[0] + 1, op.strides[0])
                columns = slice(z, z + (ow - 1) * op.strides[1] + 1, op.strides[1])
                part = x[:, :, rows, columns]
                acc += (part[:, :, None] * w[:, 0, i, j].reshape(1, channels, -1, 1, 1)).reshape(shape)
        return acc
    windows = _windows(x, (w.shape[2], w.shape[3]), op.strides, op.dilations)
    matrix = w.reshape(out, -1)
    step = max(1, _UNROLLED_ELEMENTS // max(1, n * matrix.shape[1] * ow))
    for top in range(0, oh, step):
        unrolled = windows[:, :, top : top + step].transpose(0, 1, 4, 5, 2, 3)
        part = np.matmul(matrix, unrolled.reshape(n, matrix.shape[1], -1))
        acc[:, :, top : top + step] = part.reshape(n, out, -1, ow)
    return acc


def _transpose_conv2d(op: ir.TransposeConv2d, args: Sequence[Array], tensors: Tensors) -> Array:
    x, w, b = args
    x, w = x - op.in_zp, w - op.w_zp
    n, _, oh, ow = tensors[op.out].dims
    kh, kw = w.shape[2:]
    top, _, left, _ = op.out_pads
    full = np.zeros(
        (n, w.shape[0], (x.shape[2] - 1) * op.strides[0] + kh, (x.shape[3] - 1) * op.strides[1] + kw), x.dtype
    )
    for i in range(kh):
        for j in range(kw):
            part = np.einsum("nchw,oc->nohw", x, w[:, :, i, j])
            full[
                :,
                :,
                i : i + part.shape[2] * op.strides[0] : op.strides[0],
                j : j + part.shape[3] * op.strides[1] : op.strides[1],
            ] += part
    acc = np.zeros((n, w.shape[0], oh, ow), x.dtype)
    ys, xs = np.arange(oh) - top, np.arange(ow) - left
    inside_y, inside_x = (ys >= 0) & (ys < full.shape[2]), (xs >= 0) & (xs < full.shape[3])
    acc[:, :, inside_y[:, None] & inside_x[None, :]] = full[:, :, ys[inside_y]][:, :, :, xs[inside_x]].reshape(
        n, w.shape[0], -1
    )
    return np.asarray(acc + b.reshape(1, -1, 1, 1))


def _rescale(op: ir.Rescale, args: Sequence[Array], tensors: Tensors) -> Array:
    x, out = args[0], tensors[op.out]
    along = [1] * x.ndim
    if op.axis is not None:
        along[op.axis] = -1
    multiplier, shift = np.array(op.multiplier).reshape(along), np.array(op.shift).reshape(along)
    if op.axis is None:
        multiplier, shift = multiplier.reshape(()), shift.reshape(())
    low, high = _LIMITS[out.dtype]
    # The sum with the zero point saturates in every output type but int32, where TOSA requires that it fits.
    result = rescale.apply(x - op.in_zp if op.in_zp else x, multiplier, shift)
    result += op.out_zp
    return result if out.dtype == "int32" else np.clip(result, low, high, out=result)


def _binary(op: ir.Binary, args: Sequence[Array], _: Tensors) -> Array:
    a, b = args
    if op.fn == "shr":
        return np.where(b > 0, (a + (1 << np.maximum(b - 1, 0))) >> b, a)
    if op.fn == "shl":
        return a << b
    return np.asarray(_BINARY[op.fn](a, b))


_BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "pow": np.power,
}


def _unary(op: ir.Unary, args: Sequence[Array], _: Tensors) -> Array:
    x = args[0]
    if op.fn == "clz":
        return 31 - np.where(x > 0, np.floor(np.log2(np.maximum(x, 1).astype(np.float64))), -1).astype(np.int64)
    return np.asarray(_UNARY[op.fn](x))


def _erf(x: Array) -> Array:
    from scipy import special

    return np.asarray(special.erf(x))


_UNARY: Mapping[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "reciprocal": lambda x: 1 / x,
    "abs": np.abs,
    "negate": np.negative,
    "ceil": np.ceil,
    "floor": np.floor,
    "erf": _erf,
}


def _max_pool(op: ir.MaxPool, args: Sequence[Array], _: Tensors) -> Array:
    lowest = -np.inf if args[0].dtype.kind == "f" else np.iinfo(args[0].dtype).min
    windows = _windows(_padded(args[0], op.pads, lowest), op.kernel, op.strides, (1, 1))
    # Tap by tap: a reduction over the small inner axes of a strided view is many times slower.
    result = windows[..., 0, 0].copy()
    for i in range(op.kernel[0]):
        for j in range(op.kernel[1]):
            np.maximum(result, windows[..., i, j], out=result)
    return result


def _avg_pool(op: ir.AvgPool, args: Sequence[Array], _: Tensors) -> Array:
    x = args[0] - op.in_zp
    ones = _padded(np.ones((1, 1, *x.shape[2:]), np.int64), op.pads, 0)
    counts = _windows(ones, op.kernel, op.strides, (1, 1)).sum(axis=(4, 5))
    sums = _windows(_padded(x, op.pads, 0), op.kernel, op.strides, (1, 1)).sum(axis=(4, 5))
    if x.dtype.kind == "f":
        return np.asarray(sums / counts.astype(x.dtype))
    multiplier, shift = np.vectorize(rescale.reciprocal, otypes=[np.int64, np.int64])(counts)
    return np.asarray(np.clip(rescale.apply(sums, multiplier, shift) + op.out_zp, -128, 127))


def _resize(op: ir.Resize, args: Sequence[Array], tensors: Tensors) -> Array:
    x = args[0]
    oh, ow = tensors[op.out].dims[2:]
    (ny, dy, nx, dx), (offset_y, offset_x) = op.scale, op.offset
    low_y, high_y, part_y = _positions(oh, x.shape[2], ny, dy, offset_y)
    low_x, high_x, part_x = _positions(ow, x.shape[3], nx, dx, offset_x)
    if op.mode == "nearest":
        rows, columns = np.where(2 * part_y >= ny, high_y, low_y), np.where(2 * part_x >= nx, high_x, low_x)
        return np.asarray(x[:, :, rows][:, :, :, columns])
    if x.dtype.kind == "f":
        py, px = (part_y / ny).astype(x.dtype)[:, None], (part_x / nx).astype(x.dtype)
        ny = nx = 1
    else:
        py, px = part_y[:, None], part_x
    upper = x[:, :, low_y][:, :, :, low_x] * (nx - px) + x[:, :, low_y][:, :, :, high_x] * px
    lower = x[:, :, high_y][:, :, :, low_x] * (nx - px) + x[:, :, high_y][:, :, :, high_x] * px
    return np.asarray(upper * (ny - py) + lower * py)


def _positions(size: int, limit: int, n: int, d: int, offset: int) -> tuple[Array, Array, Array]:
    """Lower and upper source index, and the remainder in units of 1/n, of each output index."""
    at = np.arange(size, dtype=np.int64) * d + offset
    low = at // n
    return np.clip(low, 0, limit - 1), np.clip(low + 1, 0, limit - 1), at - low * n


def _cast(op: ir.Cast, args: Sequence[Array], tensors: Tensors) -> Array:
    dtype = tensors[op.out].dtype
    if args[0].dtype.kind == "f" and dtype in _LIMITS:
        return np.clip(np.rint(args[0].astype(np.float64)), *_LIMITS[dtype])
    return args[0]


def _qparams(tensor: Tensor) -> QParams:
    if tensor.qparams is None:
        raise RunFailed(f"{tensor.name!r} has no quantization parameters")
    return tensor.qparams


_NOT_WIDENED = (*ir.DATA_MOVEMENT, ir.Conv2d, ir.Clamp, ir.Select, ir.Table, ir.MaxPool)
"""Computed in the type of their inputs: they cannot overflow, or check it themselves."""

_FUNCTIONS: Mapping[type[Op], Callable[[Any, Sequence[Array], Tensors], Array]] = {
    ir.Conv2d: _conv2d,
    ir.TransposeConv2d: _transpose_conv2d,
    ir.MatMul: lambda op, args, _: np.asarray((args[0] - op.a_zp) @ (args[1] - op.b_zp)),
    ir.Rescale: _rescale,
    ir.Clamp: lambda op, args, _: np.clip(args[0], op.low, op.high),
    ir.Table: lambda op, args, _: np.asarray(np.array(op.values, np.int64)[args[0].astype(np.int64) + 128]),
    ir.Binary: _binary,
    ir.Select: lambda op, args, _: np.where(args[0], args[1], args[2]),
    ir.Unary: _unary,
    ir.MaxPool: _max_pool,
    ir.AvgPool: _avg_pool,
    ir.Reduce: lambda op, args, _: np.asarray(getattr(args[0], op.fn)(axis=op.axis, keepdims=True)),
    ir.Concat: lambda op, args, _: np.concatenate(args, op.axis),
    ir.Slice: lambda op, args, _: args[0][tuple(slice(s, s + n) for s, n in zip(op.start, op.size, strict=True))],
    ir.Pad: lambda op, args, _: np.pad(args[0], op.pads, constant_values=op.value),
    ir.Reshape: lambda op, args, tensors: args[0].reshape(tensors[op.out].dims),
    ir.Transpose: lambda op, args, _: args[0].transpose(op.perm),
    ir.Tile: lambda op, args, _: np.tile(args[0], op.multiples),
    ir.Reverse: lambda op, args, _: np.flip(args[0], op.axis),
    ir.RowNumbers: lambda op, args, _: args[0] % op.size,
    ir.Gather: lambda op, args, _: np.take_along_axis(args[0], args[1][:, :, np.newaxis], axis=1),
    ir.Resize: _resize,
    ir.Cast: _cast,
    ir.Quantize: lambda op, args, tensors: quantize(args[0], _qparams(tensors[op.out])),
    ir.Dequantize: lambda op, args, tensors: dequantize(args[0], _qparams(tensors[op.inputs[0]])),
}
