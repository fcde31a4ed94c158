"""Linear upsampling of images by ``Resize``, as two products with constant matrices.

Along one axis each result is the weighted mean of two neighbors: a row of a matrix that follows from the sizes. With
one matrix for rows and one for columns, ``Y = A X B^T``. The kernel of ``Resize`` gathers four numbers for each result;
products are what kernels are fastest at, but most of their factors are zeros: ``W + H W / W'`` of them for each result
of ``H x W`` enlarged to ``H' x W'``. So they pay for small images alone; how small, and who may read the result, is the
target's to say (:class:`Worth`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import Steps, constant_of, is_standard, replace_each

FIRST_OPSET = 11  # the first one in which `Resize` takes sizes and names its coordinates

TO_THE_END = frozenset(
    {
        "Add", "ArgMax", "Cast", "Clip", "Concat", "Div", "Flatten", "LogSoftmax", "Mul", "Relu", "Reshape", "Sigmoid",
        "Slice", "Softmax", "Squeeze", "Sub",
    }
)  # fmt: skip
"""What stands between the last upsampling of a model and its outputs, and leaves rows of pixels as they are."""

_PLAIN = {"antialias": 0, "exclude_outside": 0, "keep_aspect_ratio_policy": "stretch"}


@dataclass(frozen=True)
class Worth:
    """Where two products take less time than a ``Resize`` on a target."""

    products: float  # most multiplications for each result, of many channels
    # how many more of few channels, over the square of their number: what `Resize` does once for all of them weighs
    # more then
    of_few: float = 0.0
    scale: float = 1.0  # least factor by which both axes grow
    # operators that may read the result, and theirs in turn, to the outputs of the model; None for all
    readers: frozenset[str] | None = None
    few: int = 0  # up to so many channels neither `scale` nor `readers` counts


@dataclass(frozen=True)
class _Axis:
    """Elements before and after, and the scale that positions are computed with."""

    size: int
    results: int
    scale: float


def multiply_upsampling(model: ir.Model, worth: Worth) -> tuple[ir.Model, int]:
    """Rewrite each float32 ``Resize`` that enlarges images of known size linearly, where that is worth it."""
    if model.graph.opset_imports.get("", 1) < FIRST_OPSET:
        return model, 0
    return replace_each(model, "Resize", partial(_replace, worth), _is_plain)


def interpolation(size: int, results: int, scale: float, coordinates: str) -> np.ndarray:
    """The matrix, float64 of shape ``(results, size)``, of linear interpolation along one axis.

    ``Resize`` of the ONNX operators (opset 19) gives for each ``coordinate_transformation_mode`` the position between
    elements; the two next to it count by how near they are, and those beyond an end are the element at that end.

    Args:
        scale: as given, or ``results / size``.
        coordinates: a key of ``_POSITIONS``.
    """
    at = _POSITIONS[coordinates](np.arange(results, dtype=np.float64), _Axis(size, results, scale))
    at = np.clip(at, 0, size - 1)
    low = np.floor(at).astype(np.int64)
    matrix = np.zeros((results, size))
    np.add.at(matrix, (np.arange(results), low), 1 - (at - low))
    np.add.at(matrix, (np.arange(results), np.minimum(low + 1, size - 1)), at - low)
    return matrix


def _half_pixel(at: np.ndarray, axis: _Axis) -> np.ndarray:
    return (at + 0.5) / axis.scale - 0.5


_POSITIONS: dict[str, Callable[[np.ndarray, _Axis], np.ndarray]] = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": lambda at, axis: _half_pixel(at, axis) if axis.results > 1 else at * 0,
    "half_pixel_symmetric": lambda at, axis: (
        _half_pixel(at, axis) + axis.size / 2 * (1 - axis.results / (axis.scale * axis.size))
    ),
    "align_corners": lambda at, axis: at * (axis.size - 1) / (axis.results - 1) if axis.results > 1 else at * 0,
    "asymmetric": lambda at, axis: at / axis.scale,
}


def _coordinates(node: ir.Node) -> str:
    return node.attributes.get_string("coordinate_transformation_mode", "half_pixel") or ""


def _is_plain(node: ir.Node) -> bool:
    """Whether a ``Resize`` is linear, with plain weights and no axes of its own; its sizes are not looked at."""
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    if given.get("mode") != "linear" or "axes" in given or _coordinates(node) not in _POSITIONS:
        return False
    return all(given.get(name, plain) == plain for name, plain in _PLAIN.items())


def _replace(worth: Worth, node: ir.Node, x: ir.Value, steps: Steps) -> bool:
    found = _image(node, x)
    if found is None or not _pays(worth, node, *found):
        return False
    _, rows, columns = found
    matrices = [interpolation(a.size, a.results, a.scale, _coordinates(node)) for a in (rows, columns)]
    steps.replace(_products(x, steps, *matrices))
    return True


def _image(node: ir.Node, x: ir.Value) -> tuple[int, _Axis, _Axis] | None:
    """Channels, rows and columns of what is enlarged; None where it is no image, or sizes are not known."""
    if x.shape is None or len(x.shape) != 4:
        return None
    batch, channels, height, width = x.shape
    if not (isinstance(channels, int) and isinstance(height, int) and isinstance(width, int)):
        return None
    given = [constant_of(v) for v in node.inputs[2:4]]
    lists = [[] if array is None else array.ravel().tolist() for array in (*given, None, None)]
    scales, sizes = lists[0], lists[1]
    if len(sizes) == 4 and sizes[:2] == [batch, channels]:
        rows = _Axis(height, sizes[2], sizes[2] / max(height, 1))
        columns = _Axis(width, sizes[3], sizes[3] / max(width, 1))
    elif len(scales) == 4 and scales[:2] == [1, 1]:
        rows, columns = _scaled(height, scales[2]), _scaled(width, scales[3])
        if _coordinates(node) == "align_corners" and any(a.size * a.scale != a.results for a in (rows, columns)):
            return None  # where the last corner is then, implementations do not agree
    else:
        return None
    made = node.outputs[0].shape
    known = [] if made is None else [*zip(made[2:], (rows.results, columns.results), strict=True)]
    return None if any(isinstance(d, int) and d != n for d, n in known) else (channels, rows, columns)


def _scaled(size: int, scale: float) -> _Axis:
    """By the rule of ``Resize``, which multiplies in float32."""
    return _Axis(size, math.floor(np.float32(size) * np.float32(scale)), scale)


def _pays(worth: Worth, node: ir.Node, channels: int, rows: _Axis, columns: _Axis) -> bool:
    growth = [a.results / max(a.size, 1) for a in (rows, columns)]
    if min(rows.size, columns.size, channels) < 1 or min(growth) < 1 or max(growth) == 1:
        return False
    if min(_rows_first(rows, columns), _rows_first(columns, rows)) > worth.products + worth.of_few / channels**2:
        return False
    if channels <= worth.few:
        return True
    return min(growth) >= worth.scale and (worth.readers is None or _is_read_by(node.outputs[0], worth.readers))


def _rows_first(first: _Axis, second: _Axis) -> float:
    """Multiplications for each result, with the product along ``first`` before the other one."""
    return first.size * second.size / second.results + second.size


def _is_read_by(value: ir.Value, readers: frozenset[str]) -> bool:
    """Whether all that follows from ``value`` is computed by these operators."""
    seen, left = set[ir.Node](), [value]
    while left:
        found = {use.node for use in left.pop().uses()} - seen
        if not all(is_standard(n, *readers) for n in found):
            return False
        seen |= found
        left += [v for n in found for v in n.outputs]
    return True


def _products(x: ir.Value, steps: Steps, rows: np.ndarray, columns: np.ndarray) -> ir.Value:
    """The products that multiply less first: those along rows, where it makes no difference."""
    assert x.shape is not None
    (high, height), (wide, width) = rows.shape, columns.shape
    left, right = steps.constant("rows", rows), steps.constant("columns", np.ascontiguousarray(columns.T))
    if height * width / wide + width <= width * height / high + height:
        half = steps.add("MatMul", [left, x], "half")
        half.shape = ir.Shape([*x.shape[:2], high, width])
        return steps.add("MatMul", [half, right])
    half = steps.add("MatMul", [x, right], "half")
    half.shape = ir.Shape([*x.shape[:2], height, wide])
    return steps.add("MatMul", [left, half])
