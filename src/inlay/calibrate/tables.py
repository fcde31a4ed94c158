"""QParams tables from histograms: which method, which values share, merged over domains."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from inlay.calibrate.scale_sharing import Sharing, choose_sharing
from inlay.data import Samples
from inlay.errors import TargetError
from inlay.prepare.model import PreparedModel
from inlay.quant.calibrator import Observed, calibrate
from inlay.quant.observers import METHODS, Method, Range
from inlay.quant.qparams import QParamsTable, constant_range
from inlay.space.domains import find_domains
from inlay.types import Placement, QParams, QType


def observe(prepared: PreparedModel, samples: Samples, imported: Sequence[Placement] = ()) -> Observed:
    """Histograms of every activation that some placement may quantize, those of ``imported`` placements included."""
    graph = prepared.graph
    candidates = {graph.value_of(p) for u in prepared.selectable for p in u.activations}
    candidates |= {v for u in prepared.selectable for v in u.outputs}
    candidates |= {graph.value_of(p) for placement in imported for p, _ in placement}
    values = sorted(v for v in candidates if not graph.is_constant(v))
    return calibrate(prepared.emitter.base, prepared.store, graph, values, samples.feeds)


def table_from(
    prepared: PreparedModel,
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
    prepared: PreparedModel, observed: Observed, method: Method, flipped: Collection[str] = ()
) -> Mapping[str, str]:
    """The class of each value that shares its numbers with others, where ``method`` decides what is shared."""
    choices = sharing(prepared, observed, method, flipped)
    return find_domains(prepared.graph, prepared.rules, {c.node for c in choices if not c.share})


def _own_ranges(observed: Observed, method: Method) -> dict[str, Range]:
    return {value: histogram.range(method) for value, histogram in observed.histograms.items()}


def sharing(
    prepared: PreparedModel, observed: Observed, method: Method, flipped: Collection[str] = ()
) -> tuple[Sharing, ...]:
    """Where :func:`table_from` shares one scale between an operator's values, and where it requantizes."""
    own = _own_ranges(observed, method)
    return choose_sharing(prepared.graph, prepared.rules, observed.histograms, own, flipped)


def choose_method(
    prepared: PreparedModel,
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
