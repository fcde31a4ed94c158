"""Local functions become part of the graph: what is inside a call is quantized like any other operator.

Runtimes do the same before anything else, in the opset of the model, whatever the function states. Where the two state
different versions of an operator, the file says two things, and is left as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from functools import cache

import onnx
import onnx_ir as ir

from inlay.errors import ModelError, TargetError
from inlay.model.metadata import cloned
from inlay.model.onnx_library import inline_functions
from inlay.model.passes.names import free_name

MAX_INLINED = 100_000  # nodes after local functions became part of the graph; larger models exist as experiments only


def inlined(model: ir.Model) -> ir.Model:
    """``model`` without local functions, in a copy; all nodes and values have names of their own.

    Raises:
        ModelError: functions call themselves, expand to more than ``MAX_INLINED`` nodes, are handed bodies, or are
            written for another version of an operator than the model.
    """
    size, called = _size(model)
    if size > MAX_INLINED:
        raise ModelError(f"its local functions expand to more than {MAX_INLINED} operators")
    copy = cloned(model)
    for unused in copy.functions.keys() - called:
        del copy.functions[unused]
    for function in copy.functions.values():
        _agree(function, copy.opset_imports)
        for node in function.all_nodes():
            node.name = node.name or f"{function.name}/{node.op_type}"
    for node in (*copy.graph.all_nodes(), *(n for f in copy.functions.values() for n in f.all_nodes())):
        _complete(node, copy.functions.get(node.op_identifier()))
    try:
        copy = inline_functions(copy)
    except TargetError as error:
        raise ModelError(f"its local functions cannot be inlined: {error}") from error
    _name_apart(copy)
    return copy


def _size(model: ir.Model) -> tuple[int, frozenset[ir.OperatorIdentifier]]:
    """The number of nodes once all calls are expanded, and what is called. Raises ModelError where one calls itself."""
    sizes: dict[ir.OperatorIdentifier, int] = {}

    def size(nodes: Iterable[ir.Node], within: tuple[ir.OperatorIdentifier, ...]) -> int:
        total = 0
        for node in nodes:
            called = node.op_identifier()
            if called in within:
                raise ModelError(f"its local function {called[1]} calls itself")
            if called in model.functions and called not in sizes:
                sizes[called] = size(model.functions[called].all_nodes(), (*within, called))
            total += sizes.get(called, 1)
        return total

    return size(model.graph.all_nodes(), ()), frozenset(sizes)


def _agree(function: ir.Function, imports: Mapping[str, int]) -> None:
    """Let ``function`` import what the model imports, where its operators mean the same so. Raises ModelError."""
    for domain, own in function.opset_imports.items():
        version = imports.get(domain, own)
        for node in function.all_nodes():
            if node.domain == domain and not same_operator(domain, node.op_type, own, version):
                raise ModelError(
                    f"its local function {function.name} is written for opset {own} of {domain or 'ai.onnx'}, the "
                    f"model for {version}, and {node.op_type} differs between them"
                )
        function.opset_imports[domain] = version


def _complete(node: ir.Node, called: ir.Function | None) -> None:
    """Let a call state the attributes that its function has defaults for. Raises ModelError where it does not fit."""
    if called is None:
        return
    if len(node.inputs) > len(called.inputs):
        raise ModelError(
            f"its local functions cannot be inlined: {node.name or node.op_type} has {len(node.inputs)} inputs, "
            f"{called.name} takes {len(called.inputs)}"
        )
    for name, attribute in called.attributes.items():
        if attribute.value is not None and name not in node.attributes:
            node.attributes.add(attribute)


@cache
def same_operator(domain: str, op_type: str, own: int, version: int) -> bool:
    """Whether an operator is the same in two versions of its domain, as far as ONNX knows it."""
    if own == version:
        return True
    with contextlib.suppress(onnx.defs.SchemaError):
        one, other = (onnx.defs.get_schema(op_type, v, domain) for v in (own, version))
        return bool(one.since_version == other.since_version)
    return True


def _name_apart(model: ir.Model) -> None:
    """Rename values of bodies that are called like another one: a body hides what is around it."""
    taken: dict[str, ir.Value] = {}
    for graph in model.graphs():
        for value in (*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)):
            if value.name and taken.setdefault(value.name, value) is not value:
                value.name = free_name(value.name, taken)
                taken[value.name] = value
