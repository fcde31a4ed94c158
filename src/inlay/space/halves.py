"""Which operators can compute in half precision, and at which of their inputs: as ONNX states the types they take."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache

import onnx

from inlay.model.graph import Graph, Node
from inlay.types import Port, QType

SIZES = frozenset({"Shape", "Size"})
"""Operators that do not read what their input holds, and take it in any type."""

ANY_TYPE = SIZES | {"Cast"}
"""Operators that take floats of any precision, whatever they compute in."""

_NOT = ANY_TYPE | {"CastLike", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "If", "Loop", "Scan"}


@dataclass(frozen=True)
class HalfForm:
    """An operator in half precision: which inputs and outputs may be halves; the last input may stand for more."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]
    is_variadic: bool

    def takes(self, slot: int) -> bool:
        """Whether input ``slot`` may be a half."""
        if slot < len(self.inputs):
            return self.inputs[slot]
        return self.is_variadic and self.inputs[-1]

    def gives(self, slot: int) -> bool:
        """Whether output ``slot`` is a half then; all outputs are where there are more than are known."""
        return self.outputs[min(slot, len(self.outputs) - 1)]


@cache
def half_form(op_type: str, opset: int, qtype: QType, outputs: int = 1) -> HalfForm | None:
    """How the standard operator computes in ``qtype``; None where it cannot, or what it gives would still be float32.

    Args:
        outputs: how many of its outputs count.
    """
    if op_type in _NOT:
        return None
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    both = {"tensor(float)", f"tensor({qtype.element})"}
    free = {c.type_param_str for c in schema.type_constraints if both <= set(c.allowed_type_strs)}
    floats = {c.type_param_str for c in schema.type_constraints if "tensor(float)" in c.allowed_type_strs}
    taken = [i.type_str in free for i in schema.inputs]
    bound = {i.type_str for i in schema.inputs}
    given = [o.type_str for o in schema.outputs[: max(outputs, 1)]]
    if not any(taken) or any(name in floats and (name not in free or name not in bound) for name in given):
        return None
    if "tensor(float)" in given or any(name.startswith(("seq(", "optional(")) for name in given):
        return None
    variadic = schema.inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    return HalfForm(tuple(taken), tuple(name in free for name in given), variadic)


def half_form_of(graph: Graph, node: Node, qtype: QType) -> HalfForm | None:
    """The same of a node of ``graph``."""
    if node.domain not in ("", "ai.onnx") or node.has_subgraph:
        return None
    named = max((i + 1 for i, v in enumerate(node.outputs) if v), default=1)
    return half_form(node.op_type, max(graph.opset, qtype.opset), qtype, named)


def half_sites(graph: Graph, nodes: Collection[Node], qtype: QType) -> tuple[tuple[Port, QType], ...]:
    """Every port of ``nodes`` that reads a half where all of them compute in it; empty where one of them cannot."""
    found: list[tuple[Port, QType]] = []
    for node in nodes:
        form = half_form_of(graph, node, qtype)
        slots = [i for i, v in enumerate(node.inputs) if v and graph.is_float(v) and form is not None and form.takes(i)]
        if not slots:
            return ()
        found += [(Port(node.name, slot), qtype) for slot in slots]
    return tuple(found)
