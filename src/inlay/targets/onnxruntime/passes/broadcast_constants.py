"""Constants of ``Add``, ``Sub``, ``Mul`` and ``Div`` written out along short rows, so that kernels find long runs.

ONNX Runtime's kernels work through runs of elements over which either operand steps on evenly. Where the last axis is
short (a single number, the two of a complex one, the channels of an image in NHWC), a run is that long, and every run
costs a call: 470 us for a scalar times 1x172x309x1, against 10 us with the scalar written with four axes. The results
are the same to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from inlay.model.passes.steps import Steps, constant_of, replace_each

LONG_RUN = 64
LEAST_ELEMENTS = 4096
"""Of the result, as far as its sizes are known. Below, nobody would notice, and runtimes look for scalars in what they
fuse (the small number in a layer normalization)."""
MOST_ELEMENTS = 1 << 16  # of a constant that is written out
_OPERATORS = ("Add", "Sub", "Mul", "Div")


def write_out_constants(model: ir.Model) -> tuple[ir.Model, int]:
    """Write out float32 constants that break their operator's work into short runs."""
    done = 0
    for op_type in _OPERATORS:
        model, count = replace_each(model, op_type, _replace)
        done += count
    return model, done


def _replace(node: ir.Node, first: ir.Value, steps: Steps) -> bool:
    operands = (first, node.inputs[1])
    constants = [constant_of(v) for v in operands]
    if sum(c is None for c in constants) != 1:
        return False
    slot = 1 if constants[0] is None else 0
    numbers, x = constants[slot], operands[1 - slot]
    if x is None or x.shape is None or numbers is None or numbers.dtype != np.float32:
        return False
    wanted = written_out([d if isinstance(d, int) else None for d in x.shape], numbers.shape)
    if wanted is None:
        return False
    node.replace_input_with(slot, steps.constant("written_out", np.broadcast_to(numbers, wanted)))
    return True


def written_out(shape: Sequence[int | None], own: Sequence[int]) -> list[int] | None:
    """The shape that a constant of shape ``own`` should have beside a value of ``shape``; None where it has it.

    Sizes that are not known are None; the constant is not written out along them.
    """
    if len(own) > len(shape) or not shape or 0 in own:
        return None
    full = [1] * (len(shape) - len(own)) + list(own)
    if any(o not in (1, s) for o, s in zip(full, shape, strict=True)):
        return None  # it is the constant that makes the result larger
    if math.prod(s or 1 for s in shape) < LEAST_ELEMENTS:
        return None
    if math.prod(own) == 1:
        return full if len(own) < len(shape) and shape[-1] == 1 else None
    if _run(shape, full) >= LONG_RUN:
        return None
    wanted, run = list(full), 1
    for axis in reversed(range(len(shape))):
        size = shape[axis]
        if size is None or run >= LONG_RUN:
            break
        wanted[axis] = size
        run *= size
    return wanted if wanted != full and math.prod(wanted) <= MOST_ELEMENTS else None


def _run(shape: Sequence[int | None], full: Sequence[int]) -> float:
    """Elements over which the constant goes along with the value, or stands still, all the way."""
    run, along = 1, None
    for size, own in zip(reversed(shape), reversed(full), strict=True):
        if size is None:
            return math.inf if along is False or along is None else run
        mode = own == size
        if along is not None and mode != along:
            return run
        along, run = mode, run * size
    return run
