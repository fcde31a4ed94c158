"""How much there is to do for a unit or a value: what its time depends on, whatever the runtime."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inlay.model.graph import Graph, Node
from inlay.model.products import as_float, known_shape, multiply_accumulates
from inlay.search.cost_prior import CASES, STATES, CostParameters
from inlay.search.edges import Edge, State
from inlay.space.units import Unit

_FEW_CHANNELS = 4  # input channels of a group up to which a Conv reads an image: kernels of channels are mostly empty
_SEVERAL_ROWS = 4  # of a product: with fewer, its weights are read for nearly every multiplication
_BEHIND = 4  # nodes that a weight may stand behind
_FAMILY = {"Gemm": "MatMul", "ConvTranspose": "Conv", "GRU": "LSTM"}


@dataclass(frozen=True)
class Workload:
    """What one unit or value asks of a processor."""

    kinds: tuple[str, ...]  # from the most specific one to that of everything alike; the first that is known counts
    products: float = 0.0  # multiply-accumulates
    moved: float = 0.0  # elements of activations that are read and written
    constants: float = 0.0  # elements of weights, where there are products
    turns: int = 1  # how often it is asked for in one inference: operators in loops are several times

    @property
    def features(self) -> tuple[float, float, float, float]:
        """Calls, products, moved elements, constants: times are linear in these."""
        n = self.turns
        return float(n), n * self.products, n * self.moved, n * self.constants


def workloads(graph: Graph, parameters: CostParameters) -> list[tuple[Workload, str]]:
    """The workload of each parameter of a cost model, and in which state it is: shape (parameters,)."""
    units = [unit_workload(graph, unit) for unit in parameters.graph.units]
    edges = [edge_workload(edge) for edge in parameters.graph.edges]
    found = [(unit, CASE_NAMES[case]) for unit in units for case in range(CASES)]
    found += [(edge, State(state).name.lower()) for edge in edges for state in range(STATES)]
    found += [(unit, form) for unit in units for form in parameters.graph.forms]
    return found


_MOVED = 8.0  # multiply-accumulates in float32 that take as long as reading or writing one element


def work(graph: Graph, unit: Unit) -> float:
    """About how long a unit takes in float32 on a CPU, in multiply-accumulates."""
    _, products, moved, constants = unit_workload(graph, unit).features
    return products + _MOVED * (moved + constants)


CASE_NAMES = ("float", "float behind low", "low behind float", "low")
"""States of a unit that is float or low, by its case in :class:`CostParameters`."""


def edge_workload(edge: Edge) -> Workload:
    """Of a value between units."""
    producer, _, readers = edge.kind.partition(">")
    return Workload((f"value {edge.kind}", f"value {producer}>", f"value >{readers}", "value"), moved=edge.size)


def unit_workload(graph: Graph, unit: Unit) -> Workload:
    """Of a unit: of its first operator, whose followers are done on the way."""
    node = graph.node(unit.name)
    written = sum(graph.size(v) or 0 for v in unit.outputs or node.outputs)
    inputs = [v for v in node.inputs if v]
    read = sum(graph.size(v) or 0 for v in inputs if not graph.is_constant(v))
    products, detail = multiply_accumulates(graph, node), sort_of(graph, node)
    if node.op_type in ("MaxPool", "AveragePool"):  # they pass over each window as a product does
        products = float(written * math.prod(node.attributes.get("kernel_shape", (1,))))
    sizes = [graph.size(v) or 0 for v in inputs if graph.is_constant(v)]
    constants = sum(sizes) if products else 0
    if not products:  # of a table some rows are read, and a small constant stays in the cache
        read += sum(min(size, written) for size in sizes)
    family = _FAMILY.get(node.op_type, node.op_type)
    named = [f"{node.op_type} {detail}", f"{family} {detail}"] if detail else []
    before = graph.producer(inputs[0]) if inputs and not products else None
    behind = [f"{node.op_type} behind {before.op_type}"] if before is not None else []
    kinds = dict.fromkeys([*behind, *named, node.op_type, family, "compute" if products else "elements"])
    turns = max((graph.turns.get(v, 1) for v in node.outputs), default=1)
    return Workload(tuple(kinds), products, read + written, constants, turns)


def _is_weight(graph: Graph, value: str) -> bool:
    """Whether a value is constant, also behind a few nodes such as its DequantizeLinear or a Transpose."""
    for _ in range(_BEHIND):
        producer = graph.producer(value)
        if producer is None:
            break
        computed = [v for v in producer.inputs if v and not graph.is_constant(v)]
        if len(computed) != 1:
            return not computed
        (value,) = computed
    return graph.is_constant(value)


def sort_of(graph: Graph, node: Node) -> str:
    """Which sort of its operator a product is: depthwise, of few rows, and the like; empty of a usual one."""
    node = as_float(node)
    if node.op_type not in ("Conv", "MatMul", "Gemm") or len(node.inputs) < 2:
        return ""
    if node.op_type != "Conv" and not _is_weight(graph, node.inputs[1]):
        return "of activations"
    data, weight = (known_shape(graph.shape(v)) for v in node.inputs[:2])
    if data is None or weight is None:
        return ""
    if node.op_type == "Conv":
        if int(node.attributes.get("group", 1)) > 1:
            return "depthwise" if weight[1] == 1 else "grouped"
        if weight[1] <= _FEW_CHANNELS:
            return "of an image"
        return "1x1" if math.prod(weight[2:]) == 1 else ""
    depth = data[0 if node.op_type == "Gemm" and node.attributes.get("transA") else -1]
    columns = max(1, math.prod(weight) // max(1, depth))
    return "of few rows" if (graph.size(node.outputs[0]) or 0) < _SEVERAL_ROWS * columns else ""
