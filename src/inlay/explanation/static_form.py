"""A file whose operators quantize in each inference, with static scales for those that have kernels only for these.

A ``ConvInteger`` finds a range, rounds, and makes floats of its sums in kernels of their own; with a scale that samples
give, one kernel does all that. What the target fuses as it is (a MatMul, an LSTM) goes on to quantize itself.
"""

from __future__ import annotations

import re
from pathlib import Path

from inlay.data import Samples, input_specs
from inlay.errors import InlayError
from inlay.model.graph import build_graph
from inlay.model.load import ModelFile
from inlay.quant.extract import Extraction
from inlay.run.instant.one_shot import QuantizeRequest
from inlay.run.instant.quantize import quantize
from inlay.space.recipe import OpConfig, Recipe, RecipeRule, Scope
from inlay.space.rules import Rules
from inlay.targets.base import TargetSpec


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
    """Write such a form of ``file`` to ``out``, if it has one; whether it was written."""
    recipe = static_recipe(apart, rules)
    if recipe is None or samples.kind == "random":
        return False
    specs = input_specs(file.model)
    try:
        quantize(QuantizeRequest(file=file, target=spec, samples=samples, specs=specs, rules=recipe), out)
    except InlayError:  # whatever it is, the file can be mended in other ways
        return False
    return True
