"""What ran: a profile's kernels, by the operators and the values of the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
import onnx_ir as ir

from inlay.explanation.explanation import Precision
from inlay.measure.client import Worker
from inlay.model.flow import is_start
from inlay.model.nesting import nested
from inlay.model.store import WeightStore, externalize_weights
from inlay.quant.qdq_graph import DEQUANTIZE, DYNAMIC_QUANTIZE, QUANTIZE
from inlay.space.rules import Rules
from inlay.targets.base import QDQ_KINDS, Artifact, KernelKind, KernelTime

_FUSED = 4  # operators behind a product that one kernel takes in, at most
_KINDS: Mapping[str, KernelKind] = {**QDQ_KINDS, DYNAMIC_QUANTIZE: "quantize"}


@dataclass(frozen=True)
class Ran:
    """What ran for one operator: precision, the runtime's operator, nanoseconds in each inference."""

    precision: Precision
    kernel: str
    ns: float


@dataclass(frozen=True)
class Executed:
    """A profile, attributed."""

    operators: Mapping[str, Ran]  # by node name; what has no kernel is missing
    # nanoseconds by value and kind (`quantize`, `dequantize`, `layout`), and of constants by the operator that reads
    # them (`constant`)
    conversions: Mapping[tuple[str, str], float]
    unknown_ns: float  # of kernels whose cause is not known
    total_ns: float  # of all kernels
    kernels: Sequence[KernelTime] = ()  # the profile itself, as it was taken

    def scaled(self, factor: float) -> Executed:
        """With all times multiplied."""
        return Executed(
            {name: replace(ran, ns=ran.ns * factor) for name, ran in self.operators.items()},
            {key: ns * factor for key, ns in self.conversions.items()},
            self.unknown_ns * factor,
            self.total_ns * factor,
            self.kernels,
        )

    def is_low(self, name: str) -> bool:
        """Whether an operator ran on integers of 8 bits."""
        found = self.operators.get(name)
        return found is not None and found.precision == "int8"


def operators_of(graph: ir.Graph) -> tuple[ir.Node, ...]:
    """Every node that computes or moves something, in topological order."""
    return tuple(n for n in graph if not (is_start(n) or (n.op_type in _KINDS and n.domain in ("", "ai.onnx"))))


def executed(kernels: Sequence[KernelTime], graph: ir.Graph, rules: Rules) -> Executed:
    """Attribute ``kernels`` to the nodes and the values of the graph that was profiled."""
    nodes = {str(n.name): n for n in graph}
    ran: dict[str, Ran] = {}
    conversions: defaultdict[tuple[str, str], float] = defaultdict(float)
    unknown = 0.0
    for kernel in kernels:
        known = [nodes[n] for n in kernel.nodes if n in nodes]
        work = [n for n in known if n.op_type not in _KINDS]
        if kernel.kind != "compute" and kernel.values:
            conversions[kernel.values[0], kernel.kind] += kernel.ns
        elif work and kernel.kind != "compute":  # of a constant: its operator's precision is another matter
            conversions[str(work[0].name), "constant"] += kernel.ns
        elif work:
            anchor = str(_anchor(kernel, work, rules).name)
            before = ran.get(anchor)
            if before is None or before.ns < kernel.ns:
                ran[anchor] = Ran(kernel.family, kernel.op_type, kernel.ns + (before.ns if before else 0.0))
            else:
                ran[anchor] = Ran(before.precision, before.kernel, before.ns + kernel.ns)
        elif known:
            conversions[_converted(known[0]), _KINDS.get(known[0].op_type, "layout")] += kernel.ns
        else:
            unknown += kernel.ns
    return Executed(ran, dict(conversions), unknown, sum(k.ns for k in kernels), kernels)


def written(model: ir.Model, store: WeightStore, folder: Path, name: str) -> Artifact:
    """A model as a file in ``folder``, its weights in ``store``."""
    path = folder / f"{name}.onnx"
    onnx.save_model(nested(externalize_weights(model, store)), path)
    return Artifact(path.resolve(), f"{folder.name}-{name}")


def profiled(worker: Worker, artifact: Artifact, feed: Path, repeats: int, graph: ir.Graph, rules: Rules) -> Executed:
    """What runs of a model whose graph is ``graph``; the worker holds it no longer. Raises TargetError."""
    try:
        kernels = worker.profile(artifact, feed, repeats)
    finally:
        worker.drop(artifact)
    return executed(kernels, graph, rules)


def _anchor(kernel: KernelTime, work: Sequence[ir.Node], rules: Rules) -> ir.Node:
    """The operator that a kernel is named for: the product, where it stands for a product and what follows it.

    A runtime may tell of a fused kernel only the last value that it writes.
    """
    best = min(work, key=lambda n: _weight(n, rules))
    node = best
    for _ in range(_FUSED):
        if kernel.op_type.endswith(node.op_type):
            return node
        before = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
        if before is None or before.op_type in _KINDS:
            break
        node = before
    return best


def _weight(node: ir.Node, rules: Rules) -> int:
    """Order of the nodes that one kernel stands for: products first, what was absorbed last."""
    if node.op_type in rules.absorbed:
        return 2
    rule = rules.ops.get(node.op_type)
    return 0 if rule is not None and rule.weight is not None else 1


def _converted(node: ir.Node) -> str:
    """The float value that a Q or DQ node is there for."""
    value = node.inputs[0]
    before = value.producer() if value is not None else None
    if node.op_type == DEQUANTIZE and before is not None and before.op_type in (QUANTIZE, DYNAMIC_QUANTIZE):
        value = before.inputs[0]
    return str(value.name) if value is not None else ""
