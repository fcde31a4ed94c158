"""What is rejected on unseen samples, and how much more accuracy the next attempt asks for."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import onnx
import pytest

from inlay.run.confirm.contenders import Entry
from inlay.run.confirm.decision import Confirmed
from inlay.run.confirm.delivered import best_of, ratio_of
from inlay.run.confirm.verification import Rejected
from inlay.run.evaluate import Candidate
from inlay.run.plan import Effort
from inlay.run.result import Best
from inlay.targets.base import Artifact
from inlay.testing import Builder
from inlay.trial import Accuracy, Failed, Interval, Latency, Measured, Proposal, Trial
from inlay.types import Placement, Port, QType

FILE = Artifact(Path("model.onnx"), "digest")
QUANTIZED = Placement([(Port("conv", 0), QType.UINT8)])


def rejected(unseen: Accuracy | Failed, searched_db: float = 25.0, placement: Placement = QUANTIZED) -> Rejected:
    outcome = Measured(Latency(1e6, Interval(1.2, 1.1, 1.3), 9), Accuracy(True, searched_db))
    return Rejected(Candidate("key", Trial(Proposal(placement, "cut 1"), outcome), lambda: FILE, placement), unseen)


def outside(sqnr_db: float) -> Accuracy:
    return Accuracy(False, sqnr_db, reason=f"SQNR of output y is {sqnr_db} dB, below 20 dB")


def confirmed(*found: Rejected) -> Confirmed:
    return Confirmed(cast(Best, SimpleNamespace()), 1.0, FILE.path, Placement(), found, Effort(5, 1, 3, 8))


def test_the_next_attempt_asks_for_what_was_missing() -> None:
    assert rejected(outside(17.0)).least_db(20.0) == pytest.approx(28.0)
    assert rejected(outside(19.99)).least_db(20.0) == pytest.approx(25.1), "another model, however narrow it was"
    assert rejected(outside(17.0)).least_db(None) == pytest.approx(28.0), "under a metric: half the noise"
    both = confirmed(rejected(outside(17.0)), rejected(outside(10.0), 24.0))
    assert both.least_db(20.0) == pytest.approx(34.0)
    assert confirmed().least_db(20.0) is None


def test_a_later_search_never_makes_the_result_worse() -> None:
    def decided(speedup: float, is_float: bool = False, proven: bool = True) -> Confirmed:
        gained = Interval(speedup, speedup, speedup)
        best = cast(Best, SimpleNamespace(is_float=is_float, confirmed=proven, speedup=gained))
        return replace(confirmed(), best=best)

    fallback, slower, faster = decided(1.3), decided(1.2), decided(1.4)
    assert fallback.or_better(faster) is faster
    assert fallback.or_better(slower) is fallback
    assert fallback.or_better(decided(1.5, proven=False)) is fallback
    assert fallback.or_better(decided(1.5, is_float=True)) is fallback
    assert decided(1.0, is_float=True).or_better(slower) is slower


def test_a_failure_on_unseen_samples_is_no_amount_of_noise() -> None:
    failed = rejected(Failed("accuracy", "out of memory"))
    assert failed.reason == "it failed on unseen samples: out of memory"
    assert failed.least_db(20.0) is None
    assert confirmed(rejected(outside(17.0)), failed).least_db(20.0) is None, "more accuracy would not mend it"


@pytest.mark.parametrize(
    "reference", [Interval(1.2, 0.0, math.inf), Interval(1.2, 1.1, math.inf), Interval(1.2, 1.1, 1.3)]
)
@pytest.mark.parametrize("gained", [Interval(2.4, 0.0, math.inf), Interval(2.4, 2.0, 3.0)])
def test_a_ratio_of_speedups_holds_what_both_leave_open(gained: Interval, reference: Interval) -> None:
    ratio = ratio_of(gained, reference)
    assert ratio.value == pytest.approx(2.0)
    assert ratio.low <= ratio.value <= ratio.high
    known = math.isfinite(gained.high) and reference.low > 0.0
    assert math.isfinite(ratio.high) == known


def test_float_is_told_from_quantized_models() -> None:
    assert rejected(outside(17.0), placement=Placement()).is_float
    assert not rejected(outside(17.0)).is_float


@pytest.mark.parametrize(
    ("placement", "pairs", "is_float"),
    [
        (Placement(), False, True),
        (None, False, True),  # the given model
        (None, True, False),
        (Placement([(Port("act", 0), QType.DYNAMIC)]), False, False),  # its kernels leave no Q/DQ nodes in the file
        (QUANTIZED, True, False),
    ],
)
def test_what_is_delivered_is_called_float_where_nothing_is_quantized(
    placement: Placement | None, pairs: bool, is_float: bool, tmp_path: Path
) -> None:
    b = Builder()
    x = b.input("x", (1, 4))
    scale = [b.constant("scale", np.array(0.5)), b.constant("zero", np.array(3, np.uint8))]
    given = b.node("dq", "DequantizeLinear", [b.node("q", "QuantizeLinear", [x, *scale]), *scale]) if pairs else x
    b.output(b.node("act", "Relu", [given]))
    onnx.save(b.model(), tmp_path / "model.onnx")
    file, gain = Artifact(tmp_path / "model.onnx", "digest"), Interval(1.2, 1.1, 1.3)
    outcome = Measured(Latency(1e6, gain, 9), Accuracy(True, 30.0))
    trial = Trial(Proposal(placement or Placement(), "cut 1"), outcome)
    best = best_of(Entry(Candidate("key", trial, lambda: file, placement), file, np.ones(3)), gain, gain, None)
    assert best.is_float is is_float
    assert best.qdq_pairs == pairs
