"""Splits an integer graph into TOSA and host partitions that can run one after the other.

An operator's level is the number of changes between TOSA and host on the longest path to it. Those of a level that are
not worth a call of the accelerator, all together, wait for the first operator that needs them. Operators of one level
and one executor form a partition; every edge stays inside or goes to a higher level, so there are no cycles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inlay.tosa import ir
from inlay.tosa.ir import Executor, IntegerGraph, Op


@dataclass(frozen=True, eq=False)
class Subgraph:
    """Operators of one partition, in topological order."""

    executor: Executor  # TOSA or HOST
    ops: tuple[Op, ...]  # the operators
    # tensors that it reads and does not compute (constants excluded), model inputs first in their order
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]  # tensors that it computes and others read, model outputs first in their order

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the ONNX nodes in it, each once."""
        return tuple(dict.fromkeys(op.source for op in self.ops if op.source))

    @property
    def computes(self) -> bool:
        """Whether it holds work that is worth a call of the accelerator."""
        return any(isinstance(op, ir.COMPUTE) for op in self.ops)


def split(graph: IntegerGraph) -> tuple[Subgraph, ...]:
    """The partitions of ``graph``, in an order in which they can run."""
    ops = [op for op in graph.ops if op.executor is not Executor.CALLER]
    readers: defaultdict[str, list[Op]] = defaultdict(list)
    for op in graph.ops:
        for name in op.inputs:
            readers[name].append(op)
    levels = _levels(ops, readers)
    members: defaultdict[tuple[int, Executor], list[Op]] = defaultdict(list)
    for op in ops:
        members[levels[op.out], op.executor].append(op)
    ordered = sorted(members.items(), key=lambda item: (item[0][0], item[0][1].value))
    return tuple(_subgraph(graph, executor, ops, readers) for (_, executor), ops in ordered)


def _levels(ops: Sequence[Op], readers: Mapping[str, Sequence[Op]]) -> dict[str, int]:
    """The level of each operator, by its first output."""
    at: dict[str, int] = {}
    computed_by = {name: op for op in ops for name in op.outputs}
    for op in ops:
        before = [computed_by[name] for name in op.inputs if name in computed_by]
        at[op.out] = max((at[b.out] + (b.executor is not op.executor) for b in before), default=0)
    at_work = {at[op.out] for op in ops if op.executor is Executor.TOSA and isinstance(op, ir.COMPUTE)}
    for op in reversed(ops):
        after = [r for name in op.outputs for r in readers.get(name, ()) if r.out in at]
        if op.executor is not Executor.TOSA or at[op.out] in at_work or not after:
            continue
        same = min((at[r.out] for r in after if r.executor is op.executor), default=0)
        if same > at[op.out] and all(at[r.out] > same for r in after if r.executor is not op.executor):
            at[op.out] = same
    return at


def _subgraph(
    graph: IntegerGraph, executor: Executor, ops: Sequence[Op], readers: Mapping[str, Sequence[Op]]
) -> Subgraph:
    own = {id(op) for op in ops}
    computed = [name for op in ops for name in op.outputs]
    known = {"", *computed, *graph.constants}
    outputs = {i.tensor for i in graph.outputs}
    return Subgraph(
        executor=executor,
        ops=tuple(ops),
        inputs=_interface_first(
            [n for op in ops for n in op.inputs if n not in known], _carriers(graph, [i.tensor for i in graph.inputs])
        ),
        outputs=_interface_first(
            [n for n in computed if n in outputs or any(id(r) not in own for r in readers.get(n, ()))],
            _carriers(graph, [i.tensor for i in graph.outputs]),
        ),
    )


def _carriers(graph: IntegerGraph, interface: Sequence[str]) -> list[str]:
    """The model's inputs (outputs), each followed by its quantized forms, which the caller computes (or reads)."""
    by_caller = [(op.inputs[0], op.out) for op in graph.ops if op.executor is Executor.CALLER]
    forms = {name: [b if a == name else a for a, b in by_caller if name in (a, b)] for name in interface}
    return [n for name in interface for n in (name, *forms[name])]


def _interface_first(names: Sequence[str], first: Sequence[str]) -> tuple[str, ...]:
    """``names``, each once, those that are in ``first`` before the others."""
    return tuple(dict.fromkeys([*(n for n in first if n in set(names)), *names]))


def without_compute(subgraphs: Sequence[Subgraph]) -> tuple[Subgraph, ...]:
    """TOSA partitions that only move data or requantize, where another partition could do it instead."""
    if len(subgraphs) < 2:
        return ()
    return tuple(p for p in subgraphs if p.executor is Executor.TOSA and not p.computes)
