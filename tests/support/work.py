"""How much work Python code does, counted instead of timed: the same on any machine, at any load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

MOST_BYTECODES = 20_000_000
"""Where counting gives up, so that exponential work fails instead of hanging: about ten seconds under the tracer."""


def bytecodes(action: Callable[[], object]) -> int:
    """How many bytecode instructions ``action`` executes in this thread; what runs in C counts as one call.

    Raises:
        AssertionError: they are more than ``MOST_BYTECODES``.
    """
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            count += 1
            assert count <= MOST_BYTECODES, f"more than {MOST_BYTECODES:,} bytecode instructions"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def growth(prepare: Callable[[int], Callable[[], object]], size: int) -> float:
    """By which factor the work grows when the size doubles: 2 for linear, a little more for n log n, 4 for quadratic.

    Args:
        prepare: gives the action for a size; is not counted itself.
        size: the smaller of the two, large enough for what is constant not to matter.
    """
    return bytecodes(prepare(2 * size)) / bytecodes(prepare(size))
