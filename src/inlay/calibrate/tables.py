"""QParams tables from the histograms of calibration samples, and the choice that makes one of them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from inlay.calibrate.observe import Observed
from inlay.calibrate.share import Sharing, choose_sharing
from inlay.prepare.model import PreparedModel
from inlay.quant.gptq import NEAREST, Rounding
from inlay.quant.observers import ALL_METHODS, STRESS, Method, Range
from inlay.quant.qparams import QParamsTable, constant_range
from inlay.space.domains import find_domains
from inlay.trial import counted
from inlay.types import QParams, QType

FixedQParams = Mapping[tuple[str, QType], QParams]
"""QParams by value and type that replace the computed ones, such as those of an imported Q/DQ model."""
UNPROBED = "unprobed"
"""Key of a choice's report: it was not looked further, because models that probe ranges cannot be built."""


def domains_of(
    prepared: PreparedModel, observed: Observed, method: Method, flipped: Collection[str] = ()
) -> Mapping[str, str]:
    """The domain of each value that shares its qparams with others, where ``method`` decides what is shared."""
    decisions = sharing_of(prepared, observed, method, flipped)
    return find_domains(prepared.graph, prepared.rules, {d.node for d in decisions if not d.share})


def sharing_of(
    prepared: PreparedModel, observed: Observed, method: Method, flipped: Collection[str] = ()
) -> tuple[Sharing, ...]:
    """Where a table shares one scale between an operator's values, and where it requantizes."""
    own = {value: histogram.range(method) for value, histogram in observed.histograms.items()}
    return choose_sharing(prepared.graph, prepared.rules, observed.histograms, own, flipped)


WeightErrorMeans = Mapping[str, tuple[float, ...]]
"""By node, the mean error of each output channel that its rounded weight makes, in units of the output."""


def _method(name: str) -> Method:
    return ALL_METHODS[ALL_METHODS.index(name)]  # ValueError where there is none of that name


