"""Histograms of the calibration samples, and qparams tables from their ranges, merged over domains."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from inlay.calibrate.scale_sharing import Sharing, choose_sharing
from inlay.data import Samples
from inlay.prepare.model import PreparedModel
from inlay.quant.calibrator import Observed, calibrate
from inlay.quant.observers import Method, Range
from inlay.quant.qparams import QParamsTable, constant_range
from inlay.space.domains import find_domains
from inlay.types import Placement, QParams, QType

FixedQParams = Mapping[tuple[str, QType], QParams]
"""QParams by value and type that replace the computed ones, such as those of an imported Q/DQ model."""


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
    fixed: FixedQParams | None = None,
    chosen: Mapping[str, Method] | None = None,
    weight_error_means: Mapping[str, np.ndarray] | None = None,
    flipped: Collection[str] = (),
) -> QParamsTable:
    """A qparams table from histograms: each value's range by ``method``, merged over its domain.

    Args:
        prepared: the model.
        observed: histograms.
        method: of calibration; it also decides what is shared.
        fixed: qparams that replace the computed ones.
        chosen: another method, by the domains of :func:`domains_of`.
        weight_error_means: by node, the mean error of its rounded weight, which its bias makes up for: (channels,).
        flipped: operators for which the opposite decision about sharing was measured to be better.
    """
    graph = prepared.graph
    domains = domains_of(prepared, observed, method, flipped)
    chosen = chosen or {}
    merged: dict[str, Range] = {}
    for value, histogram in observed.ranged.items():
        domain = domains.get(value, value)
        found = histogram.range(chosen.get(domain, method))
        merged[domain] = merged[domain] | found if domain in merged else found
    for value, domain in domains.items():
        constant = graph.constant(value)
        if constant is not None and domain in merged:
            merged[domain] = merged[domain] | constant_range(constant)
    ranges = {v: merged[domains.get(v, v)] for v in observed.histograms}
    for value, domain in domains.items():
        if domain in merged:
            ranges.setdefault(value, merged[domain])
    per_tensor = frozenset() if prepared.resolved is None else prepared.resolved.per_tensor
    return QParamsTable(prepared.graph, prepared.rules, ranges, fixed, per_tensor, weight_error_means)


def domains_of(
    prepared: PreparedModel, observed: Observed, method: Method, flipped: Collection[str] = ()
) -> Mapping[str, str]:
    """The domain of each value that shares its qparams with others, where ``method`` decides what is shared."""
    decisions = sharing_of(prepared, observed, method, flipped)
    return find_domains(prepared.graph, prepared.rules, {d.node for d in decisions if not d.share})


def sharing_of(
    prepared: PreparedModel, observed: Observed, method: Method, flipped: Collection[str] = ()
) -> tuple[Sharing, ...]:
    """Where :func:`table_from` shares one scale between an operator's values, and where it requantizes."""
    own = {value: histogram.range(method) for value, histogram in observed.histograms.items()}
    return choose_sharing(prepared.graph, prepared.rules, observed.histograms, own, flipped)
