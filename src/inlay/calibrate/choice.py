"""The outcome of calibration as a frozen value: it makes the same qparams table again from the same histograms."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inlay.calibrate.tables import FixedQParams, table_from
from inlay.prepare.model import PreparedModel
from inlay.quant.calibrator import Observed
from inlay.quant.observers import Method
from inlay.quant.qparams import QParamsTable

WeightErrorMeans = Mapping[str, tuple[float, ...]]
"""By node, the mean error of each output channel that its rounded weight makes, in units of the output."""


@dataclass(frozen=True)
class CalibrationChoice:
    """How the qparams of one run are made. It is journaled, so that a run that is continued has the same ones.

    Attributes:
        method: of calibration, for all domains but those in ``chosen``.
        chosen: another method, by domain.
        weight_error_means: what quantized biases make up for.
        flipped: operators for which the target measured the opposite decision about sharing one scale to be better.
        scores: SQNR in dB of each method alone.
        report: what was found, for people.
    """

    method: Method
    chosen: Mapping[str, Method] = field(default_factory=dict)
    weight_error_means: WeightErrorMeans = field(default_factory=dict)
    flipped: tuple[str, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)

    def table(self, prepared: PreparedModel, observed: Observed, fixed: FixedQParams | None = None) -> QParamsTable:
        """The qparams themselves; ``fixed`` ones replace the computed ones."""
        means = {node: np.array(mean, np.float64) for node, mean in self.weight_error_means.items()}
        return table_from(prepared, observed, self.method, fixed, self.chosen, means, self.flipped)

    @property
    def identity(self) -> str:
        """Text that distinguishes this choice from every other one."""
        means = sorted(self.weight_error_means.items())
        return f"{self.method} {sorted(self.chosen.items())} {means} {self.flipped or ''}"

    def digest(self, observed: Observed, *more: str) -> str:
        """16 hexadecimal digits that identify the table: this choice, the histograms, and what ``more`` names."""
        return hashlib.sha256(" ".join([observed.digest, self.identity, *more]).encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, Any]:
        """As plain data; see :meth:`from_json`."""
        return {
            "method": self.method,
            "chosen": dict(self.chosen),
            "shifts": {node: list(mean) for node, mean in self.weight_error_means.items()},
            "flipped": list(self.flipped),
            "scores": dict(self.scores),
            "report": dict(self.report),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CalibrationChoice:
        """The choice that gave ``data``."""
        means = {node: tuple(mean) for node, mean in data["shifts"].items()}
        return cls(data["method"], data["chosen"], means, tuple(data["flipped"]), data["scores"], data["report"])

    def __str__(self) -> str:
        report = self.report
        if not report:
            return f"ranges by {self.method}"
        counts = ", ".join(f"{method} {count}" for method, count in report["methods"].items())
        bias = "biases corrected" if report["bias_correction"] else "biases as they were"
        before, after = report["before_db"], report["after_db"]
        what = "full INT8" if report["whole"] else "the part near the bound"
        gain = f"{before:.1f} dB -> {after:.1f} dB on unseen samples"
        return f"ranges by {counts}; {bias}: {what} {gain}, in {report['seconds']:.1f} s"