@dataclass(frozen=True)
class CalibrationChoice:
    """How the qparams of one run are made. It is journaled, so that a run that is continued has the same ones."""

    method: Method  # of calibration, for all domains but those in `chosen`; it also decides what is shared
    chosen: Mapping[str, Method] = field(default_factory=dict)  # another method, by the domains of `domains_of`
    weight_error_means: WeightErrorMeans = field(default_factory=dict)  # what quantized biases make up for
    # operators for which the target measured the opposite decision about sharing one scale to be better
    flipped: tuple[str, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)  # SQNR in dB of each method alone
    report: Mapping[str, Any] = field(default_factory=dict)  # what was found, for people
    cut: str = ""  # what the deadline left out, for people; empty where a faster machine would have chosen the same
    rounded: str = ""  # digest of `rounding`, which is kept beside the choice
    rounding: Rounding = field(default=NEAREST, compare=False)  # which weights are not rounded to nearest

    def rounding_by(self, rounding: Rounding) -> CalibrationChoice:
        """The same with weights rounded so."""
        return replace(self, rounded=rounding.digest, rounding=rounding)

    def correcting(self, means: Mapping[str, np.ndarray]) -> CalibrationChoice:
        """The same with biases that make up for these mean errors, by node: shape (channels,)."""
        return replace(self, weight_error_means={node: tuple(map(float, mean)) for node, mean in means.items()})

    def table(self, prepared: PreparedModel, observed: Observed, fixed: FixedQParams | None = None) -> QParamsTable:
        """The qparams themselves: each value's range from its histogram, merged over its domain.

        ``fixed`` qparams replace the computed ones.
        """
        graph = prepared.graph
        domains = domains_of(prepared, observed, self.method, self.flipped)
        merged: dict[str, Range] = {}
        for value, histogram in observed.ranged.items():
            domain = domains.get(value, value)
            found = histogram.range(self.chosen.get(domain, self.method))
            merged[domain] = merged[domain] | found if domain in merged else found
        for value, bounds in prepared.rules.reaches(graph).items():
            domain = domains.get(value, value)
            if domain in merged:
                merged[domain] = merged[domain] | Range(*bounds)
        for value, domain in domains.items():
            constant = graph.constant(value)
            if constant is not None and domain in merged:
                merged[domain] = merged[domain] | constant_range(constant)
        ranges = {v: merged[domains.get(v, v)] for v in observed.histograms}
        for value, domain in domains.items():
            if domain in merged:
                ranges.setdefault(value, merged[domain])
        per_tensor = frozenset() if prepared.resolved is None else prepared.resolved.per_tensor
        means = {node: np.array(mean, np.float64) for node, mean in self.weight_error_means.items()}
        return QParamsTable(graph, prepared.rules, ranges, fixed, per_tensor, means, self.rounding)

    def cuts(self, methods: int) -> list[str]:
        """What the deadline left out, of so many methods that were to be compared, for people."""
        compared = len(self.scores)
        fewer = [f"{compared} of {methods} ways to choose ranges tried"] if 0 < compared < methods else []
        return fewer + [self.cut] * bool(self.cut)

    @property
    def is_widened(self) -> bool:
        """Whether ranges rest on how far variations of the samples reach."""
        return STRESS in self.chosen.values()

    def digest(self, observed: Observed, *more: str) -> str:
        """16 hexadecimal digits that identify the table: this choice, the histograms, and what ``more`` names."""
        means = sorted(self.weight_error_means.items())
        choice = f"{self.method} {sorted(self.chosen.items())} {means} {self.flipped or ''}{self.rounded}"
        return hashlib.sha256(" ".join([observed.digest, choice, *more]).encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, Any]:
        """As plain data; see :meth:`from_json`."""
        return {
            "method": self.method,
            "chosen": dict(self.chosen),
            "shifts": {node: list(mean) for node, mean in self.weight_error_means.items()},
            "flipped": list(self.flipped),
            "scores": dict(self.scores),
            "report": dict(self.report),
            "cut": self.cut,
            "rounded": self.rounded,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CalibrationChoice:
        """The choice that gave ``data``."""
        means = {node: tuple(map(float, mean)) for node, mean in data["shifts"].items()}
        methods = {domain: _method(name) for domain, name in data["chosen"].items()}
        scores = {name: float(db) for name, db in data["scores"].items()}
        flipped = tuple(map(str, data["flipped"]))
        said = dict(data["report"]), str(data["cut"]), str(data.get("rounded", ""))
        choice = cls(_method(data["method"]), methods, means, flipped, scores, *said)
        str(choice)  # a report that cannot be printed is damaged
        return choice

    def __str__(self) -> str:
        report = self.report
        unprobed = "; no others tried: models to probe them cannot be built" if report.get(UNPROBED) else ""
        if "methods" not in report:
            return f"ranges by {self.method}{unprobed}"
        counts = ", ".join(f"{method} {count}" for method, count in report["methods"].items())
        bias = "biases corrected" if report["bias_correction"] else "biases unchanged"
        before, after = report["before_db"], report["after_db"]
        what = "full INT8" if report["whole"] else "the part near the bound"
        gain = f"{before:.1f} dB -> {after:.1f} dB on the samples that choose ranges"
        rounded = report.get("rounded_weights")
        bias += f", {counted(rounded, 'weight')} rounded to suit what operators read" if rounded else ""
        found = f"ranges by {counts}; {bias}: {what} {gain}, in {counted(report['runs'], 'trial')}{unprobed}"
        if not report.get("widened"):
            return found
        before, after = report["varied_before_db"], report["varied_after_db"]
        price = f"at a cost of {report['price_db']:.1f} dB"
        wider = f"{counted(report['widened'], 'range')} widened"
        return f"{found}; {wider}: {before:.1f} dB -> {after:.1f} dB on variations, {price}"
