"""A model made ready for search: normalized, indexed, calibrated, and able to turn a placement into a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from inlay.data import Samples
from inlay.errors import ModelError, TargetError, UsageError
from inlay.model.graph import Graph, build_graph
from inlay.model.load import ModelFile, file_sha256
from inlay.model.normalize import Normalized, normalize
from inlay.model.reference import EvaluateIn, run_model
from inlay.model.store import WeightStore, embed, external_bytes, relocate
from inlay.model.windows import Spread, spread_of
from inlay.quant.bands import bands_of, compute_in_bands
from inlay.quant.blocks import blocks_of, read_blocks
from inlay.quant.calibrate import Observed, calibrate, observe_shapes
from inlay.quant.emit import Emitter, Form
from inlay.quant.extract import Extraction, extract, is_quantized
from inlay.quant.observers import METHODS, Method, Range
from inlay.quant.qparams import QParamsTable, constant_range
from inlay.quant.sharing import Sharing, choose_sharing
from inlay.quant.spread import spread_transposed
from inlay.space.domains import find_domains
from inlay.space.recipe import Recipe
from inlay.space.resolve import Resolved, recipe_of, resolve
from inlay.space.searchspace import SearchSpace, find_space, select_nodes
from inlay.space.units import Unit, find_units, place
from inlay.targets.base import Artifact, Rules
from inlay.types import Placement, Port, QParams, QType
from inlay.version import __version__

EMBED_BYTES = 2_000_000_000
"""Models above this keep their weights in a file beside them: a protobuf message ends at 2 GiB."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A normalized model and its analysis for one target.

    Attributes:
        file: the model as it was given.
        normalized: what normalization made of it.
        extraction: what was taken out, when it was quantized already.
        graph: the indexed view, with the shapes of a real feed.
        rules: of the target.
        units: every unit, in topological order.
        store: weights; candidates are written beside it.
        emitter: writes candidates.
        allowed: names of the nodes that the search is restricted to; None for all.
        resolved: what the user's recipe amounts to; None without one.
    """

    file: ModelFile
    normalized: Normalized
    extraction: Extraction | None
    graph: Graph
    rules: Rules
    units: tuple[Unit, ...]
    store: WeightStore
    emitter: Emitter
    allowed: frozenset[str] | None = None
    resolved: Resolved | None = None

    def space(self, **limits: int) -> SearchSpace:
        """Regions, patterns and insertion points, with the limits of :func:`~inlay.space.searchspace.find_space`."""
        return find_space(self.graph, self.rules, None, self.allowed, **limits)

    @property
    def selectable(self) -> tuple[Unit, ...]:
        """Units that can run in low precision."""
        return tuple(u for u in self.units if u.selectable)

    @property
    def offsets(self) -> frozenset[Port]:
        """Weights that may be stored off zero, to run in another kernel; each has one reader, which has no groups."""
        units = [u for u in self.selectable if u.op_type in self.rules.kernels_off_zero]
        whole = [u for u in units if self.graph.node(u.name).attributes.get("group", 1) == 1]
        ports = [p for u in whole for p in u.weights]
        return frozenset(p for p in ports if len(self.graph.consumers(self.graph.value_of(p))) == 1)

    def label(self, names: frozenset[str]) -> Placement:
        """The placement in which the named units run in low precision."""
        return place(self.graph, self.units, self.rules, lambda u: u.name in names)


def prepare(
    file: ModelFile,
    rules: Rules,
    feed: Mapping[str, np.ndarray],
    folder: Path,
    nodes: Sequence[str] = (),
    recipe: Recipe | None = None,
) -> Prepared:
    """Normalize and index a model.

    Args:
        file: the model.
        rules: of the target.
        feed: real inputs, for checking the passes and for shapes.
        folder: for scratch files; must stay as long as the result is used.
        nodes: globs over node names; only units with a matching node may be quantized. Empty for all.
        recipe: rules of the user; units that these keep in float are left alone.

    Raises:
        ModelError: the model does not run.
        UsageError: a glob or a rule of the recipe matches no node.
    """
    extraction = extract(file.model) if is_quantized(file.model) else None
    model = file.model if extraction is None else extraction.model
    scratch = WeightStore(_fresh(folder, "normalize"))
    try:
        normalized = normalize(
            model, EvaluateIn(folder), lambda m: run_model(m, scratch, feed), rewrites=rules.rewrites
        )
    except TargetError as error:
        raise ModelError(f"{file.path} does not run: {error}") from error
    scratch.path.unlink()
    graph = build_graph(normalized.model)
    forms = _forms(graph, rules)  # by the sizes that the model fixes, not by those of the samples
    store = WeightStore(folder)
    emitter = Emitter(normalized.model, graph, store)
    graph = _with_shapes(graph, emitter.base, store, feed)
    emitter = Emitter(normalized.model, graph, store, forms)
    units = find_units(graph, _usable(rules, graph))
    allowed = None
    if nodes:
        allowed = select_nodes(graph, nodes)
        units = tuple(u if allowed & set(u.nodes) else replace(u, refusal="it is left out by --nodes") for u in units)
    prepared = Prepared(file, normalized, extraction, graph, rules, units, store, emitter, allowed)
    return prepared if recipe is None else restrict(prepared, recipe)


def _forms(graph: Graph, rules: Rules) -> list[Form]:
    """What operators of ``graph`` become in low precision, as far as the target wants it."""
    blocks = {n.name: b for n in graph.nodes if (b := blocks_of(graph, n, rules.block_channels)) is not None}
    transposed = [n for n in graph.nodes if n.op_type == "ConvTranspose" and rules.spreads_transposed]
    spreads = {n.name: s for n in transposed if isinstance(s := spread_of(graph, n), Spread)}
    forms: list[Form] = []
    if spreads:
        forms.append(partial(spread_transposed, spreads=spreads, absorbed=rules.absorbed))
    # bands before blocks: these let more than one node read a value's integers
    whole = [n for n in graph.nodes if rules.large_sums and n.name not in blocks]
    bands = {n.name: b for n in whole for b in [bands_of(graph, n, rules.large_sums, rules.band_sums)] if b}
    if bands:
        forms.append(partial(compute_in_bands, bands=bands, absorbed=rules.absorbed))
    if blocks:
        forms.append(partial(read_blocks, blocks=blocks))
    return forms


def restrict(prepared: Prepared, recipe: Recipe) -> Prepared:
    """``prepared`` with the units that ``recipe`` keeps in float left out, and in the recipe's type.

    Raises:
        UsageError: a rule matches nothing, asks for a type that the target lacks, or several types are asked for.
    """
    resolved = resolve(recipe, prepared.graph, prepared.units, prepared.rules)
    types = {*resolved.types.values(), *resolved.io.values()}
    if len(types) > 1:
        named = ", ".join(sorted(t.value for t in types))
        raise UsageError(f"--recipe: a search works with one type of activations, the recipe names {named}")
    kept = resolved.kept_float
    units = tuple(replace(u, refusal=f"{kept[u.name]} (--recipe)") if u.name in kept else u for u in prepared.units)
    barred = {n for u in prepared.units if u.name in kept for n in u.nodes}
    allowed = prepared.allowed if prepared.allowed is not None else frozenset(n.name for n in prepared.graph.nodes)
    rules = replace(prepared.rules, activation=types.pop()) if types else prepared.rules
    return replace(prepared, units=units, rules=rules, allowed=allowed - barred, resolved=resolved)


def recipe_for(prepared: Prepared, placement: Placement) -> Recipe:
    """A recipe that gives ``placement`` on this model, whatever recipe restricted the search."""
    per_tensor = frozenset() if prepared.resolved is None else prepared.resolved.per_tensor
    return recipe_of(placement, prepared.graph, prepared.units, prepared.rules, per_tensor)


def _usable(rules: Rules, graph: Graph) -> Rules:
    """``rules`` as far as the model's opset has Q/DQ nodes for them (it is raised before, unless that failed)."""
    if graph.opset < 10:
        return Rules(rules.activation, ops={})
    return rules


