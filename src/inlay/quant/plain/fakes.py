"""Fake quantization that is written out: rounding between a scale and its inverse, as Q/DQ nodes.

Who trains with quantization by hand rounds, clips and rescales with the operators at hand: ``Clip(Round(x / s) + z, 0,
255)``, then ``(. - z) * s``, in any order that comes to the same, with straight-through estimators (``x + (y - x)``)
in between. So the operators before a Round are read as one factor and one offset, ``u = a * x + b``, and those behind
it as ``y = c * k + d``: where one undoes the other (``c * a = 1``, ``c * b + d = 0``), the whole rounds x to a grid of
step c whose zero point is b, between the limits that are met on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.constants import Evaluate, computed_constants
from inlay.model.passes.steps import constant_of, is_standard, sole_use
from inlay.quant.plain.graph import Leftover, NotPlain, PlainGraph, input_of, take_place
from inlay.quant.qdq_graph import DEQUANTIZE, QUANTIZE

_FACTORS, _OFFSETS, _LIMITS = ("Mul", "Div"), ("Add", "Sub"), ("Clip", "Max", "Min", "Relu")
_NOTHING = ("Identity", "Cast")
_STEPS = (*_FACTORS, *_OFFSETS, *_LIMITS, *_NOTHING)
_LONGEST = 9  # operators on one side of a rounding
_CLOSE = 1e-4  # relative: a factor may be the rounded inverse of the other
_WHOLE = 2e-3  # of a step: how far from an integer a zero point or a limit may be
_KINDS: tuple[tuple[int, int, type[np.integer]], ...] = (
    (0, 255, np.uint8),
    (-128, 127, np.int8),
    (-(1 << 15), (1 << 15) - 1, np.int16),
    (0, 65535, np.uint16),
)
Numbers = Mapping[ir.Value, np.ndarray]


def may_hold_fakes(graph: ir.Graph) -> bool:
    """Whether a rounding in ``graph`` stands between factors and has limits; nothing is computed to know it."""
    return any(_is_site(node) and any(is_standard(n, *_LIMITS) for n in _around(node)) for node in graph)


def write_fakes(model: ir.Model, evaluate: Evaluate) -> tuple[int, tuple[Leftover, ...]]:
    """Put Q/DQ nodes in the place of fake quantization in the main graph of ``model``, in place.

    Returns:
        How many pairs there are now, and the roundings between factors that are none, each with its reason.
    """
    sites = [node for node in model.graph if _is_site(node)]
    if not sites:
        return 0, ()
    asked = {v for site in sites for node in (site, *_around(site)) for v in node.inputs if v is not None}
    numbers = computed_constants(model, evaluate, asked)
    if any(v.shape is None for v in asked):
        infer_shapes(model, strict=False)
    plain, left = PlainGraph(model.graph, ()), list[Leftover]()
    for site in sites:
        try:
            with np.errstate(all="ignore"):  # what is not finite undoes nothing
                _write(_found(site, numbers), plain, numbers)
        except NotPlain as reason:
            left.append(Leftover(str(site.name), f"{site.op_type}: {reason}"))
    RemoveUnusedNodesPass()(model)
    return len(sites) - len(left), tuple(left)


@dataclass(frozen=True, eq=False)
class _Line:
    """A value on the way to a rounding, or behind it, as ``factor * other + offset`` of what is at the other end.

    ``low`` and ``high`` limit what is rounded, in steps.
    """

    value: ir.Value
    factor: np.ndarray
    offset: np.ndarray
    low: np.ndarray
    high: np.ndarray
    scaled: bool = False  # a factor was met
    limits: bool = False  # the operator at the value does nothing else
    shift: int = 0  # what was added to the steps where they were limited: the integers that are meant

    def clipped(self, low: np.ndarray | None, high: np.ndarray | None) -> _Line:
        return replace(
            self,
            low=self.low if low is None else np.maximum(self.low, low),
            high=self.high if high is None else np.minimum(self.high, high),
            limits=True,
        )


@dataclass(frozen=True, eq=False)
class _Fake:
    """One fake quantization: ``x`` is rounded to ``y``."""

    x: _Line
    y: _Line
    low: np.ndarray  # of the steps; infinite where nothing limits them
    high: np.ndarray
    narrow: bool  # x may be beyond


def _is_site(node: ir.Node) -> bool:
    if not is_standard(node, "Round", "Floor") or not node.inputs:
        return False
    if node.op_type == "Floor" and not _is_made_by(node.inputs[0], *_OFFSETS):
        return False
    before = any(is_standard(n, *_FACTORS) for n in _behind(node))
    return before and any(is_standard(n, *_FACTORS) for n in _ahead(node))


def _around(site: ir.Node) -> Iterator[ir.Node]:
    yield from _behind(site)
    yield from _ahead(site)


def _behind(site: ir.Node) -> Iterator[ir.Node]:
    """What may be before a rounding, whichever of its inputs holds the data."""
    pending, seen = [(v, 0) for v in site.inputs if v is not None], set[ir.Node]()
    while pending:
        value, depth = pending.pop()
        node = value.producer()
        if node is not None and node not in seen and depth < _LONGEST and is_standard(node, *_STEPS):
            seen.add(node)
            yield node
            pending += [(v, depth + 1) for v in node.inputs[:2] if v is not None]


def _ahead(site: ir.Node) -> Iterator[ir.Node]:
    value: ir.Value | None = site.outputs[0]
    for _ in range(_LONGEST):
        value = None if value is None else _straight_through(value)
        node = None if value is None else _reader(value)
        if node is None or not is_standard(node, *_STEPS):
            return
        yield node
        value = node.outputs[0]


def _is_made_by(value: ir.Value | None, *op_types: str) -> bool:
    producer = None if value is None else value.producer()
    return producer is not None and is_standard(producer, *op_types)


def _reader(value: ir.Value) -> ir.Node | None:
    use = sole_use(value)
    return None if use is None else use[0]


def _straight_through(value: ir.Value) -> ir.Value:
    """What ``value`` is written as for the sake of gradients: ``w + (value - w)``, whatever w is; or itself."""
    while (sub := _reader(value)) is not None and is_standard(sub, "Sub") and sub.inputs[0] is value:
        add = _reader(sub.outputs[0])
        if add is None or not is_standard(add, "Add") or _other(add, sub.outputs[0]) is not sub.inputs[1]:
            break
        value = add.outputs[0]
    return value


def _before_straight_through(value: ir.Value) -> ir.Value:
    """The same the other way."""
    add = value.producer()
    if add is not None and is_standard(add, "Add"):
        for given in add.inputs:
            sub = None if given is None else given.producer()
            if sub is not None and is_standard(sub, "Sub") and sub.inputs[1] is _other(add, given):
                return sub.inputs[0] or value
    return value


def _other(node: ir.Node, value: ir.Value | None) -> ir.Value | None:
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


def _found(site: ir.Node, numbers: Numbers) -> _Fake:
    """The longest stretch around a rounding whose end undoes its beginning. Raises NotPlain."""
    befores, afters = list(_befores(site, numbers)), list(_afters(site, numbers))
    firsts, lasts = (
        [i for i, line in enumerate(lines) if line.scaled and not line.limits] for lines in (befores, afters)
    )
    if not firsts or not lasts:
        raise NotPlain("its scale is computed at run time")
    for i, j in sorted(((i, j) for i in firsts for j in lasts), key=sum, reverse=True):
        if _undoes(befores[i], afters[j]):
            x, y, all_before = befores[i], afters[j], befores[-1]
            low, high = np.maximum(all_before.low, y.low), np.minimum(all_before.high, y.high)
            own = np.all(np.isfinite(np.maximum(x.low, y.low))) and np.all(np.isfinite(np.minimum(x.high, y.high)))
            return _Fake(x, y, low, high, narrow=bool(own))
    raise NotPlain("what follows it does not undo what is before it")


def _undoes(before: _Line, after: _Line) -> bool:
    try:
        steps = before.offset + after.offset / after.factor
        factors = before.factor * after.factor
    except ValueError:  # of shapes that do not fit each other
        return False
    near = np.abs(steps) <= _WHOLE + _CLOSE * np.abs(before.offset)
    return bool(np.all(np.abs(factors - 1.0) <= _CLOSE) and np.all(near))


def _first(value: ir.Value, offset: float = 0.0) -> _Line:
    return _Line(value, np.ones((), np.float64), np.asarray(offset), np.asarray(-np.inf), np.asarray(np.inf))


def _befores(site: ir.Node, numbers: Numbers) -> Iterator[_Line]:
    """From the rounding's input back: ``factor * value + offset`` is what is rounded."""
    assert site.inputs[0] is not None
    line = _first(site.inputs[0], -0.5 if site.op_type == "Floor" else 0.0)
    for _ in range(_LONGEST):
        value = _before_straight_through(line.value)
        node = value.producer()
        if node is None or not is_standard(node, *_STEPS):
            return
        data, number, slot = _operands(node, numbers)
        if data is None or (number is None and node.op_type not in (*_NOTHING, *_LIMITS)):
            return
        factor, offset = line.factor, line.offset
        if is_standard(node, *_LIMITS):
            ends = _ends(node, numbers)
            if ends is None or not np.all(factor > 0):
                return
            low, high = (None if end is None else factor * end + offset for end in ends)
            line = replace(line.clipped(low, high), value=data)
        elif is_standard(node, *_NOTHING):
            line = replace(line, value=data, limits=True)
        elif is_standard(node, *_FACTORS):
            assert number is not None
            if slot == 1 and node.op_type == "Div":
                return
            by = number if node.op_type == "Mul" else 1.0 / number
            line = replace(line, value=data, factor=factor * by, scaled=True, limits=False)
        else:
            assert number is not None
            sign = -1.0 if node.op_type == "Sub" and slot == 1 else 1.0  # of the data
            of_number = -1.0 if node.op_type == "Sub" and slot == 0 else 1.0
            line = replace(
                line, value=data, factor=factor * sign, offset=offset + of_number * factor * number, limits=False
            )
        yield line


