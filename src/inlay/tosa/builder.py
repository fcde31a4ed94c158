"""Builds an integer graph: names tensors, folds constants, and rolls back what a failed rule left behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inlay.tosa.ir import Array, Executor, Host, IntegerGraph, Interface, Op, Shape, Tensor
from inlay.tosa.oracle import evaluate
from inlay.types import QParams


class Builder:
    """Tensors, constants and operators, in the order in which they were added."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.constants: dict[str, Array] = {}
        self.ops: list[Op] = []
        self._producers: dict[str, Op] = {}

    def mark(self) -> int:
        """A point that :meth:`rollback` can return to."""
        return len(self.ops)

    def rollback(self, mark: int) -> None:
        """Remove every operator since ``mark``, with its outputs."""
        for op in self.ops[mark:]:
            for name in op.outputs:
                self.tensors.pop(name, None)
        del self.ops[mark:]

    def tensor(self, base: str, dtype: str, shape: Shape | None, qparams: QParams | None = None) -> str:
        """Declare a tensor called ``base``, with a number behind it when that name is taken."""
        name, count = base, 0
        while name in self.tensors:
            count += 1
            name = f"{base}.{count}"
        self.tensors[name] = Tensor(name, dtype, shape, qparams)
        return name

    def constant(self, base: str, value: Array, qparams: QParams | None = None) -> str:
        """Declare a constant tensor."""
        name = self.tensor(base, value.dtype.name, value.shape, qparams)
        self.constants[name] = value
        return name

    def shape(self, name: str) -> Shape:
        """Static shape of a tensor."""
        return self.tensors[name].dims

    def add(
        self,
        kind: type[Op],
        source: str,
        inputs: Sequence[str],
        base: str,
        dtype: str,
        shape: Shape,
        qparams: QParams | None = None,
        **attributes: Any,
    ) -> str:
        """Append an operator with one output, and return the output's name; constant inputs are folded."""
        out = self.tensor(base, dtype, tuple(int(d) for d in shape), qparams)
        op = kind(source=source, inputs=tuple(inputs), outputs=(out,), **attributes)
        if all(i in self.constants for i in inputs):
            values = evaluate(op, [self.constants[i] for i in inputs], self.tensors)
            self.constants[out] = np.ascontiguousarray(values)
        else:
            self.ops.append(op)
            self._producers[out] = op
        return out

    def executor(self, name: str) -> Executor:
        """Who computes a tensor; the host for model inputs."""
        op = self._producers.get(name)
        return Executor.HOST if op is None else op.executor

    def producer(self, name: str) -> Op | None:
        """The operator that computes a tensor; None for model inputs, constants and outputs of host nodes."""
        return self._producers.get(name)

    def append(self, op: Host) -> None:
        """Append a host node, whose outputs have been declared."""
        self.ops.append(op)

    def finish(self, inputs: Sequence[Interface], outputs: Sequence[Interface]) -> IntegerGraph:
        """The graph, without operators, tensors and constants that no output depends on."""
        needed = {i.tensor for i in outputs}
        ops = []
        for op in reversed(self.ops):
            if needed.intersection(op.outputs):
                ops.append(op)
                needed.update(op.inputs)
        needed.update(name for op in ops for name in op.outputs)
        needed.update(i.tensor for i in inputs)
        return IntegerGraph(
            ops=tuple(reversed(ops)),
            tensors={n: t for n, t in self.tensors.items() if n in needed},
            constants={n: v for n, v in self.constants.items() if n in needed},
            inputs=tuple(inputs),
            outputs=tuple(outputs),
        )