def _with_shapes(graph: Graph, proto: onnx.ModelProto, store: WeightStore, feed: Mapping[str, np.ndarray]) -> Graph:
    values = [v for n in graph.nodes for v in n.outputs if v]
    shapes, dtypes = observe_shapes(proto, store, values, feed)
    shapes.update({name: tuple(a.shape) for name, a in feed.items()})
    return Graph(
        graph.nodes,
        graph.inputs,
        graph.outputs,
        graph.initializers,
        {**graph.dtypes, **dtypes},
        {**graph.shapes, **shapes},
        graph.opset,
    )


def _fresh(folder: Path, name: str) -> Path:
    inner = folder / name
    inner.mkdir(exist_ok=True)
    return inner


def observe(prepared: Prepared, samples: Samples, imported: Sequence[Placement] = ()) -> Observed:
    """Histograms of every activation that some placement may quantize, those of ``imported`` placements included."""
    graph = prepared.graph
    candidates = {graph.value_of(p) for u in prepared.selectable for p in u.activations}
    candidates |= {v for u in prepared.selectable for v in u.outputs}
    candidates |= {graph.value_of(p) for placement in imported for p, _ in placement}
    values = sorted(v for v in candidates if not graph.is_constant(v))
    return calibrate(prepared.emitter.base, prepared.store, graph, values, samples.feeds)