def _afters(site: ir.Node, numbers: Numbers) -> Iterator[_Line]:
    """From the rounding's result on: the value is ``factor * result + offset``."""
    line = _first(site.outputs[0])
    for _ in range(_LONGEST):
        value = _straight_through(line.value)
        node = _reader(value)
        if node is None or not is_standard(node, *_STEPS):
            return
        slot = next(i for i, v in enumerate(node.inputs) if v is value)
        other = None if len(node.inputs) < 2 else node.inputs[1 - min(slot, 1)]
        number = None if other is None else numbers.get(other)
        factor, offset, result = line.factor, line.offset, node.outputs[0]
        if is_standard(node, *_LIMITS):
            ends = _ends(node, numbers) if slot == 0 or node.op_type in ("Max", "Min") else None
            if ends is None or not np.all(factor > 0):
                return
            low, high = (None if end is None else (end - offset) / factor for end in ends)
            whole = factor.size == offset.size == 1 and float(factor.item()) == 1.0
            shift = int(np.rint(offset).item()) if whole else line.shift
            line = replace(line.clipped(low, high), value=result, shift=shift)
        elif is_standard(node, *_NOTHING):
            line = replace(line, value=result)
        elif number is None or (node.op_type == "Div" and slot == 1):
            return
        elif is_standard(node, *_FACTORS):
            by = number if node.op_type == "Mul" else 1.0 / number
            line = replace(line, value=result, factor=factor * by, offset=offset * by, scaled=True, limits=False)
        else:
            sign = -1.0 if node.op_type == "Sub" and slot == 1 else 1.0
            plus = -number if node.op_type == "Sub" and slot == 0 else number
            line = replace(line, value=result, factor=factor * sign, offset=offset * sign + plus, limits=False)
        yield replace(line, value=_straight_through(line.value))


