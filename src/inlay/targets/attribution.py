"""Which nodes and values of a model a runtime's layers stand for, by names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import onnx

from inlay.targets.base import QDQ_KINDS, KernelKind, KernelTime

_JOINED = re.compile(r"\s*\+\s*|\s+\|\|\s+|\n")  # how runtimes join the names of what they fuse
_ENDS = re.compile(r"[^A-Za-z0-9][A-Za-z0-9]*$")
"""The last word of a name, which a runtime may have added, with what separates it."""


class Names:
    """The names of a model's nodes and values."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._nodes = {n.name: n for n in graph.node if n.name}
        self._writer = {v: n for n in graph.node for v in n.output if v}
        self._inputs = {i.name for i in graph.input}

    def layer(
        self, name: str, op_type: str, ns: float, precision: str = "", kind: KernelKind | None = None
    ) -> KernelTime:
        """A layer as a kernel, with the nodes whose names its own is made of, or the value whose boundary it serves."""
        found = list(dict.fromkeys(n for part in _JOINED.split(name) for n in self._matches(part)))
        nodes = [n for n in found if n in self._nodes and self._nodes[n].op_type not in QDQ_KINDS]
        if kind is None:
            boundary = [QDQ_KINDS[self._nodes[n].op_type] for n in found if n in self._nodes and n not in nodes]
            kind = "compute" if nodes or not boundary else boundary[0]
            kind = QDQ_KINDS.get(op_type, kind) if not nodes else kind
        if kind == "compute":
            sources = nodes or [self._writer[v].name for v in found if v in self._writer]
            return KernelTime(name, op_type, ns, precision, tuple(sources))
        return KernelTime(name, op_type, ns, precision, values=self.known(found), kind=kind)

    def known(self, values: Sequence[str]) -> tuple[str, ...]:
        """The first of ``values`` that the model has, or that begins with the name of one that it has."""
        found = [n for v in values for n in self._matches(v)]
        return tuple(self.boundary_of(n) if n in self._nodes else n for n in found[:1])

    def boundaries(self, names: Sequence[str]) -> tuple[str, ...]:
        """The values that the Q and DQ nodes among ``names`` convert, each once."""
        pairs = [n for n in names if n in self._nodes and self._nodes[n].op_type in QDQ_KINDS]
        return tuple(dict.fromkeys(map(self.boundary_of, pairs)))

    def boundary_of(self, name: str) -> str:
        """The value that a Q or DQ node converts; of another node the first that it writes."""
        node = self._nodes[name]
        while node.op_type in QDQ_KINDS:
            before = self._writer.get(node.input[0])
            if before is None or before.op_type not in QDQ_KINDS:
                return str(node.input[0])
            node = before
        return str(node.output[0])

    def _matches(self, name: str) -> Iterator[str]:
        """The longest node's or value's name that ``name`` is, or begins with."""
        while name:
            if name in self._nodes or name in self._writer or name in self._inputs:
                yield name
                return
            shorter = _ENDS.sub("", name)
            if shorter == name:
                return
            name = shorter


def public_names(graph: onnx.GraphProto) -> dict[str, str]:
    """By the value before a Q/DQ pair whose DQ writes an output of the graph, that output's name: it is meant."""
    producer = {v: n for n in graph.node for v in n.output}
    names = {}
    for output in graph.output:
        dequantize = producer.get(output.name)
        quantize = producer.get(dequantize.input[0]) if dequantize and dequantize.op_type in QDQ_KINDS else None
        if quantize is not None and quantize.op_type in QDQ_KINDS:
            names[quantize.input[0]] = output.name
    return names