def table_from(
    prepared: Prepared,
    observed: Observed,
    method: Method,
    fixed: Mapping[tuple[str, QType], QParams] | None = None,
    chosen: Mapping[str, Method] | None = None,
    shifts: Mapping[str, np.ndarray] | None = None,
    flipped: Collection[str] = (),
) -> QParamsTable:
    """Numbers from histograms: each value's range merged over its domain.

    Args:
        prepared: the model.
        observed: histograms.
        method: how ranges are read off them; also decides what is shared.
        fixed: numbers that replace the computed ones.
        chosen: another method for these classes of values, by the names of :func:`classes_of`.
        shifts: by node, the mean error of its rounded weight, to be taken off the bias.
        flipped: operators for which the opposite decision about sharing was measured to be better.
    """
    graph = prepared.graph
    domains = classes_of(prepared, observed, method, flipped)
    chosen = chosen or {}
    merged: dict[str, Range] = {}
    for value, histogram in observed.ranged.items():
        key = domains.get(value, value)
        found = histogram.range(chosen.get(key, method))
        merged[key] = merged[key] | found if key in merged else found
    for value, key in domains.items():
        constant = graph.constant(value)
        if constant is not None and key in merged:
            merged[key] = merged[key] | constant_range(constant)
    ranges = {v: merged[domains.get(v, v)] for v in observed.histograms}
    for value, key in domains.items():
        if key in merged:
            ranges.setdefault(value, merged[key])
    per_tensor = frozenset() if prepared.resolved is None else prepared.resolved.per_tensor
    return QParamsTable(prepared.graph, prepared.rules, ranges, fixed, per_tensor, shifts)


def classes_of(
    prepared: Prepared, observed: Observed, method: Method, flipped: Collection[str] = ()
) -> Mapping[str, str]:
    """The class of each value that shares its numbers with others, where ``method`` decides what is shared."""
    choices = sharing(prepared, observed, method, flipped)
    return find_domains(prepared.graph, prepared.rules, {c.node for c in choices if not c.share})


def _own_ranges(observed: Observed, method: Method) -> dict[str, Range]:
    return {value: histogram.range(method) for value, histogram in observed.histograms.items()}


def sharing(
    prepared: Prepared, observed: Observed, method: Method, flipped: Collection[str] = ()
) -> tuple[Sharing, ...]:
    """Where :func:`table_from` shares one scale between an operator's values, and where it requantizes."""
    own = _own_ranges(observed, method)
    return choose_sharing(prepared.graph, prepared.rules, observed.histograms, own, flipped)


def choose_method(
    prepared: Prepared,
    observed: Observed,
    placement: Placement,
    judge: Callable[[QParamsTable], float],
    methods: Sequence[Method] = METHODS,
) -> tuple[Method, dict[str, float]]:
    """The method whose ranges leave the least error when ``placement`` is quantized.

    Args:
        prepared: the model.
        observed: histograms.
        placement: what is quantized for the comparison.
        judge: SQNR in dB of ``placement`` with a table; raises TargetError where it does not run.
        methods: to choose from; earlier ones win ties.
    """
    if not len(placement):
        return methods[0], {}
    scores: dict[str, float] = {}
    for method in methods:
        try:
            scores[method] = judge(table_from(prepared, observed, method))
        except TargetError:
            continue
    best = max(methods, key=lambda m: (scores.get(m, -np.inf), -methods.index(m)))
    return best, scores


def metadata(target: str, placement: Placement, calibration: str) -> dict[str, str]:
    """What a written model says about its origin."""
    return {
        "inlay.version": __version__,
        "inlay.target": target,
        "inlay.placement": placement.digest,
        "inlay.calibration": calibration,
    }


class Candidates:
    """Placements as files that a target can build.

    Args:
        prepared: the model.
        table: numbers; also an attribute.
        calibration: digest of ``table``'s origin.
        target: fingerprint of the target, for the metadata.
    """

    def __init__(self, prepared: Prepared, table: QParamsTable, calibration: str, target: str) -> None:
        self._prepared = prepared
        self.table = table
        self._calibration = calibration
        self._target = target

    def key(self, placement: Placement) -> str:
        """Identifies the model that ``placement`` gives with these numbers."""
        return hashlib.sha256(f"{placement.digest} {self._calibration}".encode()).hexdigest()[:16]

    def proto(self, placement: Placement) -> onnx.ModelProto:
        """The model, with weights in the store. Raises ModelError."""
        facts = metadata(self._target, placement, self._calibration) if len(placement) else {}
        return self._prepared.emitter.emit(placement, self.table, facts)

    def write(self, placement: Placement) -> Artifact:
        """The model as a small file beside the store. Raises ModelError."""
        key = self.key(placement)
        path = self._prepared.store.folder / f"candidate-{key}.onnx"
        path.write_bytes(self.proto(placement).SerializeToString())
        return Artifact(path, key)

    def deliver(self, placement: Placement, path: Path) -> Artifact:
        """The model as a file of its own (with a data file beside it above 2 GB), digest over its bytes."""
        return deliver(self.proto(placement), self._prepared.store, path)


def deliver(proto: onnx.ModelProto, store: WeightStore, path: Path) -> Artifact:
    """Write ``proto`` to ``path`` with its weights inside, or in ``<path>.data`` when they exceed 2 GB."""
    if external_bytes(proto) <= EMBED_BYTES:
        path.write_bytes(embed(proto, store).SerializeToString())
    else:
        data = path.with_name(path.name + ".data")
        path.write_bytes(relocate(proto, store, data).SerializeToString())
    return Artifact(path, file_sha256(path))