def _operands(node: ir.Node, numbers: Numbers) -> tuple[ir.Value | None, np.ndarray | None, int]:
    """The data that ``node`` reads, the number beside them, and the slot of the data.

    Of two constants the larger one is the data: a weight is no smaller than its scales.
    """
    first, second = input_of(node, 0), input_of(node, 1)
    if is_standard(node, "Clip", "Relu", *_NOTHING):
        return first, None, 0
    known = [None if v is None else numbers.get(v) for v in (first, second)]
    if known[0] is not None and (known[1] is None or known[1].size > known[0].size):
        return second, known[0], 1
    return first, known[1], 0


def _ends(node: ir.Node, numbers: Numbers) -> tuple[np.ndarray | None, np.ndarray | None] | None:
    """What ``node`` limits its data to, below and above; None where that is computed at run time."""
    if node.op_type == "Relu":
        return np.zeros(()), None
    if node.op_type in ("Max", "Min"):
        number = _operands(node, numbers)[1]
        if number is None or len(node.inputs) != 2:
            return None
        return (number, None) if node.op_type == "Max" else (None, number)
    ends: list[np.ndarray | None] = []
    for slot, name in ((1, "min"), (2, "max")):
        value, stated = input_of(node, slot), node.attributes.get_float(name, np.nan)
        found = numbers.get(value) if value is not None else None
        if value is not None and found is None:
            return None
        ends.append(found if not np.isfinite(stated) else np.asarray(stated))
    return ends[0], ends[1]


