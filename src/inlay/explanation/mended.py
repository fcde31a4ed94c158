"""A file mended: in a form that its target takes better, with some operators back in float, or with static scales.

Where an operator quantizes what it reads in each inference, and its weight is an integer constant, the float operator
between the float values is what it approximates: it rounds nothing, so that nothing is lost but the size of the file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from inlay.data import Samples
from inlay.errors import InlayError
from inlay.model.graph import build_graph
from inlay.model.load import ModelFile
from inlay.model.passes.names import fix_names
from inlay.quant.extract import Extraction
from inlay.quant.plain.form import constant_behind, write_plain
from inlay.quant.plain.graph import IntegerOperator, PlainGraph
from inlay.quant.qdq_fixes import make_unsigned
from inlay.quant.qdq_graph import DEQUANTIZE, DYNAMIC_QUANTIZE, QUANTIZE
from inlay.quant.site import Site, grid_of
from inlay.run.instant.one_shot import QuantizeRequest
from inlay.run.instant.quantize import quantize
from inlay.space.recipe import OpConfig, Recipe, RecipeRule, Scope
from inlay.space.rules import Rules
from inlay.targets.base import TargetSpec
from inlay.targets.preconditions import Precondition
from inlay.types import QType


def exact_form(model: ir.Model, rules: Rules, rows: Sequence[Precondition]) -> ir.Model | None:
    """A copy of a Q/DQ model with every exact mend, and activations in the target's own type where that is uint8.

    None where there is nothing to mend.
    """
    copy, _ = fix_names(model.clone())
    mended = False
    if rules.activation is QType.UINT8:
        for node in [n for n in copy.graph if n.op_type == QUANTIZE]:
            grid = grid_of(node)
            plain = all(u.node.op_type == DEQUANTIZE for u in node.outputs[0].uses())
            if grid is not None and grid.dtype is ir.DataType.INT8 and plain:
                make_unsigned(node)
                mended = True
    for node in list(copy.graph):
        if node.op_type in rules.ops:
            for row in rows:
                if row.exact and row.mend is not None and row.fault_at(Site(node, rules)) is not None:
                    row.mend(Site(node, rules))
                    mended = True
    RemoveUnusedNodesPass()(copy)
    return copy if mended else None


def put_back(model: ir.Model, operators: Sequence[IntegerOperator], names: Collection[str]) -> ir.Model | None:
    """A copy of ``model`` whose operators ``names`` are in float, where they quantize in each inference; None for none.

    Args:
        model: with operators on integers; is not changed.
        operators: rows of the targets, besides those of ONNX.
    """
    given, _ = fix_names(model.clone())
    found = write_plain(given.clone(), operators).replaced
    plain = write_plain(given, operators, {found[name][0] for name in names if name in found})
    nodes = {str(n.name): n for n in given.graph}
    changed = [name for name in plain.replaced if _unrounded(nodes[name], plain)]
    RemoveUnusedNodesPass()(given)
    return given if changed else None


def _unrounded(node: ir.Node, plain: PlainGraph) -> bool:
    """Let ``node`` read floats where they are quantized in each inference, and its constants in float."""
    floats: dict[int, ir.Value] = {}
    is_dynamic = False
    for slot, value in enumerate(node.inputs):
        dequantize = None if value is None else value.producer()
        integers = dequantize.inputs[0] if dequantize is not None and dequantize.op_type == DEQUANTIZE else None
        if integers is None or dequantize is None:
            continue
        source, array = integers.producer(), constant_behind(dequantize)
        if source is not None and source.op_type == DYNAMIC_QUANTIZE and source.inputs[0] is not None:
            floats[slot], is_dynamic = source.inputs[0], True
        elif array is not None:
            floats[slot] = plain.constant(f"{integers.name}_in_float", array)
    for slot, value in floats.items() if is_dynamic else ():
        node.replace_input_with(slot, value)
    return is_dynamic


def static_recipe(apart: Extraction, rules: Rules) -> Recipe | None:
    """What is quantized as in the file, with static scales where ``rules`` have no dynamic form; None for nothing."""
    graph = build_graph(apart.model)
    quantized = {port.node for port, _ in apart.placement}
    dynamic = {port.node for port, qtype in apart.placement if qtype.dynamic}
    forms = {t: f.name for f in rules.forms if f.activation is not None and f.activation.dynamic for t in f.ops}
    kinds = {graph.node(name).op_type for name in dynamic}
    if not any(kind in rules.ops and kind not in forms for kind in kinds):
        return None
    found = [RecipeRule(Scope.GLOBAL, "*", None)]
    for kind in sorted(kinds):
        config = OpConfig(form=forms[kind]) if kind in forms else OpConfig()
        found.append(RecipeRule(Scope.OP_TYPE, kind, config, optional=True))
    left = (n.name for n in graph.nodes if n.op_type in kinds and n.name not in quantized)
    found += [RecipeRule(Scope.NAME, re.sub(r"([*?\[])", r"[\1]", name), None, optional=True) for name in left]
    return Recipe(tuple(found))


def write_static(
    file: ModelFile, apart: Extraction, spec: TargetSpec, rules: Rules, samples: Samples, out: Path
) -> bool:
    """Write ``file`` to ``out`` with static scales for what finds ranges in each inference; whether there was any.

    A ``ConvInteger`` finds a range, rounds, and makes floats of its sums in kernels of their own; with a scale that
    samples give, one kernel does all that. What the target fuses as it is (a MatMul, an LSTM) goes on to quantize
    itself.
    """
    recipe = static_recipe(apart, rules)
    if recipe is None or samples.kind == "random":
        return False
    try:
        quantize(QuantizeRequest(file=file, target=spec, samples=samples, rules=recipe), out)
    except InlayError:  # whatever it is, the file can be mended in other ways
        return False
    return True
