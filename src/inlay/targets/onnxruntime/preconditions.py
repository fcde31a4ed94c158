"""What ONNX Runtime's QDQ selectors ask for before they fuse ``DQ -> op -> Q`` into an integer kernel, as a table.

Each row is proven by a model with that fault alone, and one without it, in ``tests/explanation/test_preconditions.py``.
A float weight or bias of Conv is no fault: the runtime quantizes it by itself.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from inlay.quant.qdq_fixes import make_unsigned, one_scale, product_scale, requantize_bias, set_grid
from inlay.quant.site import Grid, Read, Result, Site, grid_of, readers_behind
from inlay.targets.machine import is_x86
from inlay.targets.onnxruntime.rules import WRITTEN_AS
from inlay.targets.preconditions import (
    FLOAT_BIAS,
    FLOAT_INPUT,
    FLOAT_WEIGHT,
    NO_QUANTIZER,
    NOT_QUANTIZED,
    Precondition,
    cover_results,
    float_reader,
    is_graph_output,
    join_all,
    named,
    several_quantizers,
)

_LIMITS = {ir.DataType.UINT8: (0, 255), ir.DataType.INT8: (-128, 127)}
_SCALARS = frozenset({"Add", "Mul", "AveragePool"})
_BINARY = frozenset({"Add", "Mul", "Concat"})
_BIAS_RELATIVE, _BIAS_ABSOLUTE = 0.01, 1e-6  # how far the scale of Conv's bias may be off; of Gemm's nothing is asked
_SOURCE = "QDQ selectors, checked against 1.31.1"


def _clips(result: Result, grid: Grid) -> ir.Node | None:
    """The first activation before a Q whose bounds the limits of the quantized type do not imply."""
    if grid.dtype not in _LIMITS or grid.scale.size != 1:
        return result.absorbed[0] if result.absorbed else None
    scale, zero = float(grid.scale.reshape(-1)[0]), int(grid.zero.reshape(-1)[0])
    low, high = ((limit - zero) * scale for limit in _LIMITS[grid.dtype])
    for node in result.absorbed:
        least, most = _bounds(node)
        if low < least - 1e-6 * scale or high > most + scale:
            return node
    return None


def _bounds(node: ir.Node) -> tuple[float, float]:
    if node.op_type != "Clip":
        return 0.0, np.inf
    given = [None if v is None or v.const_value is None else v.const_value.numpy() for v in (*node.inputs, None, None)]
    least, most = given[1:3]
    return (
        -np.inf if least is None else float(np.asarray(least).reshape(-1)[0]),
        np.inf if most is None else float(np.asarray(most).reshape(-1)[0]),
    )


def _activation_remains(site: Site) -> str | None:
    for result in site.results:
        for q in result.quantizers[:1]:
            grid = grid_of(q)
            node = None if grid is None else _clips(result, grid)
            if grid is not None and node is not None:
                least = _LIMITS.get(grid.dtype, (0,))[0]
                zero = int(grid.zero.reshape(-1)[0])
                what = f"zero point {zero} of {q.name} is not {least}" if zero != least else f"{q.name} exceeds it"
                return f"{named(node)} cannot be left out before the Q: {what}"
    return None


def _imply_activation(site: Site) -> None:
    for result in site.results:
        for q in result.quantizers:
            grid = grid_of(q)
            if result.absorbed and grid is not None and grid.dtype in _LIMITS:
                least, most = _LIMITS[grid.dtype]
                tops = [_bounds(n)[1] for n in result.absorbed]
                scale = min([float(grid.scale.max()), *(t / (most - least) for t in tops if np.isfinite(t))])
                set_grid(q, grid.dtype, np.asarray(scale), np.asarray(least))


def _grids(site: Site) -> Iterator[tuple[ir.Node, Grid]]:
    """Q and DQ nodes of activations, with their grids."""
    reads = [r.quantizer or r.dequantizer for r in site.activations]
    for node in (*(n for n in reads if n is not None), *(q for r in site.results for q in r.quantizers)):
        grid = grid_of(node)
        if grid is not None:
            yield node, grid


def _by_channel(site: Site) -> Iterator[tuple[ir.Node, Grid]]:
    """Those that have several scales, of values that are computed: ModelOpt writes the Q of a weight as well."""
    for node, grid in _grids(site):
        value = node.inputs[0]
        if grid.scale.size > 1 and (value is None or value.const_value is None):
            yield node, grid


def _several_scales(site: Site) -> str | None:
    found = [f"{node.name} ({grid.scale.size})" for node, grid in _by_channel(site)]
    return f"kernels take one scale for a value, not several: {', '.join(dict.fromkeys(found))}" if found else None


def _make_single(site: Site) -> None:
    for node, grid in list(_by_channel(site)):
        one_scale(node, grid)


def _vectors(site: Site) -> Iterator[ir.Node]:
    """Q and DQ nodes of activations whose scale is no scalar."""
    return (node for node, grid in _grids(site) if grid.scale.ndim > 0)


def _no_scalar(site: Site) -> str | None:
    found = [str(n.name) for n in _vectors(site)]
    return f"the scale of {', '.join(dict.fromkeys(found))} is no scalar but has an axis" if found else None


def _make_scalars(site: Site) -> None:
    for node in list(_vectors(site)):
        grid = grid_of(node)
        if grid is not None:
            one_scale(node, grid)


def _output_axis(site: Site) -> int | None:
    """Axis of the output channels in the weight."""
    weight = site.weight
    shape = None if weight is None else weight.value.shape
    if site.node.op_type == "Conv":
        return 0
    if site.node.op_type == "Gemm":
        turned = site.node.attributes.get("transB")
        return 0 if turned is not None and turned.value else 1
    return None if shape is None else len(shape) - 1


def _wrong_axis(site: Site) -> str | None:
    grid = None if site.weight is None else site.weight.grid
    if grid is None or not grid.per_channel:
        return None
    axis, wanted = grid.axis, _output_axis(site)
    rank = len(site.weight.value.shape) if site.weight is not None and site.weight.value.shape is not None else 4
    axis = axis % rank
    if wanted is None or axis == wanted:
        return None
    return f"its weight has a scale for each index of axis {axis}, and not of axis {wanted}, that of the outputs"


def _one_weight_scale(site: Site) -> None:
    weight = site.weight
    if weight is not None and weight.dequantizer is not None and weight.grid is not None:
        one_scale(weight.dequantizer, weight.grid)


def _signed_branches(site: Site) -> Iterator[ir.Node]:
    around = [r.quantizer for r in site.activations] + [q for r in site.results for q in r.quantizers]
    for q in dict.fromkeys(q for q in around if q is not None):
        grid = grid_of(q)
        if grid is not None and grid.dtype is ir.DataType.INT8 and readers_behind(q) > 1:
            yield q


def _branching(site: Site) -> str | None:
    found = [f"{q.name} ({readers_behind(q)} readers)" for q in _signed_branches(site)]
    return f"int8 of several readers is not made uint8, which its kernel takes: {', '.join(found)}" if found else None


def _unsigned_branches(site: Site) -> None:
    for q in list(_signed_branches(site)):
        make_unsigned(q)


def _signed_constants(site: Site) -> list[Read]:
    found = [r for r in site.activations if r.is_constant and r.grid is not None]
    return [r for r in found if r.grid is not None and r.grid.dtype is ir.DataType.INT8]


def _mixed(site: Site) -> str | None:
    found = [f"{r.slot} ({r.name})" for r in _signed_constants(site)]
    return f"its constant input {', '.join(found)} is int8 beside uint8 activations" if found else None


def _unsigned_constants(site: Site) -> None:
    for read in _signed_constants(site):
        if read.dequantizer is not None:
            make_unsigned(read.dequantizer)


def _joined_add(site: Site) -> str | None:
    for result in site.results:
        if result.quantizers or result.is_output or len(result.floats) != 1 or len(result.value.uses()) != 1:
            continue
        (add,) = result.floats
        others = [v for v in add.inputs if v is not None and v is not result.value]
        if add.op_type == "Add" and any(v.const_value is not None for v in others):
            return f"the runtime joins it with {named(add)} into a Gemm, whose bias is float"
    return None


def _bias_grids(site: Site) -> tuple[Grid, np.ndarray] | None:
    """The grid of a quantized bias, and the scale of the products, where both are known."""
    grid, products = None if site.bias is None else site.bias.grid, product_scale(site)
    if grid is None or products is None or len({1, products.size, grid.scale.size}) > 2:
        return None
    return grid, products.reshape(-1)


def _other_bias(site: Site) -> str | None:
    found = _bias_grids(site)
    if found is None or site.bias is None:
        return None
    grid, products = found
    if grid.dtype is not ir.DataType.INT32:
        return f"its bias {site.bias.name} is {grid.dtype.name.lower()}, not int32"
    if site.node.op_type != "Conv":
        return None
    if grid.zero.any():
        return f"the zero point of its bias {site.bias.name} is not 0"
    scales = grid.scale.reshape(-1)
    off = np.abs(scales - products) > _BIAS_ABSOLUTE + _BIAS_RELATIVE * products
    if not off.any():
        return None
    at = int(np.argmax(off))
    scale, product = (float(np.broadcast_to(a, off.shape)[at]) for a in (scales, products))
    return f"its bias {site.bias.name} has scale {scale:.3g}, and not input's times weight's, {product:.3g}"


def _misread_bias(site: Site) -> str | None:
    found = _bias_grids(site)
    if found is None or site.bias is None or site.bias.dequantizer is None:
        return None
    grid, products = found
    stored = site.bias.dequantizer.inputs[0]
    if grid.dtype is not ir.DataType.INT32 or stored is None or stored.const_value is None:
        return None
    integers = np.asarray(stored.const_value.numpy()).astype(np.float64)
    said = (integers - grid.zero.reshape(-1)) * grid.scale.reshape(-1)
    off, largest = (float(np.abs(a).max(initial=0.0)) for a in (said - integers * products, said))
    if off < _least_error(site, largest):
        return None
    return (
        f"{named(site.node)} runs on integers and does not compute what the file says: the kernel reads its bias "
        f"{site.bias.name} at the scale of the products, which is off by up to {off:.3g} (its largest "
        f"value is {largest:.3g})"
    )


def _least_error(site: Site, largest: float) -> float:
    """Of a bias, that counts: a step of the result; where that is float, as much as the scale may be off elsewhere."""
    grids = [grid_of(q) for r in site.results for q in r.quantizers]
    steps = [float(g.scale.max()) for g in grids if g is not None and g.scale.size]
    return min(steps) if steps else _BIAS_RELATIVE * largest + _BIAS_ABSOLUTE


def _other_grids(site: Site) -> str | None:
    if not site.rule.moves_data or not site.activations or site.activations[0].grid is None:
        return None
    for result in site.results:
        for q in result.quantizers:
            grid = grid_of(q)
            if grid is not None and not grid.same(site.activations[0].grid):
                return f"it only moves elements, but {q.name} has another scale or zero point than its input"
    return None


def _same_grids(site: Site) -> None:
    given = site.activations[0].grid
    for result in site.results:
        for q in result.quantizers:
            if given is not None:
                set_grid(q, given.dtype, given.scale, given.zero)


def _own_form(site: Site) -> str:
    op_type = site.node.op_type
    return f"{op_type} has no integer kernel here: Inlay writes it as {WRITTEN_AS[op_type]}"


_ROWS = (
    Precondition("needs-rewrite", _own_form, None, "quantize it with inlay", ops=frozenset(WRITTEN_AS), alone=True),
    NOT_QUANTIZED,
    FLOAT_INPUT,
    FLOAT_WEIGHT,
    replace(FLOAT_BIAS, ops=frozenset({"Gemm"})),
    NO_QUANTIZER,
    Precondition(
        "joined-add",
        _joined_add,
        cover_results,
        "set a Q/DQ pair behind {node}, or write both as one Gemm with an int32 bias, as inlay does",
        ops=frozenset({"MatMul"}),
        source=_SOURCE,
    ),
    Precondition("two-quantizers", several_quantizers, join_all, "keep one Q behind {node}", source=_SOURCE),
    Precondition("float-reader", float_reader, cover_results, "let all readers of {value} read its DQ", source=_SOURCE),
    Precondition("graph-output", is_graph_output, cover_results, "let the output {value} be the DQ's", source=_SOURCE),
    Precondition(
        "zero-point",
        _activation_remains,
        _imply_activation,
        "quantize {value} so that the type's least value is its zero point",
        source=_SOURCE,
    ),
    Precondition("other-scale", _other_grids, _same_grids, "give {value} the scale of the input", source=_SOURCE),
    Precondition(
        "bias-scale",
        _other_bias,
        requantize_bias,
        "quantize the bias of {node} to int32 with zero point 0, at the scale of its input times that of its weight",
        ops=frozenset({"Conv", "Gemm"}),
        source=_SOURCE,
    ),
    Precondition(
        "misread-bias",
        _misread_bias,
        requantize_bias,
        "quantize the bias of {node} at the scale of its input times that of its weight, or leave it float",
        ops=frozenset({"Conv", "Gemm"}),
        runs=True,
        source=_SOURCE,
    ),
    Precondition(
        "scale-axis",
        _wrong_axis,
        _one_weight_scale,
        "give the weight of {node} a scale for each output channel",
        source=_SOURCE,
    ),
    Precondition(
        "several-scales",
        _several_scales,
        _make_single,
        "quantize the values around {node} with one scale each; only weights may have one for each channel",
        source=_SOURCE,
    ),
    Precondition(
        "scale-shape",
        _no_scalar,
        _make_scalars,
        "write the scales around {node} as scalars",
        ops=_SCALARS,
        exact=True,
        source=_SOURCE,
    ),
)
_ON_X86 = (
    Precondition(
        "int8-branches",
        _branching,
        _unsigned_branches,
        "quantize the activations around {node} to uint8",
        exact=True,
        source=_SOURCE,
    ),
    Precondition(
        "type-mismatch",
        _mixed,
        _unsigned_constants,
        "quantize the constants of {node} to uint8",
        ops=_BINARY,
        exact=True,
        source=_SOURCE,
    ),
)


def preconditions_for(machine: str | None = None) -> tuple[Precondition, ...]:
    """The rows that hold on a processor: integer kernels of x86 take uint8 activations."""
    x86 = is_x86(machine or platform.machine())
    return (*_ROWS, *_ON_X86) if x86 else _ROWS