def _write(fake: _Fake, plain: PlainGraph, numbers: Numbers) -> None:
    """Put a pair in the place of ``fake``. Raises NotPlain."""
    x, array, end = fake.x.value, numbers.get(fake.x.value), fake.y.value.producer()
    assert end is not None
    if x.dtype not in (None, ir.DataType.FLOAT):
        raise NotPlain(f"it rounds {x.dtype.name.lower()}")
    scale, zero = np.broadcast_arrays(fake.y.factor, _whole(fake.x.offset, "zero point"))
    if not np.all(scale > 0) or not np.all(np.isfinite(scale)):
        raise NotPlain("its scale is not positive")
    low, high, narrow = _limits(fake, array)
    kind, shift = _kind(low, high, fake.y.shift)
    ends: np.iinfo = np.iinfo(kind)
    if np.any(zero + shift < ends.min) or np.any(zero + shift > ends.max):
        raise NotPlain("its zero point lies outside its integers")
    axis, scale, zero = _along(x, array, scale, zero)
    attributes = {} if axis is None else {"axis": axis}
    if array is not None:
        along = [-1 if i == axis else 1 for i in range(array.ndim)] if axis is not None else []
        bounds = [(np.float64(limit) - zero.reshape(along)) * scale.reshape(along) for limit in (low, high)]
        held = np.clip(array, *bounds).astype(np.float32)
        if constant_of(x) is None or not np.allclose(held, array, rtol=0, atol=float(scale.min()) / 2):
            x = plain.constant(f"{x.name}_held", held)
    name = str(fake.y.value.name)
    grid = [
        plain.constant(f"{name}_scale", scale.astype(np.float32)),
        plain.constant(f"{name}_zero_point", (zero + shift).astype(kind)),
    ]
    integers = plain.insert(end, QUANTIZE, [x, *grid], f"{name}_quantized", x.shape, attributes)
    integers.type = ir.TensorType(ir.DataType.from_numpy(np.dtype(kind)))
    if narrow and (low + shift, high + shift) != (ends.min, ends.max):
        limits = [plain.constant(f"{name}_{i}", np.array(n + shift, kind)) for i, n in enumerate((low, high))]
        clipped = plain.insert(end, "Clip", [integers, *limits], f"{name}_clipped", x.shape)
        clipped.type, integers = integers.type, clipped
    take_place(plain.insert(end, DEQUANTIZE, [integers, *grid], f"{name}_fake", x.shape, attributes), fake.y.value)
    plain.graph.remove(end, safe=True)


def _limits(fake: _Fake, array: np.ndarray | None) -> tuple[int, int, bool]:
    """The least and the largest number of steps, and whether data may be beyond. Raises NotPlain."""
    low, high = fake.low, fake.high
    if array is not None:
        steps = np.rint(array * fake.x.factor + fake.x.offset)
        if not np.all(np.isfinite(steps)):
            raise NotPlain("its values are not finite")
        zeros = _whole(fake.x.offset, "zero point")  # the integers hold it, even if no weight does
        least = min(float(np.maximum(low, steps.min()).min()), float(zeros.min()))
        most = max(float(np.minimum(high, steps.max()).max()), float(zeros.max()))
        return int(least), int(most), False
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
        raise NotPlain("nothing limits its integers")
    whole = [_whole(end, "limit") for end in (low, high)]
    if any(end.min() != end.max() for end in whole):
        raise NotPlain("its channels are limited to other integers each")
    return int(whole[0].min()), int(whole[1].min()), fake.narrow


def _whole(numbers: np.ndarray, what: str) -> np.ndarray:
    found = np.rint(numbers)
    if np.any(np.abs(found - numbers) > _WHOLE + _CLOSE * np.abs(numbers)):
        raise NotPlain(f"its {what} is no integer")
    return np.asarray(found)


def _kind(low: int, high: int, shift: int) -> tuple[type[np.integer], int]:
    """Integers that hold a range, and what is added to get there, by preference ``shift``. Raises NotPlain."""
    for kinds in (_KINDS[:2], _KINDS[2:]):
        for by in (shift, 0, -low):
            for least, most, kind in kinds:
                if least <= low + by and high + by <= most:
                    return kind, by
    raise NotPlain(f"it has {high - low + 1} steps: integers of 16 bits do not hold them")


def _along(
    x: ir.Value, array: np.ndarray | None, scale: np.ndarray, zero: np.ndarray
) -> tuple[int | None, np.ndarray, np.ndarray]:
    """The axis of several scales, with scales and zero points as vectors. Raises NotPlain."""
    if scale.size == 1:
        return None, scale.reshape(()), zero.reshape(())
    rank = array.ndim if array is not None else None if x.shape is None else len(x.shape)
    wide = [i for i, n in enumerate(scale.shape) if n > 1]
    if rank is None or len(wide) != 1 or scale.ndim > rank:
        raise NotPlain("its scales lie along an axis that is not known" if rank is None else "it has a scale by block")
    return rank - scale.ndim + wide[0], scale.reshape(-1), zero.reshape(-1)
