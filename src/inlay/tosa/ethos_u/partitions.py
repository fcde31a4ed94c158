"""Compiles every TOSA partition of a model with Vela, and sums the cost of the whole model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from inlay.errors import CompileFailed
from inlay.targets.base import KernelTime
from inlay.tosa.ethos_u import host_cost, vela
from inlay.tosa.ethos_u.rules import legality_for
from inlay.tosa.ethos_u.vela import ACCELERATORS, Accelerator, Estimate
from inlay.tosa.lowering import Lowered, lower
from inlay.tosa.serialize import TosaBinary, serialize

_ROUNDS = 4  # rounds of moving the nodes that Vela rejects to the host before the model counts as not compilable

_LAYER = re.compile(r"layer-\d+")


@dataclass(frozen=True, eq=False)
class Cost:
    """Estimated cycles of one inference."""

    npu: float  # Vela's estimate, all partitions
    host: float  # what stays on the host, by the stated model of `host_cost`
    crossing: float  # calls of the NPU and tensors that cross between NPU and host
    clock_hz: float  # clock that turns cycles into time
    kernels: tuple[KernelTime, ...]  # every part of the sum

    @property
    def cycles(self) -> float:
        """The total."""
        return self.npu + self.host + self.crossing

    @property
    def ns(self) -> float:
        """The total as nanoseconds."""
        return self.cycles / self.clock_hz * 1e9


def compile_partitions(
    model: onnx.ModelProto,
    accelerator: Accelerator,
    on_host: Mapping[str, str] | None = None,
    bind: Mapping[str, int] | None = None,
) -> tuple[Lowered, Cost]:
    """Lower a Q/DQ model for ``accelerator``, compile, and estimate the cost.

    Nodes that Vela rejects although the table of limits allows them are found one by one and stay on the host, as those
    do that ``on_host`` names (with a reason). Dynamic dimensions get the sizes of ``bind``, others 1.

    Raises:
        CompileFailed: Vela rejects a partition as a whole but none of its operators.
        ModelError: the model is not valid.
    """
    kept = dict(on_host or {})
    for _ in range(_ROUNDS):
        lowered = lower(model, "INT", bind, legality=legality_for(ACCELERATORS[accelerator.name][0]), on_host=kept)
        estimates: list[Estimate | None] = []
        rejected: dict[str, str] = {}
        for part in lowered.partitions:
            if part.tosa is None:
                estimates.append(None)
                continue
            try:
                estimates.append(vela.estimate(part.tosa.data, accelerator))
            except CompileFailed as error:
                found = _rejected_nodes(lowered, part.subgraph.ops, accelerator)
                if not found:
                    raise CompileFailed(f"{error}; none of its operators alone is the reason") from error
                rejected.update(found)
        if not rejected:
            return lowered, _cost(lowered, estimates, accelerator)
        kept.update(rejected)
    raise CompileFailed(f"Vela keeps refusing parts of the model for {accelerator.name}: {'; '.join(kept.values())}")


def _rejected_nodes(lowered: Lowered, ops: tuple[object, ...], accelerator: Accelerator) -> dict[str, str]:
    """ONNX nodes whose operators Vela rejects by themselves, with its message."""
    graph, by_node = lowered.graph, defaultdict(list)
    for op in graph.ops:
        if any(op is other for other in ops) and op.source:
            by_node[op.source].append(op)
    found = {}
    for node, own in by_node.items():
        made = {n for op in own for n in op.outputs}
        inputs = list(dict.fromkeys(n for op in own for n in op.inputs if n not in made and n not in graph.constants))
        read = {n for op in own for n in op.inputs}
        outputs = [n for op in own for n in op.outputs if n not in read]
        binary = serialize(own, graph.tensors, graph.constants, inputs, outputs)
        try:
            vela.estimate(binary.data, accelerator)
        except CompileFailed as error:
            found[node] = str(error)
    return found


def _cost(lowered: Lowered, estimates: list[Estimate | None], accelerator: Accelerator) -> Cost:
    clock = vela.clock_hz(accelerator)
    kernels: list[KernelTime] = []
    npu = host = crossing = 0.0
    for index, (part, estimate) in enumerate(zip(lowered.partitions, estimates, strict=True)):
        if estimate is None or part.tosa is None:
            for op in part.subgraph.ops:
                kind, cycles = host_cost.operator(lowered.graph, op)
                host += cycles
                kernels.append(KernelTime(op.source, kind, cycles / clock * 1e9, "float32", (op.source,)))
            continue
        npu += estimate.cycles
        call = host_cost.crossing(lowered.graph, part)
        crossing += call
        kernels.extend(_npu_kernels(part.tosa, estimate, clock))
        kernels.append(KernelTime(f"npu call {index}", "call", call / clock * 1e9, "", ()))
    return Cost(npu, host, crossing, clock, tuple(kernels))


def _npu_kernels(binary: TosaBinary, estimate: Estimate, clock: float) -> list[KernelTime]:
    """Vela's layers with the ONNX nodes they stem from.

    Vela overlaps layers, so their cycles add up to more or less than its total: they are scaled to it.
    """
    total = sum(layer.cycles for layer in estimate.layers)
    factor = estimate.cycles / total if total else 0.0
    kernels = []
    for layer in estimate.layers:
        match = _LAYER.search(layer.name)
        source = binary.sources.get(match.group(), "") if match else ""
        nodes = (source,) if source else ()
        kernels.append(KernelTime(layer.name, layer.op, layer.cycles * factor / clock * 1e9, "int8", nodes))
    return kernels
