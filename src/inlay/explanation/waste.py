"""Q, DQ, reorders and transposes that ran as kernels of their own, with the reason and the price of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from inlay.explanation.executed import Executed
from inlay.explanation.explanation import Waste, WasteKind
from inlay.quant.qdq_graph import DEQUANTIZE, DYNAMIC_QUANTIZE, QUANTIZE
from inlay.targets.base import KernelTime
from inlay.trial import counted

_PAIRS = (QUANTIZE, DEQUANTIZE, DYNAMIC_QUANTIZE)
_NAMED = 5  # values whose Q/DQ are gone that are named
_SIZES_ONLY = ("Shape", "Size")  # operators that read the sizes of a value, whose numbers may be of any type


def wasted(graph: ir.Graph, found: Executed) -> tuple[Waste, ...]:
    """The conversions of a profile, the most expensive first."""
    values = {str(v.name): v for n in graph for v in n.outputs} | {str(v.name): v for v in graph.inputs}
    spent: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for (name, kind), ns in found.conversions.items():
        spent[name][kind] = spent[name].get(kind, 0.0) + ns
    rows = []
    for name, kinds in spent.items():
        if (ns := kinds.pop("constant", 0.0)) > 0.0:
            rows.append(_row("constant", name, (name,), ns, found, f"mend {name}, or store its constants in float"))
        value = values.get(name)
        layout = kinds.pop("layout", 0.0)
        nodes = () if value is None else tuple(dict.fromkeys(_around(value)))
        if layout:
            precisions = {found.operators[n].precision for n in nodes if n in found.operators}
            mixed = {"int8", "float"} <= precisions
            advice = "let its writer and its readers run in one precision" if mixed else ""
            rows.append(_row("layout", name, nodes, layout, found, advice))
        if kinds:
            kind, advice = _kind(value, found)
            rows.append(_row(kind, name, nodes, sum(kinds.values()), found, advice))
    return tuple(sorted(rows, key=lambda row: -row.cost_ms))


def taken_in(graph: ir.Graph, kernels: Sequence[KernelTime]) -> str:
    """Which Q/DQ pairs the runtime's compiler removed; empty where its kernels do not tell what they took in.

    A pair without a kernel was removed, or moved to where another one stands.
    """
    told = {value for k in kernels if k.kind == "compute" for value in k.values}
    own = {value for k in kernels if k.kind in ("quantize", "dequantize") for value in k.values} - told
    pairs = [str(n.inputs[0].name) for n in graph if n.op_type == QUANTIZE and n.inputs[0] is not None]
    pairs = [value for value in dict.fromkeys(pairs) if told]
    removed = [value for value in pairs if value not in told | own]
    if not pairs:
        return ""
    named = f" ({', '.join(removed[:_NAMED])}{' and others' * (len(removed) > _NAMED)})" if removed else ""
    return (
        f"of {counted(len(pairs), 'quantized value')} the compiler removed the Q/DQ of {len(removed)}{named}, "
        f"took those of {len(told & {*pairs})} into kernels that compute, "
        f"and left {len(own & {*pairs})} with kernels of their own"
    )


def _row(kind: WasteKind, name: str, nodes: tuple[str, ...], ns: float, found: Executed, advice: str) -> Waste:
    return Waste(kind, name, nodes, ns / 1e6, ns / max(found.total_ns, 1.0), advice)


def _kind(value: ir.Value | None, found: Executed) -> tuple[WasteKind, str]:
    """Why a value is converted, and what to do about it."""
    if value is None:
        return "requantized", ""
    producer, readers = value.producer(), list(_readers(value))
    writes_low = producer is not None and _is_low_writer(producer, found)
    low = [n for n in readers if _is_low_reader(n, found)]
    others = [n for n in readers if n not in low]
    at_output = any(v.is_graph_output() for v in _behind(value))
    if not writes_low and not low:
        return "idle-pair", f"remove the Q/DQ pair at {value.name}: nothing beside it runs on integers"
    if producer is None:
        return "input", ""
    if writes_low and not low:
        if at_output and not others:
            return "output", ""
        return "leaves-int8", f"quantize {_listed(others)}, or keep {producer.op_type} {producer.name} in float"
    if not writes_low and any(u.node.op_type == DYNAMIC_QUANTIZE for u in value.uses()):
        return "enters-int8", f"give it a static scale, which no inference has to find, or keep {_listed(low)} in float"
    if not writes_low:
        return "enters-int8", f"let {producer.op_type} {producer.name} run on integers, or keep {_listed(low)} in float"
    if others:
        counted = [n for n in others if n.op_type not in _SIZES_ONLY]
        if not counted:
            return "leaves-int8", f"let {_listed(others)} read the integers of {value.name}: their sizes are the same"
        return "leaves-int8", f"quantize {_listed(counted)}"
    return "requantized", f"give both sides of {value.name} the same scale and zero point"


def _listed(nodes: list[ir.Node]) -> str:
    names = [f"{n.op_type} {n.name}" for n in nodes[:2]]
    return " and ".join(names) + (f" and {len(nodes) - 2} more" if len(nodes) > 2 else "")


def _is_low_writer(node: ir.Node | None, found: Executed) -> bool:
    """Whether a node, or what it is folded into, ran on integers."""
    seen: set[ir.Node] = set()
    while node is not None and node not in seen:
        if str(node.name) in found.operators:
            return found.is_low(str(node.name))
        seen.add(node)
        node = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    return False


def _is_low_reader(node: ir.Node, found: Executed) -> bool:
    """Whether a node ran on integers, or vanished between nodes that did."""
    seen, left = {node}, [node]
    while left:
        each = left.pop()
        if str(each.name) in found.operators:
            if found.is_low(str(each.name)):
                return True
            continue
        for use in (u for v in each.outputs for u in v.uses()):
            if use.node.op_type == QUANTIZE:
                return True
            if use.node not in seen:
                seen.add(use.node)
                left.append(use.node)
    return False


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """The operators that read a value, behind its Q/DQ or beside it."""
    for read in _behind(value):
        yield from (u.node for u in read.uses() if u.node.op_type not in _PAIRS)


def _behind(value: ir.Value) -> Iterator[ir.Value]:
    """A value, and what Q and DQ nodes make of it."""
    left = [value]
    while left:
        each = left.pop()
        yield each
        left += [u.node.outputs[0] for u in each.uses() if u.node.op_type in _PAIRS and u.idx == 0]


def _around(value: ir.Value) -> Iterator[str]:
    producer = value.producer()
    if producer is not None:
        yield str(producer.name)
    yield from (str(n.name) for n in _readers(value))
