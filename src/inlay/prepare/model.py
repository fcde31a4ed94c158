"""A model made ready for search: normalized, indexed, calibrated, and able to turn a placement into a file."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx import helper

from inlay.data import TUNED, common_sizes, input_specs
from inlay.errors import CompileFailed, Late, ModelError, TargetError, UsageError
from inlay.model.gc_pause import gc_paused
from inlay.model.graph import Graph, build_graph
from inlay.model.joins import joining_tails, joins_within
from inlay.model.load import ModelFile
from inlay.model.normalize import RAISE_OPSET, WIDENED, Normalized, normalize
from inlay.model.passes.constants import correct_shapes
from inlay.model.passes.opset import FIRST_QDQ_OPSET
from inlay.model.pieces import Inference, PiecewiseSession, run_model, run_visibly
from inlay.model.reference import ConstantEvaluator
from inlay.model.store import WeightStore
from inlay.prepare.strip_qdq import strip_qdq
from inlay.quant.emit import Emitter
from inlay.quant.extract import Extraction
from inlay.quant.fake_quant import NoiseProbe
from inlay.quant.qparams import QParamsTable
from inlay.quant.uneven import find_uneven
from inlay.space.masks import find_masks
from inlay.space.recipe import Recipe, select_nodes
from inlay.space.resolve import Resolved, resolve
from inlay.space.rules import Rules
from inlay.space.units import Unit, able_in_half, find_units, placement_from_precisions, static_types
from inlay.targets.base import Capabilities
from inlay.types import Placement, PortRewrite


@dataclass(frozen=True, eq=False)
class Request:
    """What a model is prepared for, and on: the same for every form of it."""

    target: Capabilities  # what the target runs, and its rewrites
    nodes: Sequence[str] = ()  # globs over node names; only units with a matching node may be quantized. Empty for all
    recipe: Recipe | None = None  # rules of the user; units that these keep in float are left alone
    # branches of Ifs, by their tags, that no sample takes, so that ranges in them are not known
    untaken: frozenset[str] = frozenset()
    # samples, by number, that together run every body that some sample runs, with how many each stands for
    shown: tuple[tuple[int, int], ...] = ((0, 1),)
    # the input that the model was found to go by where samples hold padding; empty where that is not known
    padded_by: str = ""
    # what written models say that they are for: facts of the target's fingerprint
    tuned_for: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedModel:
    """A normalized model and its analysis for one target."""

    file: ModelFile  # the model as it was given
    request: Request  # what it was prepared for
    normalized: Normalized  # what normalization made of it
    extraction: Extraction | None  # what was taken out, when it was quantized already
    graph: Graph  # the indexed view, with the shapes of a real feed
    rules: Rules  # of the target
    units: tuple[Unit, ...]  # every unit, in topological order
    store: WeightStore  # weights; candidates are written beside it
    emitter: Emitter  # writes candidates
    allowed: frozenset[str] | None = None  # names of the nodes that the search is restricted to; None for all
    resolved: Resolved | None = None  # what the user's recipe amounts to; None without one
    # units that do not compute in the base's half precision although they can, by name, each with why
    kept_wide: Mapping[str, str] = field(default_factory=dict)

    @property
    def selectable(self) -> tuple[Unit, ...]:
        """Units that can run in low precision."""
        return tuple(u for u in self.units if u.selectable)

    @property
    def is_rewritten(self) -> bool:
        """Whether float rewrites of the target changed the model: it may be faster than the given one without Q/DQ."""
        names = {rewrite.name for rewrite in self.request.target.float_rewrites}
        return any(report.edits and report.name in names for report in self.normalized.reports)

    @property
    def selectable_rewrites(self) -> frozenset[PortRewrite]:
        """What a placement may select: at the weight of each unit that a selectable rewrite applies to.

        Weights with several readers are left out: a rewrite that pays for one reader may cost another.
        """
        return frozenset(
            PortRewrite(port, name)
            for unit in self.selectable
            for port in unit.weights
            for name in self.emitter.selectable_rewrites(port.node)
            if len(self.graph.consumers(self.graph.value_of(port))) == 1
        )

    def probe(self, table: QParamsTable, units: Sequence[Unit] | None = None, *, briefly: bool = False) -> NoiseProbe:
        """What measures the noise of placements: the float model, in an opset that has every static type of a label.

        Args:
            units: whose values it quantizes; None for all.
            briefly: the runtime is to spend little time on its form.

        Raises:
            CompileFailed: the model cannot be raised to that opset.
        """
        units = self.units if units is None else units
        try:
            base = self.emitter.base_for(static_types(self.units, self.rules))
        except ModelError as error:
            raise CompileFailed(str(error)) from error
        return NoiseProbe(base, self.store, self.graph, units, self.rules, table, briefly=briefly)

    def tuned_for(self, facts: Mapping[str, str]) -> PreparedModel:
        """The same, whose written models say that they are for a target with these facts of a fingerprint."""
        return replace(self, request=replace(self.request, tuned_for=facts))

    def with_model(
        self, model: ir.Model, feed: Mapping[str, np.ndarray]
    ) -> tuple[PreparedModel, Mapping[str, np.ndarray]]:
        """The same with another form of the normalized model, and the outputs of that for ``feed``."""
        seen = run_visibly(model, self.store, feed)  # weights that stay are stored already
        normalized = replace(self.normalized, model=model)
        return _indexed(self.file, normalized, self.extraction, self.request, feed, seen), seen.outputs

    def label(self, precisions: Mapping[str, str] | Collection[str]) -> Placement:
        """The placement in which the named units have these precisions; static where only names are given."""
        return placement_from_precisions(self.graph, self.units, self.rules, precisions)


def prepare(
    file: ModelFile,
    target: Capabilities,
    feed: Mapping[str, np.ndarray],
    folder: Path,
    nodes: Sequence[str] = (),
    recipe: Recipe | None = None,
    extraction: Extraction | None = None,
    sizes: Mapping[str, int] | None = None,
) -> PreparedModel:
    """Normalize and index a model.

    Args:
        feed: real inputs, for checking the passes and for shapes.
        folder: for scratch files; must stay as long as the result is used.
        nodes: globs over node names; only units with a matching node may be quantized. Empty for all.
        recipe: rules of the user; units that these keep in float are left alone.
        extraction: the parts of a Q/DQ model, where they were found on more samples than ``feed`` already.
        sizes: of dynamic dimensions that are to be fixed, by symbol.

    Raises:
        ModelError: the model does not run.
        UsageError: a glob or a rule of the recipe matches no node, or the model is newer than written ones may be.
    """
    given = file.model.opset_imports.get("", 0)
    if target.max_opset is not None and given > target.max_opset:
        raise UsageError(
            f"--max-opset {target.max_opset}: {file.path} is in opset {given}, and no opset is lowered; export the "
            "model again for an older one"
        )
    for value in file.model.graph.outputs:
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            what = "sequence" if isinstance(value.type, ir.SequenceType) else "value of another kind"
            raise ModelError(f"{file.path}: its output {value.name} is a {what}, and only tensors can be compared")
    extraction = extraction or strip_qdq(file, [feed], folder)
    model = file.model if extraction is None else extraction.model
    specs = input_specs(file.model)
    runs, dynamic = _Runs(model, feed, folder), common_sizes(specs, [dict(feed)])
    fixed = {s.name: s.fixed for s in specs if s.fixed is not None}
    rewrites = (WIDENED, *target.float_rewrites) if target.rules.halves else target.float_rewrites
    try:
        normalized = normalize(
            model, ConstantEvaluator(folder), runs.outputs, rewrites=rewrites, sizes=sizes, values=fixed
        )
    except Late:
        raise
    except TargetError as error:
        raise ModelError(f"{file.path} does not run: {error}") from error
    seen = runs.last if runs.shown is normalized.model else None
    seen = seen or run_visibly(normalized.model, WeightStore(folder), feed)
    if correct_shapes(normalized.model, seen.shapes):  # it holds the model with what was false
        seen = run_visibly(normalized.model, WeightStore(folder), feed)
    if left := {name: size for name, size in dynamic.items() if name not in (sizes or {}) and size}:
        normalized.model.metadata_props[TUNED] = json.dumps(left)
        helper.set_model_props(seen.proto, dict(normalized.model.metadata_props))
    return _indexed(file, normalized, extraction, Request(target, nodes, recipe), feed, seen)


class _Runs:
    """Runs models on one feed, and remembers what the last one showed: it is what normalization ends with.

    Args:
        given: the model before normalization; of this one only the outputs are of interest.
        folder: for the weights of the model that was run last.
    """

    def __init__(self, given: ir.Model, feed: Mapping[str, np.ndarray], folder: Path) -> None:
        self._given, self._feed, self._folder = given, feed, folder
        self.shown: ir.Model | None = None
        self.last: Inference | None = None

    def outputs(self, model: ir.Model) -> Mapping[str, np.ndarray]:
        """Outputs of ``model``. Raises TargetError."""
        self.shown = self.last = None
        store = WeightStore(self._folder)  # anew: two models may call different weights the same
        if model is self._given:
            return run_model(model, store, self._feed)
        self.last, self.shown = run_visibly(model, store, self._feed), model
        return self.last.outputs


def _indexed(
    file: ModelFile,
    normalized: Normalized,
    extraction: Extraction | None,
    request: Request,
    feed: Mapping[str, np.ndarray],
    seen: Inference,
) -> PreparedModel:
    """The analysis of a model that is normalized already; ``seen`` is what an inference on ``feed`` showed of it."""
    target, nodes = request.target, request.nodes
    fixed = build_graph(normalized.model)  # rewrites decide by the sizes that the model fixes, not those of the samples
    store = seen.store
    graph = _as_seen(fixed, seen, feed)
    joins = joins_within(joining_tails(normalized.model), graph.shapes)
    graph = replace(graph, uneven=find_uneven(seen.joined, joins, target.rules.activation))
    emitter = Emitter(normalized.model, graph, store, target.rewrites, fixed, seen.proto)
    rules = _usable(target.rules, graph, normalized)
    units = _taken(find_units(graph, rules), graph, request.untaken)
    allowed = None
    if nodes:
        allowed = select_nodes(graph, nodes)
        units = tuple(
            u if allowed & set(u.nodes) else replace(u, rejection="it is left out by --nodes", forms={}) for u in units
        )
    emitter.able = able_in_half(units, rules)
    prepared = PreparedModel(
        file=file,
        request=request,
        normalized=normalized,
        extraction=extraction,
        graph=graph,
        rules=rules,
        units=units,
        store=store,
        emitter=emitter,
        allowed=allowed,
    )
    return prepared if request.recipe is None else restrict(prepared, request.recipe)


_ALIKE = 16
"""Samples that are looked at, at least, for how many take the same branches."""


def where_taken(prepared: PreparedModel, feeds: Sequence[Mapping[str, np.ndarray]]) -> PreparedModel:
    """``prepared`` with the units in branches and loops that none of ``feeds`` runs left in float.

    Raises:
        CompileFailed, RunFailed, Crashed, TimedOut: the model does not run.
    """
    graph = prepared.graph
    inside = {n.branch: v for n in reversed(graph.nodes) for v in n.outputs if n.branch and graph.is_float(v)}
    if not inside:
        return prepared
    session = PiecewiseSession(prepared.emitter.base, prepared.store, [*inside.values()])
    alike: dict[frozenset[str], list[int]] = {}  # samples, by what they run
    untaken = frozenset(inside)
    for number, feed in enumerate(feeds):
        if not untaken and (number >= _ALIKE or len(alike) == 1):
            break
        found = session.run(feed)
        taken = frozenset(branch for branch, value in inside.items() if value in found)
        alike.setdefault(taken, []).append(number)
        untaken -= taken
    shown = _covering(alike, frozenset(inside) - untaken)
    request = replace(prepared.request, untaken=untaken, shown=shown)
    return replace(prepared, request=request, units=_taken(prepared.units, graph, untaken))


def _covering(alike: Mapping[frozenset[str], Sequence[int]], every: frozenset[str]) -> tuple[tuple[int, int], ...]:
    """The first sample of few groups that together take ``every`` branch, and how many each stands for."""
    found, left = list[tuple[int, int]](), every
    while left:
        taken = max(alike, key=lambda group: (len(group & left), len(alike[group])))
        found.append((alike[taken][0], len(alike[taken])))
        left -= taken
    return tuple(found) or ((0, 1),)


def _taken(units: tuple[Unit, ...], graph: Graph, untaken: frozenset[str]) -> tuple[Unit, ...]:
    def reason(branch: str) -> str:
        what = "takes this branch of" if graph.node(branch[1:]).op_type == "If" else "runs the body of"
        return f"no sample {what} {branch[1:]}, so its ranges are not known"

    branches = {u.name: graph.node(u.name).branch for u in units}
    return tuple(
        replace(u, rejection=reason(branches[u.name]), forms={}) if branches[u.name] in untaken else u for u in units
    )


def restrict(prepared: PreparedModel, recipe: Recipe) -> PreparedModel:
    """``prepared`` with the units that ``recipe`` keeps in float left out, and the others in the recipe's types.

    Raises:
        UsageError: a rule matches nothing, names a type that the target lacks, or one for the model's inputs and
            outputs that no operator has.
    """
    resolved = resolve(recipe, prepared.graph, prepared.units, prepared.rules)
    types = set(resolved.types.values())
    outer = next((v for v, t in resolved.io.items() if types and t not in types), "")
    if outer:
        raise UsageError(
            f"--recipe: a search quantizes inputs and outputs in the types of operators; {outer} is to be "
            f"{resolved.io[outer].value}, operators are {', '.join(sorted(t.value for t in types))}"
        )
    kept = resolved.kept_float
    units = tuple(
        replace(u, rejection=f"{kept[u.name]} (--recipe)", forms={})
        if u.name in kept
        else replace(u, activation=resolved.types.get(u.name))
        for u in prepared.units
    )
    barred = {n for u in prepared.units if u.name in kept for n in u.nodes}
    allowed = prepared.allowed if prepared.allowed is not None else frozenset(n.name for n in prepared.graph.nodes)
    rules = prepared.rules.with_usual(types.pop()) if len(types) == 1 else prepared.rules
    return replace(prepared, units=units, rules=rules, allowed=allowed - barred, resolved=resolved)


def _usable(rules: Rules, graph: Graph, normalized: Normalized) -> Rules:
    """``rules`` as far as the model's opset has Q/DQ nodes for them (it is raised before, unless that failed)."""
    if graph.opset >= FIRST_QDQ_OPSET:
        return rules
    why = next((r.rolled_back for r in normalized.reports if r.name == RAISE_OPSET), "")
    barred = f"the model's opset {graph.opset} has no Q/DQ nodes, and it could not be raised{f': {why}' if why else ''}"
    if not graph.opset:
        barred = "the model has no operator of ONNX's own domain, which Q/DQ nodes are of"
    return replace(rules, ops={}, forms=(), barred=barred)


@gc_paused()
def _as_seen(graph: Graph, seen: Inference, feed: Mapping[str, np.ndarray]) -> Graph:
    fed = {name: tuple(a.shape) for name, a in feed.items()}
    given = {name: (float(a.min()), float(a.max())) for name, a in feed.items() if a.dtype.kind == "f" and a.size}
    found = Graph(
        nodes=graph.nodes,
        inputs=graph.inputs,
        outputs=graph.outputs,
        initializers=graph.initializers,
        dtypes={**graph.dtypes, **seen.dtypes},
        shapes={**graph.shapes, **seen.shapes, **fed},
        opset=graph.opset,
        infinite=seen.infinite,
        turns=seen.turns,
    )
    return replace(found, masks=find_masks(found, {**given, **seen.extremes}))
