"""How much there is to do for a unit or a value: what its time depends on, whatever the runtime."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inlay.model.graph import Graph, Node
from inlay.search.cost_prior import CASES, STATES, CostParameters
from inlay.search.edges import Edge, State
from inlay.space.units import Unit

_FEW_CHANNELS = 4  # input channels of a group up to which a Conv reads an image: kernels of channels are mostly empty
_SEVERAL_ROWS = 4  # of a product: with fewer, its weights are read for nearly every multiplication
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
    products, detail = _products(graph, node, written)
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


def _products(graph: Graph, node: Node, written: int) -> tuple[float, str]:
    """Multiply-accumulates of a node, and which sort of its operator it is."""
    weight = graph.shape(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    data = graph.shape(node.inputs[0]) if node.inputs and node.inputs[0] else None
    if node.op_type in ("Conv", "ConvTranspose") and weight is not None and data is not None:
        return _convolution(node, _known(data), _known(weight), written)
    if node.op_type in ("MatMul", "Gemm") and weight and data:
        depth = _known(data)[0 if node.op_type == "Gemm" and node.attributes.get("transA") else -1]
        if not graph.is_constant(node.inputs[1]):
            return float(written * depth), "of activations"
        columns = max(1, math.prod(_known(weight)) // max(1, depth))
        return float(written * depth), "of few rows" if written < _SEVERAL_ROWS * columns else ""
    if node.op_type in ("LSTM", "GRU", "RNN") and weight is not None and data is not None and len(node.inputs) > 2:
        again = math.prod(_known(graph.shape(node.inputs[2]) or ()))
        return float(math.prod(_known(data)[:2]) * (math.prod(_known(weight)) + again)), ""
    if node.op_type in ("MaxPool", "AveragePool"):
        return float(written * math.prod(node.attributes.get("kernel_shape", (1,)))), ""
    return 0.0, ""


def sort_of(graph: Graph, node: Node) -> str:
    """Which sort of its operator a product is: depthwise, of few rows, and the like; empty of a usual one."""
    return _products(graph, node, sum(graph.size(v) or 0 for v in node.outputs if v))[1]


def _convolution(node: Node, data: Sequence[int], weight: Sequence[int], written: int) -> tuple[float, str]:
    groups, window = int(node.attributes.get("group", 1)), math.prod(weight[2:])
    if node.op_type == "ConvTranspose":
        return float(math.prod(data) * math.prod(weight[1:])), ""
    products = float(written * math.prod(weight[1:]))
    if groups > 1:
        return products, "depthwise" if weight[1] == 1 else "grouped"
    if weight[1] <= _FEW_CHANNELS:
        return products, "of an image"
    return products, "1x1" if window == 1 else ""


def _known(shape: Sequence[object]) -> list[int]:
    """A shape with 1 for what is not known."""
    return [d if isinstance(d, int) else 1 for d in shape]
